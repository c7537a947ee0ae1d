"""A backend that says what it is told: for tests of everything above the engine, and for demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request, TokenEvent, TokenListener
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

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        """See `parallel_r1.engine.base.Engine`."""
        rollouts = []
        for index, request in enumerate(requests):
            if self.tags is not None and not self.tags.all.isdisjoint(request.prompt_ids):
                raise ValueError(
                    f"problem {request.problem_id!r}: the prompt holds a tag id; tokenise user text with encode_prompt"
                )
            rollout, regions = self._play(request, config.max_response_tokens)
            rollouts.append(rollout)
            if on_token is not None:
                for token, region, forced in zip(rollout.response_ids, regions, rollout.forced, strict=True):
                    on_token(TokenEvent(index, token, region, forced))
        return rollouts

    def load_weights(self, state_dict: dict | None = None) -> None:
        """There are none; the version is bumped all the same."""
        self.weight_version += 1

    def _play(self, request: Request, limit: int) -> tuple[Rollout, list[Region]]:
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
