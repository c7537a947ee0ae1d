"""Keys and values of the rollout engine: one row per rollout, keys in the order they were decoded.

Legend: R rows, B rows of one pass, M key heads, L slots of a row, N new tokens, D head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from parallel_r1.models.attention import TreeStep


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
        self.num_slots = max(self.num_slots, -(-num_slots // 64) * 64)
        size = (self.num_rows, self.num_slots)
        self.path, self.position = _grown(self.path, size, 1), _grown(self.position, size, 1)

    def store(self, layer: int, step: TreeStep, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the keys and values (N, M, D) of one layer to their places."""
        stored = self._layers[layer] or (keys.new_zeros(0, *keys.shape[1:2], 0, keys.shape[2]),
                                         values.new_zeros(0, *values.shape[1:2], 0, values.shape[2]))  # fmt: skip
        size = (self.num_rows, self.num_slots)
        if stored[0].shape[0] < size[0] or stored[0].shape[2] < size[1]:
            stored = (_grown(stored[0], size, 2), _grown(stored[1], size, 2))
        self._layers[layer] = stored
        for target, new in zip(stored, (keys, values), strict=True):
            target[step.cache_row, :, step.key_slot] = new

    def read(self, layer: int, step: TreeStep) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (B, M, L, D) of the rows of a step."""
        stored = self._layers[layer]
        assert stored is not None
        return stored[0][step.rows, :, : step.num_keys], stored[1][step.rows, :, : step.num_keys]

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` slots of a row over another row."""
        for side in self._sides():
            side[target, ..., :length, :] = side[source, ..., :length, :]

    def compact(self, row: int, slots: torch.Tensor, start: int) -> None:
        """Gather ``slots`` of a row into consecutive places from ``start`` on."""
        for side in self._sides():
            side[row, ..., start : start + len(slots), :] = side[row][..., slots, :]

    def _sides(self) -> Iterator[torch.Tensor]:
        yield self.path[:, :, None]
        yield self.position[:, :, None]
        for layer in self._layers:
            yield from layer or ()


def _grown(old: torch.Tensor, size: tuple[int, int], slot_axis: int) -> torch.Tensor:
    """A larger copy of ``old``: axis 0 holds rows, ``slot_axis`` slots."""
    shape = list(old.shape)
    shape[0], shape[slot_axis] = size
    new = old.new_zeros(shape)
    new.narrow(0, 0, old.shape[0]).narrow(slot_axis, 0, old.shape[slot_axis]).copy_(old)
    return new
