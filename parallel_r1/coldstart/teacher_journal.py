"""Every judged reply on disk as soon as it is there, so that an interrupted run goes on where it stopped.

The first line holds the settings that decide what a reply is worth; a journal of other settings is refused.
A last line that was cut by a crash is dropped, and its reply asked for again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One reply and what became of it. ``reason`` is empty for a trace that is kept."""

    problem_id: str
    attempt: int
    reason: str
    text: str
    paper_valid: bool
    """The paper's check: there is a block, and every tag is closed in order (SPEC section 3)."""
    num_blocks: int
    num_paths: int
    similarity: float
    how: str
    """How the answer was compared, or what went wrong."""
    prompt_tokens: int
    completion_tokens: int


class Journal:
    """The file and what it held when it was opened.

    Raises:
        ValueError: it belongs to a run with other settings, or is no journal.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.entries: list[Entry] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read(settings) if path.is_file() else 0
        self._file = path.open("r+b" if path.is_file() else "w+b")
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._write({"settings": dict(settings)})

    def add(self, entry: Entry) -> None:
        """Keep an entry; it is on disk when this returns."""
        self._write(asdict(entry))
        self.entries.append(entry)

    def close(self) -> None:
        self._file.close()

    def _read(self, settings: Mapping[str, Any]) -> int:
        """Fill `entries`; the number of bytes that make whole lines."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        try:
            rows = [json.loads(line) for line in lines]
            known = rows[0]["settings"] if rows else dict(settings)
            self.entries = [Entry(**row) for row in rows[1:]]
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{self.path}: not a journal of this command ({error}); give another --out") from error
        differ = sorted(key for key in {*known, *settings} if known.get(key) != settings.get(key))
        if differ:
            shown = ", ".join(f"{key} = {str(known.get(key))[:60]!r}" for key in differ)
            raise ValueError(f"{self.path} was made with other settings ({shown}); set them so, or give another --out")
        return whole

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
