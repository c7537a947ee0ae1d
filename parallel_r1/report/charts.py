"""Which charts a run gets, from its result rows and logged steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from parallel_r1.report.plots import Chart, Point, Series
from parallel_r1.report.read import Row, RunData
from parallel_r1.report.table import set_name

STEP_CHARTS: list[tuple[str, str, list[tuple[str, str]], tuple[float, float] | None, bool]] = [
    ("Reward by step", "", [("reward", "reward")], None, False),
    ("Training accuracy by step", "", [("accuracy", "accuracy")], (0.0, 1.0), True),
    ("Parallel ratio by step", "Share of responses with at least one block.",
     [("parallel_ratio", "parallel ratio")], (0.0, 1.0), True),
    ("Block position by step", "Where the first block begins: 0 is the start of the response, 1 its end.",
     [("first_block_position", "first block")], (0.0, 1.0), False),
    ("Tokens by step", "All tokens of a response, and those on its critical path.",
     [("total_tokens", "total"), ("critical_tokens", "critical path")], (0.0, 1.0), False),
]  # fmt: skip
"""(title, note, [(key of a logged step, name)], least range of the y axis, as per cent)."""


def run_charts(run: RunData) -> list[Chart]:
    """Accuracy by stage for every set, then what was logged step by step, then the SFT loss."""
    return [*_accuracy(run), *_steps(run), *_loss(run)]


def _accuracy(run: RunData) -> Iterator[Chart]:
    names = list(dict.fromkeys(map(set_name, run.results)))
    stages = [stage for stage in run.stages if any(row.get("stage") == stage for row in run.results)]
    for name in names:
        rows = [row for row in run.results if set_name(row) == name]
        forked = [row for row in rows if row.get("mode", "forked") != "sequential"]
        series = [
            Series("forked", [_by_stage(forked, stages, "mean", "mean_ci")], 1),
            Series("sequential", [_by_stage(rows, stages, "sequential_mean", "sequential_ci")], 2),
            Series("blind guesser", [_by_stage(forked, stages, "random_null", "")], 3),
        ]
        yield Chart(
            f"Accuracy by stage: {name}", [s for s in series if s.points], x_label="stage", categories=stages,
            note="Same problems and seeds at every stage; bars are 95 % intervals over problems.",
            bounds=(0.0, 0.1), percent=True,
        )  # fmt: skip


def _by_stage(rows: Sequence[Row], stages: Sequence[str], key: str, interval_key: str) -> list[Point]:
    points: list[Point] = []
    for row in rows:
        value: Any = row.get(key)
        ends: Any = row.get(interval_key)
        if _is_number(value):
            known = isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends))
            low, high = ends if known else (None, None)
            stage = str(row.get("stage"))
            points.append(Point(stages.index(stage), value, low, high, stage))
    return points


def _steps(run: RunData) -> Iterator[Chart]:
    """RL stages one after the other on one axis of steps, a rule where each begins."""
    rows: list[list[tuple[float, Row]]] = []
    marks: list[tuple[float, str]] = []
    offset = 0.0
    for stage in run.stages:
        logged = [row for row in run.rl if str(row.get("stage")) == stage]
        if not logged:
            continue
        rows.append([(offset + row["step"], row) for row in logged])
        marks.append((rows[-1][0][0], stage))
        offset = rows[-1][-1][0]
    for title, note, keys, bounds, percent in STEP_CHARTS:
        series = [
            Series(name, [line for stage in rows for line in _connected(stage, key)], style)
            for style, (key, name) in enumerate(keys, 1)
        ]
        label = "RL step" if len(rows) == 1 else "RL step, stages in order"
        yield Chart(
            title, [s for s in series if s.points], label, note, marks=marks if len(rows) > 1 else (),
            bounds=bounds, percent=percent,
        )  # fmt: skip


def _connected(rows: Sequence[tuple[float, Row]], key: str) -> list[list[Point]]:
    """Points of one stage, cut where a step has no value."""
    lines: list[list[Point]] = []
    for known, group in groupby(rows, key=lambda entry: _is_number(entry[1].get(key))):
        if known:
            lines.append([Point(x, row[key], label=f"{row.get('stage')} step {row.get('step'):g}") for x, row in group])
    return lines


def _loss(run: RunData) -> Iterator[Chart]:
    for stage in run.stages:
        logged = [(row["step"], row) for row in run.sft if str(row.get("stage")) == stage]
        lines = _connected(logged, "loss")
        if lines:
            yield Chart(f"SFT loss: {stage}", [Series("loss", lines, 1)], "SFT step", bounds=(0.0, 0.1))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
