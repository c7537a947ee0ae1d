"""One forward pass for all rows in flight: which tokens are read, where their keys go, what is sampled.

Rows whose strands read one token each come straight from the arrays of the table; the others bring a
`parallel_r1.engine.steps.Step` of their branch. Both become one flat row of N tokens, since a transformer
mixes tokens in attention alone, and attention knows from a `TreeStep` which row each token belongs to.
Prompts and causal joins have many tokens to read and get passes of their own. Samples of one problem
read their prompt once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import PreTrainedModel

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Counters, Request
from parallel_r1.engine.branch import Branch
from parallel_r1.engine.steps import MAIN, Feed
from parallel_r1.engine.table import NO_FORK, RowTable
from parallel_r1.models.cache import KeyValueRows
from parallel_r1.models.decode import TreeStep, tree_masks

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDE = 16
"""Rows with more new tokens than this (prompts, causal joins) get a pass of their own."""
MAX_PASS_TOKENS = 8192


@dataclass(slots=True)
class Row:
    """One rollout in flight. Its place in the list of rows is its row of the table and of the cache."""

    ticket: int
    request: Request
    config: EngineConfig
    branch: Branch
    feed: Sequence[Feed]
    """What a special row reads next."""

    @property
    def need(self) -> int:
        """The most keys it may store."""
        return len(self.request.prompt_ids) + self.config.max_response_tokens


@dataclass(frozen=True, slots=True)
class Sampling:
    """Where tokens are to be sampled: (row, column) and logits (S, V)."""

    place: NDArray[np.int64]
    column: NDArray[np.int64]
    logits: torch.Tensor


class Passes:
    """Runs the model over rows; owns their keys and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.device, self.dtype = model.device, model.dtype
        self.table = RowTable()
        self.counters = Counters()
        self.cache = self._empty()

    def drop_keys(self) -> None:
        """Give all memory back."""
        self.cache = self._empty()

    def _empty(self) -> KeyValueRows:
        return KeyValueRows(self.config.num_hidden_layers, self.device)

    def forward(self, rows: Sequence[Row]) -> Sampling:
        """Feed every row what it reads next."""
        narrow: list[int] = []
        wide: list[int] = []
        twins: list[tuple[int, int]] = []
        special = np.flatnonzero(self.table.special[: len(rows)]).tolist()
        self._share_prompts(rows, special, twins)
        waiting = {place for place, _ in twins}
        for place in special:
            if place not in waiting:
                (narrow if len(rows[place].feed) <= WIDE else wide).append(place)
        lanes = self.table.ordinary(len(rows))
        self._reserve(rows, special)
        parts = [self._pass(rows, lanes, narrow)] if narrow or len(lanes[0]) else []
        parts += [self._pass(rows, None, places) for places in self._chunks(rows, wide)]
        found = Sampling(
            np.concatenate([part.place for part in parts]),
            np.concatenate([part.column for part in parts]),
            parts[0].logits if len(parts) == 1 else torch.cat([part.logits for part in parts]),
        )
        return self._with_twins(twins, found) if twins else found

    def _reserve(self, rows: Sequence[Row], special: Sequence[int]) -> None:
        """Room for this pass; rows grow by half, up to what the longest may need."""
        table, cache = self.table, self.cache
        longest = int(table.length[: len(rows)].max()) + len(table.live[0])
        longest = max([longest, *(int(table.length[place]) + len(rows[place].feed) for place in special)])
        if longest > cache.num_slots:
            longest = min(max(longest, cache.num_slots * 3 // 2), max(row.need for row in rows))
        cache.reserve(len(rows), longest)

    # --- prompts ---

    def _share_prompts(self, rows: Sequence[Row], special: Sequence[int], twins: list[tuple[int, int]]) -> None:
        """Let new rows use the prompt of another: of one in flight at once, of another new one after its pass."""
        new = [place for place in special if self.table.length[place] == 0]
        if not new:
            return
        known = {row.request.prompt_ids: place for place, row in enumerate(rows) if self.table.length[place] > 0}
        leaders: dict[tuple[int, ...], int] = {}
        for place in new:
            prompt = rows[place].request.prompt_ids
            source = known.get(prompt)
            if source is not None:
                # All keys but the last: reading that token again gives the logits.
                self._copy_prompt(source, place, len(prompt) - 1)
                rows[place].feed = rows[place].feed[-1:]
                self.counters.prompt_tokens += 1
            elif leaders.setdefault(prompt, place) != place:
                twins.append((place, leaders[prompt]))
            else:
                self.counters.prompt_tokens += len(prompt)

    def _copy_prompt(self, source: int, place: int, length: int) -> None:
        self.cache.reserve(place + 1, length)
        self.cache.copy_row(source, place, length)
        self.table.length[place] = length

    def _with_twins(self, twins: list[tuple[int, int]], found: Sampling) -> Sampling:
        """Copy keys and logits of each leader to its twins."""
        index = {place: i for i, place in enumerate(found.place.tolist())}
        for place, leader in twins:
            self._copy_prompt(leader, place, int(self.table.length[leader]))
        copied = found.logits[[index[leader] for _, leader in twins]]
        places = np.array([place for place, _ in twins])
        return Sampling(
            np.concatenate([found.place, places]),
            np.concatenate([found.column, np.zeros_like(places)]),
            torch.cat([found.logits, copied]),
        )

    # --- one pass ---

    def _chunks(self, rows: Sequence[Row], places: Sequence[int]) -> Iterator[list[int]]:
        """Split rows with much to read so that no pass grows too large."""
        chunk: list[int] = []
        for place in places:
            widest = max(len(rows[p].feed) for p in [*chunk, place])
            if chunk and widest * (len(chunk) + 1) > MAX_PASS_TOKENS:
                yield chunk
                chunk = []
            chunk.append(place)
        if chunk:
            yield chunk

    def _pass(
        self,
        rows: Sequence[Row],
        lanes: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        special: Sequence[int],
    ) -> Sampling:
        """Read one token on each of ``lanes``, and the feeds of ``special`` rows."""
        table = self.table
        feeds = np.concatenate([self._lane_feeds(lanes), self._special_feeds(rows, special)], axis=1)
        if special and lanes is not None:
            feeds = feeds[:, np.argsort(feeds[0], kind="stable")]
        place, token, position, path, fork, sample = feeds
        places, starts, counts = np.unique(place, return_index=True, return_counts=True)
        query = np.arange(len(place)) - np.repeat(starts, counts)
        slot = table.length[place] + query
        table.length[places] += counts
        lowest, highest = int(places[0]), int(places[-1])
        dense = highest + 1 - lowest <= 2 * len(places)  # a slice with a few idle rows beats a copy
        batch_row = place - lowest if dense else np.repeat(np.arange(len(places)), counts)
        sampled = np.flatnonzero(sample)
        columns = np.stack([place, slot, batch_row, query, position, path, fork, token])
        cache_row, key_slot, batch_row, query_slot, at, paths, forks, tokens = self._to_device(columns)
        step = TreeStep(
            cache=self.cache, cache_row=cache_row, key_slot=key_slot, batch_row=batch_row, query_slot=query_slot,
            rows=slice(lowest, highest + 1) if dense else self._to_device(places),
            num_rows=highest + 1 - lowest if dense else len(places),
            num_queries=int(counts.max()), num_keys=int(slot.max()) + 1, forked=bool((path >= 0).any()),
        )  # fmt: skip
        self.cache.path[cache_row, key_slot] = paths.to(torch.int32)
        self.cache.position[cache_row, key_slot] = at.to(torch.int32)
        self.counters.passes += 1
        self.counters.fed_tokens += len(place)
        out = self.model(
            input_ids=tokens[None],
            position_ids=at[None],
            attention_mask=tree_masks(self.config, step, paths, forks, at, self.dtype),
            logits_to_keep=self._to_device(sampled),
            use_cache=False,
            tree_step=step,
        )
        return Sampling(place[sampled], np.maximum(path[sampled], 0), out.logits[0])

    def _to_device(self, array: NDArray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _lane_feeds(self, lanes: tuple[NDArray[np.int64], NDArray[np.int64]] | None) -> NDArray[np.int64]:
        """(place, token, position, path, fork, sample) of ordinary strands, (6, N)."""
        if lanes is None:
            return np.zeros((6, 0), dtype=np.int64)
        table, (place, column) = self.table, lanes
        path = np.where(table.in_paths[place], column, MAIN)
        token, position = table.token[lanes], table.position[lanes]
        return np.stack([place, token, position, path, table.fork[place], np.ones_like(place)])

    def _special_feeds(self, rows: Sequence[Row], special: Sequence[int]) -> NDArray[np.int64]:
        """The same for rows that read a step of their branch, which may open or close a block."""
        table = self.table
        feeds: list[tuple[int, int, int, int, int, int]] = []
        for place in special:
            fork, first = int(table.fork[place]), int(table.length[place])
            for slot, (token, position, strand, sample) in enumerate(rows[place].feed, start=first):
                if strand == MAIN:
                    fork = NO_FORK  # the block's paths are visible from here on
                elif fork == NO_FORK:
                    fork = slot
                feeds.append((place, token, position, strand, fork, sample))
            table.fork[place] = fork
        return np.array(feeds, dtype=np.int64).reshape(-1, 6).T
