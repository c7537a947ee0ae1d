"""Where numbers come from: versions of everything they may depend on, and the revision of the code."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Sequence
from typing import Any

from parallel_r1 import __version__
from parallel_r1.config import Recipe

VERSIONS_OF = ("torch", "transformers", "trl", "accelerate", "datasets", "numpy")


def versions() -> dict[str, str]:
    """Of everything that numbers may depend on."""
    found = {name: importlib.metadata.version(name) for name in VERSIONS_OF}
    return {"parallel_r1": __version__, "python": platform.python_version(), **found}


def git_revision() -> str | None:
    """The commit checked out in the working directory; None outside a checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def summary_of(recipe: Recipe, rows: Sequence[dict[str, Any]], finished: bool) -> dict[str, Any]:
    """The content of ``summary.json``: one row per stage and held-out set."""
    return {
        "name": recipe.name, "seed": recipe.seed, "model": recipe.model, "variant": recipe.variant,
        "finished": finished, "versions": versions(), "git_revision": git_revision(), "results": list(rows),
    }  # fmt: skip
