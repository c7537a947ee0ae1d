"""Whole checkpoints: written aside, synced, renamed, marked; a half-written one never counts.

TRL writes straight into ``checkpoint-N`` and resumes from the highest number, even if the process
died while writing it. Here a checkpoint is written into ``saving/``, every file is synced, a marker
that lists the files is added, and only then does the folder get its name. A checkpoint holds weights,
tokenizer, decoding settings, optimiser, schedule, random states and the step count, from which data
cursor and reward phase follow; the marker also keeps the stage it belongs to, so that a changed
recipe is not resumed by accident.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_r1.models.load import Loaded, SavedSettings

MARKER = "complete.json"
SAVING = "saving"
FINAL = "final"
KEEP = 2
"""Checkpoints that stay; older ones are deleted when a newer one is whole."""
_NAME = re.compile(r"checkpoint-(\d+)")


class WholeCheckpoints:
    """Mixin, before a TRL trainer: its checkpoints become whole ones.

    ``keep_whole`` is called once, after the trainer is made.
    """

    args: Any
    state: Any
    accelerator: Any
    _settings: SavedSettings | None = None
    _stage_mark: Mapping[str, Any] = {}
    _run_dir: str | None = None

    def keep_whole(self, settings: SavedSettings | None, stage_mark: Mapping[str, Any]) -> None:
        """Set what is written beside the weights: decoding settings, and the marks of the stage."""
        self._settings, self._stage_mark = settings, dict(stage_mark)

    def _get_output_dir(self, trial: Any) -> str:
        return self._run_dir or self.args.output_dir

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        from parallel_r1.models.load import SETTINGS_FILE

        out_dir = Path(self.args.output_dir)
        aside = out_dir / SAVING
        main = self.accelerator.is_main_process
        if main:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self._run_dir = str(aside)
        try:
            super()._save_checkpoint(model, trial)  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            self._run_dir = None
        self.accelerator.wait_for_everyone()
        if main:
            written = aside / f"checkpoint-{self.state.global_step}"
            if self._settings is not None:
                (written / SETTINGS_FILE).write_text(self._settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
            publish(written, out_dir / written.name, {"step": self.state.global_step, "stage": self._stage_mark})
            shutil.rmtree(aside)
            for old in sorted(_numbered(out_dir))[:-KEEP]:
                shutil.rmtree(_numbered(out_dir)[old])
        self.accelerator.wait_for_everyone()

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """No card: a run directory describes itself."""

    def _send_telemetry(self) -> None:
        """Nothing is sent."""


def publish(written: Path, target: Path, marks: Mapping[str, Any]) -> Path:
    """Sync all files of a folder, mark it complete and move it to ``target``, replacing what is there."""
    files = sorted(path for path in written.rglob("*") if path.is_file() and path.name != MARKER)
    sizes = {str(path.relative_to(written)): path.stat().st_size for path in files}
    for path in files:
        _sync(path)
    marker = written / MARKER
    marker.write_text(json.dumps({**marks, "files": sizes}, indent=2, default=str) + "\n", encoding="utf-8")
    _sync(marker)
    _sync(written)
    if target.exists():
        shutil.rmtree(target)
    os.rename(written, target)
    _sync(target.parent)
    return target


def read_marker(folder: Path) -> dict[str, Any] | None:
    """The marker of a whole folder; None when it is absent, damaged, or a file is missing or cut short."""
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in marker["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return marker if whole else None


def latest_complete(out_dir: str | os.PathLike[str], remove_broken: bool = True) -> Path | None:
    """The whole checkpoint with the most steps, or None. Half-written ones are deleted."""
    folder = Path(out_dir)
    best: Path | None = None
    for _, path in sorted(_numbered(folder).items()):
        if read_marker(path) is not None:
            best = path
        elif remove_broken:
            shutil.rmtree(path, ignore_errors=True)
    if remove_broken:
        shutil.rmtree(folder / SAVING, ignore_errors=True)
    return best


def start_point(out_dir: str | os.PathLike[str], stage_mark: Mapping[str, Any], resume: bool = True) -> str | None:
    """The checkpoint to go on from, or None to start. ``resume`` False deletes all that are there.

    Raises:
        ValueError: it was written by a stage with other settings; the first that differs is named.
    """
    if not resume:
        for path in _numbered(Path(out_dir)).values():
            shutil.rmtree(path, ignore_errors=True)
    found = latest_complete(out_dir)
    if found is None:
        return None
    before = (read_marker(found) or {}).get("stage", {})
    now = json.loads(json.dumps(stage_mark, default=str))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise ValueError(
                f"{found} was written with {key} = {before.get(key)!r}, now {key} = {now.get(key)!r}; restore the "
                "setting to resume, or start in another folder"
            )
    return str(found)


def save_final(loaded: Loaded, out_dir: str | os.PathLike[str], settings: SavedSettings | None) -> Path:
    """Write the model of a finished stage to ``out_dir/final``, whole or not at all."""
    from parallel_r1.models.load import save_model

    folder = Path(out_dir)
    written = save_model(loaded, None, folder / SAVING / FINAL, settings)
    publish(written, folder / FINAL, {})
    shutil.rmtree(folder / SAVING)
    return folder / FINAL


def final_model(out_dir: str | os.PathLike[str]) -> Path | None:
    """The folder that `save_final` wrote, or None when the stage has not finished."""
    folder = Path(out_dir) / FINAL
    return folder if read_marker(folder) is not None else None


def _numbered(folder: Path) -> dict[int, Path]:
    """Checkpoint folders by step, whole or not."""
    if not folder.is_dir():
        return {}
    named = [(path, _NAME.fullmatch(path.name)) for path in folder.iterdir() if path.is_dir()]
    return {int(match[1]): path for path, match in named if match}


def _sync(path: Path) -> None:
    """Force a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
