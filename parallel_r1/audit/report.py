"""What an audit leaves behind: a page with examples, every finding as JSON, and the cleaned copies."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parallel_r1.audit.run import KINDS, Audit, Finding

EXAMPLES = 3
SHOWN = 240
"""Characters of a question in the page."""
_MEANING = {
    "unreadable": "the question is empty, or the gold is no answer that could be checked",
    "gold is not its own answer": "the verifier does not call the gold right when it is given as the answer",
    "cut": "the end of the problem is missing",
    "conflicting answers": "the same problem with different answers; none of its rows can be trusted",
    "duplicate": "the same problem and answer again",
    "too long": "the prompt leaves too little room",
}


def table(audits: Sequence[Audit]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one set a row, one kind of finding a column; kinds never found are left out."""
    kinds = [*KINDS, *dict.fromkeys(f.kind for a in audits for f in a.findings if f.kind not in KINDS)]
    kinds = [kind for kind in kinds if any(audit.counts[kind] for audit in audits)]
    header = ["set", "rows", "kept", *kinds]
    rows = [
        [audit.name, *(f"{n:,}" for n in (len(audit.readings), len(audit.kept), *(audit.counts[k] for k in kinds)))]
        for audit in audits
    ]
    return header, rows


def markdown(audits: Sequence[Audit]) -> str:
    """The page: the table, then a few examples of every kind, with where to find the rest."""
    header, rows = table(audits)
    lines = ["# Audit", "", _line(header), _line(["---"] * len(header)), *(_line(row) for row in rows), ""]
    lines += ["A row with two findings counts in both columns; it is dropped once.", ""]
    for audit in audits:
        lines += [f"## {audit.name}", "", f"`{audit.path}`, split {audit.split}.", ""]
        for kind, count in audit.counts.most_common():
            lines += [f"### {kind}: {count:,}", "", _meaning(kind) + ".", ""]
            lines += [_example(finding) for finding in audit.of(kind)[:EXAMPLES]] + [""]
        if not audit.findings:
            lines += ["Nothing found.", ""]
    return "\n".join(lines)


def write(audits: Sequence[Audit], folder: Path) -> list[Path]:
    """Write ``audit.md``, ``audit.json`` and, per set, the kept rows with all their columns; the files' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page, figures = folder / "audit.md", folder / "audit.json"
    _replace(page, markdown(audits).encode())
    _replace(figures, (json.dumps([_figures(audit) for audit in audits], indent=1, ensure_ascii=False) + "\n").encode())
    return [page, figures, *(_write_copy(audit, folder) for audit in audits)]


def _figures(audit: Audit) -> dict[str, Any]:
    findings = [{"kind": f.kind, "id": f.id, "detail": f.detail} for f in audit.findings]
    return {
        "name": audit.name, "path": audit.path, "split": audit.split, "rows": len(audit.readings),
        "kept": len(audit.kept), "counts": dict(audit.counts), "findings": findings,
    }  # fmt: skip


def _write_copy(audit: Audit, folder: Path) -> Path:
    """The kept rows: JSONL where they came from JSON, else Parquet."""
    rows = [dict(reading.row) for reading in audit.kept]
    if Path(audit.path).suffix in (".json", ".jsonl"):
        file = folder / f"{audit.name}.jsonl"
        _replace(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        return file
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / f"{audit.name}.parquet"
    aside = file.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(rows), aside, compression="zstd")
    os.replace(aside, file)
    return file


def _replace(file: Path, content: bytes) -> None:
    aside = file.with_name(file.name + ".tmp")
    aside.write_bytes(content)
    os.replace(aside, file)


def _meaning(kind: str) -> str:
    other = f"the problem stands in {kind.removeprefix('in ')}, word by word or nearly, with fitting numbers"
    return _MEANING.get(kind, other)


def _example(finding: Finding) -> str:
    text = f"- `{finding.id}` {finding.detail}: {_short(finding.text, from_end=finding.kind == 'cut')}"
    return f"{text}\n  - {_short(finding.other)}" if finding.other else text


def _short(text: str, from_end: bool = False) -> str:
    text = " ".join(text.split())
    if len(text) <= SHOWN:
        return text
    return f"... {text[-SHOWN:]}" if from_end else f"{text[:SHOWN]} ..."


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
