"""How the layout rule enters a transformers model for decoding: one attention function.

``parallel_r1_tree`` is registered through ``AttentionInterface``. The rollout engine calls the model with
all query tokens of all rows in one flat row and hands over a `TreeStep` that says where each token's key
goes and which keys it sees; the mask is the layout rule over keys in the order they were decoded.

Legend: B rows, Q padded queries of a row, L keys, N flat query tokens, H query heads, M key heads,
G = H / M heads per group, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from parallel_r1.models.attention import layer_masks
from parallel_r1.models.cache import KeyValueRows

TREE_ATTENTION = "parallel_r1_tree"


@dataclass(frozen=True, slots=True)
class TreeStep:
    """Where the N flat query tokens of one forward pass belong. Index tensors have shape (N,)."""

    cache: KeyValueRows
    cache_row: torch.Tensor
    """Row of the cache."""
    key_slot: torch.Tensor
    """Place of the token's own key within its row."""
    batch_row: torch.Tensor
    """Row of the padded attention batch."""
    query_slot: torch.Tensor
    """Place among the row's queries."""
    rows: slice | torch.Tensor
    """The B cache rows of the attention batch; a slice costs no copy."""
    num_rows: int
    num_queries: int
    """Q, the most queries of any row."""
    num_keys: int
    """L, the longest row after this step."""
    forked: bool
    """Does any token stand in an open block?"""
    kept: dict[tuple, torch.Tensor] = field(default_factory=dict)
    """What all layers share: index tensors and the padded queries."""

    @property
    def full(self) -> bool:
        """Has every row Q queries, so that nothing is padded?"""
        return len(self.cache_row) == self.num_rows * self.num_queries

    def share(self, name: tuple, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """``make()``, once for all layers."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def key_places(self, num_heads: int, num_slots: int) -> torch.Tensor:
        """Places of the new keys in a cache seen as (R * M * L, D): (N * M,)."""
        heads = torch.arange(num_heads, device=self.cache_row.device)
        return self.share(
            ("keys", num_heads),
            lambda: ((self.cache_row[:, None] * num_heads + heads) * num_slots + self.key_slot[:, None]).flatten(),
        )

    def query_places(self, num_heads: int) -> torch.Tensor:
        """Places of the queries in a padded batch seen as (B * M * Q, G * D): (N * M,)."""
        heads = torch.arange(num_heads, device=self.batch_row.device)
        rows = self.batch_row[:, None] * num_heads + heads
        return self.share(
            ("queries", num_heads), lambda: (rows * self.num_queries + self.query_slot[:, None]).flatten()
        )


def tree_masks(
    config: Any, step: TreeStep, path: torch.Tensor, fork: torch.Tensor, position: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor | dict[str, torch.Tensor]:
    """The layout rule over keys stored in decode order: (B, 1, Q, L) per layer type.

    A query sees the keys stored up to its own, except those of a sibling path in the open block.

    Args:
        path: path of each query token, shape (N,); -1 outside of an open block.
        fork: slot at which the open block's first path begins, shape (N,); for a query outside of an
            open block any number past the row's end.
        position: position of each query token, shape (N,).
    """
    cache, keys = step.cache, step.num_keys
    at = (step.batch_row, step.query_slot)
    size = (step.num_rows, step.num_queries, 1)

    def padded(values: torch.Tensor, empty: int) -> torch.Tensor:
        if step.full:
            return values.to(torch.int32).view(size)
        out = torch.full(size[:2], empty, dtype=torch.int32, device=values.device)
        out[at] = values.to(torch.int32)
        return out[:, :, None]

    slot = torch.arange(keys, dtype=torch.int32, device=path.device)
    visible = slot <= padded(step.key_slot, -1)
    if step.forked:
        same_path = cache.path[step.rows, None, :keys] == padded(path, -1)
        visible &= same_path.logical_or_(slot < padded(fork, 0))
    zero = torch.zeros((), dtype=dtype, device=path.device)
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=path.device)

    def build(window: int | None) -> torch.Tensor:
        seen = visible
        if window is not None:
            seen = seen & (padded(position, 0) - cache.position[step.rows, None, :keys] < window)
        return torch.where(seen, zero, lowest)[:, None]

    return layer_masks(config, build)


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    tree_step: TreeStep | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of N flat query tokens over the key rows they belong to.

    ``query`` (1, H, N, D), ``key`` and ``value`` (1, M, N, D), ``attention_mask`` (B, 1, Q, L).
    The G query heads that share a key head are folded into the query axis, so keys are never repeated.
    """
    if tree_step is None:
        raise ValueError(f"attn_implementation = {TREE_ATTENTION!r} is for the rollout engine; use 'sdpa'")
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        raise ValueError("this model caps or sinks its attention scores, which the rollout engine does not do")
    step = tree_step
    step.cache.store(module.layer_idx, step, key[0].transpose(0, 1), value[0].transpose(0, 1))
    num_heads, num_tokens, size = query.shape[1:]
    num_key_heads = key.shape[1]
    folded = _fold(step, query[0].transpose(0, 1), num_key_heads)
    keys, values = step.cache.read(module.layer_idx, step)
    group = num_heads // num_key_heads
    mask = step.share(
        ("mask", attention_mask.data_ptr(), group),
        lambda: attention_mask.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3),
    )
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    size = out.shape[-1]
    if step.full and step.num_queries == 1:
        return out.reshape(1, num_tokens, num_heads, size), None
    flat = out.reshape(-1, group * size)
    return flat.index_select(0, step.query_places(num_key_heads)).view(1, num_tokens, num_heads, size), None


def _fold(step: TreeStep, query: torch.Tensor, num_key_heads: int) -> torch.Tensor:
    """Queries (N, H, D) as a padded batch (B, M, Q * G, D)."""
    num_tokens, num_heads, size = query.shape
    group = num_heads // num_key_heads
    shape = (step.num_rows, num_key_heads, step.num_queries * group, size)
    if step.full and step.num_queries == 1:
        return query.reshape(shape)
    # What stands in the padding is never read, so all layers may use the same memory.
    padded = step.share(
        ("padded", num_key_heads, group, size),
        lambda: query.new_zeros(step.num_rows * num_key_heads * step.num_queries, group * size),
    )
    rows = query.reshape(num_tokens * num_key_heads, group * size)
    return padded.index_copy_(0, step.query_places(num_key_heads), rows).view(shape)


AttentionInterface.register(TREE_ATTENTION, tree_attention)
AttentionMaskInterface.register(TREE_ATTENTION, lambda *args, **kwargs: None)
