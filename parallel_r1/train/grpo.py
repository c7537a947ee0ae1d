"""Reinforcement learning on verifiable problems: GRPO over forked rollouts (paper section 3.3).

Stands on TRL's `GRPOTrainer`. Rollouts come from our engine, on the same model object as the trainer;
inserted tokens stay out of the loss; the loss is clipped, token-mean over all trained tokens of a
rollout step ("dapo"), so no split into micro-batches and no padding changes a gradient. Scoring sees
the layout rule through one hook. What goes beyond TRL's public doors is in
`parallel_r1.train.trl_privates`.

Left out: more than one pass over a rollout.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from trl.trainer.grpo_config import GRPOConfig

from parallel_r1.config import EngineConfig, Recipe, RLStage
from parallel_r1.engine.base import Engine
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.models.load import Loaded, SavedSettings
from parallel_r1.rewards.credit import has_signal
from parallel_r1.rewards.schedule import phase
from parallel_r1.rollout.dynamic import Replacing
from parallel_r1.rollout.sample import RowRollouts, sample_groups, sampled_reward
from parallel_r1.rollout.summary import step_metrics
from parallel_r1.tasks.base import Task
from parallel_r1.train.callbacks import Log, few_messages, num_processes, own_forward, quiet
from parallel_r1.train.checkpoint import start_point
from parallel_r1.train.guards import Alarms, GradientGuard
from parallel_r1.train.problems import fits_model, problem_order
from parallel_r1.train.trl_privates import FoldingGRPOTrainer, Measured, frozen_copy
from parallel_r1.types import Group, Problem

Record = Callable[[list[Group], int], None]
FAILED_SHARE, FAILED_AT_LEAST = 0.02, 10
"""A stage stops when the checker failed (error or timeout) more often than both allow."""
WARMUP_SHARE = 0.1
"""Of all updates, with ``lr_schedule = "constant_with_warmup"``."""


def run_grpo(
    loaded: Loaded,
    stage: RLStage,
    recipe: Recipe,
    out_dir: str | Path,
    *,
    log: Log | None = None,
    record: Record | None = None,
    engine: Engine | None = None,
    resume: bool = True,
) -> None:
    """Train ``loaded.model`` in place for ``stage.steps`` rollout steps.

    ``log`` gets one object per rollout step, ``record`` its groups. ``engine`` None: a `TreeEngine` on
    the model. Checkpoints go to ``out_dir/checkpoint-N`` (N counts updates); ``resume`` goes on from
    the last whole one.

    Raises:
        ValueError: settings that do not fit together, or a checkpoint of another stage.
        FloatingPointError: three updates whose loss or gradient is not finite.
        RuntimeError: the checker keeps failing.
    """
    config = recipe.stage_engine(stage)
    _check(loaded, stage, config)
    order, tasks, dropped = problem_order(stage, recipe.seed, lambda p: fits_model(p, loaded, recipe, config))
    if dropped and log is not None:
        log({"stage": stage.name, "kind": "note", "note": f"{len(dropped)} prompts too long", "dropped": dropped})
    free = {"micro_batch", "save_every"} | ({"steps"} if stage.lr_schedule == "constant" else set())
    mark = {**stage.model_dump(exclude=free), "variant": recipe.variant, "seed": recipe.seed}
    checkpoint = start_point(out_dir, mark, resume)
    model: Any = loaded.model
    with contextlib.ExitStack() as stack:
        reference = frozen_copy(model) if stage.kl else None
        if loaded.tags is not None:
            for scored in filter(None, (model, reference)):
                stack.enter_context(install_layout_hook(scored, loaded.tags, recipe.variant))
        stack.enter_context(own_forward(model))
        stack.enter_context(few_messages())
        backend = engine or TreeEngine(model, loaded.tokenizer, loaded.tags, loaded.stop_ids, recipe.variant)
        sample = _sampler(backend, loaded, tasks, recipe, stage, config)
        if stage.replace_rounds:
            sample = Replacing(
                sample, list({problem.id: problem for problem in order}.values()), stage.replace_rounds,
                stage.prompts_per_step, f"spare/{recipe.seed}/{stage.name}", partial(has_signal, credit=stage.credit),
            )  # fmt: skip
        args = grpo_config(stage, config, out_dir, recipe.seed, model.device.type == "cpu")
        rollouts = RowRollouts(sample, order, stage.prompts_per_step, stage.samples)
        trainer = _trainer(loaded, args, rollouts, log)
        trainer.set_up(stage, recipe.variant, loaded.tags, reference)
        trainer.tell(log, record)
        settings = SavedSettings(variant=recipe.variant, prompt=recipe.prompt, engine=config, stop_ids=loaded.stop_ids)
        trainer.keep_whole(settings, mark)
        trainer.train(resume_from_checkpoint=checkpoint)


def _trainer(loaded: Loaded, args: GRPOConfig, rollouts: RowRollouts, log: Log | None) -> _Trainer:
    guard = GradientGuard(args.output_dir or ".", log)
    trainer = _Trainer(
        model=loaded.model,
        reward_funcs=sampled_reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": [str(row) for row in range(len(rollouts.order))]}),
        processing_class=loaded.tokenizer,
        callbacks=[guard],
        rollout_func=rollouts,  # pyright: ignore[reportArgumentType]
    )
    quiet(trainer)
    trainer.watch(guard)
    return trainer


def grpo_config(stage: RLStage, config: EngineConfig, out_dir: str | Path, seed: int, use_cpu: bool) -> GRPOConfig:
    """TRL's settings of a stage. A recipe counts prompts; TRL counts completions, per process.

    Raises:
        ValueError: the counts do not divide by the number of processes.
    """
    completions = stage.prompts_per_step * stage.samples
    at_once = stage.micro_batch * num_processes()
    per_update = completions // stage.updates_per_step
    if per_update % at_once or completions // num_processes() % stage.samples:
        raise ValueError(
            f"{stage.name}: {per_update} completions per update are no multiple of micro_batch = {stage.micro_batch} "
            f"times {num_processes()} processes, or a process gets no whole groups of {stage.samples}; change "
            "prompts_per_step or micro_batch"
        )
    updates = stage.steps * stage.updates_per_step
    warmup = round(WARMUP_SHARE * updates) if stage.lr_schedule == "constant_with_warmup" else 0
    return GRPOConfig(
        output_dir=str(out_dir),
        num_train_epochs=1,
        per_device_train_batch_size=stage.micro_batch,
        gradient_accumulation_steps=per_update // at_once,
        steps_per_generation=completions // at_once,
        num_generations=stage.samples,
        num_iterations=1,
        max_completion_length=config.max_response_tokens,
        temperature=config.temperature,
        loss_type="dapo",
        beta=0.0,
        epsilon=stage.clip_low,
        epsilon_high=stage.clip_high,
        scale_rewards="group" if stage.advantage == "mean_std" else "none",
        mask_truncated_completions=False,
        disable_dropout=True,
        shuffle_dataset=False,
        remove_unused_columns=False,
        use_vllm=False,
        learning_rate=stage.learning_rate,
        lr_scheduler_type=stage.lr_schedule,
        warmup_steps=warmup,
        weight_decay=stage.weight_decay,
        max_grad_norm=stage.max_grad_norm,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=stage.save_every * stage.updates_per_step,
        save_total_limit=None,
        dataloader_num_workers=0,
        report_to=[],
        disable_tqdm=True,
        use_cpu=use_cpu,
        seed=seed,
    )


def _sampler(
    engine: Engine, loaded: Loaded, tasks: Mapping[str, Task], recipe: Recipe, stage: RLStage, config: EngineConfig
) -> Callable[..., list[Group]]:
    """`sample_groups` for this stage, with the engine told that the weights have moved."""
    sample = partial(
        sample_groups, engine, loaded.tokenizer, loaded.tags, tasks,
        prompt=recipe.prompt, config=config, reward=stage.reward, samples=stage.samples, run_seed=recipe.seed,
    )  # fmt: skip

    def step_groups(problems: list[Problem], places: list[int], step: int) -> list[Group]:
        engine.load_weights()
        return sample(problems, places=places, step=step)

    return step_groups


class _Trainer(FoldingGRPOTrainer):
    """Tells the caller the numbers of each rollout step."""

    _log: Log | None = None
    _record: Record | None = None

    def watch(self, guard: GradientGuard) -> None:
        self.guard = guard
        self._alarms = Alarms()
        self._updates: list[dict[str, float]] = []
        self._since = 0.0
        self._num_failed = self._num_checked = 0

    def tell(self, log: Log | None, record: Record | None) -> None:
        self._log, self._record = log, record

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        updates = self._stage.updates_per_step
        if self.state.global_step % updates:
            raise RuntimeError(f"rollout in the middle of a step (update {self.state.global_step} of {updates} a step)")
        self._since, self.measured, self._updates, self.guard.num_skipped = (time.perf_counter(), Measured(), [], 0)
        output = super()._generate_and_score_completions(inputs)
        # The reward phase follows TRL's count of updates and the rows alike; a resume that breaks one shows here.
        if self.rollout_func.step != self.state.global_step // updates + 1:
            raise RuntimeError(
                f"rows of rollout step {self.rollout_func.step} at update {self.state.global_step}; the data cursor "
                "and the checkpoint disagree: start the stage anew"
            )
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        if "loss" not in logs:
            return
        self._updates.append(dict(logs))
        if len(self._updates) == self._stage.updates_per_step:
            self._tell()

    def _tell(self) -> None:
        step = self.rollout_func.step
        groups, measured, replaced = self.rollout_func.groups, self.measured, self._replaced()
        if self.accelerator.num_processes > 1:
            groups = list(gather_object(groups))
            measured = Measured()
            for part in gather_object([self.measured]):
                measured.merge(part)
        if not self.accelerator.is_main_process:
            return
        numbers = self._numbers(step, groups, measured) | replaced
        if self._log is not None:
            self._log(numbers)
            for warning in self._alarms.look(numbers):
                self._log({"stage": self._stage.name, "kind": "note", "note": f"step {step}: {warning}"})
        if self._record is not None:
            self._record(groups, step)
        self._num_failed += numbers["failed_checks"]
        self._num_checked += len(groups) * self._stage.samples
        if self._num_failed > max(FAILED_AT_LEAST, FAILED_SHARE * self._num_checked):
            raise RuntimeError(
                f"{self._stage.name}: the checker failed on {self._num_failed} of {self._num_checked} responses; see "
                "their verdicts in the rollout file, and check the task's verifier before going on"
            )

    def _replaced(self) -> dict[str, Any]:
        """With dynamic sampling: what was thrown away, and how the policy does on all that was drawn."""
        sample = self.rollout_func.sample
        if not isinstance(sample, Replacing):
            return {}
        drawn, num_replaced = sample.drawn, sample.num_replaced
        if self.accelerator.num_processes > 1:
            drawn, num_replaced = list(gather_object(drawn)), sum(gather_object([num_replaced]))
        right = [member.verdict.right for group in drawn for member in group.members]
        return {
            "replaced_groups": num_replaced, "drawn_groups": len(drawn), "drawn_accuracy": sum(right) / len(right),
        }  # fmt: skip

    def _numbers(self, step: int, groups: list[Group], measured: Measured) -> dict[str, Any]:
        seconds = time.perf_counter() - self._since
        rollout_seconds = self.rollout_func.seconds
        return {
            "stage": self._stage.name,
            "kind": "rl",
            "step": step,
            "seconds": seconds,
            "seconds_rollout": rollout_seconds,
            "seconds_update": seconds - rollout_seconds,
            **step_metrics(groups),
            "reward_phase": phase(self._stage.reward, step),
            "gap_mean": measured.exact.mean,
            "gap_max": measured.exact.largest if measured.exact.num else None,
            "gap_by_path": {
                str(number): {"mean": gap.mean, "max": gap.largest} for number, gap in sorted(measured.by_path.items())
            },
            "ratio_quantiles": measured.ratio_quantiles(),
            "loss": _mean_of(self._updates, "loss"),
            "grad_norm": _mean_of(self._updates, "grad_norm"),
            "learning_rate": self._updates[-1].get("learning_rate"),
            "clipped": _mean_of(self._updates, "clip_ratio/region_mean"),
            "kl": _mean_of(self._updates, "kl"),
            "skipped_updates": self.guard.num_skipped,
        }


def _mean_of(updates: list[dict[str, float]], key: str) -> float | None:
    values = [float(update[key]) for update in updates if math.isfinite(update.get(key, math.nan))]
    return sum(values) / len(values) if values else None


def _check(loaded: Loaded, stage: RLStage, config: EngineConfig) -> None:
    """Settings that config.py cannot see together."""
    if loaded.tags is None and config.mode == "forked":
        raise ValueError(
            f"{stage.name}: engine.mode = 'forked' needs a tokenizer with tags; cold-start the model first"
        )
    if config.temperature == 0 or config.top_p < 1 or config.top_k > 0:
        raise ValueError(
            f"{stage.name}: temperature = {config.temperature}, top_p = {config.top_p}, top_k = {config.top_k}: the "
            "trainer scores the whole distribution; use a temperature above 0, top_p = 1 and top_k = 0"
        )
    dropout = getattr(loaded.model.config, "attention_dropout", 0) or 0
    if dropout > 0:
        raise ValueError(
            f"attention_dropout = {dropout}: rollout and trainer would score different models; set it to 0"
        )
