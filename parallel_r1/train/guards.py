"""What stops a training run from ruining its weights, and what says early that it is going wrong.

- `GradientGuard`: a loss or gradient that is no number skips the update and keeps its batch as a file;
  the third stops the stage. An update without any gradient is dropped.
- `Alarms`: entropy or accuracy that leaves the range it began in. It only speaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from parallel_r1.train.callbacks import Log

MOST_BROKEN = 3
FIRST_STEPS = 3
"""Steps that say what is normal."""
ENTROPY_LOW, ENTROPY_HIGH, ACCURACY_LOW = 0.25, 2.5, 0.5
"""Alarm below or above this multiple of what was normal (accuracy: of the best stretch so far)."""


class GradientGuard(TrainerCallback):
    """Keeps what is no number out of the weights; drops an update without any gradient.

    With all gradients exactly zero, AdamW would still move the weights (momentum, weight decay). An
    update is dropped by clearing the gradients: the optimiser skips parameters that have none.
    Gradients are equal on all processes here, so all of them decide the same.

    Args:
        folder: broken batches are written to ``folder/broken-N.safetensors`` (N: the update).
        log: told of every skipped update.
    """

    def __init__(self, folder: str | Path, log: Log | None = None) -> None:
        self.folder, self.log = Path(folder), log
        self.num_skipped = self.num_broken = 0
        self._batches: list[Mapping[str, Any]] = []

    def see(self, inputs: Mapping[str, Any]) -> None:
        """Called with every micro-batch, so that it can be written down if its update breaks."""
        self._batches.append(inputs)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        size = float(torch.nn.utils.get_total_norm(gradients, norm_type=1.0)) if gradients else 0.0
        if not math.isfinite(size):
            self._broken(state.global_step + 1)
        if size == 0.0 or not math.isfinite(size):
            self.num_skipped += 1
            for parameter in kwargs["model"].parameters():
                parameter.grad = None
        self._batches.clear()

    def _broken(self, update: int) -> None:
        self.num_broken += 1
        kept = self._keep(update)
        if self.num_broken >= MOST_BROKEN:
            raise FloatingPointError(
                f"update {update}: the gradient is not finite, for the {self.num_broken}rd time; the weights are "
                f"untouched by it, its batch is in {kept}. Resume from the last checkpoint with a lower learning_rate "
                "or max_grad_norm"
            )
        if self.log is not None:
            note = f"update {update} skipped: its gradient is not finite (batch: {kept})"
            self.log({"kind": "note", "note": note})

    def _keep(self, update: int) -> Path:
        """Write the batch; pure tensors, so that nothing has to be trusted to look at it."""
        from safetensors.torch import save_file

        path = self.folder / f"broken-{update}.safetensors"
        tensors = {
            f"{number}.{name}": value.detach().cpu().contiguous().clone()
            for number, batch in enumerate(self._batches)
            for name, value in batch.items()
            if isinstance(value, torch.Tensor)
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(path))
        return path


class Alarms:
    """Reads the numbers of each RL step; says each thing once per stage."""

    def __init__(self) -> None:
        self._entropy: list[float] = []
        self._accuracy: list[float] = []
        self._said: set[str] = set()

    def look(self, numbers: Mapping[str, Any]) -> list[str]:
        """Warnings that this step gives rise to, each with what to try."""
        found = {**dict(self._entropy_alarm(numbers)), **dict(self._accuracy_alarm(numbers))}
        new = [text for name, text in found.items() if name not in self._said]
        self._said |= set(found)
        return new

    def _entropy_alarm(self, numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        entropy = numbers.get("entropy")
        if entropy is None:
            return
        if len(self._entropy) < FIRST_STEPS:
            self._entropy.append(entropy)
            return
        normal = sum(self._entropy) / FIRST_STEPS
        if entropy < ENTROPY_LOW * normal:
            yield (
                "low",
                (
                    f"entropy {entropy:.2f}, it began at {normal:.2f}: samples of a problem become alike; "
                    "try a lower learning_rate, a higher clip_high or kl = 0.01"
                ),
            )
        if entropy > ENTROPY_HIGH * normal:
            yield (
                "high",
                (
                    f"entropy {entropy:.2f}, it began at {normal:.2f}: the policy comes apart; go back to an earlier "
                    "checkpoint with a lower learning_rate or kl = 0.01"
                ),
            )

    def _accuracy_alarm(self, numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        accuracy = numbers.get("drawn_accuracy", numbers.get("accuracy"))
        if accuracy is None:
            return
        self._accuracy.append(accuracy)
        stretches = [
            sum(self._accuracy[i : i + FIRST_STEPS]) / FIRST_STEPS for i in range(len(self._accuracy) - FIRST_STEPS + 1)
        ]
        if stretches and stretches[-1] < ACCURACY_LOW * max(stretches):
            yield (
                "accuracy",
                (
                    f"accuracy {stretches[-1]:.2f} over {FIRST_STEPS} steps, it was {max(stretches):.2f}: look at the "
                    "last rollouts in the report; try a lower learning_rate, or go back to an earlier checkpoint"
                ),
            )
