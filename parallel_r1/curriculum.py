"""The stages of a recipe in order: train, evaluate, sum up (paper section 3.4; SPEC section 4).

Every stage ends in a whole model folder, and the next one loads that folder, so a run that was killed
at any moment goes on with the same result: a finished stage is not repeated, an unfinished one resumes
from its last whole checkpoint, an evaluation decodes only the parts that are missing. Tags enter the
model before the first stage that needs them.

Left out: several processes (a stage's trainer takes them, the run directory does not).
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from parallel_r1.config import Recipe, RLStage, SFTStage
from parallel_r1.preflight import preflight
from parallel_r1.provenance import summary_of
from parallel_r1.run_dir import EVAL, RunDir, open_run
from parallel_r1.terminal import Bar, WatchedEngine, clock, figures, plain_console, print_table, progress_bar
from parallel_r1.train.checkpoint import final_model, latest_complete, save_final
from parallel_r1.types import Group

if TYPE_CHECKING:
    from parallel_r1.models.load import Loaded, SavedSettings

BASE = "base"
SHOWN_IDS = 5
FULL_BYTES = 64 * 2**20


def run_recipe(
    recipe: Recipe,
    out_dir: str | os.PathLike[str],
    resume: bool = True,
    console: Console | None = None,
    only: Sequence[str] | None = None,
) -> Path:
    """Run a recipe in ``out_dir``, or go on with a run that was stopped there; returns the folder.

    ``resume`` False deletes what an earlier run left there. ``only``: train these stages alone and
    evaluate nothing; the stages before them must have finished.

    Raises:
        ValueError: settings or data that do not work, or a folder of another recipe or process.
        OSError: the disk is full; what was saved before is whole.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"WORLD_SIZE = {os.environ['WORLD_SIZE']}: a recipe runs in one process; start it plainly")
    preflight(recipe)
    with open_run(out_dir, recipe, fresh=not resume) as run, _quiet_libraries(run.folder):
        curriculum = Curriculum(recipe, run, console or plain_console())
        if only is None:
            curriculum.run_all()
        else:
            for index, stage in enumerate(recipe.stages):
                if stage.name in only:
                    curriculum.train(index, stage)
    return run.folder


def evaluate_stages(recipe: Recipe, out_dir: str | os.PathLike[str], console: Console | None = None) -> None:
    """Evaluate what a run has finished so far (and its base), print the table and renew the page.

    Raises:
        ValueError: there is nothing to evaluate, or as `run_recipe`.
    """
    from parallel_r1.report import build_report

    with open_run(out_dir, recipe) as run, _quiet_libraries(run.folder):
        curriculum = Curriculum(recipe, run, console or plain_console())
        finished = [stage.name for stage in recipe.stages if final_model(run.stage_folder(stage.name))]
        for stage in [*([BASE] if recipe.evaluate.base else []), *finished]:
            curriculum.evaluate(stage)
        if not print_table(curriculum.console, curriculum.summarise(finished=len(finished) == len(recipe.stages))):
            raise ValueError(
                f"{run.folder}: no stage has finished and evaluate.base = false, so nothing is to evaluate"
            )
        build_report(run.folder)


class Curriculum:
    """One run in progress."""

    def __init__(self, recipe: Recipe, run: RunDir, console: Console) -> None:
        self.recipe, self.run, self.console = recipe, run, console

    def run_all(self) -> None:
        """Everything the recipe says, then the table and the page."""
        from parallel_r1.report import build_report

        started = time.monotonic()
        if self.recipe.evaluate.base:
            self.evaluate(BASE)
        for index, stage in enumerate(self.recipe.stages):
            self.train(index, stage)
            self.evaluate(stage.name)
        print_table(self.console, self.summarise(finished=True))
        page = build_report(self.run.folder)
        self.console.print(f"done in {clock(time.monotonic() - started)}; report: {page}", highlight=False)

    # --- train ---

    def train(self, index: int, stage: SFTStage | RLStage) -> Path:
        """The folder of the stage's model, trained if it is not there yet."""
        folder = self.run.stage_folder(stage.name)
        found = final_model(folder)
        if found is None:
            self.console.rule(f"[bold]{stage.name}[/bold] ({stage.kind})", align="left")
            started = time.monotonic()
            loaded, source = self._load_for(index, stage)
            checkpoint = latest_complete(folder)
            step = _rollout_step(checkpoint, stage)
            self.run.rewind(stage.name, step)
            self.run.write_manifest(
                stage.name, status="training", kind=stage.kind, started_from=source, recipe_hash=self._hash(index)
            )
            if checkpoint is not None:
                self.console.print(f"  going on from {checkpoint}", highlight=False)
            settings = self._settings(loaded)
            if isinstance(stage, SFTStage):
                self._run_sft(loaded, stage, folder, settings)
            else:
                self._run_rl(loaded, stage, folder)
            found = save_final(loaded, folder, settings)
            self.run.write_manifest(stage.name, seconds_last_start=time.monotonic() - started)
        if self.run.manifest(stage.name).get("status") != "trained":
            self.run.write_manifest(stage.name, status="trained", final=str(found.relative_to(self.run.folder)))
        for old in folder.glob("checkpoint-*"):  # an optimiser is of no use once the stage has ended
            shutil.rmtree(old, ignore_errors=True)
        return found

    def _load_for(self, index: int, stage: SFTStage | RLStage) -> tuple[Loaded, str]:
        """The model a stage starts from, with tags where the stage needs them, and its name."""
        from parallel_r1.trace.tokens import add_tags

        source = self.recipe.model
        if index > 0:
            before = self.recipe.stages[index - 1].name
            found = final_model(self.run.stage_folder(before))
            if found is None:
                raise ValueError(
                    f"{stage.name} starts from {before}, which has not finished in {self.run.folder}; train that stage "
                    "first, or give a model with --model"
                )
            source = str(found)
        loaded = self._load(source)
        if loaded.tags is None and self._needs_tags(stage):
            tags = add_tags(loaded.model, loaded.tokenizer, seed=self.recipe.seed)
            loaded = dataclasses.replace(loaded, tags=tags)
        return loaded, source

    def _load(self, source: str) -> Loaded:
        from parallel_r1.models.load import load_model

        loaded = load_model(source, dtype=self.recipe.dtype, seed=self.recipe.seed)
        known = loaded.settings
        if known is not None and known.variant != self.recipe.variant:
            self._note(f"{source} was trained as {known.variant}, this recipe is {self.recipe.variant}")
        if known is not None and known.prompt != self.recipe.prompt:
            self._note(f"{source} was trained with other prompt templates than this recipe's")
        return loaded

    def _needs_tags(self, stage: SFTStage | RLStage) -> bool:
        if isinstance(stage, SFTStage):
            return stage.format == "trace"
        return self.recipe.stage_engine(stage).mode == "forked"

    def _run_sft(self, loaded: Loaded, stage: SFTStage, folder: Path, settings: SavedSettings) -> None:
        from parallel_r1.coldstart.generate import build_rows
        from parallel_r1.train.sft import run_sft

        rows, counts = build_rows(stage, loaded.tokenizer, loaded.tags, self.recipe.prompt, self.recipe.seed)
        self.run.log({"stage": stage.name, "kind": "note", "note": f"texts: {counts}"})
        self._note(f"texts: {counts}")
        with progress_bar(self.console, stage.name, None) as bar:
            run_sft(
                loaded, cast("list[dict[str, list[int]]]", rows), stage, self.recipe.variant, folder, self.recipe.seed,
                log=lambda row: self._log(bar, row, row.get("steps")), settings=settings,
            )  # fmt: skip

    def _run_rl(self, loaded: Loaded, stage: RLStage, folder: Path) -> None:
        from parallel_r1.rollout.summary import rollout_rows
        from parallel_r1.train.grpo import run_grpo

        mode = self.recipe.stage_engine(stage).mode

        def record(groups: list[Group], step: int) -> None:
            self.run.record(stage.name, rollout_rows(groups, stage.name, step, mode))

        with progress_bar(self.console, stage.name, stage.steps) as bar:
            run_grpo(
                loaded, stage, self.recipe, folder, log=lambda row: self._log(bar, row, stage.steps), record=record
            )

    def _log(self, bar: Bar, row: dict[str, Any], total: int | None) -> None:
        self.run.log(row)
        if row.get("kind") == "note":
            ids = row.get("dropped", [])
            more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
            self._note(row["note"] + (f": {', '.join(map(str, ids[:SHOWN_IDS]))}{more}" if ids else ""))
        else:
            bar.update(row["step"], figures(row), total)

    # --- evaluate ---

    def evaluate(self, stage: str) -> None:
        """Decode the held-out sets with a stage's model, unless that is done, and renew the summary."""
        from parallel_r1.engine.tree import TreeEngine
        from parallel_r1.evaluate.run import evaluate_model

        config = self.recipe.evaluate
        if not config.sets or self.run.results(stage) is not None:
            return
        source = self.recipe.model if stage == BASE else str(final_model(self.run.stage_folder(stage)))
        loaded = self._load(source)
        decoder = TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, self.recipe.variant)
        engine = WatchedEngine(decoder, loaded.stop_ids, self.console)
        result = evaluate_model(
            loaded, self.recipe.variant, config, self.recipe.prompt, self.recipe.engine, self.recipe.seed, stage,
            self.run.folder / EVAL, step=self.run.last_step(stage), engine=engine, log=engine.name_next,
        )  # fmt: skip
        self.run.log_results(stage, result.rows)
        for row in result.rows:
            if row.get("dropped_prompts"):
                self._note(f"{row['task']} {row['size']}: {row['dropped_prompts']} prompts too long for the model")
            if row.get("mode") == "forked" and not row.get("parallel_ratio"):
                self._note(f"{row['task']} {row['size']}: no response forks; is the prompt the one it was trained on?")
        self.summarise(finished=False)

    def summarise(self, finished: bool) -> dict[str, Any]:
        """Write ``summary.json`` from the evaluations there are, in the order of the stages."""
        stages = [BASE, *(stage.name for stage in self.recipe.stages)]
        summary = summary_of(self.recipe, [row for stage in stages for row in self.run.results(stage) or []], finished)
        self.run.write_summary(summary)
        return summary

    # --- small things ---

    def _settings(self, loaded: Loaded) -> SavedSettings:
        from parallel_r1.models.load import SavedSettings

        return SavedSettings(
            variant=self.recipe.variant, prompt=self.recipe.prompt, engine=self.recipe.engine, stop_ids=loaded.stop_ids
        )

    def _hash(self, index: int) -> str:
        """Of everything a stage's model depends on."""
        content = self.recipe.model_dump(mode="json", exclude={"evaluate", "name"})
        content["stages"] = content["stages"][: index + 1]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def _note(self, text: str) -> None:
        for line in text.splitlines():
            self.console.print(f"  {line}", markup=False, highlight=False)


def _rollout_step(checkpoint: Path | None, stage: SFTStage | RLStage) -> int:
    """The step after which a checkpoint was written; folders of RL stages count updates."""
    if checkpoint is None:
        return 0
    updates = int(checkpoint.name.rpartition("-")[2])
    return updates // stage.updates_per_step if isinstance(stage, RLStage) else updates


@contextmanager
def _quiet_libraries(folder: Path) -> Iterator[None]:
    """Without the bars and warnings of libraries, and with one message for a full disk."""
    from transformers.utils import logging

    from parallel_r1.train.callbacks import few_messages

    logging.set_verbosity_error()
    try:
        with few_messages():
            yield
    except Exception as error:
        if not is_full_disk(error, folder):
            raise
        raise OSError(
            errno.ENOSPC,
            f"the disk of {folder} is full. Make room and give the same command again: it goes on from the last whole "
            "checkpoint",
        ) from error


def is_full_disk(error: Exception, folder: Path) -> bool:
    """Whether a full disk is behind an error; libraries report one in many ways."""
    text = str(error)
    if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in text:
        return True
    torch_write = "iostream error" in text or "unexpected pos" in text or "file write failed" in text
    return torch_write and shutil.disk_usage(folder).free < FULL_BYTES
