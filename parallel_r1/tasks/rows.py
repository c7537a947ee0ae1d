"""Rows of a data set from a Parquet or JSONL file, a folder, or the hub; columns by name or by path.

A column is named as it is (``question``) or by the way into it (``reward_model.ground_truth``,
``prompt.0.content``), so that nested rows need no code of their own. Nothing is known of tasks here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parallel_r1.types import Split

Row = Mapping[str, Any]
FILES = (".parquet", ".jsonl", ".json")


def read_rows(path: str, split: Split, config: str | None = None, revision: str | None = None) -> Iterator[Row]:
    """All rows of one split. Splits are the data's own: a column ``split`` is obeyed, a folder or hub name is
    asked for its split, and a file named after the other split is refused.

    ``config`` and ``revision`` are the hub's.

    Raises:
        ValueError: nothing readable behind ``path``, or the split is not there.
    """
    place = Path(path).expanduser()
    if place.is_file():
        _refuse_other_split(place, split)
        rows: Iterable[Row] = read_file(place)
    elif place.suffix in FILES or (path.startswith((".", "/", "~")) and not place.exists()):
        raise ValueError(f"data.path = {path!r}: no such file; give a Parquet or JSONL file, or a hub name")
    else:
        rows = _read_dataset(path, split, config, revision)
    for row in rows:
        if row.get("split") in (None, split):
            yield row


def read_file(path: Path) -> list[Row]:
    """All rows of a Parquet file, or of a JSON file with one object a line or one list of objects.

    Raises:
        ValueError: the file is neither.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            return pyarrow.parquet.read_table(path).to_pylist()
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"data.path = {str(path)!r}: not readable as Parquet or JSONL ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"data.path = {str(path)!r}: every line must be a JSON object")
    return rows


def value_at(row: Row, column: str) -> Any:
    """The value of a column, or of a path into nested columns; None where there is none.

    >>> value_at({"chat": [{"content": "2+2?"}]}, "chat.0.content")
    '2+2?'
    """
    if column in row:
        return row[column]
    node: Any = row
    for part in column.split("."):
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, Sequence) and not isinstance(node, str) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


def text_at(row: Row, column: str | None) -> str:
    """A column as stripped text. Of a list of chat messages the last one of the user is meant."""
    value = None if column is None else value_at(row, column)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "content" in item for item in value):
        value = next((item["content"] for item in reversed(value) if item.get("role", "user") == "user"), "")
    return "" if value is None else str(value).strip()


def find_column(rows: Sequence[Row], names: Sequence[str]) -> str | None:
    """The first of ``names`` that holds something in one of the first rows."""
    return next((name for name in names if any(value_at(row, name) not in (None, "") for row in rows[:100])), None)


def split_of(path: str | Path) -> Split | None:
    """The split that a file's name tells, if it names exactly one."""
    words = Path(path).stem.lower().replace("-", "_").split("_")
    named: list[Split] = [split for split in ("train", "test") if split in words]
    return named[0] if len(named) == 1 else None


def _refuse_other_split(path: Path, split: Split) -> None:
    other = split_of(path)
    if other not in (None, split):
        raise ValueError(
            f"data.path = {str(path)!r} holds the {other} split by its name, but data.split = {split!r}; "
            f"give the {split} file or set data.split"
        )


def _read_dataset(name: str, split: Split, config: str | None, revision: str | None) -> Iterable[Row]:
    """Rows of a local folder or a hub name, through ``datasets``."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_dataset(name, config, split=split, revision=revision)  # pyright: ignore[reportReturnType]
    except (OSError, ValueError, DatasetsError) as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"data.path = {name!r}: neither a readable folder nor a reachable hub name with split {split!r} ({first}); "
            "give a Parquet or JSONL file"
        ) from error
