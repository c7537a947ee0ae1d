"""Tasks that read their problems. One reader for all of them; a data set is a few declared facts (`maths`).

Rows become problems once and for all: a question without text, a gold that cannot be read, a repeated
problem, or one whose rows disagree on the answer is dropped with a reason (`DataTask.dropped`), never
graded and never cut. A column ``trace`` makes rows usable as cold-start data. ``size`` is only a label
here: what is easy or hard is said by ``min_...`` and ``max_...`` of the data set's measure.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallel_r1.answers.extract import HASHES, last_box
from parallel_r1.answers.normalise import normalise, number
from parallel_r1.answers.verify import compare, verify
from parallel_r1.config import DataSource
from parallel_r1.tasks.prompts import MATHS, Prompts, own_part
from parallel_r1.tasks.rows import Row, find_column, read_rows, text_at
from parallel_r1.types import Problem, Size, Split, Verdict

OPTIONS = ("question", "answer", "config", "revision")
QUESTION = ("question", "problem", "prompt")
ANSWER = ("answer", "final_answer", "reward_model.ground_truth", "solution")
MAX_GOLD = 300
"""Characters; longer golds are explanations without a box."""
_LAYOUT = re.compile(r"\\left(?![a-z])|\\right(?![a-z])|\\[,;:! ]|\\q?quad(?![a-z])|[\s$~]|\\[\[\]()](?![a-z])")
_BRACES = re.compile(r"\{[^{}]*\}")
_FRAC = re.compile(r"\\[dt]frac")


@dataclass(frozen=True, slots=True)
class Measure:
    """How hard a row is, as a whole number; None where a row does not tell. Options: ``min_NAME``, ``max_NAME``."""

    name: str
    of: Callable[[Row, str], int | None]
    """(row, text of its answer column) -> the measure."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """What must be known of a data set to read it. Stands in `parallel_r1.tasks.TASKS` as a task."""

    name: str
    hub: str | None
    """Name on the hub; None: only a path of the user's."""
    config: str | None = None
    splits: tuple[Split, ...] = ("train", "test")
    numeric: bool = True
    """All golds are numbers; another gold is unreadable."""
    question: tuple[str, ...] = QUESTION
    answer: tuple[str, ...] = ANSWER
    """Columns to look for, the first that is there."""
    around: re.Pattern[str] | None = None
    """What the rows put around a question; its group ``question`` is the question."""
    measure: Measure | None = None
    prompts: Prompts = field(default=MATHS)

    def from_source(self, source: DataSource) -> DataTask:
        """The task over the source's path (default: the hub) with its options."""
        return DataTask(self, source.path, source.options)


@dataclass(frozen=True, slots=True)
class RowReading:
    """What one row says, before anything is dropped. ``fault`` is empty when it can be used."""

    id: str
    question: str
    gold: str
    fault: str
    row: Row = field(repr=False)


class DataTask:
    """A data set with its place and options. ``path``: a file, a folder or a hub name; None is the hub's own."""

    def __init__(self, dataset: Dataset, path: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.dataset, self.name, self.prompts = dataset, dataset.name, dataset.prompts
        self.options = dict(options or {})
        self.dropped: list[tuple[str, str]] = []
        """(problem id, reason) of the rows that the last call of `problems` could not use."""
        self._check_options()
        if not (path or dataset.hub):
            raise ValueError(f"data.path: missing; the task {self.name!r} reads a Parquet or JSONL file of yours")
        self.path = path or str(dataset.hub)
        self._is_hub = path is None or path == dataset.hub

    def problems(self, split: Split, size: Size, num: int, seed: int) -> list[Problem]:
        """At most ``num`` problems in an order drawn from ``seed``.

        Raises:
            ValueError: the data cannot be read, lack a column, or hold no usable row.
        """
        readings = self.readings(split)
        disputed = conflicts(readings)
        self.dropped = []
        problems: dict[tuple[str, str], Problem] = {}
        for reading in readings:
            trace = text_at(reading.row, "trace")
            key = (question_key(reading.question), trace)
            reason = reading.fault or ("conflicting answers" if key[0] in disputed else "")
            data: dict[str, Any] = {"trace": trace} if trace else {}
            if not reason and self.dataset.measure and self._asks_measure:
                data[self.dataset.measure.name], reason = self._measured(reading.row, self.dataset.measure)
            if not reason and key in problems:
                reason = "duplicate"
            if reason:
                self.dropped.append((reading.id, reason))
            else:
                problems[key] = Problem(reading.id, self.name, size, reading.question, reading.gold, data)
        if not problems:
            raise ValueError(
                f"data.path = {self.path!r}: none of {len(readings)} rows is usable (first: {self.dropped[0][1]}); "
                "check the columns and data.options"
            )
        order = list(problems.values())
        random.Random(f"{self.name}/{split}/{seed}").shuffle(order)
        return order[:num]

    def verify(self, problem: Problem, response: str) -> Verdict:
        """Judge an answer region: `parallel_r1.answers.verify`, told what the question asks for."""
        return verify(problem.gold, own_part(response), problem.question)

    def readings(self, split: Split) -> list[RowReading]:
        """Every row of a split as it was understood, faulty ones too.

        Raises:
            ValueError: the data cannot be read, lack a column, or have no such split.
        """
        self._check_split(split)
        config = self.options.get("config", self.dataset.config if self._is_hub else None)
        rows = list(read_rows(self.path, split, config, self.options.get("revision")))
        if not rows:
            raise ValueError(f"data.path = {self.path!r}: no rows for split {split!r}; give a file that has some")
        columns = [self._column(key, rows) for key in ("question", "answer")]
        seen: set[str] = set()
        found: list[RowReading] = []
        for index, row in enumerate(rows):
            row_id = f"{self.name}/{split}/{row.get('index', index)}"
            row_id = f"{row_id}.{index}" if row_id in seen else row_id
            seen.add(row_id)
            found.append(self._read(row_id, row, *columns))
        return found

    def _read(self, row_id: str, row: Row, question_column: str, answer_column: str) -> RowReading:
        question, answer = text_at(row, question_column), text_at(row, answer_column)
        wrapped = self.dataset.around.fullmatch(question) if self.dataset.around else None
        question = wrapped["question"].strip() if wrapped else question
        gold = read_gold(answer)
        if self.dataset.numeric:
            gold = normalise(gold)
        readable = number(gold) is not None if self.dataset.numeric else bool(gold) and len(gold) <= MAX_GOLD
        fault = "" if question else "empty question"
        if question and not readable:
            fault = f"unreadable gold {gold[:40]!r}"
        return RowReading(row_id, question, gold, fault, row)

    def _measured(self, row: Row, measure: Measure) -> tuple[int | None, str]:
        value = measure.of(row, text_at(row, self._answer_column(row)))
        if value is None:
            return None, f"no {measure.name} to be read"
        least, most = (self.options.get(f"{end}_{measure.name}", value) for end in ("min", "max"))
        return value, "" if least <= value <= most else f"number of {measure.name}"

    def _answer_column(self, row: Row) -> str | None:
        return self.options.get("answer") or find_column([row], self.dataset.answer)

    def _column(self, key: str, rows: Sequence[Row]) -> str:
        names = (self.options[key],) if key in self.options else getattr(self.dataset, key)
        column = find_column(rows, names) or next((name for name in names if name in rows[0]), None)
        if column is None:
            raise ValueError(
                f"data.path = {self.path!r}: no column {' or '.join(map(repr, names))} among {sorted(rows[0])}; "
                f"name it with data.options.{key} (--{key}-column)"
            )
        return column

    @property
    def _asks_measure(self) -> bool:
        return any(key.startswith(("min_", "max_")) for key in self.options)

    def _check_options(self) -> None:
        measure = self.dataset.measure
        ends = (f"min_{measure.name}", f"max_{measure.name}") if measure else ()
        for key, value in self.options.items():
            if key not in (*ends, *OPTIONS):
                raise ValueError(
                    f"data.options.{key} = {value!r}: unknown option of {self.name}; known: "
                    f"{', '.join((*ends, *OPTIONS))}"
                )
            if key in ends and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"data.options.{key} = {value!r}: give a whole number of {measure and measure.name}")
            if key in OPTIONS and not isinstance(value, str):
                raise ValueError(f"data.options.{key} = {value!r}: give a name")

    def _check_split(self, split: Split) -> None:
        known = self.dataset.splits
        if split not in known and (self._is_hub or known == ("test",)):
            why = ": it is for evaluation, and training on it would spoil it" if known == ("test",) else ""
            raise ValueError(f"data.split = {split!r}: {self.name} has only {' and '.join(known)}{why}")


def read_gold(answer: str) -> str:
    r"""The gold in an answer column: the last box, what follows the last ``####``, or all of it.

    A text of several lines without either is an explanation, not an answer: the empty string.

    >>> read_gold("2+2=4\n#### 4"), read_gold(r"so \boxed{4}."), read_gold("4"), read_gold("well,\nfour")
    ('4', '4', '4', '')
    """
    boxed = last_box(answer)
    if boxed:
        return boxed
    if HASHES in answer:
        return answer.rpartition(HASHES)[2].strip()
    explains = "\n" in _BRACES.sub("", answer) and r"\begin" not in answer
    return "" if explains else " ".join(answer.split())


def question_key(question: str) -> str:
    r"""The same for questions that differ in layout alone: white space, ``$``, ``\left``, ``\dfrac``."""
    return _LAYOUT.sub("", _FRAC.sub(r"\\frac", question))


def conflicts(readings: Sequence[RowReading]) -> dict[str, list[RowReading]]:
    """Usable rows that ask the same and want different answers, by the key of their question."""
    groups: dict[str, list[RowReading]] = defaultdict(list)
    for reading in readings:
        if not reading.fault:
            groups[question_key(reading.question)].append(reading)
    return {key: group for key, group in groups.items() if not _agree([r.gold for r in group], group[0].question)}


def _agree(golds: Sequence[str], question: str) -> bool:
    others = set(golds) - {golds[0]}
    return all(compare(golds[0], other, question).right or compare(other, golds[0], question).right for other in others)
