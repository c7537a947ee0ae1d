"""A run directory: one process at a time, one recipe, and lines that a killed process cannot spoil.

What lies in it: ``recipe.json`` (resolved), ``metrics.jsonl``, ``rollouts/<stage>.jsonl``,
``<stage>/stage.json`` (the manifest), ``<stage>/checkpoint-N`` and ``<stage>/final``, ``eval/``,
``summary.json``, ``report.html``. Whole files are written aside and renamed. Lines are appended, and
on resume those of steps that will be done again are dropped, so that every step stands there once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from parallel_r1.config import Recipe

RECIPE, METRICS, SUMMARY, MANIFEST, LOCK = "recipe.json", "metrics.jsonl", "summary.json", "stage.json", "run.lock"
REPORT, ROLLOUTS, EVAL = "report.html", "rollouts", "eval"
FREE_KEYS = ("micro_batch", "save_every", "max_rows")
"""Settings of speed and safety: they may change between two starts, no result depends on them."""

Row = dict[str, Any]


class RunDir:
    """The files of one run. Made by `open_run`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def stage_folder(self, stage: str) -> Path:
        return self.folder / stage

    def manifest(self, stage: str) -> Row:
        """What is known of a stage's training; empty before it has begun."""
        return read_json(self.stage_folder(stage) / MANIFEST) or {}

    def write_manifest(self, stage: str, **entries: Any) -> None:
        """Add entries to a stage's manifest."""
        write_json(self.stage_folder(stage) / MANIFEST, {**self.manifest(stage), "stage": stage, **entries})

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one object to ``metrics.jsonl``, stamped with the time."""
        append_lines(self.folder / METRICS, [{**row, "time": time.time()}])

    def record(self, stage: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append scored rollouts of a stage."""
        append_lines(self.folder / ROLLOUTS / f"{stage}.jsonl", rows)

    def rewind(self, stage: str, step: int) -> None:
        """Drop what a stage logged after ``step``, its evaluation included: it will be done again."""

        def keep(row: Row) -> bool:
            return row.get("stage") != stage or (isinstance(row.get("step"), int) and row["step"] <= step)

        keep_lines(self.folder / METRICS, lambda row: keep(row) and not (row.get("stage") == stage and is_eval(row)))
        keep_lines(self.folder / ROLLOUTS / f"{stage}.jsonl", keep)

    def log_results(self, stage: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Put a stage's evaluation into ``metrics.jsonl``, in place of an earlier one."""
        keep_lines(self.folder / METRICS, lambda row: not (row.get("stage") == stage and is_eval(row)))
        for row in rows:
            self.log({**row, "kind": "eval"})

    def last_step(self, stage: str) -> int:
        """The last training step of a stage that was logged; 0 when there is none."""
        rows = read_lines(self.folder / METRICS)
        return max((row["step"] for row in rows if row.get("stage") == stage and not is_eval(row) and "step" in row),
                   default=0)  # fmt: skip

    def results(self, stage: str) -> list[Row] | None:
        """The rows of a stage's finished evaluation, or None."""
        return read_json(self.folder / EVAL / f"{stage}.json")

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        return write_json(self.folder / SUMMARY, summary)


def is_eval(row: Mapping[str, Any]) -> bool:
    return row.get("kind") == "eval"


@contextlib.contextmanager
def open_run(folder: str | os.PathLike[str], recipe: Recipe, fresh: bool = False) -> Iterator[RunDir]:
    """Take hold of a run directory for ``recipe``: a new one, one to go on with, or (``fresh``) one to empty.

    A stage that has not begun may still be changed or added.

    Raises:
        ValueError: another process works in it, it belongs to another recipe, or it holds other files.
    """
    run = RunDir(folder)
    known = read_json(run.folder / RECIPE)
    if run.folder.exists() and known is None:
        strange = sorted(path.name for path in run.folder.iterdir() if path.name not in (LOCK, RECIPE))
        if strange:
            raise ValueError(
                f"--out {run.folder}: holds {', '.join(strange[:3])} but no readable {RECIPE}, so it is no run; "
                "give another folder"
            )
    run.folder.mkdir(parents=True, exist_ok=True)
    with _held(run.folder / LOCK):
        if known is not None and fresh:
            _empty(run, known)
        elif known is not None:
            check_same_recipe(run, known, recipe)
        write_json(run.folder / RECIPE, recipe.model_dump(mode="json"))
        keep_lines(run.folder / METRICS, lambda row: True)
        yield run


def check_same_recipe(run: RunDir, known: Row, recipe: Recipe) -> None:
    """Raise ValueError naming the keys in which ``recipe`` differs from what the directory was made with."""
    now = recipe.model_dump(mode="json")
    names = [[str(stage.get("name")) for stage in found.get("stages", [])] for found in (known, now)]
    open_stages = {
        f"stages.{index}."
        for index in range(max(map(len, names)))
        if not any(run.manifest(side[index]) for side in names if index < len(side))
    }
    before, after = flatten(known), flatten(now)
    changed = [
        key
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and key.rpartition(".")[2] not in FREE_KEYS
        and not key.startswith(tuple(open_stages))
    ]
    if changed:
        shown = [f"{key} ({before.get(key)!r} there, {after.get(key)!r} now)" for key in changed[:5]]
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise ValueError(
            f"{run.folder} was made by another recipe; different: {', '.join(shown)}{more}. Restore the settings to go "
            "on, give another --out, or start over with --fresh"
        )


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """A nested value by dotted key, lists by index: ``{"stages.0.steps": 5}``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in items:
        found |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return found


def _empty(run: RunDir, known: Row) -> None:
    """Delete what the run wrote, and nothing else."""
    stages = [str(stage.get("name")) for stage in known.get("stages", [])]
    for name in [*stages, ROLLOUTS, EVAL]:
        shutil.rmtree(run.folder / name, ignore_errors=True)
    for name in (METRICS, SUMMARY, REPORT, RECIPE):
        (run.folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a lock file that names this process. A lock whose process is gone counts for nothing."""
    import psutil

    mine = {"pid": os.getpid(), "started": psutil.Process().create_time(), "host": socket.gethostname()}
    while True:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            holder = read_json(path) or {}
            if _is_running(holder):
                raise ValueError(
                    f"{path.parent}: process {holder.get('pid')} on {holder.get('host')} works in this run directory; "
                    f"wait for it, stop it, or give another --out (if it is long gone, delete {path.name})"
                ) from None
            path.unlink(missing_ok=True)
            continue
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(mine, stream)
        break
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _is_running(holder: Row) -> bool:
    """Whether the process in a lock lives; one on another machine is taken to."""
    import psutil

    if holder.get("host") != socket.gethostname():
        return bool(holder)
    try:
        return abs(psutil.Process(int(holder["pid"])).create_time() - float(holder["started"])) < 1
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False


def read_json(path: Path) -> Any:
    """The content of a JSON file; None when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> Path:
    """Write a whole file or none: aside, synced, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(value, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)
    return path


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def read_lines(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file; a line that a killed process left half-written is skipped."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def keep_lines(path: Path, keep: Callable[[Row], bool]) -> None:
    """Rewrite a JSONL file with the whole lines that pass; what is there stays until the new file is whole."""
    if not path.is_file():
        return
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in read_lines(path) if keep(row))
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)
