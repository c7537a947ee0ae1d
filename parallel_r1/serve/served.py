"""The model that is served: what requests need to know of it, and how to load it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from parallel_r1.config import EngineConfig, PromptConfig
from parallel_r1.engine.base import Engine, Session
from parallel_r1.live import engine_for
from parallel_r1.rollout.sample import prompt_template
from parallel_r1.serve.apart import ApartSessions
from parallel_r1.serve.scribe import Decode
from parallel_r1.trace.tags import TagIds
from parallel_r1.types import Variant

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_CONTEXT = 4096
"""Default limit of prompt and response together: every row's memory is as long as the longest row."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under a name."""

    name: str
    engines: tuple[Engine, ...]
    """One for all rows, or (deterministic) one per row."""
    tokenizer: PreTrainedTokenizerBase
    tags: TagIds | None
    stop_ids: tuple[int, ...]
    config: EngineConfig
    """What a request gets that says nothing; ``max_rows`` is the server's."""
    template: str | None
    """Prompt with ``{question}``; None: the tokenizer's chat template."""
    context: int
    """Most tokens of a prompt and its response together."""
    created: int

    @property
    def deterministic(self) -> bool:
        """Does every row get forward passes of its own?"""
        return len(self.engines) > 1

    @property
    def decode(self) -> Decode:
        """Ids to text, nothing left out."""
        backend: Any = self.tokenizer.backend_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
        return lambda ids: backend.decode(ids, skip_special_tokens=False)

    def session(self) -> Session:
        """A session for all requests."""
        if not self.deterministic:
            return self.engines[0].session(self.config)
        return ApartSessions(self.engines, self.config)


def load_served(
    model: str,
    name: str | None = None,
    variant: str | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_rows: int = 32,
    max_context: int | None = None,
    deterministic: bool = False,
) -> ServedModel:
    """Load a model to serve it as it was trained.

    Raises:
        ValueError: nothing to load, or settings that do not fit it.
    """
    from parallel_r1.engine.tree import TreeEngine
    from parallel_r1.models.load import load_model
    from parallel_r1.train.callbacks import few_messages

    if variant not in (None, "causal", "structured"):
        raise ValueError(f"--variant {variant}: use causal or structured")
    with few_messages():
        loaded = load_model(model, dtype=dtype)
    saved = loaded.settings
    trained = saved.variant if saved else "structured"
    longest = getattr(loaded.model.config, "max_position_embeddings", None) or MOST_CONTEXT
    if max_context is not None and max_context > longest:
        raise ValueError(f"--max-context {max_context}: the model has {longest} positions; use at most that")
    chat = saved is None and getattr(loaded.tokenizer, "chat_template", None)
    engines = tuple(
        TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, cast(Variant, variant or trained))
        for _ in range(max_rows if deterministic else 1)
    )
    return ServedModel(
        name=name or Path(model).name,
        engines=engines,
        tokenizer=loaded.tokenizer,
        tags=loaded.tags,
        stop_ids=loaded.stop_ids,
        config=engine_for(loaded, {"max_rows": 1 if deterministic else max_rows}),
        template=None if chat else prompt_template(saved.prompt if saved else PromptConfig(), loaded.tags),
        context=max_context or min(longest, MOST_CONTEXT),
        created=int(time.time()),
    )
