"""Two matched arms, sequential and parallel: the trial by which tasks, model size and budgets were frozen.

    python benchmarks/trial.py --out runs/trial --json runs/trial/figures.json

Both arms start from the same base, read the same searches (in blocks, or the same paths one after the
other without tags) and then train for as many RL steps on the same problems. Printed, per task and
stage, as mean and spread over seeds: accuracy, attempts, what a blind guesser with a perfect checker
solves with as many, success per attempt, and both lengths. Runs are resumed where they stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console

from parallel_r1.curriculum import run_recipe
from parallel_r1.recipe import load_recipe
from parallel_r1.run_dir import read_json, write_json

ARMS: dict[str, list[str]] = {
    "parallel": ["evaluate.modes=['forked']"],
    "sequential": ["stages.cold-start.format=linear", "engine.mode=sequential", "evaluate.modes=['sequential']"],
}
"""Arm -> what it changes in the recipe."""
SHOWN = {
    "mean": "accuracy", "random_null": "null", "attempts": "attempts", "success_per_attempt": "success per attempt",
    "step_accuracy": "steps right", "total_tokens": "tokens", "critical_tokens": "critical path",
}  # fmt: skip
"""Key of a result row -> header; shares are printed in per cent."""
PLAIN = {"attempts", "total_tokens", "critical_tokens"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Matched sequential and parallel arms over several seeds.")
    parser.add_argument("--out", type=Path, default=Path("runs/trial"))
    parser.add_argument("--recipe", default="tiny")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, for both arms")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    console = Console()
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        for arm, changes in ARMS.items():
            recipe = load_recipe(arguments.recipe, [*arguments.set, *changes, f"seed={seed}"])
            folder = run_recipe(recipe, arguments.out / f"{arm}-seed{seed}", console=console)
            rows += [{"arm": arm, **row} for row in read_json(folder / "summary.json")["results"]]
    found = spread(rows)
    console.print(markdown(found), markup=False, highlight=False)
    if arguments.json:
        write_json(arguments.json, found)


def spread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per (task, size, stage, arm): [mean, standard deviation] over seeds of every shown figure."""
    keys = ("task", "size", "stage", "arm")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for place, members in groups.items():
        figures: dict[str, Any] = dict(zip(keys, place, strict=True)) | {"seeds": len(members)}
        for name in SHOWN:
            values = [row[name] for row in members if row.get(name) is not None]
            figures[name] = [fmean(values), stdev(values) if len(values) > 1 else 0.0] if values else None
        found.append(figures)
    return sorted(found, key=lambda f: (f["task"], f["size"]))


def markdown(found: Sequence[dict[str, Any]]) -> str:
    lines = ["| task | stage | arm | " + " | ".join(SHOWN.values()) + " |", "|" + "---|" * (3 + len(SHOWN))]
    for figures in found:
        cells = [f"{figures['task']} {figures['size']}", figures["stage"], figures["arm"]]
        for name in SHOWN:
            pair = figures[name]
            scale, digits = (1, 1) if name in PLAIN else (100, 1)
            cells.append("" if pair is None else f"{scale * pair[0]:.{digits}f} ± {scale * pair[1]:.{digits}f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
