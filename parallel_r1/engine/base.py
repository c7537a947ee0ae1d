"""The protocol every rollout backend speaks, and the request it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from parallel_r1.types import Region, Rollout, Variant

if TYPE_CHECKING:
    from parallel_r1.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Request:
    """One response to be sampled. ``seed`` is (run seed, step, problem, sample), never the rank."""

    problem_id: str
    prompt_ids: tuple[int, ...]
    seed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One decoded token, for those who watch: which request, where it stands, forced or sampled."""

    request: int
    token_id: int
    region: Region
    forced: bool


TokenListener = Callable[[TokenEvent], None]


class Engine(Protocol):
    """A backend. ``generate`` returns rollouts in the order of the requests, whatever the batching."""

    variant: Variant
    weight_version: int

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        """Sample one response per request.

        Raises:
            ValueError: a setting the backend does not support, or a prompt with a tag id in it.
        """
        ...

    def load_weights(self, state_dict: dict | None = None) -> None:
        """Take new weights (None: they changed in place), drop every cache, bump ``weight_version``."""
        ...
