"""The rollout engine: tree decode, both variants (paper section 3.1).

One row of keys and values per rollout. While a block is open its K paths are K query tokens of one
forward pass over the same row: the prefix is shared without a copy, keys are stored in the order they
were decoded, and an explicit mask with explicit positions gives them their meaning.

At the join the structured variant recomputes nothing: the mask opens. The causal variant forgets all
paths but the first, whose keys are already what a plain causal reader would have, and reads the
others again in canonical order together with the closers. All rows share each pass; a row that ends
makes room for the next request (continuous batching), and no result depends on who else was there.

What happens in a step stands in `parallel_r1.engine.session` (rows come and go), `parallel_r1.engine.passes`
(what the model reads) and `parallel_r1.engine.table` (the rows as arrays). Left out: paging, several devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Counters, Request, TokenListener, generate_all
from parallel_r1.engine.session import TreeSession, check_settings
from parallel_r1.models.attention import layer_masks
from parallel_r1.models.decode import TREE_ATTENTION
from parallel_r1.trace.tags import TagIds
from parallel_r1.types import Rollout, Variant


class TreeEngine:
    """Decodes with any transformers model that dispatches attention through ``AttentionInterface``.

    Args:
        model: shared with the trainer; its training flag and attention implementation are restored
            after every call.
        tags: None where the tokenizer has none (modes "sequential" and "linear" only).
        tag_rate: for checks and tests: with this probability the tag that moves a response on (open a
            block, close a path, close a summary) is drawn whatever the model says, so that a model that
            never forks does. Such tokens count as sampled from the mixture; see `Sampler`.

    Raises:
        ValueError: a model whose attention cannot be replaced, or does what no mask can describe.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        tags: TagIds | None,
        stop_ids: Sequence[int],
        variant: Variant,
        tag_rate: float = 0.0,
    ) -> None:
        if not getattr(model, "_supports_attention_backend", False):
            raise ValueError(f"{type(model).__name__} does not dispatch attention through AttentionInterface; "
                             "use a model that transformers supports with custom attention")  # fmt: skip
        text_config = model.config.get_text_config()
        layer_masks(text_config, lambda window: torch.empty(0))
        if getattr(text_config, "attn_logit_softcapping", None):
            raise ValueError(
                f"attn_logit_softcapping = {text_config.attn_logit_softcapping}: the engine does not cap attention "
                "scores; use a model without it (Gemma 3 instead of Gemma 2)"
            )
        if not 0 <= tag_rate <= 1:
            raise ValueError(f"tag_rate = {tag_rate}: a probability is between 0 and 1")
        self.model, self.tokenizer, self.tags = model, tokenizer, tags
        self.stop_ids = tuple(stop_ids)
        self.variant: Variant = variant
        self.tag_rate = tag_rate
        self.weight_version = 0
        self.counters = Counters()
        """What the last session, or the last call of `generate`, made the model do."""
        self._open: TreeSession | None = None

    def session(self, config: EngineConfig) -> TreeSession:
        """Open a session; see `parallel_r1.engine.base.Engine`. The model is in our hands until it is closed.

        Raises:
            ValueError: another session is open (two would decode on one model), or a bad setting.
        """
        if self._open is not None and not self._open.closed:
            raise ValueError("this engine has an open session; submit to it, or close() it first")
        check_settings(self, config)
        self._open = TreeSession(self, config)
        self.counters = self._open.counters
        return self._open

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        """Sample one response per request; see `parallel_r1.engine.base.Engine`."""
        with self.session(config) as session:
            return generate_all(session, requests, on_token)

    def load_weights(self, state_dict: dict | None = None) -> None:
        """Take new weights (None: they changed in place). No key outlives a request, so none goes stale."""
        if self._open is not None and self._open.busy:
            raise ValueError("load_weights: a session has requests in flight; run it empty or close() it first")
        if state_dict is not None:
            self.model.load_state_dict(state_dict)
        self.weight_version += 1

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Eval mode and our attention; everything is put back."""
        training = [module for module in self.model.modules() if module.training]
        previous = self.model.config._attn_implementation or "sdpa"
        try:
            self.model.eval()
            self.model.set_attn_implementation(TREE_ATTENTION)
            yield
        finally:
            self.model.set_attn_implementation(previous)
            for module in training:
                module.training = True
