"""The result table of a run: for the terminal (rich), for Markdown, and as cells for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[str, Any]


def percent(value: Any, digits: int = 1) -> str:
    """A share as per cent; the empty string for None."""
    if not isinstance(value, int | float):
        return ""
    text = f"{100 * value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def number(value: Any, digits: int = 0) -> str:
    """A plain number; the empty string for None."""
    return f"{value:.{digits}f}" if isinstance(value, int | float) else ""


def interval(row: Row, key: str, interval_key: str, signed: bool = False) -> str:
    """``12.3 [10.1, 14.2]`` in per cent, as far as the row has it."""
    value = percent(row.get(key))
    ends = row.get(interval_key)
    if value and signed and not value.startswith("-"):
        value = f"+{value}"
    if not value or not isinstance(ends, Sequence) or len(ends) != 2 or None in ends:
        return value
    return f"{value} [{percent(ends[0])}, {percent(ends[1])}]"


def set_name(row: Row) -> str:
    """Task and size of a row, with the split where it is not "test"."""
    name = f"{row.get('task', '?')} {row.get('size', '')}".strip()
    return name if row.get("split", "test") == "test" else f"{name} ({row['split']})"


def _pass_at_k(row: Row) -> str:
    found = row.get("pass_at_k")
    if not isinstance(found, Mapping):
        return ""
    return ", ".join(f"{percent(value)} (k={k})" for k, value in found.items() if value is not None)


def _sequential(row: Row) -> str:
    return "" if row.get("mode") == "sequential" else interval(row, "sequential_mean", "sequential_ci")


def _gain(row: Row) -> str:
    return "" if row.get("mode") == "sequential" else interval(row, "difference", "difference_ci", signed=True)


def _majority(row: Row) -> str:
    votes = row.get("majority_votes")
    return f"{percent(row.get('majority'))} ({votes} votes)" if votes else ""


COLUMNS: list[tuple[str, str, Callable[[Row], str]]] = [
    ("stage", "Stage of the curriculum; base is the model the run starts from", lambda r: str(r.get("stage", "?"))),
    ("set", "Held-out task and size", set_name),
    ("accuracy %", "Mean over problems and samples, 95 % interval over problems",
     lambda r: interval(r, "mean", "mean_ci")),
    ("sequential %", "The same model, prompt, problems and seeds, not allowed to fork", _sequential),
    ("gain", "Accuracy minus sequential accuracy, paired by problem, 95 % interval",
     _gain),
    ("capped %", "The sequential answers that fit in the forked critical path of their problem",
     lambda r: percent(r.get("sequential_capped"))),
    ("majority %", "A vote of as many sequential answers as the forked tokens pay for, where answers can be voted on",
     _majority),
    ("pass@k %", "Chance that one of k samples is right", _pass_at_k),
    ("forks %", "Share of responses with at least one block", lambda r: percent(r.get("parallel_ratio"))),
    ("well-formed %", "Share of fault-free traces among those with a block", lambda r: percent(r.get("well_formed"))),
    ("tokens", "Mean tokens of a response, all paths counted", lambda r: number(r.get("total_tokens"), 1)),
    ("critical", "Mean tokens on the critical path: per block, the longest path",
     lambda r: number(r.get("critical_tokens"), 1)),
    ("block at", "Where blocks begin, as a share of the response", lambda r: number(r.get("block_position"), 2)),
    ("path right %", "Share of responses in which a path reached a right candidate",
     lambda r: percent(r.get("path_right"))),
    ("selection", "Accuracy over the share with a right path", lambda r: number(r.get("selection"), 2)),
    ("per attempt %", "Share of attempts (paths, or lines of a sequential search) that are right",
     lambda r: percent(r.get("success_per_attempt"))),
    ("guesser %", "What blind guessing with a perfect checker scores with as many attempts",
     lambda r: percent(r.get("random_null"))),
]  # fmt: skip
"""(header, what it says, cell of a row)."""
ONLY_ON_PAGES = frozenset({"capped %", "majority %", "per attempt %", "block at"})
"""Columns for which a terminal is too narrow."""


def result_cells(rows: Sequence[Row]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Headers with their explanations, and the cells; columns that no row fills are left out."""
    cells = [[cell(row) for _, _, cell in COLUMNS] for row in rows]
    used = [i for i in range(len(COLUMNS)) if any(line[i] for line in cells)]
    return [COLUMNS[i][:2] for i in used], [[line[i] for i in used] for line in cells]


def rich_table(summary: Row) -> Table:
    """The table at the end of a run, from the content of ``summary.json``."""
    from rich.markup import escape
    from rich.table import Table

    headers, lines = result_cells(summary.get("results", []))
    table = Table(title=escape(str(summary.get("name", "results"))), title_justify="left")
    shown = [i for i, (header, _) in enumerate(headers) if header not in ONLY_ON_PAGES]
    for i in shown:
        table.add_column(headers[i][0], justify="left" if i < 2 else "right")
    for line in lines:
        table.add_row(*(escape(line[i]) for i in shown))
    return table


def markdown_table(summary: Row) -> str:
    """The same table in Markdown, ending in a newline."""
    headers, lines = result_cells(summary.get("results", []))
    if not headers:
        return "No results yet.\n"
    rows = [[header for header, _ in headers], ["---"] * len(headers), *lines]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)
