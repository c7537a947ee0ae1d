"""Requests in flight on the tree engine: admission, one pass for all rows, sampling, cancelling."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Finished, Request, TokenEvent, TokenListener
from parallel_r1.engine.branch import LEAST_PATH, MAIN, Branch, Feed, Listener, Sampled
from parallel_r1.engine.sampling import Sampler, seed_key, uniforms
from parallel_r1.models.attention import TreeStep, tree_masks
from parallel_r1.models.cache import KeyValueRows
from parallel_r1.types import Region, Rollout, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from parallel_r1.engine.tree import TreeEngine

WIDE = 16
"""Rows with more new tokens than this (prompts, causal joins) get a pass of their own."""
MAX_PASS_TOKENS = 8192
NO_FORK = 2**31 - 1


@dataclass(slots=True)
class _Row:
    """One rollout in flight. Its place in `TreeSession.active` is its row of the cache."""

    ticket: int
    request: Request
    config: EngineConfig
    key: int
    branch: Branch
    feed: tuple[Feed, ...]
    length: int = 0
    """Keys stored."""
    fork: int = NO_FORK
    """Slot of the open block's first path token."""
    first_path: list[int] = field(default_factory=list)
    """Slots of path 1 of the open block."""


class TreeSession:
    """See `parallel_r1.engine.base.Session`. It owns the cache and the rows in flight."""

    def __init__(self, engine: TreeEngine, config: EngineConfig) -> None:
        self.engine, self.config = engine, config
        self.model = engine.model
        self.model_config = self.model.config.get_text_config()
        self.device, self.dtype = self.model.device, self.model.dtype
        self.waiting: deque[_Row] = deque()
        self.active: list[_Row] = []
        self.done: list[Finished] = []
        self.cache = KeyValueRows(self.model_config.num_hidden_layers, self.device)
        self.sampler = Sampler(len(engine.tokenizer), engine.tags, engine.stop_ids, self.device, engine.tag_rate)
        self.closed = False
        self._next_ticket = 0
        self._stepping = False
        self._unwanted: set[int] = set()
        self._decoding = engine.decoding()
        self._decoding.__enter__()

    # --- the door ---

    def submit(
        self, request: Request, config: EngineConfig | None = None, on_token: TokenListener | None = None
    ) -> int:
        """See `parallel_r1.engine.base.Session.submit`."""
        self._refuse_closed()
        settings = config or self.config
        check_settings(self.engine, settings)
        check_request(self.engine, request, settings)
        ticket = self._next_ticket
        prompt = request.prompt_ids
        branch = Branch(
            settings, self.engine.tags, self.engine.stop_ids, self.engine.variant, len(prompt),
            _listener(ticket, on_token),
        )  # fmt: skip
        feed = tuple(Feed(token, i, MAIN, i == len(prompt) - 1) for i, token in enumerate(prompt))
        self.waiting.append(_Row(ticket, request, settings, seed_key(request.seed), branch, feed))
        self._next_ticket += 1
        return ticket

    def step(self) -> list[Finished]:
        """See `parallel_r1.engine.base.Session.step`."""
        self._refuse_closed()
        self._admit()
        if not self.active:
            return []
        self._stepping = True
        with torch.no_grad():
            strands, logits = self._forward()
            self._sample(strands, logits)
        self._stepping = False
        for ticket in self._unwanted:
            self._drop(ticket)
        done = [finished for finished in self.done if finished.ticket not in self._unwanted]
        self.done, self._unwanted = [], set()
        return done

    def cancel(self, ticket: int) -> Rollout | None:
        """See `parallel_r1.engine.base.Session.cancel`."""
        row = next((row for row in (*self.active, *self.waiting) if row.ticket == ticket), None)
        if row is None or ticket in self._unwanted:
            return None
        if self._stepping:  # called by a listener: the row leaves when the step is over
            self._unwanted.add(ticket)
        else:
            self._drop(ticket)
        return self._rollout(row, "cancelled")

    @property
    def busy(self) -> bool:
        """Is anything queued or in flight?"""
        return bool(self.active or self.waiting)

    @property
    def num_active(self) -> int:
        """Requests that hold memory."""
        return len(self.active)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self.waiting)

    def close(self) -> None:
        """Drop everything and put the model back as it was."""
        if not self.closed:
            self.closed = True
            self.active, self.waiting = [], deque()
            self.cache = KeyValueRows(0, self.device)
            self._decoding.__exit__(None, None, None)

    def __enter__(self) -> TreeSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ValueError("this session is closed; open another with engine.session(config)")

    def _drop(self, ticket: int) -> None:
        self.waiting = deque(row for row in self.waiting if row.ticket != ticket)
        for place, row in enumerate(self.active):
            if row.ticket == ticket:
                self._free(place)
                return

    def _admit(self) -> None:
        """Let requests in; a few at a time, so that their prompts share passes."""
        free = self.config.max_rows - len(self.active)
        if self.active and free < max(1, self.config.max_rows // 8):
            return
        while self.waiting and len(self.active) < self.config.max_rows:
            self.active.append(self.waiting.popleft())

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
        chosen: dict[int, list[Sampled]] = {}
        for (place, _), values in zip(strands, self._draw(branches, logits), strict=True):
            chosen.setdefault(place, []).append(values)
        for place in sorted(chosen, reverse=True):
            row = self.active[place]
            step = row.branch.advance(chosen[place])
            row.feed = step.feed
            if step.done:
                self._finish(place, step.done)
            elif step.rewind:
                self._rewind(place)

    def _draw(self, branches: list[tuple[_Row, int]], logits: torch.Tensor) -> list[Sampled]:
        """Sample one token per (row, strand); requests with equal settings are drawn together."""
        alike: dict[tuple, list[int]] = {}
        for i, (row, _) in enumerate(branches):
            alike.setdefault((row.config.temperature, row.config.top_k, row.config.top_p), []).append(i)
        found: list[Sampled] = [Sampled(0)] * len(branches)
        for places in alike.values():
            some = [branches[i] for i in places]
            draws = self.sampler.draw(
                logits if len(alike) == 1 else logits[torch.tensor(places, device=self.device)],
                [row.branch.rule(strand) for row, strand in some],
                uniforms([row.key for row, _ in some], [row.branch.counter(strand) for row, strand in some]),
                [row.branch.expected_tag(strand) for row, strand in some] if self.engine.tag_rate else (),
                some[0][0].config,
            )
            for i, *values in zip(places, *(column.tolist() for column in draws), strict=True):
                found[i] = Sampled(*values)
        return found

    def _rewind(self, place: int) -> None:
        """Causal join: keep path 1, bring its keys together, forget the other paths."""
        row = self.active[place]
        self.cache.compact(place, torch.tensor(row.first_path, device=self.device), row.fork)
        row.length = row.fork + len(row.first_path)

    def _finish(self, place: int, reason: StopReason) -> None:
        """Hand out the rollout and free its row."""
        row = self.active[place]
        self.done.append(Finished(row.ticket, self._rollout(row, reason)))
        self._free(place)

    def _free(self, place: int) -> None:
        """The last row takes the place, so that the rows in flight stay together."""
        row, last = self.active[place], self.active.pop()
        if last is not row:
            self.cache.copy_row(len(self.active), place, last.length)
            self.active[place] = last

    def _rollout(self, row: _Row, reason: StopReason) -> Rollout:
        branch = row.branch
        written, critical = branch.so_far()
        columns = tuple(zip(*written, strict=True)) or ((),) * 5
        ids, forced, engine, sampling, mass = columns
        return Rollout(
            problem_id=row.request.problem_id, prompt_ids=tuple(row.request.prompt_ids), response_ids=ids,
            forced=forced, engine_logps=engine, sampling_logps=sampling, allowed_mass=mass, stop_reason=reason,
            truncated=branch.truncated or reason == "cancelled", seed=tuple(row.request.seed),
            weight_version=self.engine.weight_version, num_blocks=branch.num_blocks, critical_tokens=critical,
        )  # fmt: skip


def _listener(ticket: int, report: TokenListener | None) -> Listener | None:
    if report is None:
        return None

    def listen(token: int, region: Region, forced: bool) -> None:
        report(TokenEvent(ticket, token, region, forced))

    return listen


def check_settings(engine: TreeEngine, config: EngineConfig) -> None:
    """Refuse what no request of this engine may ask for."""
    if config.mode == "linear" and engine.variant == "structured":
        raise ValueError("engine.mode = 'linear' needs variant = 'causal': a plain decoder hides no paths")
    if config.mode == "forked" and config.path_budget < LEAST_PATH:
        raise ValueError(f"engine.path_budget = {config.path_budget}: two tags and a token need at least {LEAST_PATH}")
    if engine.model.training and _dropout(engine.model):
        raise ValueError("dropout > 0 in training: rollout and trainer would score different models; set it to 0")


def check_request(engine: TreeEngine, request: Request, config: EngineConfig) -> None:
    """Refuse a prompt that cannot be decoded."""
    known = engine.tags.all if engine.tags else frozenset()
    if not request.prompt_ids:
        raise ValueError(f"problem {request.problem_id!r}: the prompt is empty; give at least one token")
    if not known.isdisjoint(request.prompt_ids):
        raise ValueError(
            f"problem {request.problem_id!r}: the prompt holds a tag id; tokenise user text with encode_prompt"
        )
    longest = getattr(engine.model.config, "max_position_embeddings", None)
    if longest and len(request.prompt_ids) + config.max_response_tokens > longest:
        raise ValueError(
            f"problem {request.problem_id!r}: prompt of {len(request.prompt_ids)} tokens and "
            f"engine.max_response_tokens = {config.max_response_tokens} exceed the model's {longest} positions"
        )


def _dropout(model: PreTrainedModel) -> bool:
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()) or any(
        (getattr(model.config, key, 0) or 0) > 0 for key in ("attention_dropout", "hidden_dropout", "resid_pdrop")
    )
