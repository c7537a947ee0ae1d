"""Build ``report.html``: one file that needs no network, no fonts and no other file.

Its own script and style are allowed by hash, everything else is refused by the page's content policy, so
even a hole in the escaping would run nothing. Text of models and data is escaped in HTML and set as text
by the script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from parallel_r1.report.charts import run_charts
from parallel_r1.report.plots import render
from parallel_r1.report.read import Row, RunData, read_run
from parallel_r1.report.table import interval, percent, result_cells, set_name
from parallel_r1.report.traces import find_decoder, sample_traces, view

FILE_NAME = "report.html"
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def build_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write ``report.html`` into a run directory from what is there so far; returns its path.

    Raises:
        ValueError: there is no such directory.
    """
    run = read_run(run_dir)
    decode = find_decoder(run)
    traces = [view(row, decode) for row in sample_traces(run)]
    charts = "".join(render(chart) for chart in run_charts(run))
    style, script = _asset("style.css"), _asset("viewer.js")
    name = str(run.summary.get("name") or run.recipe.get("name") or run.folder.name)
    page = _fill(
        _asset("template.html"),
        {
            "policy": f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
            "base-uri 'none'; form-action 'none'",
            "title": escape(name),
            "style": style,
            "script": script,
            "facts": _facts(run),
            "tiles": _tiles(run),
            "results": _results(run.results),
            "charts": charts or '<p class="empty">Nothing has been logged yet.</p>',
            "traces": embed({"stages": run.stages, "traces": traces}),
        },
    )
    path = run.folder / FILE_NAME
    aside = path.with_name(FILE_NAME + ".tmp")
    aside.write_text(page, encoding="utf-8", newline="\n")
    aside.replace(path)
    return path


def embed(value: Any) -> str:
    """JSON that can stand inside a ``<script>`` element: it holds no ``<``, ``>``, ``&`` or line separator.

    Lone surrogates, which UTF-8 cannot hold, are escaped by JSON itself.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every ``{{name}}`` once; what is filled in is not searched again."""
    return _SLOT.sub(lambda match: values[match[1]], template)


def _asset(name: str) -> str:
    return resources.files("parallel_r1.report").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _plain(text: object) -> str:
    """Escaped text that UTF-8 can hold."""
    return escape(str(text).encode("utf-8", "replace").decode("utf-8"))


def _facts(run: RunData) -> str:
    """The line under the title: what was run, with what."""
    recipe, summary = run.recipe, run.summary
    facts = [
        "finished" if run.finished else "not finished: this is what there is so far",
        f"model {recipe['model']}" if recipe.get("model") else "",
        f"variant {v}" if (v := summary.get("variant") or recipe.get("variant")) else "",
        f"seed {s}" if (s := summary.get("seed", recipe.get("seed"))) is not None else "",
        f"revision {str(summary['git_revision'])[:10]}" if summary.get("git_revision") else "",
    ]
    versions = summary.get("versions")
    if isinstance(versions, Mapping):
        facts.append(", ".join(f"{key} {value}" for key, value in versions.items()))
    if run.unreadable:
        facts.append(f"{run.unreadable} stored lines or files could not be read")
    return "".join(f"<li>{_plain(fact)}</li>" for fact in facts if fact)


def _tiles(run: RunData) -> str:
    """Per held-out set, the latest figures: accuracy, and what the same model does without forking."""
    latest: dict[str, Row] = {}
    for row in run.results:
        latest[set_name(row)] = row
    tiles: list[str] = []
    for name, row in latest.items():
        value = percent(row.get("mean"))
        if not value:
            continue
        lines = [f"after {row.get('stage')}"]
        if row.get("mode") != "sequential" and row.get("sequential_mean") is not None:
            gain = interval(row, "difference", "difference_ci", signed=True)
            lines.append(f"{percent(row['sequential_mean'])} % without forking" + (f", gain {gain}" if gain else ""))
        if row.get("parallel_ratio") is not None:
            lines.append(f"{percent(row['parallel_ratio'], 0)} % of responses fork")
        notes = "".join(f"<span>{_plain(line)}</span>" for line in lines)
        tiles.append(
            f'<div class="tile"><h3>{_plain(name)}</h3><p class="big">{value}<small> %</small></p>{notes}</div>'
        )
    return f'<section class="tiles" aria-label="Latest accuracy">{"".join(tiles)}</section>' if tiles else ""


def _results(rows: Sequence[Row]) -> str:
    headers, lines = result_cells(rows)
    if not lines:
        return '<p class="empty">No model has been evaluated yet.</p>'
    head = "".join(f'<th scope="col" title="{escape(note)}">{escape(name)}</th>' for name, note in headers)
    body = "".join("<tr>" + "".join(f"<td>{_plain(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    notes = "".join(f"<dt>{escape(name)}</dt><dd>{escape(note)}</dd>" for name, note in headers)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Results">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        f"<details><summary>What the columns say</summary><dl>{notes}</dl></details>"
    )
