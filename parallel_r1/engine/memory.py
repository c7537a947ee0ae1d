"""How many rollouts fit into memory at once, worked out before anything is decoded.

Counted are the keys and values of rows at their full length (prompt and response budget), which is what
grows with the number of rollouts; weights are there already, and activations of one pass are small beside.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from transformers import PreTrainedModel

from parallel_r1.config import EngineConfig
from parallel_r1.models.cache import bytes_per_token, whole_slots

FREE_SHARE = 0.5
"""Share of the free memory that is taken where ``engine.memory_gb`` is not given."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A budget for keys and values, in bytes."""

    budget: int
    bytes_per_token: int
    source: str

    def num_rows(self, num_tokens: int) -> int:
        """How many rows of ``num_tokens`` (prompt and response) fit."""
        return self.budget // (self.bytes_per_token * whole_slots(num_tokens))

    def describe(self, num_tokens: int, max_rows: int) -> str:
        """The sum, in words."""
        row = self.bytes_per_token * whole_slots(num_tokens)
        fit = self.num_rows(num_tokens)
        return (
            f"keys and values: {self.bytes_per_token / 1024:.1f} KiB a token, {row / 2**20:.1f} MiB a row of "
            f"{num_tokens} tokens; {self.budget / GIB:.2f} GiB ({self.source}) hold {fit} rows, "
            f"engine.max_rows = {max_rows}: {min(fit, max_rows)} at once"
        )


def plan_memory(model: PreTrainedModel, config: EngineConfig) -> MemoryPlan:
    """The budget of ``config``, or `FREE_SHARE` of what is free on the model's device now."""
    per_token = bytes_per_token(model.config.get_text_config(), model.dtype)
    if config.memory_gb is not None:
        return MemoryPlan(int(config.memory_gb * GIB), per_token, "engine.memory_gb")
    if model.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(model.device)
    else:
        free = psutil.virtual_memory().available
    return MemoryPlan(int(free * FREE_SHARE), per_token, f"{FREE_SHARE:.0%} of what is free")
