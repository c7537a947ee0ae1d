"""What commands do that run no recipe: evaluate one model, look at problems and texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from parallel_r1.config import DataSource, Recipe, SFTStage
from parallel_r1.provenance import summary_of
from parallel_r1.recipe import checked
from parallel_r1.run_dir import EVAL, RunDir
from parallel_r1.terminal import WatchedEngine, plain_console, print_table


def evaluate_one(
    recipe: Recipe, model: str, out_dir: str | os.PathLike[str] | None = None, console: Console | None = None
) -> dict[str, Any]:
    """Evaluate any model on a recipe's held-out sets; what is saved beside a model wins over the recipe.

    ``out_dir``: where responses and ``summary.json`` go; None writes nothing. Returns the summary.

    Raises:
        ValueError: no such model, or a recipe without held-out sets.
    """
    from parallel_r1.engine.tree import TreeEngine
    from parallel_r1.evaluate.run import evaluate_model
    from parallel_r1.models.load import load_model
    from parallel_r1.train.callbacks import few_messages

    if not recipe.evaluate.sets:
        raise ValueError(f"evaluate.sets = []: {recipe.name} names no held-out problems; add [[evaluate.sets]]")
    console = console or plain_console()
    with few_messages():
        loaded = load_model(model, dtype=recipe.dtype, seed=recipe.seed)
    if (saved := loaded.settings) is not None:
        if saved.prompt != recipe.prompt:
            console.print(f"{model} is asked with the templates it was trained with, not the recipe's")
        recipe = recipe.model_copy(update={"variant": saved.variant, "prompt": saved.prompt, "engine": saved.engine})
    decoder = TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, recipe.variant)
    engine = WatchedEngine(decoder, loaded.stop_ids, console)
    run = RunDir(out_dir) if out_dir is not None else None
    result = evaluate_model(
        loaded, recipe.variant, recipe.evaluate, recipe.prompt, recipe.engine, recipe.seed, Path(model).name,
        run.folder / EVAL if run else None, engine=engine, log=engine.name_next,
    )  # fmt: skip
    summary = summary_of(recipe.model_copy(update={"model": model}), result.rows, finished=True)
    if run is not None:
        run.write_summary(summary)
    print_table(console, summary)
    return summary


def show_problems(settings: Mapping[str, Any], split: str | None, seed: int, console: Console | None = None) -> None:
    """Print problems of a task with their gold answers; ``split`` None: the one that tests, where there is one.

    Raises:
        ValueError: no such task, data or number of problems.
    """
    from parallel_r1.commands_data import pick_split
    from parallel_r1.tasks import load_task
    from parallel_r1.tasks.data import DataTask

    source = checked(DataSource, {**settings, "split": split or "test"}, "data show")
    task = load_task(source)
    if split is None and isinstance(task, DataTask):
        source = source.model_copy(update={"split": pick_split(task, "test")})
    console = console or Console()
    for problem in task.problems(source.split, source.size, source.num, seed):
        console.print(f"{problem.question}\n  gold: {problem.gold}", markup=False, highlight=False, soft_wrap=True)


def show_texts(recipe: Recipe, name: str, num: int, console: Console | None = None) -> None:
    """Build the rows of a supervised stage, tell what was kept and dropped, print the first few.

    Raises:
        ValueError: data or a tokenizer that do not work.
    """
    from parallel_r1.coldstart.generate import build_rows
    from parallel_r1.models.load import load_model
    from parallel_r1.trace.tokens import add_tags

    console = console or Console()
    stage = next(stage for stage in recipe.stages if stage.name == name)
    assert isinstance(stage, SFTStage)
    loaded = load_model(recipe.model, seed=recipe.seed)
    tags = loaded.tags or (add_tags(loaded.model, loaded.tokenizer) if stage.format == "trace" else None)
    rows, counts = build_rows(stage, loaded.tokenizer, tags, recipe.prompt, recipe.seed)
    lengths = sorted(len(row["input_ids"]) for row in rows)
    console.print(str(counts), markup=False, highlight=False)
    console.print(
        f"tokens a row: median {lengths[len(lengths) // 2]}, longest {lengths[-1]}, all {sum(lengths)}", highlight=False
    )
    for row in rows[:num]:
        text = loaded.tokenizer.decode(row["input_ids"], skip_special_tokens=False)
        console.print(f"\n{text}", markup=False, highlight=False, soft_wrap=True)


def show_rewards(recipe: Recipe, json_file: Path | None = None, console: Console | None = None) -> bool:
    """Print what hostile responses earn under a recipe, right and wrong, phase by phase; returns whether it passes.

    Raises:
        ValueError: the recipe has no RL stage.
    """
    from rich.table import Table

    from parallel_r1.check.reward import check_reward
    from parallel_r1.run_dir import write_json

    console = console or Console()
    result = check_reward(recipe)
    columns = list(dict.fromkeys((paid["stage"], paid["phase"]) for paid in result["payments"]))
    table = Table("response", *(f"{stage}\n{phase}" for stage, phase in columns), title="right / wrong answer earns")
    for response in dict.fromkeys(paid["response"] for paid in result["payments"]):
        cells = [
            f"{paid['right']:g} / {paid['wrong']:g}"
            for column in columns
            for paid in result["payments"]
            if (paid["stage"], paid["phase"], paid["response"]) == (*column, response)
        ]
        table.add_row(response, *cells)
    console.print(table)
    for kind in ("notes", "faults"):
        for text in result[kind]:
            console.print(f"{kind.removesuffix('s')}: {text}", markup=False, highlight=False)
    console.print("passed" if result["passed"] else "failed: form alone is paid")
    if json_file is not None:
        write_json(json_file, result)
    return bool(result["passed"])
