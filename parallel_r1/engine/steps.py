"""What a backend tells a `Branch` and what it is told: sampled tokens in, tokens to read out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from parallel_r1.types import Region, StopReason

MAIN = -1
"""The strand that is no path: main chain, summary, the number of paths and the tags between them."""


class Sampled(NamedTuple):
    """One sampled token with its numbers (see `parallel_r1.types.Rollout`)."""

    token: int
    engine_logp: float = 0.0
    sampling_logp: float = 0.0
    allowed_mass: float = 1.0


class Written(NamedTuple):
    """One token of the response, in canonical order."""

    token: int
    forced: bool
    engine_logp: float
    sampling_logp: float
    allowed_mass: float


class Feed(NamedTuple):
    """One token the model must read. ``sample``: the strand's next token is drawn from its logits."""

    token: int
    position: int
    strand: int
    sample: bool


class Step(NamedTuple):
    """What to do next."""

    feed: tuple[Feed, ...]
    rewind: bool = False
    """Causal join: first forget every path of the block but the first; ``feed`` brings the others back."""
    done: StopReason | None = None


Kind = Literal["main", "path", "summary", "block"]
Listener = Callable[[int, Region, bool], None]
"""Called with (token, region, forced) as tokens are decoded."""
