"""Generated problems for the playground, and verdicts on the answers to them."""

from __future__ import annotations

from typing import Any

from parallel_r1.serve.errors import bad_field
from parallel_r1.serve.schema import ProblemPick
from parallel_r1.tasks import TASKS, load_task
from parallel_r1.tasks.data import Dataset
from parallel_r1.tasks.paths import right_paths
from parallel_r1.trace.tags import parse_text
from parallel_r1.types import Problem

TASK_NAMES = [name for name, task in TASKS.items() if not isinstance(task, Dataset)]
"""Tasks that make their own problems."""


def pick(asked: ProblemPick) -> Problem:
    """The held-out problem that a pick names.

    Raises:
        ApiError: no such task.
    """
    if asked.task not in TASK_NAMES:
        raise bad_field("task", asked.task, f"use one of {', '.join(TASK_NAMES)}")
    return load_task(asked.task).problems("test", asked.size, 1, asked.seed)[0]


def judge(problem: Problem, trace_text: str) -> dict[str, Any]:
    """The verdict on a response, its faults, and per block and path whether the path is right."""
    trace = parse_text(trace_text)
    verdict = load_task(problem.task).verify(problem, str(trace.answer_region))
    return {
        "outcome": verdict.outcome, "answer": verdict.answer, "gold": problem.gold, "how": verdict.how,
        "faults": sorted({fault.name for fault in trace.faults}), "paths": right_paths(problem, trace),
    }  # fmt: skip
