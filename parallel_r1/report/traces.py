"""Choose rollouts for the viewer and lay each out: main chain, paths side by side, summary, answer.

Stored text is shown, never changed. Which characters were inserted by the engine is read off the token
flags with the tokenizer that lies beside a stage's model; without one, the tags that an engine always
inserts are taken for inserted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from parallel_r1.report.read import Row, RunData, read_lines
from parallel_r1.tasks.paths import right_paths
from parallel_r1.trace.tags import TAGS, parse_text
from parallel_r1.types import Problem

MOST_TRACES = 200
_PER_STRATUM = 24
_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")
_ALWAYS_FORCED = re.compile(r"<Path>|</Parallel>\s*<Summary>|</Parallel>")
FORCED, TAG = 1, 2
Decode = Callable[[Sequence[int]], str]


def sample_traces(run: RunData, most: int = MOST_TRACES, seed: int = 0) -> list[Row]:
    """At most ``most`` rollouts, spread evenly over stage, source, task, mode and outcome.

    A row of the result is a stored rollout plus ``source``: "training" or "evaluation".
    """
    rng = random.Random(seed)
    kept: dict[tuple[str, ...], list[Row]] = {}
    seen: dict[tuple[str, ...], int] = {}
    files = [("training", path) for path in sorted((run.folder / "rollouts").glob("*.jsonl"))]
    files += [("evaluation", path) for path in sorted((run.folder / "eval").glob("*.rollouts.jsonl"))]
    for source, path in files:
        for row in read_lines(path, run):
            verdict = row.get("verdict")
            if not isinstance(row.get("text"), str) or not isinstance(verdict, dict):
                run.unreadable += 1
                continue
            names = (
                row.get("stage"),
                source,
                row.get("task"),
                row.get("size"),
                row.get("mode"),
                verdict.get("outcome"),
            )
            key = tuple(map(str, names))
            seen[key] = seen.get(key, 0) + 1
            pool = kept.setdefault(key, [])
            entry = {**row, "source": source}
            if len(pool) < _PER_STRATUM:
                pool.append(entry)
            elif (place := rng.randrange(seen[key])) < _PER_STRATUM:
                pool[place] = entry
    chosen = _round_robin([sorted(pool, key=lambda _: rng.random()) for pool in kept.values()], most)
    order = {stage: i for i, stage in enumerate(run.stages)}
    return sorted(chosen, key=lambda r: (order.get(str(r.get("stage")), len(order)), r["source"], r.get("step") or 0))


def _round_robin(pools: list[list[Row]], most: int) -> list[Row]:
    chosen: list[Row] = []
    for turn in range(_PER_STRATUM):
        for pool in pools:
            if turn < len(pool) and len(chosen) < most:
                chosen.append(pool[turn])
    return chosen


def find_decoder(run: RunData) -> Decode | None:
    """The tokenizer of a trained stage, the last one first; None when no stage has got that far."""
    folders = [run.folder / stage / "final" for stage in reversed(run.stages)]
    folders += sorted(run.folder.glob("*/final")) + sorted(run.folder.glob("*/checkpoint-*"))
    for folder in folders:
        path = folder / "tokenizer.json"
        if path.is_file():
            return _decoder(path)
    return None


def _decoder(path: Path) -> Decode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


def view(row: Row, decode: Decode | None) -> Row:
    """One rollout as the viewer wants it.

    ``parts``: main chain ``{"k": "main", "r": runs}`` and blocks ``{"k": "block", "open": runs, "lanes":
    [{"r": runs, "n": tokens or None, "right": bool or None, "gap": runs}], "close": runs, "summary":
    runs}``; runs are ``[text, flags]`` with flags `FORCED` and `TAG`.
    """
    text = row["text"]
    forced, starts = _character_marks(row, decode)
    trace = parse_text(text, bool(row.get("truncated")))
    problem = Problem(
        str(row.get("problem_id", "")), str(row.get("task", "")), row.get("size") or "easy",
        str(row.get("question", "")), str(row.get("gold", "")),
    )  # fmt: skip
    right = right_paths(problem, trace)

    def runs(start: int, end: int) -> list[list[Any]]:
        return _runs(text, forced, start, end)

    parts: list[Row] = []
    done = 0
    for number, block in enumerate(trace.blocks):
        if block.start > done:
            parts.append({"k": "main", "r": runs(done, block.start)})
        summary = block.end if block.summary_start is None else block.summary_start
        edges = [path.start for path in block.paths] + [summary]
        last = block.paths[-1].end if block.paths else edges[0]
        lanes = [
            {
                "r": runs(path.start, path.end),
                "n": sum(path.start <= s < path.end for s in starts) if starts else None,
                "right": right[number][i] if right else None,
                "gap": runs(path.end, edges[i + 1]) if i + 1 < len(block.paths) else [],
            }
            for i, path in enumerate(block.paths)
        ]
        parts.append(
            {"k": "block", "open": runs(block.start, edges[0]), "lanes": lanes,
             "close": runs(last, summary), "summary": runs(summary, block.end)}
        )  # fmt: skip
        done = block.end
    if done < len(text):
        parts.append({"k": "main", "r": runs(done, len(text))})
    verdict = row["verdict"]
    kept = ("stage", "step", "source", "task", "size", "mode", "sample", "question", "gold", "reward",
            "trace_state", "num_blocks", "total_tokens", "critical_tokens", "truncated", "stop_reason")  # fmt: skip
    return {
        **{key: row.get(key) for key in kept},
        "outcome": verdict.get("outcome"), "answer": verdict.get("answer"), "how": verdict.get("how"),
        "faults": sorted({fault.name for fault in trace.faults}), "parts": parts,
    }  # fmt: skip


def _character_marks(row: Row, decode: Decode | None) -> tuple[list[bool], list[int]]:
    """Per character, whether the engine inserted it; and the start of each token (empty: unknown)."""
    text, flags, ids = row["text"], row.get("forced"), row.get("response_ids")
    if decode is not None and isinstance(flags, list) and isinstance(ids, list) and len(flags) == len(ids):
        try:
            pieces = [decode([token]) for token in ids]
        except (TypeError, ValueError, OverflowError):
            pieces = []
        if "".join(pieces).startswith(text):
            marks = [bool(flag) for piece, flag in zip(pieces, flags, strict=True) for _ in piece]
            starts, place = [], 0
            for piece in pieces:
                starts.append(place)
                place += len(piece)
            return marks[: len(text)], starts
    marks = [False] * len(text)
    if isinstance(flags, list) and any(flags):
        for match in _ALWAYS_FORCED.finditer(text):
            marks[match.start() : match.end()] = [True] * (match.end() - match.start())
    return marks, []


def _runs(text: str, forced: Sequence[bool], start: int, end: int) -> list[list[Any]]:
    """``text[start:end]`` cut where tags begin or end and where the forced flag changes."""
    found: list[list[Any]] = []
    place = start
    for number, piece in enumerate(_TAG.split(text[start:end])):
        tag = TAG if piece in TAGS else 0
        for character in piece:
            flags = tag | (FORCED if forced[place] else 0)
            if found and found[-1][1] == flags and (not tag or found[-1][2] == number):
                found[-1][0] += character
            else:
                found.append([character, flags, number])
            place += 1
    return [run[:2] for run in found]
