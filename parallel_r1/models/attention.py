"""How the layout rule enters a transformers model for scoring: one hook.

`install_layout_hook` puts ONE forward pre-hook on the backbone. It turns ids into ``position_ids`` and
an explicit 4-D mask, so any trainer that calls the model with ids and a 2-D ``attention_mask`` scores
tokens under the layout. It fires under fused LM heads too, as they still run the backbone. How the
rollout engine decodes under the same rule is in `parallel_r1.models.decode`.

The mask is always a float in the model's dtype (``eager`` attention adds it to the scores, so a
boolean one gives wrong logits without a word) and always present (restarted positions without a mask
switch on transformers' packed-sequence masking). Flash and flex attention are refused: the one
ignores a dense mask, the other has no backward pass on CPU.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from parallel_r1.trace.layout import layout
from parallel_r1.trace.tags import TagIds
from parallel_r1.types import Phase, Variant

FULL, SLIDING = "full_attention", "sliding_attention"


def backbone(model: PreTrainedModel) -> nn.Module:
    """The decoder stack under the LM head (also through a PEFT wrapper)."""
    return model.get_decoder()


def layer_masks(config: Any, build: Callable[[int | None], torch.Tensor]) -> torch.Tensor | dict[str, torch.Tensor]:
    """One mask, or one per layer type where some layers have a sliding window.

    ``build`` makes the mask for a window (None: no window).

    Raises:
        ValueError: the model has layers that no mask can describe (linear or chunked attention, ...).
    """
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if types - {FULL, SLIDING}:
        raise ValueError(
            f"layer_types = {sorted(types)}: only {FULL!r} and {SLIDING!r} layers can hide sibling paths; "
            "use a model with plain attention"
        )
    if SLIDING in types:
        return {FULL: build(None), SLIDING: build(window)} if FULL in types else {SLIDING: build(window)}
    if types or window is None or not getattr(config, "use_sliding_window", True):
        return build(None)
    return build(window)


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where visible, the dtype's lowest number elsewhere."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)


_HOOKED: WeakSet[nn.Module] = WeakSet()


class LayoutHook:
    """What `install_layout_hook` returns: ``remove()`` takes the hook off again (also a context manager)."""

    def __init__(self, module: nn.Module, handle: Any) -> None:
        self._module, self._handle = module, handle

    def remove(self) -> None:
        self._handle.remove()
        _HOOKED.discard(self._module)

    def __enter__(self) -> LayoutHook:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def install_layout_hook(model: PreTrainedModel, tags: TagIds, variant: Variant, phase: Phase = "scoring") -> LayoutHook:
    """Make every plain call of ``model`` score its ids under the layout rule.

    Calls that bring a cache, a 4-D mask or a mask per layer type are left alone: they know better.
    Positions handed in by the caller are replaced.

    Raises:
        ValueError: a hook is already there, or the attention implementation takes no dense mask.
    """
    module = backbone(model)
    if module in _HOOKED:
        raise ValueError("install_layout_hook: this model already has a layout hook; call remove() on it first")
    config: Any = module.config
    layer_masks(config, lambda window: torch.empty(0))  # refuse unknown layer types at once

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        if _knows_better(mask, kwargs):
            return None
        if config._attn_implementation not in ("sdpa", "eager"):
            raise ValueError(
                f"attn_implementation = {config._attn_implementation!r} takes no dense mask; use 'sdpa' or 'eager'"
            )
        input_ids = args[0] if args else kwargs.get("input_ids")
        if input_ids is None:
            raise ValueError("inputs_embeds without input_ids: the layout is read off the ids; pass input_ids")
        dtype = next(module.parameters()).dtype
        position_ids, build = row_masks(input_ids, mask, tags, variant, phase, dtype)
        new = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": layer_masks(config, build)}
        return (), {**kwargs, **new}

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    _HOOKED.add(module)
    return LayoutHook(module, handle)


def _knows_better(mask: Any, kwargs: dict[str, Any]) -> bool:
    cached = any(kwargs.get(key) is not None for key in ("cache", "past_key_values"))
    return cached or isinstance(mask, dict) or (mask is not None and mask.ndim != 2)


def row_masks(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    tags: TagIds,
    variant: Variant,
    phase: Phase,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, Callable[[int | None], torch.Tensor]]:
    """Lay out a padded batch: ``position_ids`` (B, T) and a builder of (B, 1, T, T) masks per window.

    ``attention_mask`` (B, T) marks real tokens; padding may stand on either side. Padding sees only
    itself (so that no row of the mask is empty) and is seen by nobody.
    """
    ids = input_ids.cpu().numpy()
    num_rows, num_tokens = ids.shape
    real = np.ones(ids.shape, dtype=bool) if attention_mask is None else attention_mask.cpu().numpy().astype(bool)
    arrays = np.zeros((3, num_rows, num_tokens), dtype=np.int64)
    for b in range(num_rows):
        (where,) = np.nonzero(real[b])
        row = layout(ids[b, where], tags, variant, phase)
        # Intervals count unpadded tokens; ``edge`` maps them, and their open end, to places in the padded row.
        edge = np.append(where, num_tokens)
        arrays[:, b, where] = row.position, edge[row.hidden_from], edge[row.hidden_to]
    position, hidden_from, hidden_to, keep = (torch.from_numpy(x).to(input_ids.device) for x in (*arrays, real))
    place = torch.arange(num_tokens, device=input_ids.device)

    def build(window: int | None) -> torch.Tensor:
        query = place[:, None]
        hidden = (hidden_from[:, None, :] <= query) & (query < hidden_to[:, None, :])
        visible = (place <= query) & ~hidden & keep[:, None, :]
        if window is not None:
            visible &= position[:, :, None] - position[:, None, :] < window
        visible |= place == query
        return additive(visible[:, None], dtype)

    return position, build
