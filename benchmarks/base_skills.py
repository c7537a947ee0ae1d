"""What a base model can do before it forks: arithmetic, check and copy, each measured apart.

    python benchmarks/base_skills.py tiny --num 500 --json figures.json

Samples one response (T = 1, no blocks) to each of ``--num`` held-out problems per task and size.

- *steps right*: single calculations ``a op b=c``.
- *check*: of the attempts called ``ok`` (search), the share that hold; of those that hold, the share called so.
- *copy*: of the responses with an attempt called ``ok``, the share whose answer repeats one to the letter.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from parallel_r1.config import EngineConfig, EvalConfig, EvalSet, PromptConfig
from parallel_r1.evaluate.run import evaluate_model
from parallel_r1.models.load import load_model
from parallel_r1.run_dir import write_json
from parallel_r1.tasks import load_task
from parallel_r1.tasks.base import FINAL_ANSWER
from parallel_r1.tasks.countdown import read_path, step_fault
from parallel_r1.tasks.paths import candidates
from parallel_r1.trace.tags import parse_text
from parallel_r1.types import Problem, Size

SETS = [(task, size) for task in ("countdown", "chain", "serial") for size in ("easy", "hard")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Arithmetic, check and copy of a base model, measured apart.")
    parser.add_argument("model")
    parser.add_argument("--num", type=int, default=500, help="held-out problems per task and size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    loaded = load_model(arguments.model)
    sets = [EvalSet(task=task, size=cast(Size, size), num=arguments.num) for task, size in SETS]
    config = EvalConfig(sets=sets, samples=1, pass_k=[1], modes=["sequential"])
    result = evaluate_model(
        loaded, "structured", config, PromptConfig(), EngineConfig(mode="sequential"), arguments.seed, "base"
    )
    found = []
    for where, row in zip(sets, result.rows, strict=True):
        problems = {p.id: p for p in load_task(where).problems("test", where.size, where.num, arguments.seed)}
        keys = ("task", "size", "num_problems", "mean", "step_accuracy", "attempts", "success_per_attempt")
        found.append({**{key: row[key] for key in keys}, "random_null": row["random_null"]})
        if where.task == "countdown":
            texts = [
                (problems[r["problem_id"]], r["text"])
                for r in result.rollouts
                if (r["task"], r["size"]) == (where.task, where.size)
            ]
            found[-1].update(check_and_copy(texts))
    Console().print(table_of(arguments.model, found))
    if arguments.json:
        write_json(arguments.json, found)


def check_and_copy(texts: list[tuple[Problem, str]]) -> dict[str, float | None]:
    """Shares over attempts and responses to search problems."""
    held, said, both, copied, could = 0, 0, 0, 0, 0
    for problem, text in texts:
        tried = [read_path(candidate) for candidate in candidates(problem, parse_text(text))]
        holds = [
            not step_fault(steps.removesuffix(" no"), problem.data["numbers"], problem.data["target"])
            for steps, _ in tried
        ]
        held += sum(holds)
        said += sum(ok for _, ok in tried)
        both += sum(h and ok for h, (_, ok) in zip(holds, tried, strict=True))
        called = {steps for steps, ok in tried if ok}
        could += bool(called)
        copied += text.rpartition(FINAL_ANSWER)[2].strip() in called
    return {
        "ok_is_right": both / said if said else None,
        "right_is_ok": both / held if held else None,
        "copied": copied / could if could else None,
    }


def table_of(model: str, found: list[dict[str, Any]]) -> Table:
    headers = {
        "mean": "solved", "step_accuracy": "steps right", "success_per_attempt": "per attempt", "random_null": "null",
        "ok_is_right": "ok is right", "right_is_ok": "right is ok", "copied": "copied",
    }  # fmt: skip
    table = Table(
        "task", "attempts", *headers.values(), title=f"{model}: per cent, sampled at T = 1", title_justify="left"
    )
    for row in found:
        cells = ["" if row.get(key) is None else f"{100 * row[key]:.1f}" for key in headers]
        table.add_row(f"{row['task']} {row['size']}", f"{row['attempts']:.1f}", *cells)
    return table


if __name__ == "__main__":
    main()
