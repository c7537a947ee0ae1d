"""Read a run directory, whatever state it is in: a run that has just begun, or one that was killed mid-line.

Only what is missing or half-written is forgiven, never changed. What could not be read is counted and
shown on the page.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(slots=True)
class RunData:
    """What stands in a run directory, in the order of its stages."""

    folder: Path
    recipe: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    """Rows of ``summary.json``; of ``eval/*.json`` and ``metrics.jsonl`` while that is not there yet."""
    sft: list[Row] = field(default_factory=list)
    rl: list[Row] = field(default_factory=list)
    unreadable: int = 0
    """Lines and files that are there but could not be read."""

    @property
    def finished(self) -> bool:
        return bool(self.summary) and self.summary.get("finished", True) is not False


def read_run(run_dir: str | os.PathLike[str]) -> RunData:
    """Read everything but the rollouts.

    Raises:
        ValueError: there is no such directory.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ValueError(f"run directory {str(folder)!r}: no such directory; give the --out of a run")
    run = RunData(folder)
    run.recipe = _object(run, folder / "recipe.json")
    run.summary = _object(run, folder / "summary.json")
    logged: list[Row] = []
    evals: list[Row] = []
    for row in read_lines(folder / "metrics.jsonl", run):
        (evals if row.get("kind") == "eval" else logged).append(row)
    steps = _last_of_each_step(logged)
    run.sft = [row for row in steps if row.get("kind") == "sft"]
    run.rl = [row for row in steps if row.get("kind") == "rl"]
    found = [row for row in run.summary.get("results", []) if isinstance(row, dict)]
    run.results = [finite(row) for row in found] or _results_so_far(run, evals)
    run.stages = _stage_order(run)
    run.results.sort(key=lambda row: run.stages.index(str(row.get("stage"))))
    return run


def read_lines(path: Path, run: RunData | None = None) -> Iterator[Row]:
    """The objects of a JSONL file. A line that is no object is skipped; it counts in ``run.unreadable``
    unless it is the last one, which a killed run leaves half-written."""
    bad = False
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if bad and run is not None:
                    run.unreadable += 1
                bad = False
                try:
                    row = json.loads(line) if line.strip() else None
                except ValueError:
                    row, bad = None, True
                if isinstance(row, dict):
                    yield finite(row)
    except FileNotFoundError:
        return


def finite(value: Any) -> Any:
    """The same value with None for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list) else value


def _object(run: RunData, path: Path) -> Row:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        run.unreadable += 1
        return {}
    return found if isinstance(found, dict) else {}


def _last_of_each_step(rows: list[Row]) -> list[Row]:
    """A resumed run may log a step twice; the later one counts."""
    kept = {(row.get("stage"), row.get("kind"), row.get("step")): row for row in rows if _is_number(row.get("step"))}
    return sorted(kept.values(), key=lambda row: row["step"])


def _results_so_far(run: RunData, evals: list[Row]) -> list[Row]:
    rows = list(evals)
    for path in sorted((run.folder / "eval").glob("*.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            run.unreadable += 1
            continue
        rows += [finite(row) for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    return list({tuple(row.get(key) for key in ("stage", "task", "size", "split")): row for row in rows}.values())


def _stage_order(run: RunData) -> list[str]:
    planned = [stage.get("name") for stage in run.recipe.get("stages", []) if isinstance(stage, dict)]
    seen = [row.get("stage") for row in (*run.results, *run.sft, *run.rl)]
    first = ["base"] if "base" in seen else []
    known = set(map(str, seen))
    return list(dict.fromkeys([*first, *(str(n) for n in planned if str(n) in known), *map(str, seen)]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
