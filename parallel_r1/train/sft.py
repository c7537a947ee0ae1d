"""Supervised stage: cold start on traces, or pre-training from random weights (paper section 3.2).

Stands on TRL's `SFTTrainer`, which gets ready-made ids and labels: no packing, no padding-free
batches, no truncation. Every trained token counts the same within an update, tags included. Models
with tags are scored under the layout rule in both variants.

The order of rows is decided here. An epoch is a seeded shuffle; the rows of one update are sorted by
length and cut into micro-batches. Random micro-batches would waste about half of the compute on
padding, and updates of rows of equal length are biased.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from parallel_r1.config import SFTStage
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.models.load import Loaded, SavedSettings
from parallel_r1.train.callbacks import Log, few_messages, num_processes, own_forward, quiet
from parallel_r1.train.checkpoint import WholeCheckpoints, start_point
from parallel_r1.train.guards import GradientGuard
from parallel_r1.types import Variant


def run_sft(
    loaded: Loaded,
    rows: Sequence[Mapping[str, list[int]]],
    stage: SFTStage,
    variant: Variant,
    out_dir: str | Path,
    seed: int,
    *,
    log: Log | None = None,
    settings: SavedSettings | None = None,
    resume: bool = True,
) -> None:
    """Train ``loaded.model`` in place on rows ``{"input_ids", "labels"}`` (labels -100: not trained).

    ``log`` gets one object per update. Checkpoints go to ``out_dir/checkpoint-N``, with ``settings``
    beside the weights; ``resume`` goes on from the last whole one.

    Raises:
        ValueError: no rows, a row without a trained token, or a checkpoint of another stage.
        FloatingPointError: three updates whose loss or gradient is not finite.
    """
    _check_rows(rows, stage)
    order, num_filled = row_order([len(row["input_ids"]) for row in rows], stage, seed)
    mark = {**stage.model_dump(exclude={"micro_batch", "save_every"}), "variant": variant, "seed": seed}
    mark["num_rows"] = len(rows)
    checkpoint = start_point(out_dir, mark, resume)
    if num_filled and log is not None:
        log({"stage": stage.name, "kind": "note", "note": f"{num_filled} rows repeated to fill the last batch"})
    data = Dataset.from_list([{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows])
    model: Any = loaded.model
    with contextlib.ExitStack() as stack:
        if loaded.tags is not None:
            stack.enter_context(install_layout_hook(model, loaded.tags, variant))
        stack.enter_context(own_forward(model))
        stack.enter_context(few_messages())
        guard = GradientGuard(out_dir, log)
        trainer = _Trainer(
            model=model,
            args=sft_config(stage, len(order), out_dir, seed, model.device.type == "cpu"),
            train_dataset=data.select(order),
            processing_class=loaded.tokenizer,
            callbacks=[guard],
        )
        quiet(trainer)
        trainer.report(stage, log, guard)
        trainer.keep_whole(settings, mark)
        trainer.train(resume_from_checkpoint=checkpoint)


def row_order(lengths: Sequence[int], stage: SFTStage, seed: int) -> tuple[list[int], int]:
    """Indices of rows in the order of training, and how many of them only fill up the last update.

    Epochs follow each other without a gap. The last update is filled from one more shuffle, so that
    every row is seen ``stage.epochs`` times at least.
    """
    order: list[int] = []
    wanted = stage.epochs * len(lengths)
    total = -(-wanted // stage.batch_size) * stage.batch_size
    epoch = 0
    while len(order) < total:
        rows = list(range(len(lengths)))
        random.Random(f"sft/{seed}/{stage.name}/{epoch}").shuffle(rows)
        order += rows[: total - len(order)]
        epoch += 1
    batches = [order[i : i + stage.batch_size] for i in range(0, total, stage.batch_size)]
    return [row for batch in batches for row in sorted(batch, key=lengths.__getitem__)], total - wanted


def sft_config(stage: SFTStage, num_rows: int, out_dir: str | Path, seed: int, use_cpu: bool) -> SFTConfig:
    """TRL's settings of a stage over ``num_rows`` ordered rows (all epochs).

    Precision is the model's own: no autocast, so that engine and trainer compute alike.
    """
    updates = num_rows // stage.batch_size
    at_once = stage.micro_batch * num_processes()
    if stage.batch_size % at_once:
        raise ValueError(
            f"{stage.name}.batch_size = {stage.batch_size} is no multiple of micro_batch = {stage.micro_batch} times "
            f"{num_processes()} processes; change one of the three"
        )
    return SFTConfig(
        output_dir=str(out_dir),
        num_train_epochs=1,
        per_device_train_batch_size=stage.micro_batch,
        gradient_accumulation_steps=stage.batch_size // at_once,
        learning_rate=stage.learning_rate,
        lr_scheduler_type=stage.lr_schedule,
        warmup_steps=round(stage.warmup_ratio * updates),
        weight_decay=stage.weight_decay,
        adam_beta2=stage.adam_beta2,
        max_grad_norm=stage.max_grad_norm,
        loss_type="nll",
        max_length=None,
        packing=False,
        padding_free=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        train_sampling_strategy="sequential",
        dataloader_num_workers=0,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=stage.save_every,
        save_total_limit=None,
        report_to=[],
        disable_tqdm=True,
        use_cpu=use_cpu,
        seed=seed,
    )


class _Trainer(WholeCheckpoints, SFTTrainer):
    """`SFTTrainer` with whole checkpoints, telling the caller each update's numbers."""

    _stage: SFTStage
    _log: Log | None = None
    _since = 0.0

    def report(self, stage: SFTStage, log: Log | None, guard: GradientGuard) -> None:
        self._stage, self._log, self._guard = stage, log, guard

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._guard.see(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._since = time.perf_counter()
        return super().train(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        if self._log is None or "loss" not in logs or not self.accelerator.is_main_process:
            return
        now = time.perf_counter()
        self._log(
            {
                "stage": self._stage.name,
                "kind": "sft",
                "step": self.state.global_step,
                "steps": self.state.max_steps,
                "loss": logs["loss"],
                "token_accuracy": logs.get("mean_token_accuracy"),
                "grad_norm": logs.get("grad_norm"),
                "learning_rate": logs.get("learning_rate"),
                "seconds": now - self._since,
            }
        )
        self._since = now

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        self._since = time.perf_counter()


def _check_rows(rows: Sequence[Mapping[str, list[int]]], stage: SFTStage) -> None:
    if not rows:
        raise ValueError(f"{stage.name}: no rows to train on; check {stage.name}.data")
    for index, row in enumerate(rows):
        if len(row["input_ids"]) != len(row["labels"]) or all(label == -100 for label in row["labels"][1:]):
            raise ValueError(
                f"{stage.name}: row {index} has {len(row['input_ids'])} ids and {len(row['labels'])} labels; both must "
                "agree and train at least one token: build rows with parallel_r1.coldstart.generate.build_rows"
            )
