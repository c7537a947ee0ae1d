"""What the ``data`` commands do: audit data sets, ask a teacher for cold-start traces."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from parallel_r1.config import DataSource
from parallel_r1.tasks import TASKS, load_task
from parallel_r1.tasks.data import DataTask
from parallel_r1.tasks.prompts import TEMPLATES
from parallel_r1.tasks.rows import split_of
from parallel_r1.terminal import plain_console, progress_bar
from parallel_r1.types import Split

if TYPE_CHECKING:
    from parallel_r1.coldstart.teacher import Teacher
    from parallel_r1.coldstart.teacher_run import Tally


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


def run_coldstart(
    source: str,
    teacher: str,
    url: str | None,
    out: Path | None,
    *,
    split: str | None = None,
    num: int = 10_000,
    template: str | None = None,
    columns: tuple[str | None, str | None] = (None, None),
    limits: Mapping[str, Any],
    sampling: Mapping[str, Any],
    plan: Mapping[str, Any],
    key_env: str = "OPENAI_API_KEY",
    seed: int = 0,
    console: Console | None = None,
) -> Tally:
    """Ask a teacher for traces; see `parallel_r1.coldstart.teacher_run`. ``out`` gets ``journal.jsonl``,
    ``traces.parquet`` and ``report.json``.

    Raises:
        ValueError: a source, template or teacher that does not work, or an ``out`` of another run.
    """
    from parallel_r1.coldstart.teacher_journal import Journal
    from parallel_r1.coldstart.teacher_run import Plan, collect, write_traces
    from parallel_r1.provenance import git_revision, versions

    if split not in (None, "train", "test"):
        raise ValueError(f"--split {split}: use train or test")
    console = console or plain_console()
    name, task = named_source(source, *columns)
    chosen: Split = split or pick_split(task, "train")  # pyright: ignore[reportAssignmentType]
    asked, loaded = _teacher(teacher, url, limits, sampling, key_env, seed)
    text = template_of(template) if template else _saved_template(loaded) or task.prompts.parallel
    problems = task.problems(chosen, "easy", num, seed)
    settings = {
        "teacher": teacher, "url": _without_secrets(url), "source": name, "split": chosen, "template": text,
        "seed": seed, "max_similarity": plan["max_similarity"], **sampling,
    }  # fmt: skip
    folder = out or Path("runs") / f"coldstart-{name}"
    journal = Journal(folder / "journal.jsonl", settings)
    with progress_bar(console, f"asking {asked.name}", len(problems), unit="problem") as bar:
        try:
            tally = asyncio.run(
                collect(asked, task, problems, Plan(template=text, **plan), journal, lambda t: bar.update(*_shown(t)))
            )
        finally:
            journal.close()
    provenance = {**settings, "versions": versions(), "git_revision": git_revision()}
    rows = write_traces(tally, problems, teacher, folder / "traces.parquet", provenance)
    report = tally.report()
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    _print_yield(console, report)
    console.print(f"{rows:,} traces in {folder / 'traces.parquet'}", highlight=False, soft_wrap=True)
    return tally


def template_of(text: str) -> str:
    """A prompt template by name, from a file, or as it is.

    Raises:
        ValueError: it does not hold ``{question}`` exactly once.
    """
    template = TEMPLATES.get(text) or (text if "{question}" in text or "\n" in text else None)
    if template is None and Path(text).is_file():
        template = Path(text).read_text(encoding="utf-8")
    if template is None or template.count("{question}") != 1:
        raise ValueError(
            f"--prompt {text[:60]!r}: give {', '.join(TEMPLATES)}, a file, or text with {{question}} exactly once"
        )
    return template


def _teacher(
    name: str, url: str | None, limits: Mapping[str, Any], sampling: Mapping[str, Any], key_env: str, seed: int
) -> tuple[Teacher, Any]:
    """The teacher, and the loaded model behind it where it is local."""
    if url is not None:
        from parallel_r1.coldstart.teacher_http import Endpoint, HttpTeacher

        return HttpTeacher(Endpoint(url, name, os.environ.get(key_env), **limits, **sampling)), None
    from parallel_r1.coldstart.teacher_local import LocalTeacher
    from parallel_r1.live import engine_for
    from parallel_r1.models.load import load_model
    from parallel_r1.train.callbacks import few_messages

    with few_messages():
        loaded = load_model(name)
    changes = {key: sampling[key] for key in ("temperature", "top_p")}
    if loaded.settings is None:
        changes["max_response_tokens"] = sampling["max_tokens"]
    variant = loaded.settings.variant if loaded.settings else "causal"
    return LocalTeacher(loaded, name, engine_for(loaded, changes), variant, seed, limits["concurrency"]), loaded


def _saved_template(loaded: Any) -> str | None:
    return loaded.settings.prompt.asked if loaded is not None and loaded.settings is not None else None


def _without_secrets(url: str | None) -> str | None:
    """An address without user, password and query."""
    if url is None:
        return None
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _shown(tally: Tally) -> tuple[int, str]:
    """What stands at and behind the bar: problems dealt with; yield, rate, cost, repeated requests."""
    done, kept = len(tally.asked), len(tally.kept)
    cost = f", cost {tally.cost:.2f}" if tally.plan.price_in or tally.plan.price_out else ""
    again = sum(tally.retries.values())
    repeated = f", {again} repeated" if again else ""
    return done, f"{kept} kept ({100 * kept / done:.1f} %), {tally.tokens_per_second:.0f} tokens/s{cost}{repeated}"


def _print_yield(console: Console, report: Mapping[str, Any]) -> None:
    console.print(
        f"{report['problems_with_trace']:,} of {report['problems_answered']:,} problems have a trace: yield "
        f"{100 * report['yield']:.1f} % (by the paper's check of the tags alone {100 * report['paper_yield']:.1f} %)",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("reply")
    shown.add_column("count", justify="right")
    for reason, count in report["reasons"].items():
        shown.add_row(reason, f"{count:,}")
    for cause, count in report["retries"].items():
        shown.add_row(f"asked again: {cause}", f"{count:,}")
    console.print(shown)
    tokens = f"{report['prompt_tokens']:,} tokens read, {report['completion_tokens']:,} written"
    console.print(f"{tokens}, cost {report['cost']:.2f}", highlight=False)
