"""Decoding that depends on nobody else: every request gets forward passes of its own.

The numbers of a forward pass depend, in the last bits, on the shapes in it: a matrix product of 40 rows is summed
up in another order than one of 4. In a shared pass the shapes depend on who else is decoded. Here each request has a
session of its own, with room for one row, on an engine of its own; all engines share the model. So every
shape follows from the request alone. The price is one small pass per request and step instead of one large pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Engine, Finished, Request, Session, TokenListener
from parallel_r1.types import Rollout


@dataclass(slots=True)
class _Waiting:
    ticket: int
    request: Request
    config: EngineConfig | None
    on_token: TokenListener | None


class ApartSessions:
    """A `parallel_r1.engine.base.Session` made of one session per row."""

    def __init__(self, engines: Sequence[Engine], config: EngineConfig) -> None:
        self._stack = ExitStack()  # sessions close in reverse: each puts the model back as it found it
        one = config.model_copy(update={"max_rows": 1})
        self._sessions: list[Session] = []
        try:
            for engine in engines:
                self._sessions.append(self._stack.enter_context(engine.session(one)))
        except BaseException:
            self._stack.close()
            raise
        self._tickets: list[tuple[int, int] | None] = [None] * len(engines)
        """Per session: (our ticket, its ticket) of the request in it."""
        self._waiting: deque[_Waiting] = deque()
        self._next_ticket = 0

    def submit(
        self, request: Request, config: EngineConfig | None = None, on_token: TokenListener | None = None
    ) -> int:
        """See `parallel_r1.engine.base.Session.submit`. A request that has to wait is checked by the first session."""
        ticket = self._next_ticket
        waiting = _Waiting(ticket, request, config, _renamed(ticket, on_token))
        self._enter(waiting) if None in self._tickets else self._queue(waiting)
        self._next_ticket += 1
        return ticket

    def step(self) -> list[Finished]:
        """One forward pass per request in flight."""
        while self._waiting and None in self._tickets:
            self._enter(self._waiting.popleft())
        found: list[Finished] = []
        for place, session in enumerate(self._sessions):
            held = self._tickets[place]
            if held is None:
                continue
            found += [replace(finished, ticket=held[0]) for finished in session.step()]
            if not session.busy:  # ended, or cancelled by a listener
                self._tickets[place] = None
        return found

    def cancel(self, ticket: int) -> Rollout | None:
        """See `parallel_r1.engine.base.Session.cancel`."""
        for waiting in self._waiting:
            if waiting.ticket == ticket:
                self._waiting.remove(waiting)
                return self._unplayed(waiting)
        for place, held in enumerate(self._tickets):
            if held is not None and held[0] == ticket:
                rollout = self._sessions[place].cancel(held[1])
                if not self._sessions[place].busy:  # where a listener cancels, the step frees the place
                    self._tickets[place] = None
                return rollout
        return None

    @property
    def busy(self) -> bool:
        """Is anything queued or in flight?"""
        return bool(self._waiting) or any(held is not None for held in self._tickets)

    @property
    def num_active(self) -> int:
        """Requests that hold memory."""
        return sum(session.num_active for session in self._sessions)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a session, or in one for its next step."""
        return len(self._waiting) + sum(session.num_waiting for session in self._sessions)

    def close(self) -> None:
        """Close all sessions."""
        self._waiting.clear()
        self._tickets = [None] * len(self._tickets)
        self._stack.close()

    def __enter__(self) -> ApartSessions:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _enter(self, waiting: _Waiting) -> None:
        place = self._tickets.index(None)
        inner = self._sessions[place].submit(waiting.request, waiting.config, waiting.on_token)
        self._tickets[place] = waiting.ticket, inner

    def _queue(self, waiting: _Waiting) -> None:
        """Have it checked at once by a session that forgets it again."""
        self._unplayed(waiting)
        self._waiting.append(waiting)

    def _unplayed(self, waiting: _Waiting) -> Rollout | None:
        session = self._sessions[0]
        return session.cancel(session.submit(waiting.request, waiting.config))


def _renamed(ticket: int, on_token: TokenListener | None) -> TokenListener | None:
    if on_token is None:
        return None
    return lambda event: on_token(replace(event, request=ticket))
