"""One answer while it comes: what may be shown of it, and the figures of its end."""

from __future__ import annotations

from typing import Any, Literal

from parallel_r1.engine.base import TokenEvent
from parallel_r1.serve.errors import ApiError
from parallel_r1.serve.scribe import Canonical, Decode, Piece, Scribe, StopTexts, merged
from parallel_r1.serve.worker import Ended, Job
from parallel_r1.trace.tags import TagIds, parse_ids
from parallel_r1.types import Rollout


class Choice:
    """Takes tokens, gives text.

    ``content`` is the main chain, ``reasoning`` everything inside of blocks, tags included. With ``show_trace``
    the content is the whole trace and there is no reasoning. Both come in the order of the finished text.
    """

    def __init__(self, job: Job, scribe: Scribe, stops: tuple[str, ...], show_trace: bool) -> None:
        self.job, self.scribe, self.show_trace = job, scribe, show_trace
        self.rollout: Rollout | None = None
        self.reasoning_tokens = 0
        self.over = False
        self._canonical, self._stops = Canonical(), StopTexts(stops)
        self._live: list[Piece] = []
        self._whole: list[Piece] = []
        self._shown: list[str] = []
        self._thought: list[str] = []
        self._read: tuple[int, int] = (0, 0)

    # --- from the engine ---

    def hear(self, item: TokenEvent | Ended) -> None:
        """Take what came next.

        Raises:
            ApiError: the engine ended the response with an error.
        """
        if isinstance(item, Ended):
            self._end(item)
        elif not self._stops.hit:
            self.reasoning_tokens += item.region.kind != "main"
            self._take(self.scribe.write(item))

    @property
    def wants_no_more(self) -> bool:
        """Has a stop text come?"""
        return self._stops.hit

    def _take(self, pieces: list[Piece]) -> None:
        self._live += pieces
        for piece in pieces:
            self._show(self._canonical.put(piece))

    def _show(self, pieces: list[Piece]) -> None:
        self._whole += pieces
        for piece in pieces:
            if piece.region.kind == "main":
                self._shown.append(self._stops.push(piece.text))
            else:
                (self._shown if self.show_trace else self._thought).append(piece.text)

    def _end(self, ended: Ended) -> None:
        self.over = True
        if ended.rollout is None or ended.rollout.stop_reason == "error":
            code = "engine_error" if ended.status >= 500 else "invalid_value"
            raise ApiError(ended.status, ended.error or "the engine failed", code=code)
        self.rollout = ended.rollout
        if not self._stops.hit:
            self._take(self.scribe.end())
            self._show(self._canonical.rest())
            self._shown.append(self._stops.rest())

    # --- to the client ---

    def news(self) -> tuple[str, str, list[Piece]]:
        """(content, reasoning, pieces) since the last call."""
        shown, thought = self._read
        self._read = len(self._shown), len(self._thought)
        pieces, self._live = self._live, []
        return "".join(self._shown[shown:]), "".join(self._thought[thought:]), merged(pieces)

    @property
    def content(self) -> str:
        """The answer so far."""
        return "".join(self._shown)

    @property
    def reasoning(self) -> str:
        """What happened inside of blocks so far."""
        return "".join(self._thought)

    @property
    def pieces(self) -> list[Piece]:
        """The whole response in the order of the finished text."""
        return merged(self._whole)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """How it ended, in OpenAI's words."""
        return "stop" if self._stops.hit or (self.rollout and self.rollout.stop_reason == "stop") else "length"

    @property
    def figures(self) -> dict[str, Any]:
        """What the engine says of the finished response."""
        rollout = self.rollout
        assert rollout is not None
        return {
            "tokens": rollout.total_tokens, "critical_path_tokens": rollout.critical_tokens,
            "blocks": rollout.num_blocks, "truncated": rollout.truncated and not self._stops.hit,
            "seed": rollout.seed[0],
        }  # fmt: skip

    def logprobs(self, decode: Decode, tags: TagIds | None) -> list[tuple[str, float, bool]]:
        """(text, log-prob, inside of a block) of every token but the end of text; see ``Rollout.engine_logps``."""
        rollout = self.rollout
        assert rollout is not None
        inside = [False] * rollout.total_tokens
        for block in parse_ids(rollout.response_ids, tags, rollout.truncated).blocks if tags else ():
            inside[block.start : block.end] = [True] * (block.end - block.start)
        return [
            (decode([token]), logp, within)
            for token, logp, within in zip(rollout.response_ids, rollout.engine_logps, inside, strict=True)
            if token not in self.scribe.stop_ids
        ]
