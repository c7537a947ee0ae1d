"""*gsm8k*: school maths read from a Parquet or JSONL file, a folder or the hub.

Rows need a question and an answer; the gold is what follows ``####``, or the whole answer. Rows whose
gold is no number are dropped with a reason (`Gsm8k.dropped`), never graded. A column ``trace`` makes
the rows usable as cold-start data. ``size`` is only a label here: what is easy or hard is said by the
options ``min_steps`` and ``max_steps``, the number of calculation steps of the worked solution (its
``<<..>>`` marks, else its lines), e.g. ``max_steps = 3`` for an easy stage.

Splits are the files' own: a ``split`` column is obeyed, a folder or hub name is asked for its split,
and a file named after the other split is refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from parallel_r1.answers.extract import HASHES
from parallel_r1.answers.normalise import normalise, number
from parallel_r1.answers.verify import verify
from parallel_r1.config import DataSource
from parallel_r1.types import Problem, Size, Split, Verdict

OPTIONS = ("min_steps", "max_steps", "question", "answer", "config")
COLUMNS = {"question": ("question", "problem", "prompt"), "answer": ("answer", "final_answer", "solution")}
FILES = (".parquet", ".jsonl", ".json")
HUB_NAME = "openai/gsm8k"


class Gsm8k:
    """The data task. ``path``: a file, a folder or a hub name; None is the public mirror."""

    name = "gsm8k"

    def __init__(self, path: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.path = path or HUB_NAME
        self.options = dict(options or {})
        self.dropped: list[tuple[str, str]] = []
        """(problem id, reason) of the rows that the last call of `problems` could not use."""
        for key, value in self.options.items():
            if key not in OPTIONS:
                raise ValueError(
                    f"data.options.{key} = {value!r}: unknown option of gsm8k; known: {', '.join(OPTIONS)}"
                )
            if key.endswith("_steps") and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise ValueError(f"data.options.{key} = {value!r}: give a whole number of calculation steps")

    @classmethod
    def from_source(cls, source: DataSource) -> Gsm8k:
        return cls(source.path, source.options)

    def problems(self, split: Split, size: Size, num: int, seed: int) -> list[Problem]:
        """At most ``num`` problems in an order drawn from ``seed``.

        Raises:
            ValueError: the data cannot be read, lack a column, or hold no usable row.
        """
        rows = list(self._rows(split))
        if not rows:
            raise ValueError(f"data.path = {self.path!r}: no rows for split {split!r}; give a file that has some")
        columns = {key: self._column(key, rows[0]) for key in COLUMNS}
        self.dropped = []
        problems: dict[tuple[str, str | None], Problem] = {}
        for index, row in enumerate(rows):
            problem_id = f"{self.name}/{split}/{row.get('index', index)}"
            problem, reason = self._problem(problem_id, size, row, columns)
            if problem is None:
                self.dropped.append((problem_id, reason))
            elif problems.setdefault((problem.question, problem.data.get("trace")), problem) is not problem:
                self.dropped.append((problem_id, "duplicate"))
        if not problems:
            raise ValueError(
                f"data.path = {self.path!r}: none of {len(rows)} rows is usable (first: {self.dropped[0][1]}); "
                "check the columns and data.options"
            )
        order = list(problems.values())
        random.Random(f"gsm8k/{split}/{seed}").shuffle(order)
        return order[:num]

    def verify(self, problem: Problem, response: str) -> Verdict:
        """Judge an answer region: `parallel_r1.answers.verify`, told what the question asks for."""
        return verify(problem.gold, response, problem.question)

    def _problem(
        self, problem_id: str, size: Size, row: Mapping[str, Any], columns: Mapping[str, str]
    ) -> tuple[Problem | None, str]:
        question, answer = (str(row.get(columns[key]) or "").strip() for key in ("question", "answer"))
        gold = normalise(read_gold(answer))
        if not question:
            return None, "empty question"
        if number(gold) is None:
            return None, f"unreadable gold {gold[:40]!r}"
        data: dict[str, Any] = {}
        if "min_steps" in self.options or "max_steps" in self.options:
            steps = count_steps(str(row.get("solution") or answer))
            if steps is None:
                return None, "no worked solution to count steps in"
            if not self.options.get("min_steps", 0) <= steps <= self.options.get("max_steps", steps):
                return None, "number of steps"
            data["steps"] = steps
        if row.get("trace"):
            data["trace"] = str(row["trace"])
        return Problem(problem_id, self.name, size, question, gold, data), ""

    def _column(self, key: str, row: Mapping[str, Any]) -> str:
        names = (self.options[key],) if key in self.options else COLUMNS[key]
        for name in names:
            if name in row:
                return name
        raise ValueError(
            f"data.path = {self.path!r}: no column {' or '.join(map(repr, names))} among {sorted(row)}; "
            f"name it with data.options.{key}"
        )

    def _rows(self, split: Split) -> Iterator[Mapping[str, Any]]:
        path = Path(self.path).expanduser()
        if path.is_file():
            _refuse_other_split(path, split)
            rows: Iterable[Mapping[str, Any]] = _read_file(path)
        elif path.suffix in FILES or (self.path.startswith((".", "/", "~")) and not path.exists()):
            raise ValueError(f"data.path = {self.path!r}: no such file; give a Parquet or JSONL file, or a hub name")
        else:
            rows = _read_dataset(self.path, split, self.options.get("config"))
        for row in rows:
            if row.get("split") in (None, split):
                yield row


def read_gold(answer: str) -> str:
    """The gold in an answer column: what follows the last ``####``, or all of it."""
    return answer.rpartition(HASHES)[2].strip()


def count_steps(solution: str) -> int | None:
    """Calculation steps of a worked solution: its ``<<..>>`` marks, else its lines; None without either."""
    worked = solution.partition(HASHES)[0] if HASHES in solution else solution
    marks = worked.count("<<")
    if marks:
        return marks
    lines = [line for line in worked.splitlines() if line.strip()]
    return len(lines) if HASHES in solution or len(lines) > 1 else None


def _refuse_other_split(path: Path, split: Split) -> None:
    other = "train" if split == "test" else "test"
    words = path.stem.lower().replace("-", "_").split("_")
    if other in words and split not in words:
        raise ValueError(
            f"data.path = {str(path)!r} holds the {other} split by its name, but data.split = {split!r}; "
            f"give the {split} file or set data.split"
        )


def _read_file(path: Path) -> list[Mapping[str, Any]]:
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path).to_pylist()
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"data.path = {str(path)!r}: not readable as Parquet or JSONL ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"data.path = {str(path)!r}: every line must be a JSON object")
    return rows


def _read_dataset(name: str, split: Split, config: str | None) -> Iterable[Mapping[str, Any]]:
    """Rows of a local folder or a hub name, through ``datasets``."""
    import datasets
    from datasets.exceptions import DatasetsError

    if config is None and name == HUB_NAME:
        config = "main"
    try:
        return datasets.load_dataset(name, config, split=split)  # pyright: ignore[reportReturnType]
    except (OSError, ValueError, DatasetsError) as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"data.path = {name!r}: neither a readable folder nor a reachable hub name with split {split!r} ({first}); "
            "give a Parquet or JSONL file"
        ) from error
