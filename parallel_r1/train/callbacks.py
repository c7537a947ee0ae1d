"""What both trainers need around TRL: few messages, and a model that is put back as it was."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from transformers import PreTrainedModel, PrinterCallback, Trainer
from transformers.utils import logging

Log = Callable[[dict[str, Any]], None]


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
