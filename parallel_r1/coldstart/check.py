"""Which traces may be trained on: well-formed, and with a right answer.

The paper's format check is a stack over the tags; this one is the grammar, which also refuses empty
and twin paths and text between paths, and it asks the task whether the answer is right (SPEC
section 3: the release never does). What is dropped is counted by reason.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from parallel_r1.tasks.base import Task
from parallel_r1.trace.tags import parse_text
from parallel_r1.types import Problem, Trace


@dataclass(slots=True)
class Counts:
    """What became of the texts of one SFT stage. ``print(counts)`` tells it."""

    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Dropped texts by reason: a fault's name, ``no_block``, ``single_path``, ``wrong``, ``too_long`` ..."""
    too_long: list[tuple[str, int]] = field(default_factory=list)
    """(problem id, tokens) of every row above the length limit."""
    given_up: list[str] = field(default_factory=list)
    """Ids of problems for which no try gave a usable text."""

    def __str__(self) -> str:
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.dropped.most_common())
        lines = [f"kept {self.kept}, dropped {self.dropped.total()}" + (f" ({reasons})" if reasons else "")]
        if self.too_long:
            shown = ", ".join(f"{name} ({tokens} tokens)" for name, tokens in self.too_long[:5])
            more = len(self.too_long) - 5
            lines.append(f"too long: {shown}" + (f" and {more} more" if more > 0 else ""))
        if self.given_up:
            lines.append(f"no usable text for {len(self.given_up)} problems, e.g. {self.given_up[0]}")
        return "\n".join(lines)


def fault_of(text: str, problem: Problem, task: Task, needs_block: bool, min_paths: int = 2) -> str:
    """Why a trace may not be trained on, in one word; the empty string when it may.

    ``needs_block``: a trace without a block is refused too. ``min_paths``: distinct paths that every
    block must have (at most two are asked for: a wider block may repeat itself).
    """
    trace = parse_text(text)
    if trace.faults:
        return trace.faults[0].name
    if needs_block and not trace.blocks:
        return "no_block"
    if any(block.num_distinct_paths < min(2, min_paths) for block in trace.blocks):
        return "single_path"
    verdict = task.verify(problem, str(trace.answer_region))
    return "" if verdict.right else verdict.outcome


def most_alike(trace: Trace) -> float:
    """How alike the two most similar paths of any block are: shared pairs of words over all (0 different, 1 equal)."""
    pairs = (
        (_word_pairs(str(one.content)), _word_pairs(str(other.content)))
        for block in trace.blocks
        for one, other in itertools.combinations(block.paths, 2)
    )
    return max((len(one & other) / len(one | other) for one, other in pairs if one | other), default=0.0)


def _word_pairs(path: str) -> set[tuple[str, ...]]:
    found = path.lower().split()
    return set(itertools.pairwise(found)) or {tuple(found)}
