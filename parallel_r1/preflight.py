"""What can be known of a recipe before anything heavy is loaded: tasks, files, model folder, room.

Runs without torch, so that a run which cannot work fails at once and not after its first stages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parallel_r1.config import DataSource, Recipe, SFTStage
from parallel_r1.recipe import RecipeError
from parallel_r1.tasks import load_task
from parallel_r1.tasks.base import TraceTask

_BUILTIN = Path(__file__).parent / "models" / "builtin"
_DATA_FILES = (".parquet", ".jsonl", ".json")


def preflight(recipe: Recipe) -> None:
    """Check what a recipe names.

    Raises:
        RecipeError: a task, file or folder that is not there, or settings that do not fit the model.
    """
    for where, source in data_sources(recipe):
        _check_source(where, source)
    for stage in recipe.stages:
        if isinstance(stage, SFTStage):
            _check_texts(stage)
    folder = model_folder(recipe.model)
    if folder is not None:
        _check_room(recipe, folder)


def data_sources(recipe: Recipe) -> Iterator[tuple[str, DataSource]]:
    """Every data source with its place in the recipe."""
    for stage in recipe.stages:
        for index, source in enumerate(stage.data):
            yield f"stages.{stage.name}.data.{index}", source
    for index, source in enumerate(recipe.evaluate.sets):
        yield f"evaluate.sets.{index}", source


def model_folder(name: str) -> Path | None:
    """The local folder of a model; None for the hub, a GGUF file or random weights.

    Raises:
        RecipeError: a path with nothing usable behind it.
    """
    path = _BUILTIN / name if (_BUILTIN / name).is_dir() else Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if name.endswith(".gguf"):
        if not path.is_file():
            raise RecipeError(f"model = {name!r}: no such file; give the path of a .gguf file")
        return None
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise RecipeError(f"model = {name!r}: the folder has no config.json; give a saved model's folder")
        return path
    if is_path:
        raise RecipeError(f"model = {name!r}: no such folder; give an existing folder, a hub name or 'tiny'")
    return None


def _check_source(where: str, source: DataSource) -> None:
    try:
        load_task(source)
    except ValueError as error:
        raise RecipeError(f"{where}: {error}") from error
    if source.path and Path(source.path).suffix in _DATA_FILES and not Path(source.path).expanduser().is_file():
        raise RecipeError(f"{where}.path = {source.path!r}: no such file; give a Parquet or JSONL file, or a hub name")


def _check_texts(stage: SFTStage) -> None:
    for index, source in enumerate(stage.data):
        writes = isinstance(load_task(source), TraceTask)
        if not writes and (stage.format == "base" or source.path is None):
            raise RecipeError(
                f"stages.{stage.name}.data.{index}: the task {source.task!r} writes no texts of its own; give a path "
                "to a file with a column 'trace', and format = 'trace' or 'linear'"
            )


def _check_room(recipe: Recipe, folder: Path) -> None:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"model = {recipe.model!r}: {folder / 'config.json'} is not readable ({error})") from error
    limit = config.get("max_position_embeddings")
    engines = [("engine", recipe.engine)]
    engines += [(f"stages.{stage.name}.engine", recipe.stage_engine(stage)) for stage in recipe.stages]
    for where, engine in engines:
        if isinstance(limit, int) and engine.max_response_tokens >= limit:
            raise RecipeError(
                f"{where}.max_response_tokens = {engine.max_response_tokens}: the model has {limit} positions, and the "
                "prompt needs some of them; lower it"
            )
