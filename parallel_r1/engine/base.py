"""The protocol every rollout backend speaks: requests go in, tokens and rollouts come out.

There are two doors. `Engine.generate` takes a list of requests and returns their rollouts. Whoever has
requests coming and going (a server) opens a `Session`:

    with engine.session(config) as session:
        ticket = session.submit(request, config.model_copy(update={"paths": 2}), on_token=show)
        while session.busy:
            for done in session.step():
                answer(done.ticket, done.rollout)

`generate_all` is the first door in terms of the second, for every backend.
"""

from __future__ import annotations

import warnings
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
    """One decoded token, for those who watch: which request, where it stands, forced or sampled.

    ``request`` is the ticket of the request; under ``generate`` that is its index.
    """

    request: int
    token_id: int
    region: Region
    forced: bool


TokenListener = Callable[[TokenEvent], None]


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that has ended, with the ticket that `Session.submit` gave out."""

    ticket: int
    rollout: Rollout


@dataclass(slots=True)
class Counters:
    """What the model was made to do. Prefilled tokens are ``prompt_tokens + reread_tokens``."""

    passes: int = 0
    """Forward passes."""
    fed_tokens: int = 0
    """Tokens read, all in all."""
    prompt_tokens: int = 0
    """Tokens of prompts that were read; a prompt that several samples share counts once."""
    reread_tokens: int = 0
    """Tokens of later paths that a causal join had to read a second time."""
    sampled_tokens: int = 0


class Session(Protocol):
    """Requests in flight on one backend. A context manager; one thread at a time may use it.

    A rollout depends on its request and its settings alone, never on who is decoded beside it or on
    when it was submitted.
    """

    def submit(
        self, request: Request, config: EngineConfig | None = None, on_token: TokenListener | None = None
    ) -> int:
        """Queue a request and return its ticket: 0, 1, 2, ... in order of submission.

        Args:
            config: settings of this request alone (None: the session's). ``max_rows`` and ``memory_gb``
                belong to the session and are read from its own settings.
            on_token: hears of every token of this request, in the order in which they are decoded,
                inserted ones included. It may call `cancel` and `submit`. What it raises leaves `step`,
                and the session can then only be closed.

        Raises:
            ValueError: settings that the backend does not support, or a prompt that is empty, too long
                or holds a tag id. The session goes on without the request.
        """
        ...

    def step(self) -> list[Finished]:
        """One forward pass for all rows (after those that new prompts need); returns what has ended.

        A request whose logits are not finite ends with ``stop_reason = "error"`` and its
        ``Rollout.error`` says where; the others go on. Without anything to do the list is empty.
        """
        ...

    def cancel(self, ticket: int) -> Rollout | None:
        """Stop a request and free its memory at once.

        Returns what there was of it (``stop_reason = "cancelled"``, open paths side by side as far as they
        got), or None where the ticket is unknown or has ended already. `step` does not report it.
        """
        ...

    @property
    def busy(self) -> bool:
        """Is anything queued or in flight?"""
        ...

    @property
    def num_active(self) -> int:
        """Requests that hold memory."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        ...

    def close(self) -> None:
        """Drop everything in flight and put the model back as it was. Closing twice is allowed."""
        ...

    def __enter__(self) -> Session: ...

    def __exit__(self, *exc: object) -> None: ...


class Engine(Protocol):
    """A backend. ``generate`` returns rollouts in the order of the requests, whatever the batching."""

    variant: Variant
    weight_version: int

    def session(self, config: EngineConfig) -> Session:
        """Open a session whose requests are decoded under ``config`` unless they bring their own.

        Raises:
            ValueError: settings that the backend does not support.
        """
        ...

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        """Sample one response per request.

        Raises:
            ValueError: a setting the backend does not support, or a prompt with a tag id in it.
        """
        ...

    def load_weights(self, state_dict: dict | None = None) -> None:
        """Take new weights (None: they changed in place), drop every cache, bump ``weight_version``.

        Raises:
            ValueError: a session has requests in flight, whose keys belong to the old weights.
        """
        ...


def generate_all(session: Session, requests: Sequence[Request], on_token: TokenListener | None = None) -> list[Rollout]:
    """Submit every request to a fresh session and run it empty; rollouts in the order of the requests.

    Requests that end with an error are warned of and returned as they are.

    Raises:
        ValueError: a request that is refused, or an error in every one of them.
    """
    tickets = [session.submit(request, on_token=on_token) for request in requests]
    found: dict[int, Rollout] = {}
    while session.busy:
        found.update((done.ticket, done.rollout) for done in session.step())
    errors = [rollout.error for rollout in found.values() if rollout.error]
    if errors and len(errors) == len(tickets):
        raise ValueError(errors[0])
    if errors:
        warnings.warn(f"{len(errors)} of {len(tickets)} rollouts stopped; the first: {errors[0]}", stacklevel=3)
    return [found[ticket] for ticket in tickets]
