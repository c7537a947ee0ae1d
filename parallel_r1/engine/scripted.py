"""A backend that says what it is told: for tests of everything above the engine, and for demonstrations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Finished, Request, TokenEvent, TokenListener, generate_all
from parallel_r1.trace.tags import TagIds, parse_ids
from parallel_r1.types import Region, Rollout, Variant

Script = Callable[[Request], Sequence[int]]
"""From a request to the ids of its response, in canonical order."""


class ScriptedEngine:
    """Returns scripted responses, marked up as the tree engine would mark them.

    Tokens that an engine inserts (``<Path>``, ``</Parallel>``, newline, ``<Summary>`` of a block) are
    forced; the others carry ``logp`` as both log-probs. A response is cut at
    ``max_response_tokens``; one that does not end in a stop id counts as cut by its length.
    """

    def __init__(
        self, script: Script, tags: TagIds | None, stop_ids: Sequence[int], variant: Variant, logp: float = -0.5
    ) -> None:
        self.script, self.tags, self.stop_ids, self.logp = script, tags, frozenset(stop_ids), logp
        self.variant: Variant = variant
        self.weight_version = 0

    def session(self, config: EngineConfig) -> ScriptedSession:
        """See `parallel_r1.engine.base.Engine`. Each step plays one whole response."""
        return ScriptedSession(self, config)

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        """See `parallel_r1.engine.base.Engine`."""
        with self.session(config) as session:
            return generate_all(session, requests, on_token)

    def load_weights(self, state_dict: dict | None = None) -> None:
        """There are none; the version is bumped all the same."""
        self.weight_version += 1

    def play(self, request: Request, limit: int) -> tuple[Rollout, list[Region]]:
        """One response of at most ``limit`` tokens, and where each of its tokens stands."""
        ids = tuple(self.script(request))[:limit]
        stopped = bool(ids) and ids[-1] in self.stop_ids
        blocks = parse_ids(ids, self.tags, truncated=not stopped).blocks if self.tags is not None else ()
        regions = [Region("main")] * len(ids)
        forced = [False] * len(ids)
        critical = len(ids)
        for number, block in enumerate(blocks):
            for i in range(block.start, block.end):
                regions[i] = Region("block", number)
                forced[i] = i > block.start
            for path, span in enumerate(block.paths):
                for i in range(span.start, span.end):
                    regions[i] = Region("path", number, path)
                    forced[i] = i == span.start
            if block.summary_start is not None:
                for i in range(block.summary_start, block.end):
                    regions[i] = Region("summary", number)
                    forced[i] = i == block.summary_start
            lengths = [span.end - span.start for span in block.paths]
            critical -= sum(lengths) - max(lengths, default=0)
        logps = tuple(0.0 if f else self.logp for f in forced)
        rollout = Rollout(
            problem_id=request.problem_id, prompt_ids=tuple(request.prompt_ids), response_ids=ids,
            forced=tuple(forced), engine_logps=logps, sampling_logps=logps, allowed_mass=(1.0,) * len(ids),
            stop_reason="stop" if stopped else "length", truncated=not stopped, seed=tuple(request.seed),
            weight_version=self.weight_version, num_blocks=len(blocks), critical_tokens=critical,
        )  # fmt: skip
        return rollout, regions


class ScriptedSession:
    """See `parallel_r1.engine.base.Session`."""

    def __init__(self, engine: ScriptedEngine, config: EngineConfig) -> None:
        self.engine, self.config = engine, config
        self._waiting: deque[tuple[int, Request, EngineConfig, TokenListener | None]] = deque()
        self._next_ticket = 0

    def submit(
        self, request: Request, config: EngineConfig | None = None, on_token: TokenListener | None = None
    ) -> int:
        """See `parallel_r1.engine.base.Session.submit`."""
        tags = self.engine.tags
        if tags is not None and not tags.all.isdisjoint(request.prompt_ids):
            raise ValueError(
                f"problem {request.problem_id!r}: the prompt holds a tag id; tokenise user text with encode_prompt"
            )
        self._waiting.append((self._next_ticket, request, config or self.config, on_token))
        self._next_ticket += 1
        return self._next_ticket - 1

    def step(self) -> list[Finished]:
        """Play the next response."""
        if not self._waiting:
            return []
        ticket, request, config, on_token = self._waiting.popleft()
        rollout, regions = self.engine.play(request, config.max_response_tokens)
        if on_token is not None:
            for token, region, forced in zip(rollout.response_ids, regions, rollout.forced, strict=True):
                on_token(TokenEvent(ticket, token, region, forced))
        return [Finished(ticket, rollout)]

    def cancel(self, ticket: int) -> Rollout | None:
        """See `parallel_r1.engine.base.Session.cancel`; a response that has not been played has no tokens."""
        for waiting in self._waiting:
            if waiting[0] == ticket:
                self._waiting.remove(waiting)
                empty, _ = self.engine.play(waiting[1], 0)
                return replace(empty, stop_reason="cancelled")
        return None

    @property
    def busy(self) -> bool:
        """Is anything queued?"""
        return bool(self._waiting)

    @property
    def num_active(self) -> int:
        """Always 0: a response is played in one step."""
        return 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Drop what waits."""
        self._waiting.clear()

    def __enter__(self) -> ScriptedSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
