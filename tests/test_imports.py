"""One direction of imports, and what must start without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import parallel_r1

PACKAGE = Path(parallel_r1.__file__).parent
ORDER = [
    ["types"],
    ["config"],
    ["trace"],
    ["answers"],
    ["tasks"],
    ["audit"],
    ["models"],
    ["engine"],
    ["rewards"],
    ["rollout"],
    ["coldstart"],
    ["train"],
    ["evaluate"],
    ["report"],
    ["check"],
    ["recipe", "run_dir", "preflight", "estimate", "provenance"],
    ["terminal", "live"],
    ["serve"],
    ["curriculum", "commands", "commands_data"],
    ["cli", "cli_data", "cli_serve"],
    ["__main__"],
]
"""A module imports what stands above it, its own package, and its neighbours of the same line."""
PLACE = {name: place for place, names in enumerate(ORDER) for name in names}
LIGHT = (
    "types", "config", "recipe", "run_dir", "preflight", "trace.tags", "rewards.parts", "rewards.schedule", "tasks",
    "audit.report", "engine.branch", "evaluate.metrics", "report", "curriculum", "cli",
)  # fmt: skip


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("parallel_r1."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom) and node.module == "parallel_r1":
            yield from (alias.name for alias in node.names if alias.name in PLACE)
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("parallel_r1."))


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_package_has_a_place():
    assert {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()} <= set(PLACE)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upwards(path):
    here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    below = {name for name in imports_of(path) if PLACE[name] > PLACE[here]}
    assert not below, f"{here} may not import {below}"


def test_no_torch_where_none_is_needed():
    code = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module('parallel_r1.' + name)\n"
        "    assert 'torch' not in sys.modules and 'transformers' not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
