"""What both trainers do around an optimiser step: look at the gradients, pass the numbers on."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import PreTrainedModel, PrinterCallback, Trainer, TrainerCallback
from transformers.utils import logging

Log = Callable[[dict[str, Any]], None]


class GradientGuard(TrainerCallback):
    """Stops before a non-finite gradient reaches the weights; drops an update without any gradient.

    With all gradients exactly zero, AdamW would still move the weights (momentum, weight decay). Such
    an update is dropped by clearing the gradients: the optimiser skips parameters that have none.
    Gradients are equal on all processes here, so all of them decide the same.
    """

    def __init__(self) -> None:
        self.num_skipped = 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        gradients = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        size = float(torch.nn.utils.get_total_norm(gradients, norm_type=1.0)) if gradients else 0.0
        if not math.isfinite(size):
            raise FloatingPointError(
                f"update {state.global_step + 1}: the gradient is not finite; the weights are untouched. Resume from "
                "the last checkpoint with a lower learning_rate or max_grad_norm"
            )
        if size == 0.0:
            self.num_skipped += 1
            for parameter in kwargs["model"].parameters():
                parameter.grad = None


def num_processes() -> int:
    """How many processes train together (torchrun or accelerate launch)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def few_messages() -> Iterator[None]:
    """Without the progress bars of saving, and the warnings about settings that are meant as they are."""
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*gradient_checkpointing.* is deprecated")
            warnings.filterwarnings("ignore", message=".*rollout_func.*experimental")
            yield
    finally:
        if bars:
            logging.enable_progress_bar()


def quiet(trainer: Trainer) -> None:
    """No printing of TRL's own log lines; ours go to the caller's ``log``."""
    trainer.remove_callback(PrinterCallback)


@contextlib.contextmanager
def own_forward(model: PreTrainedModel) -> Iterator[None]:
    """Puts ``model.forward`` and its training flag back: TRL patches a fused LM head in, one per trainer."""
    patched = model.__dict__.get("forward")
    try:
        yield
    finally:
        model.__dict__.pop("forward", None)
        if patched is not None:
            model.__dict__["forward"] = patched
        model.eval()
