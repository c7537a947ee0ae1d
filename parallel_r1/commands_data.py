"""What the ``data`` commands do: audit data sets, ask a teacher for cold-start traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from parallel_r1.config import DataSource
from parallel_r1.tasks import TASKS, load_task
from parallel_r1.tasks.data import DataTask
from parallel_r1.tasks.rows import split_of
from parallel_r1.terminal import plain_console
from parallel_r1.types import Split


def run_audit(
    sources: Sequence[str],
    against: Sequence[str],
    out: Path | None,
    question_column: str | None = None,
    answer_column: str | None = None,
    max_prompt_tokens: int = 2000,
    tokenizer: str | None = None,
    overlap: float = 0.6,
    console: Console | None = None,
) -> None:
    """Audit every source against every other set; print the table, write report and copies to ``out``.

    Raises:
        ValueError: a source that cannot be read, or two of one name.
    """
    from parallel_r1.audit.report import table, write
    from parallel_r1.audit.run import audit, read_set

    console = console or plain_console()
    named = [(text, *named_source(text, question_column, answer_column)) for text in sources]
    names = [name for _, name, _ in named]
    if len(set(names)) < len(names):
        raise ValueError(f"two sources have one name ({', '.join(names)}); audit them one after the other")
    count = {"num_tokens": token_counter(tokenizer)} if tokenizer else {}
    others = []
    for text in against:
        name, task = named_source(text)
        others.append(read_set(task, pick_split(task, "test"), name))
    found = []
    for text, name, task in named:
        with console.status(f"auditing {text}"):
            empty = read_set(task, pick_split(task, "train"), name)
            found.append(audit(task, empty, others, max_prompt_tokens, near=overlap, **count))
    header, rows = table(found)
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for column in header:
        shown.add_column(column, justify="left" if column == "set" else "right")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    for file in write(found, out) if out is not None else ():
        console.print(str(file), highlight=False, soft_wrap=True)


def named_source(
    text: str, question_column: str | None = None, answer_column: str | None = None
) -> tuple[str, DataTask]:
    """``dapo``, ``dapo=FILE`` or ``FILE`` as (name, task).

    Raises:
        ValueError: not a task that reads data, or nothing there.
    """
    task_name, equals, path = text.partition("=")
    if not equals and task_name not in TASKS:
        task_name, path = "file", text
    options = {"question": question_column, "answer": answer_column}
    given = {key: value for key, value in options.items() if value is not None}
    task = load_task(DataSource(task=task_name, path=path or None, options=given))
    if not isinstance(task, DataTask):
        raise ValueError(f"{text}: the task {task_name!r} makes its problems; name one that reads data, or a file")
    return Path(path).stem if path else task_name, task


def pick_split(task: DataTask, wanted: Split) -> Split:
    """The split that a file's name tells, else the wanted one where the data set has it, else the one it has."""
    return split_of(task.path) or (wanted if wanted in task.dataset.splits else task.dataset.splits[0])


def token_counter(name: str) -> Callable[[str], int]:
    """Counts tokens as a model's tokenizer does.

    Raises:
        ValueError: no such tokenizer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {name}: not a folder or hub name with a tokenizer") from error
    return lambda text: len(tokenizer.encode(text))
