"""Keys and values of the rollout engine: one row per rollout, keys in the order they were decoded.

Legend: R rows, B rows of one pass, M key heads, L slots of a row, N new tokens, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from parallel_r1.models.decode import TreeStep

SLOT_STEP = 64
"""Rows grow by whole multiples of this."""


class KeyValueRows:
    """Keys and values of R rows, preallocated per layer as (R, M, L, D), with what the mask needs to know of them.

    ``path`` and ``position`` (R, L) say of every stored key which path it belongs to (-1: none) and
    where it stands. A row holds its keys in the order they were decoded.
    """

    def __init__(self, num_layers: int, device: torch.device) -> None:
        self.num_rows = self.num_slots = 0
        self.path = torch.full((0, 0), -1, dtype=torch.int32, device=device)
        self.position = torch.zeros(0, 0, dtype=torch.int32, device=device)
        self._layers: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * num_layers

    def reserve(self, num_rows: int, num_slots: int) -> None:
        """Make room; what is stored stays."""
        if num_rows <= self.num_rows and num_slots <= self.num_slots:
            return
        self.num_rows = max(self.num_rows, num_rows)
        self.num_slots = max(self.num_slots, whole_slots(num_slots))
        size = (self.num_rows, self.num_slots)
        self.path, self.position = _grown(self.path, size, 1), _grown(self.position, size, 1)
        for layer, sides in enumerate(self._layers):
            if sides is not None:
                self._layers[layer] = (_grown(sides[0], size, 2), _grown(sides[1], size, 2))

    def trim(self, num_rows: int) -> None:
        """Give back the rows from ``num_rows`` on."""
        self.num_rows = num_rows
        self.path, self.position = self.path[:num_rows].clone(), self.position[:num_rows].clone()
        for layer, sides in enumerate(self._layers):
            if sides is not None:
                self._layers[layer] = (sides[0][:num_rows].clone(), sides[1][:num_rows].clone())

    def store(self, layer: int, step: TreeStep, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the keys and values (N, M, D) of one layer to their places."""
        num_heads = keys.shape[1]
        stored = self._layers[layer]
        if stored is None:
            size = (self.num_rows, num_heads, self.num_slots)
            stored = (keys.new_zeros(*size, keys.shape[2]), values.new_zeros(*size, values.shape[2]))
            self._layers[layer] = stored
        places = step.key_places(num_heads, self.num_slots)
        for target, new in zip(stored, (keys, values), strict=True):
            target.view(-1, new.shape[-1]).index_copy_(0, places, new.reshape(-1, new.shape[-1]))

    def read(self, layer: int, step: TreeStep) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (B, M, L, D) of the rows of a step."""
        stored = self._layers[layer]
        assert stored is not None
        return stored[0][step.rows, :, : step.num_keys], stored[1][step.rows, :, : step.num_keys]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` slots of a row over another row."""
        for side in self._sides():
            side[target, ..., :length, :] = side[source, ..., :length, :]

    def keep_first_path(self, row: int, start: int, end: int) -> int:
        """Forget all keys of the slots from ``start`` to ``end`` but those of path 1; returns the new end."""
        kept = start + (self.path[row, start:end] == 0).nonzero()[:, 0]
        for side in self._sides():
            side[row, ..., start : start + len(kept), :] = side[row][..., kept, :]
        return start + len(kept)

    def wipe(self, row: int) -> None:
        """Write zeros over a row whose numbers are not finite: a hidden key still counts as 0 times its value."""
        for side in self._sides():
            side[row] = 0

    def num_bytes(self) -> int:
        """Memory held."""
        return sum(side.numel() * side.element_size() for side in self._sides())

    def _sides(self) -> Iterator[torch.Tensor]:
        yield self.path[:, :, None]
        yield self.position[:, :, None]
        for layer in self._layers:
            yield from layer or ()


def whole_slots(num_slots: int) -> int:
    """Slots that are reserved for this many."""
    return -(-num_slots // SLOT_STEP) * SLOT_STEP


def bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token in all layers of a model with this (text) config."""
    num_heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    key_heads = getattr(config, "num_key_value_heads", None) or num_heads
    return 2 * config.num_hidden_layers * key_heads * size * dtype.itemsize + 8  # and two int32 of the mask


def _grown(old: torch.Tensor, size: tuple[int, int], slot_axis: int) -> torch.Tensor:
    """A larger copy of ``old``: axis 0 holds rows, ``slot_axis`` slots."""
    shape = list(old.shape)
    shape[0], shape[slot_axis] = size
    new = old.new_zeros(shape)
    new.narrow(0, 0, old.shape[0]).narrow(slot_axis, 0, old.shape[slot_axis]).copy_(old)
    return new
