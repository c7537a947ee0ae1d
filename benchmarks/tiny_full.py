"""Run `recipes/tiny_full.toml` for both variants and several seeds, and print what must be reached.

    python benchmarks/tiny_full.py --out runs/tiny_full --json runs/tiny_full/checks.json

Runs are resumed where they stopped. Beside what the runs measure, each cold-started model is decoded
with constraints on and off, and each final model goes on behind corrupted paths.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from parallel_r1.config import EvalSet, Recipe
from parallel_r1.curriculum import run_recipe
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.evaluate.intervene import corrupt_paths
from parallel_r1.evaluate.modes import well_formedness
from parallel_r1.models.load import Loaded, load_model
from parallel_r1.recipe import load_recipe
from parallel_r1.rollout.sample import single_requests
from parallel_r1.run_dir import read_json, write_json
from parallel_r1.tasks import load_task
from parallel_r1.types import Problem

PROBED = 250
"""Held-out problems, one response each, of the two extra measurements."""
PROBE_STREAM = 0x70726F62


@dataclass(frozen=True)
class Check:
    """One bar of one run: ``value`` must be at least ``least``; None was not measurable."""

    run: str
    name: str
    value: float | None
    least: float

    @property
    def passed(self) -> bool:
        return self.value is not None and self.value >= self.least


def main() -> None:
    parser = argparse.ArgumentParser(description="Both variants, several seeds, and what must be reached.")
    parser.add_argument("--out", type=Path, default=Path("runs/tiny_full"))
    parser.add_argument("--variants", nargs="+", default=["structured", "causal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, as for parallel-r1 run")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    console = Console()
    checks: list[Check] = []
    for variant in arguments.variants:
        for seed in arguments.seeds:
            recipe = load_recipe("tiny_full", [*arguments.set, f"variant={variant}", f"seed={seed}"])
            folder = run_recipe(recipe, arguments.out / f"{variant}-seed{seed}", console=console)
            checks += checks_of(recipe, folder)
    console.print(table_of(checks))
    if arguments.json:
        write_json(arguments.json, [{**vars(check), "passed": check.passed} for check in checks])
    console.print(f"{sum(check.passed for check in checks)} passed, {sum(not check.passed for check in checks)} failed")


def checks_of(recipe: Recipe, folder: Path) -> Iterator[Check]:
    """Every bar of one run. Differences are in points of a share."""
    rows = {(row["stage"], row["task"], row["size"]): row for row in read_json(folder / "summary.json")["results"]}
    first, last = recipe.stages[0].name, recipe.stages[-1].name
    probes = probe(recipe, folder, first, last)
    name = folder.name
    for switch, share in probes["well_formed"].items():
        yield Check(name, f"well-formed after cold start, constraints {switch}", share, 0.95)
    for size, least in (("easy", 0.10), ("hard", 0.05)):
        before, after = rows[first, "countdown", size], rows[last, "countdown", size]
        yield Check(name, f"{size}: lift of RL over cold start", after["mean"] - before["mean"], least)
        yield Check(name, f"{size}: path right above a guesser", minus(after["path_right"], after["random_null"]), 0.10)
        yield Check(name, f"{size}: selection", after["selection"], 0.90)
        yield Check(
            name, f"{size}: change of right steps", minus(after["step_accuracy"], before["step_accuracy"]), -0.03
        )
    yield Check(name, "easy: gain removed by corrupting paths", probes["corrupted"]["removed"], 0.80)


def probe(recipe: Recipe, folder: Path, first: str, last: str) -> dict[str, Any]:
    """The two measurements that no run makes; kept in ``probes.json`` of the run."""
    path = folder / "probes.json"
    known = read_json(path)
    if known is not None:
        return known
    where = recipe.evaluate.sets[0]
    started = load_model(folder / first / "final", dtype=recipe.dtype)
    _, requests = questions(recipe, where, started)
    assert started.tags is not None
    share = well_formedness(engine_of(started, recipe), requests, recipe.engine, started.tags)
    final = load_model(folder / last / "final", dtype=recipe.dtype)
    problems, requests = questions(recipe, where, final)
    corrupted = corrupt_paths(final, engine_of(final, recipe), load_task(where), problems, requests, recipe.engine)
    found = {"well_formed": share, "corrupted": corrupted}
    write_json(path, found)
    return found


def questions(recipe: Recipe, where: EvalSet, loaded: Loaded) -> tuple[list[Problem], list[Request]]:
    problems = load_task(where).problems(where.split, where.size, min(PROBED, where.num), recipe.seed)
    seed = (recipe.seed, PROBE_STREAM)
    requests = single_requests(problems, loaded.tokenizer, loaded.tags, recipe.prompt, seed)
    return problems, requests


def engine_of(loaded: Loaded, recipe: Recipe) -> TreeEngine:
    return TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, recipe.variant)


def minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def table_of(checks: list[Check]) -> Table:
    """One line per bar, one column per run."""
    runs = list(dict.fromkeys(check.run for check in checks))
    table = Table("bar", "least", *runs, title="tiny_full: what must be reached", title_justify="left")
    for name in dict.fromkeys(check.name for check in checks):
        found = {check.run: check for check in checks if check.name == name}
        cells = [
            "?" if found[run].value is None else f"[{'green' if found[run].passed else 'red'}]{found[run].value:.3f}[/]"
            for run in runs
        ]
        table.add_row(name, f"{next(iter(found.values())).least:.2f}", *cells)
    return table


if __name__ == "__main__":
    main()
