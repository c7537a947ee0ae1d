"""A teacher that is a model of ours, decoded by our engine: it forks where it was trained to.

A model with tags is asked as it was trained (template, variant and decoding settings saved with it); one
without tags writes them as text, if it does. Batches go through the engine one after the other.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from parallel_r1.coldstart.teacher import Ask, Reply, without_thoughts
from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.trace.tokens import decode_response, encode_prompt

if TYPE_CHECKING:
    from parallel_r1.models.load import Loaded


class LocalTeacher:
    """``loaded`` decoded with ``config``, ``batch`` asks at a time."""

    def __init__(
        self, loaded: Loaded, name: str, config: EngineConfig, variant: Any, seed: int, batch: int = 32
    ) -> None:
        from parallel_r1.engine.tree import TreeEngine

        self.name, self.config, self.seed, self.batch = name, config, seed, batch
        self.retries: dict[str, int] = {}
        self._loaded = loaded
        self._engine = TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, variant)

    async def replies(self, asks: Iterator[Ask]) -> AsyncIterator[Reply]:
        """See `parallel_r1.coldstart.teacher.Teacher`. Prompts that do not fit the model have no reply."""
        while batch := list(itertools.islice(asks, self.batch)):
            requests, fitting = [], []
            for ask in batch:
                ids = encode_prompt(self._loaded.tokenizer, ask.template, ask.problem.question, self._loaded.tags)
                if self._fits(len(ids)):
                    seed = (self.seed, 0, zlib.crc32(ask.problem.id.encode()), ask.attempt)
                    requests.append(Request(ask.problem.id, tuple(ids), seed))
                    fitting.append(ask)
                else:
                    yield Reply(ask, "", "error", error=f"refused: {len(ids)} tokens of prompt do not fit the model")
            for ask, rollout in zip(fitting, self._engine.generate(requests, self.config), strict=True):
                text = decode_response(self._loaded.tokenizer, rollout.response_ids)
                cut = rollout.stop_reason == "length" or rollout.truncated
                yield Reply(
                    ask,
                    without_thoughts(text),
                    "length" if cut else "stop",
                    len(rollout.prompt_ids),
                    rollout.total_tokens,
                )

    def _fits(self, prompt_tokens: int) -> bool:
        longest = getattr(self._loaded.model.config, "max_position_embeddings", None)
        return not longest or prompt_tokens + self.config.max_response_tokens <= longest
