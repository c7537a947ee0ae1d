"""The tasks by name. A new one is a file beside these and a line in `TASKS`, or a data set in `maths`."""

from __future__ import annotations

import difflib

from parallel_r1.config import DataSource
from parallel_r1.tasks.base import Task, TraceTask
from parallel_r1.tasks.chain import Chain
from parallel_r1.tasks.countdown import Countdown
from parallel_r1.tasks.data import Dataset
from parallel_r1.tasks.maths import DATASETS
from parallel_r1.tasks.serial import Serial

TASKS: dict[str, type | Dataset] = {
    "countdown": Countdown,
    "chain": Chain,
    "serial": Serial,
    **{dataset.name: dataset for dataset in DATASETS},
}
"""A generated task is a class (its ``OPTIONS`` name its settings); one that reads data is a `Dataset` (``maths``)."""

__all__ = ["TASKS", "Task", "TraceTask", "load_task"]


def load_task(source: DataSource | str) -> Task:
    """The task that a data source (or a bare name) asks for.

    Raises:
        ValueError: no such task, or settings that this task does not have.
    """
    if isinstance(source, str):
        source = DataSource(task=source)
    task_type = TASKS.get(source.task)
    if task_type is None:
        near = difflib.get_close_matches(source.task, TASKS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(TASKS)}"
        raise ValueError(f"data.task = {source.task!r}: unknown task; {hint}")
    if isinstance(task_type, Dataset):
        return task_type.from_source(source)
    known = getattr(task_type, "OPTIONS", ())
    unknown = [key for key in source.options if key not in known]
    if source.path is not None or unknown:
        given = f"path = {source.path!r}" if source.path is not None else f"options.{unknown[0]}"
        takes = f"it takes only options {', '.join(known)}" if known else "it takes no settings"
        raise ValueError(f"data.{given}: the task {source.task!r} is generated, and {takes}; remove it")
    return task_type(**source.options)
