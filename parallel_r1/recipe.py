"""Read a recipe: TOML, with overrides and names for strings that stand in several places.

What a recipe may say is in `parallel_r1.config`. A recipe is found by path or, when there is no such
file, among those that come with the package: ``tiny``, ``tiny.toml`` and ``recipes/tiny.toml`` are one.

A recipe may say only how it differs from another (``extends = "other"``), and a shipped one exists at other
scales: ``NAME-tiny`` is the recipe NAME with the changes of ``scales/tiny.toml`` on top. Both lay one
tree of tables over another: tables are merged key by key, other values replaced. Stages are matched by
name: a list of stages says which there are and in which order, a table ``[stages.NAME]`` only changes those
there are.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from parallel_r1.config import Recipe, explain
from parallel_r1.tasks.prompts import TEMPLATES

Section = TypeVar("Section", bound=BaseModel)
_PACKAGE = Path(__file__).parent
SCALES = "scales"
_VAR = re.compile(r"\$\{(\w+)\}")


class RecipeError(ValueError):
    """A recipe that cannot be run; the message names key, value and fix."""


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe (or a run's ``recipe.json``) and apply ``a.b=value`` overrides; values are TOML.

    An item of a list is named by its index or by its name: ``stages.0.steps=5``, ``stages.rl-easy.steps=5``.
    A table ``[vars]`` names strings that stand in several places: ``${name}`` elsewhere is replaced. The prompt
    templates of `parallel_r1.tasks.prompts` (``${maths_parallel}``) need no entry.

    Raises:
        RecipeError: the file is missing, is no TOML, or a key or value is wrong.
    """
    raw = _read_whole(path)
    for override in overrides:
        _apply_override(raw, override)
    return parse_recipe(_fill_vars(raw, str(path)), str(path))


def _read_whole(path: str | Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tables of a recipe with those that it extends under it, and its scale on top."""
    found = find_recipe(path)
    if not found.is_file():
        base, dash, scale = found.name.removesuffix(".toml").rpartition("-")
        overlay = recipes_folder() / SCALES / f"{scale}.toml"
        if dash and overlay.is_file() and find_recipe(base).is_file():
            raw = lay_over(_read_whole(base, seen), _read_file(overlay, path), str(path))
            return {**raw, "name": f"{base}-{scale}"}
    raw = _read_file(found, path)
    other = raw.pop("extends", None)
    if other is None:
        return raw
    if found.resolve() in seen:
        raise RecipeError(f"recipe {path}: extends = {other!r} leads back to itself")
    beside = found.parent / f"{str(other).removesuffix('.toml')}.toml"
    return lay_over(_read_whole(beside if beside.is_file() else str(other), (*seen, found.resolve())), raw, str(path))


def _read_file(found: Path, asked: str | Path) -> dict[str, Any]:
    try:
        text = found.read_text(encoding="utf-8")
        raw = json.loads(text) if found.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        known = ", ".join(sorted(shipped.stem for shipped in recipes_folder().glob("*.toml")))
        raise RecipeError(
            f"recipe {asked}: cannot be read ({error.strerror}); give the path of a .toml file, or one of {known}"
        ) from error
    except ValueError as error:
        raise RecipeError(f"recipe {asked}: not valid {found.suffix[1:].upper() or 'TOML'} ({error})") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"recipe {asked}: holds no table of keys")
    return raw


def lay_over(under: Mapping[str, Any], over: Mapping[str, Any], where: str = "recipe") -> dict[str, Any]:
    """One tree of tables over another, see the top of this file; neither is changed.

    Raises:
        RecipeError: ``over`` gives something other than tables of stages.
    """
    merged = _merge({k: v for k, v in under.items() if k != "stages"}, {k: v for k, v in over.items() if k != "stages"})
    stages = {stage.get("name"): stage for stage in under.get("stages", [])}
    changes = over.get("stages", {})
    if isinstance(changes, dict):
        merged["stages"] = [_merge(stage, changes.get(name, {})) for name, stage in stages.items()]
    elif isinstance(changes, list) and all(isinstance(stage, dict) for stage in changes):
        merged["stages"] = [_merge(stages.get(stage.get("name"), {}), stage) for stage in changes]
    else:
        raise RecipeError(f"{where}: stages = {changes!r}: write [[stages]] or [stages.NAME] tables")
    return merged


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merge(under[key], value) if isinstance(value, dict) and isinstance(under.get(key), dict) else value
        for key, value in over.items()
    }
    return {**under, **both}


def find_recipe(path: str | Path) -> Path:
    """The file that is meant: ``path`` itself, or a recipe of the package under that name."""
    asked = Path(path).expanduser()
    if not asked.is_file() and asked.parent in (Path("."), Path("recipes")):
        shipped = recipes_folder() / f"{asked.name.removesuffix('.toml')}.toml"
        if shipped.is_file():
            return shipped
    return asked


def recipes_folder() -> Path:
    """Where the package's recipes lie: inside it when installed, beside it in a checkout."""
    inside = _PACKAGE / "recipes"
    return inside if inside.is_dir() else _PACKAGE.parent / "recipes"


def parse_recipe(raw: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """Validate a mapping; see `load_recipe`."""
    return checked(Recipe, raw, where)


def checked(section: type[Section], raw: Mapping[str, Any], where: str) -> Section:
    """A section of a recipe from a mapping; what is wrong is said in one line each.

    Raises:
        RecipeError: a key or value is wrong.
    """
    try:
        return section.model_validate(raw)
    except ValidationError as error:
        lines = [explain(problem) for problem in error.errors()]
        raise RecipeError(f"{where}:\n" + "\n".join(f"  {line}" for line in lines)) from error


def _apply_override(raw: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals:
        raise RecipeError(f"--set {override}: write key=value, e.g. --set seed=1")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *parents, last = key.strip().split(".")
    node: Any = raw
    for part in parents:
        if isinstance(node, dict):
            node = node.setdefault(part, {})
        elif isinstance(node, list):
            node = node[_index(node, part, override)]
    if isinstance(node, list):
        node[_index(node, last, override)] = parsed
    elif isinstance(node, dict):
        node[last] = parsed
    else:
        raise RecipeError(f"--set {override}: {'.'.join(parents)} holds a plain value, so it has no {last!r}")


def _index(items: list[Any], part: str, override: str) -> int:
    """Which item of a list is meant by its index or its name."""
    names = [str(item.get("name", item.get("task", ""))) if isinstance(item, dict) else "" for item in items]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(items):
        return int(part)
    known = [name for name in names if name]
    hint = f" or a name among {', '.join(known)}" if known else ""
    raise RecipeError(f"--set {override}: {part!r} is no item; give an index below {len(items)}{hint}")


def _fill_vars(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The recipe without its ``vars``, every ``${name}`` replaced; the prompt templates of tasks have names too.

    Raises:
        RecipeError: a name that is used but not set, or set but not used.
    """
    values = raw.get("vars", {})
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise RecipeError(f"{where}:\n  vars = {values!r}: must be a table of strings")
    used: set[str] = set()

    def value_of(match: re.Match[str]) -> str:
        used.add(match[1])
        if match[1] not in values and match[1] in TEMPLATES:
            return TEMPLATES[match[1]]
        if match[1] not in values:
            raise RecipeError(f"{where}:\n  ${{{match[1]}}}: not set; use --set vars.{match[1]}=.. or a table [vars]")
        return values[match[1]]

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [fill(value) for value in node]
        return _VAR.sub(value_of, node) if isinstance(node, str) else node

    filled = fill({key: value for key, value in raw.items() if key != "vars"})
    for name in values.keys() - used:
        near = difflib.get_close_matches(name, used, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "remove it"
        raise RecipeError(f"{where}:\n  vars.{name} = {values[name]!r}: no ${{{name}}} stands in the recipe; {hint}")
    return filled
