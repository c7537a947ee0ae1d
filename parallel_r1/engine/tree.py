"""The rollout engine: tree decode, both variants (paper section 3.1).

One row of keys and values per rollout. While a block is open its K paths are K query tokens of one
forward pass over the same row: the prefix is shared without a copy, keys are stored in the order they
were decoded, and an explicit mask with explicit positions gives them their meaning.

At the join the structured variant recomputes nothing: the mask opens. The causal variant forgets all
paths but the first, whose keys are already what a plain causal reader would have, and reads the
others again in canonical order together with the closers. All rows share each pass; a row that ends
makes room for the next request (continuous batching), and no result depends on who else was there.

Left out: paging, a model-chosen number of paths, several devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request, TokenEvent, TokenListener
from parallel_r1.engine.branch import MAIN, Branch, Feed, Listener, Sampled
from parallel_r1.engine.sampling import Sampler, seed_key, uniforms
from parallel_r1.models.attention import TREE_ATTENTION, TreeStep, tree_masks
from parallel_r1.models.cache import KeyValueRows
from parallel_r1.trace.tags import TagIds
from parallel_r1.types import Region, Rollout, StopReason, Variant

WIDE = 16
"""Rows with more new tokens than this (prompts, causal joins) get a pass of their own."""
MAX_PASS_TOKENS = 8192
NO_FORK = 2**31 - 1


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
        ValueError: a model whose attention cannot be replaced.
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
        if not 0 <= tag_rate <= 1:
            raise ValueError(f"tag_rate = {tag_rate}: a probability is between 0 and 1")
        self.model, self.tokenizer, self.tags = model, tokenizer, tags
        self.stop_ids = tuple(stop_ids)
        self.variant: Variant = variant
        self.tag_rate = tag_rate
        self.weight_version = 0

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        """Sample one response per request; see `parallel_r1.engine.base.Engine`."""
        self._check(requests, config)
        with self._decoding():
            return _Session(self, requests, config, on_token).run()

    def load_weights(self, state_dict: dict | None = None) -> None:
        """Take new weights (None: they changed in place). No key outlives a call of `generate`, so none goes stale."""
        if state_dict is not None:
            self.model.load_state_dict(state_dict)
        self.weight_version += 1

    def _check(self, requests: Sequence[Request], config: EngineConfig) -> None:
        if config.mode == "linear" and self.variant == "structured":
            raise ValueError("engine.mode = 'linear' needs variant = 'causal': a plain decoder hides no paths")
        if config.mode == "forked" and config.path_budget < 3:
            raise ValueError(f"engine.path_budget = {config.path_budget}: two tags and a token need at least 3")
        if self.model.training and _dropout(self.model):
            raise ValueError("dropout > 0 in training: rollout and trainer would score different models; set it to 0")
        known = self.tags.all if self.tags else frozenset()
        for request in requests:
            if not request.prompt_ids:
                raise ValueError(f"problem {request.problem_id!r}: the prompt is empty; give at least one token")
            if not known.isdisjoint(request.prompt_ids):
                raise ValueError(
                    f"problem {request.problem_id!r}: the prompt holds a tag id; tokenise user text with encode_prompt"
                )
            longest = getattr(self.model.config, "max_position_embeddings", None)
            if longest and len(request.prompt_ids) + config.max_response_tokens > longest:
                raise ValueError(
                    f"problem {request.problem_id!r}: prompt of {len(request.prompt_ids)} tokens and "
                    f"engine.max_response_tokens = {config.max_response_tokens} exceed the model's {longest} positions"
                )

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Eval mode, our attention, no gradients; everything is put back."""
        training = [module for module in self.model.modules() if module.training]
        previous = self.model.config._attn_implementation or "sdpa"
        try:
            self.model.eval()
            self.model.set_attn_implementation(TREE_ATTENTION)
            with torch.no_grad():
                yield
        finally:
            self.model.set_attn_implementation(previous)
            for module in training:
                module.training = True


@dataclass(slots=True)
class _Row:
    """One rollout in flight. Its place in `_Session.active` is its row of the cache."""

    index: int
    request: Request
    key: int
    branch: Branch
    feed: tuple[Feed, ...]
    length: int = 0
    """Keys stored."""
    fork: int = NO_FORK
    """Slot of the open block's first path token."""
    first_path: list[int] = field(default_factory=list)
    """Slots of path 1 of the open block."""


class _Session:
    """One call of `TreeEngine.generate`: owns the cache and the rows in flight."""

    def __init__(
        self, engine: TreeEngine, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None
    ) -> None:
        self.engine, self.config, self.on_token = engine, config, on_token
        self.model = engine.model
        self.model_config = self.model.config.get_text_config()
        self.device, self.dtype = self.model.device, self.model.dtype
        self.waiting = deque(enumerate(requests))
        self.active: list[_Row] = []
        self.finished: dict[int, Rollout] = {}
        self.cache = KeyValueRows(self.model_config.num_hidden_layers, self.device)
        self.sampler = Sampler(
            len(engine.tokenizer), engine.tags, engine.stop_ids, config, self.device, engine.tag_rate
        )

    def run(self) -> list[Rollout]:
        while self.active or self.waiting:
            self._admit()
            strands, logits = self._forward()
            self._sample(strands, logits)
        return [self.finished[i] for i in sorted(self.finished)]

    def _admit(self) -> None:
        """Let requests in; a few at a time, so that their prompts share passes."""
        free = self.config.max_rows - len(self.active)
        if self.active and free < max(1, self.config.max_rows // 8):
            return
        while self.waiting and len(self.active) < self.config.max_rows:
            index, request = self.waiting.popleft()
            prompt = request.prompt_ids
            branch = Branch(
                self.config, self.engine.tags, self.engine.stop_ids, self.engine.variant, len(prompt),
                self._listener(index),
            )  # fmt: skip
            last = len(prompt) - 1
            feed = tuple(Feed(token, i, MAIN, i == last) for i, token in enumerate(prompt))
            self.active.append(_Row(index, request, seed_key(request.seed), branch, feed))

    def _listener(self, index: int) -> Listener | None:
        report = self.on_token
        if report is None:
            return None

        def listen(token: int, region: Region, forced: bool) -> None:
            report(TokenEvent(index, token, region, forced))

        return listen

    # --- forward ---

    def _forward(self) -> tuple[list[tuple[int, int]], torch.Tensor]:
        """Feed every row; returns (row, strand) per sampling place and the logits (S, V) in that order."""
        narrow: list[int] = []
        wide: list[int] = []
        twins: list[tuple[int, int]] = []
        leaders: dict[tuple[int, ...], int] = {}
        for place, row in enumerate(self.active):
            leader = leaders.setdefault(tuple(row.request.prompt_ids), place) if row.length == 0 else place
            if leader != place:
                twins.append((place, leader))
            else:
                (narrow if len(row.feed) <= WIDE else wide).append(place)
        strands: list[tuple[int, int]] = []
        logits: list[torch.Tensor] = []
        for places in ([narrow] if narrow else []) + list(self._passes(wide)):
            self.cache.reserve(len(self.active), max(row.length + len(row.feed) for row in self.active))
            found, scores = self._pass(places)
            strands += found
            logits.append(scores)
        return self._share_prompts(twins, strands, torch.cat(logits))

    def _share_prompts(
        self, twins: list[tuple[int, int]], strands: list[tuple[int, int]], logits: torch.Tensor
    ) -> tuple[list[tuple[int, int]], torch.Tensor]:
        """Samples of one group read their prompt once: copy keys and logits from each leader to its twins."""
        if not twins:
            return strands, logits
        index = {place: i for i, (place, _) in enumerate(strands)}
        for place, leader in twins:
            row = self.active[place]
            row.length = self.active[leader].length
            self.cache.copy_row(leader, place, row.length)
        copied = logits[[index[leader] for _, leader in twins]]
        return strands + [(place, MAIN) for place, _ in twins], torch.cat([logits, copied])

    def _passes(self, places: list[int]) -> Iterator[list[int]]:
        """Split rows with much to read so that no pass grows too large."""
        chunk: list[int] = []
        for place in places:
            widest = max(len(self.active[p].feed) for p in [*chunk, place])
            if chunk and widest * (len(chunk) + 1) > MAX_PASS_TOKENS:
                yield chunk
                chunk = []
            chunk.append(place)
        if chunk:
            yield chunk

    def _pass(self, places: list[int]) -> tuple[list[tuple[int, int]], torch.Tensor]:
        """One forward pass over the feeds of some rows, as one flat row of N tokens."""
        tokens: list[int] = []
        columns: list[tuple[int, int, int, int, int, int, int]] = []
        strands: list[tuple[int, int]] = []
        wanted: list[int] = []
        lowest = places[0]
        span = places[-1] + 1 - lowest
        dense = span <= 2 * len(places)  # a slice with a few idle rows beats a copy
        for order, place in enumerate(places):
            row = self.active[place]
            for query, (token, position, strand, sample) in enumerate(row.feed):
                slot = row.length + query
                if strand == MAIN:
                    row.fork = NO_FORK  # a closer: the block's paths are visible from here on
                elif row.fork == NO_FORK:
                    row.fork, row.first_path = slot, []
                if strand == 0:
                    row.first_path.append(slot)
                if sample:
                    strands.append((place, strand))
                    wanted.append(len(tokens))
                tokens.append(token)
                batch_row = place - lowest if dense else order
                columns.append((place, slot, batch_row, query, position, strand, row.fork))
            row.length += len(row.feed)
        table = torch.tensor(columns, device=self.device).T
        cache_row, key_slot, batch_row, query_slot, position, path, fork = table.unbind(0)
        step = TreeStep(
            cache=self.cache, cache_row=cache_row, key_slot=key_slot, batch_row=batch_row, query_slot=query_slot,
            rows=slice(lowest, lowest + span) if dense else torch.tensor(places, device=self.device),
            num_rows=span if dense else len(places),
            num_queries=max(len(self.active[p].feed) for p in places),
            num_keys=max(self.active[p].length for p in places),
        )  # fmt: skip
        self.cache.path[cache_row, key_slot] = path.to(torch.int32)
        self.cache.position[cache_row, key_slot] = position.to(torch.int32)
        out = self.model(
            input_ids=torch.tensor([tokens], device=self.device),
            position_ids=position[None],
            attention_mask=tree_masks(self.model_config, step, path, fork, position, self.dtype),
            logits_to_keep=torch.tensor(wanted, device=self.device),
            use_cache=False,
            tree_step=step,
        )
        return strands, out.logits[0]

    # --- sample and go on ---

    def _sample(self, strands: list[tuple[int, int]], logits: torch.Tensor) -> None:
        branches = [(self.active[place], strand) for place, strand in strands]
        draws = self.sampler.draw(
            logits,
            [row.branch.rule(strand) for row, strand in branches],
            uniforms([row.key for row, _ in branches], [row.branch.counter(strand) for row, strand in branches]),
            [row.branch.expected_tag(strand) for row, strand in branches] if self.engine.tag_rate else (),
        )
        chosen: dict[int, list[Sampled]] = {}
        for (place, _), *values in zip(strands, *(column.tolist() for column in draws), strict=True):
            chosen.setdefault(place, []).append(Sampled(*values))
        for place in sorted(chosen, reverse=True):
            row = self.active[place]
            step = row.branch.advance(chosen[place])
            row.feed = step.feed
            if step.done:
                self._finish(place, step.done)
            elif step.rewind:
                self._rewind(place)

    def _rewind(self, place: int) -> None:
        """Causal join: keep path 1, bring its keys together, forget the other paths."""
        row = self.active[place]
        self.cache.compact(place, torch.tensor(row.first_path, device=self.device), row.fork)
        row.length = row.fork + len(row.first_path)

    def _finish(self, place: int, reason: StopReason) -> None:
        """Hand out the rollout; the last row takes its place, so that the rows in flight stay together."""
        row, branch = self.active[place], self.active[place].branch
        ids, forced, engine, sampling, mass = zip(*branch.written, strict=True)
        self.finished[row.index] = Rollout(
            problem_id=row.request.problem_id, prompt_ids=tuple(row.request.prompt_ids), response_ids=ids,
            forced=forced, engine_logps=engine, sampling_logps=sampling, allowed_mass=mass, stop_reason=reason,
            truncated=branch.truncated, seed=tuple(row.request.seed), weight_version=self.engine.weight_version,
            num_blocks=branch.num_blocks, critical_tokens=branch.critical_tokens,
        )  # fmt: skip
        last = self.active.pop()
        if last is not row:
            self.cache.copy_row(len(self.active), place, last.length)
            self.active[place] = last


def _dropout(model: PreTrainedModel) -> bool:
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()) or any(
        (getattr(model.config, key, 0) or 0) > 0 for key in ("attention_dropout", "hidden_dropout", "resid_pdrop")
    )
