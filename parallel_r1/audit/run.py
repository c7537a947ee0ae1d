"""Audit a data set: what is found on which row, and which rows are left.

Looked for: questions and golds that cannot be read, golds that the verifier does not accept as their own
answer, cut problems, repeated problems, problems whose rows disagree on the answer (all of them go), prompts
that are too long, and problems that stand in another set (`overlap`), usually one for evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parallel_r1.answers.normalise import normalise
from parallel_r1.audit.faults import about_tokens, cut, not_its_own_answer
from parallel_r1.audit.overlap import NEAR, overlaps
from parallel_r1.tasks.data import DataTask, RowReading, conflicts, question_key
from parallel_r1.tasks.rows import text_at
from parallel_r1.types import Split

UNREADABLE, OWN_GOLD, CUT = "unreadable", "gold is not its own answer", "cut"
DUPLICATE, CONFLICT, TOO_LONG = "duplicate", "conflicting answers", "too long"
KINDS = (UNREADABLE, OWN_GOLD, CUT, CONFLICT, DUPLICATE, TOO_LONG)
"""Kinds of findings; one for each other set comes on top: ``in NAME``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with one row."""

    kind: str
    id: str
    detail: str
    text: str
    """The question."""
    other: str = ""
    """The problem of another set, or of another row, that it is like."""


@dataclass(slots=True)
class Audit:
    """What was found in one set."""

    name: str
    path: str
    split: Split
    readings: list[RowReading]
    findings: list[Finding] = field(default_factory=list)

    @property
    def kept(self) -> list[RowReading]:
        """Rows without a finding."""
        faulty = {finding.id for finding in self.findings}
        return [reading for reading in self.readings if reading.id not in faulty]

    @property
    def counts(self) -> Counter[str]:
        """Rows by kind; a row with two findings counts twice."""
        return Counter(finding.kind for finding in self.findings)

    def of(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]


def read_set(task: DataTask, split: Split, name: str | None = None) -> Audit:
    """A set with nothing looked for yet."""
    return Audit(name or task.name, task.path, split, task.readings(split))


def audit(
    task: DataTask,
    found: Audit,
    against: Sequence[Audit] = (),
    max_prompt_tokens: int = 2000,
    num_tokens: Callable[[str], int] = about_tokens,
    near: float = NEAR,
) -> Audit:
    """Look for everything in ``found`` (see `read_set`) and add it there.

    ``num_tokens`` counts the tokens of a prompt; ``near`` is the score from which a pair overlaps.
    """
    readable = [reading for reading in found.readings if not reading.fault]
    add = found.findings.append
    for reading in found.readings:
        if reading.fault:
            add(Finding(UNREADABLE, reading.id, reading.fault, reading.question))
    for reading in readable:
        if verdict := not_its_own_answer(task, reading):
            add(Finding(OWN_GOLD, reading.id, f"{reading.gold!r}: {verdict}", reading.question))
        if how := cut(reading.question):
            add(Finding(CUT, reading.id, how, reading.question))
        tokens = num_tokens(task.prompts.parallel.replace("{question}", reading.question))
        if tokens > max_prompt_tokens:
            add(Finding(TOO_LONG, reading.id, f"{tokens} tokens with the parallel prompt", reading.question))
    _add_repeats(found, readable)
    for other in against:
        if other.path == found.path and other.split == found.split:
            continue
        _add_overlaps(found, readable, other, near)
    return found


def _add_repeats(found: Audit, readable: Sequence[RowReading]) -> None:
    disputed = conflicts(readable)
    first: dict[tuple[str, str], str] = {}
    for reading in readable:
        key = question_key(reading.question)
        if key in disputed:
            golds = " / ".join(sorted({other.gold for other in disputed[key]}))
            found.findings.append(Finding(CONFLICT, reading.id, golds, reading.question))
            continue
        same = first.setdefault((key, text_at(reading.row, "trace")), reading.id)
        if same != reading.id:
            found.findings.append(Finding(DUPLICATE, reading.id, f"as {same}", reading.question))


def _add_overlaps(found: Audit, readable: Sequence[RowReading], other: Audit, near: float) -> None:
    theirs = other.readings
    for pair in overlaps([r.question for r in readable], [r.question for r in theirs], near):
        mine, its = readable[pair.index], theirs[pair.other]
        kind = "copy" if pair.copy else "near copy"
        answer = "same" if normalise(its.gold) == normalise(mine.gold) else "other"
        detail = f"{kind} ({pair.score:.2f}) of {its.id}, {answer} answer"
        found.findings.append(Finding(f"in {other.name}", mine.id, detail, mine.question, its.question))
