"""What a terminal shows of a run: progress with rate and time left, and the table of results.

Off a terminal a bar becomes a line now and then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Engine, Request, Session, TokenEvent, TokenListener
from parallel_r1.types import Rollout, Variant

QUIET_SECONDS = 20.0
"""Off a terminal: at least this long between two lines."""
WIDE = 140
"""Columns of a terminal that the whole table needs."""


class Bar:
    """One counted piece of work."""

    def __init__(self, console: Console, name: str, total: int | None, unit: str) -> None:
        self.console, self.name, self.total, self.unit = console, name, total, unit
        self.done = self._first = 0
        self._started = self._told = time.monotonic()

    def update(self, done: int, figures: str = "", total: int | None = None) -> None:
        """Say how far it is; ``figures`` stand behind the bar."""
        if self.done == 0 and done > 1:
            self._first = done - 1  # a resumed stage begins in the middle: what was done before has no rate
        self.done, self.total = done, total or self.total
        now = time.monotonic()
        if now - self._told >= QUIET_SECONDS or done == self.total:
            self._told = now
            self._print(figures)

    def _print(self, figures: str) -> None:
        elapsed = time.monotonic() - self._started
        rate = (self.done - self._first) / elapsed if elapsed else 0.0
        left = f", {clock((self.total - self.done) / rate)} left" if self.total and rate > 0 else ""
        total = f"/{self.total}" if self.total else ""
        self.console.print(
            f"  {self.name} {self.done}{total} ({per_second(rate, self.unit)}{left}) {figures}".rstrip(),
            highlight=False,
        )


class _LiveBar(Bar):
    def attach(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task(self.name, total=self.total, figures="", unit=self.unit)

    def update(self, done: int, figures: str = "", total: int | None = None) -> None:
        self.done, self.total = done, total or self.total
        self._progress.update(self._task, completed=done, total=self.total, figures=figures)


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(per_second(speed, task.fields["unit"]) if speed else "", style="progress.data.speed")


@contextlib.contextmanager
def progress_bar(console: Console, name: str, total: int | None, unit: str = "step") -> Iterator[Bar]:
    """A bar for a block of work."""
    if not console.is_terminal:
        yield Bar(console, name, total, unit)
        return
    columns = (
        TextColumn("  {task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), _RateColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True), TextColumn("{task.fields[figures]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = _LiveBar(console, name, total, unit)
        bar.attach(progress)
        yield bar


class WatchedEngine:
    """An engine with a progress bar: counts responses that have ended."""

    def __init__(self, engine: Engine, stop_ids: Iterable[int], console: Console) -> None:
        self._engine, self._stop_ids, self._console = engine, frozenset(stop_ids), console
        self._name = "decode"
        self.weight_version = engine.weight_version
        self.variant: Variant = engine.variant

    def name_next(self, name: str) -> None:
        """What stands before the next bar."""
        self._name = name

    def load_weights(self, state_dict: dict | None = None) -> None:
        self._engine.load_weights(state_dict)
        self.weight_version = self._engine.weight_version

    def session(self, config: EngineConfig) -> Session:
        return self._engine.session(config)

    def generate(
        self, requests: Sequence[Request], config: EngineConfig, on_token: TokenListener | None = None
    ) -> list[Rollout]:
        ended = 0
        with progress_bar(self._console, self._name, len(requests), unit="response") as bar:

            def listen(event: TokenEvent) -> None:
                nonlocal ended
                if event.token_id in self._stop_ids and event.region.kind == "main":
                    ended += 1
                    bar.update(ended)
                if on_token is not None:
                    on_token(event)

            rollouts = self._engine.generate(requests, config, listen)
            if ended < len(requests):
                bar.update(len(requests))
        return rollouts


def per_second(rate: float, unit: str) -> str:
    """``2.5 steps/s``, or ``3.1 s/step`` when it takes longer than a second."""
    if rate <= 0:
        return f"no {unit} yet"
    return f"{rate:.1f} {unit}s/s" if rate >= 1 else f"{1 / rate:.1f} s/{unit}"


def clock(seconds: float) -> str:
    """``1:05`` or ``2:03:04``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def figures(row: dict[str, Any]) -> str:
    """The numbers of a training step that stand behind its bar."""
    if row["kind"] == "sft":
        shown = {"loss": row.get("loss"), "token accuracy": row.get("token_accuracy")}
    else:
        names = {"accuracy": "accuracy", "reward": "reward", "parallel_ratio": "forks", "dead_groups": "dead groups"}
        shown = {name: row.get(key) for key, name in names.items()}
    return " ".join(
        f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in shown.items()
        if value is not None
    )


def plain_console() -> Console:
    """The terminal; a wide page where output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_table(console: Console, summary: Mapping[str, Any]) -> bool:
    """The table of results, with fewer columns where the terminal is narrow; False when there are none."""
    from parallel_r1.report.table import rich_table

    if summary["results"]:
        console.print(rich_table(summary) if console.width >= WIDE else narrow_table(summary["results"]))
    return bool(summary["results"])


def narrow_table(rows: list[dict[str, Any]]) -> Table:
    """The columns that matter most, for a terminal of 80."""
    from parallel_r1.report.table import interval, number, percent, set_name

    table = Table(box=None, padding=(0, 1, 0, 0))
    for header in ("stage", "set", "accuracy %", "seq. %", "forks %", "tokens", "critical"):
        table.add_column(header, justify="left" if header in ("stage", "set") else "right")
    for row in rows:
        table.add_row(
            str(row["stage"]), set_name(row), interval(row, "mean", "mean_ci"), percent(row["sequential_mean"]),
            percent(row["parallel_ratio"]), number(row["total_tokens"], 1), number(row["critical_tokens"], 1),
        )  # fmt: skip
    return table
