"""Cold-start traces from a teacher (SPEC section 3): ask, judge, keep, count.

The paper asks once per question and keeps what passes a check of the tags. Here a trace is kept when it
passes the grammar, its blocks have distinct paths that are not near-copies, and its answer is right
(`parallel_r1.coldstart.check`). The yield is told both ways, by reason of rejection. Left out: choosing
problems, and any repair of a trace.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_r1.coldstart.check import fault_of, most_alike
from parallel_r1.coldstart.teacher import Ask, Reply, Teacher, TeacherError
from parallel_r1.coldstart.teacher_journal import Entry, Journal
from parallel_r1.tasks.base import Task
from parallel_r1.trace.tags import canonical, parse_text
from parallel_r1.types import Problem

FAILED = "no reply"
"""Reason of an entry that says nothing about the teacher; such asks are made again when a run goes on."""
HOPELESS = 10
"""Failures in a row, with no reply ever, that end a run."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked and what is kept."""

    template: str
    tries: int = 1
    """Asks per problem until one trace is kept."""
    max_similarity: float = 0.8
    """Traces whose two most similar paths share more of their word pairs are dropped."""
    price_in: float = 0.0
    price_out: float = 0.0
    """Per million tokens, in any currency."""
    max_cost: float | None = None
    """No further ask is made once this is spent."""


class Tally:
    """The state of a run, for those who watch: replies of earlier runs count too, but for the rate."""

    def __init__(self, plan: Plan, num_problems: int, retries: Mapping[str, int], past: Sequence[Entry] = ()) -> None:
        self.plan, self.num_problems, self.retries = plan, num_problems, retries
        self.entries: list[Entry] = []
        self.reasons: Counter[str] = Counter()
        """Replies by reason of rejection; ``kept`` for the rest, `FAILED` for asks without a reply."""
        self.asked: set[str] = set()
        self.answered: set[str] = set()
        self.kept: set[str] = set()
        self.paper_valid: set[str] = set()
        """Ids of problems that were asked, have a reply, have a trace, have a reply that the paper would keep."""
        self.cost = 0.0
        """Money spent on all replies."""
        self._started, self._tokens = time.monotonic(), 0
        for entry in past:
            self.add(entry)
        self._tokens = 0

    def add(self, entry: Entry) -> None:
        """Count a judged reply."""
        self.entries.append(entry)
        self.reasons[entry.reason or "kept"] += 1
        self.asked.add(entry.problem_id)
        if entry.reason != FAILED:
            self.answered.add(entry.problem_id)
        if not entry.reason:
            self.kept.add(entry.problem_id)
        if entry.paper_valid:
            self.paper_valid.add(entry.problem_id)
        self.cost += (
            entry.prompt_tokens * self.plan.price_in / 1e6 + entry.completion_tokens * self.plan.price_out / 1e6
        )
        self._tokens += entry.completion_tokens

    @property
    def tokens_per_second(self) -> float:
        """Written by the teacher since this run began."""
        return self._tokens / max(1e-9, time.monotonic() - self._started)

    def report(self) -> dict[str, Any]:
        """The figures: yields are shares of the problems that have an answer."""
        answered = len(self.answered)
        return {
            "problems": self.num_problems, "problems_answered": answered, "problems_with_trace": len(self.kept),
            "yield": len(self.kept) / answered if answered else 0.0,
            "paper_yield": len(self.paper_valid) / answered if answered else 0.0,
            "replies": len(self.entries) - self.reasons[FAILED], "reasons": dict(self.reasons.most_common()),
            "retries": dict(self.retries), "prompt_tokens": sum(e.prompt_tokens for e in self.entries),
            "completion_tokens": sum(e.completion_tokens for e in self.entries), "cost": round(self.cost, 6),
        }  # fmt: skip


async def collect(
    teacher: Teacher,
    task: Task,
    problems: Sequence[Problem],
    plan: Plan,
    journal: Journal,
    watch: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Ask for a trace of every problem that has none yet; every judged reply goes into the journal.

    Raises:
        TeacherError: the teacher cannot be asked, or never replies. What came before is in the journal.
    """
    wanted = {problem.id for problem in problems}
    past = [entry for entry in journal.entries if entry.problem_id in wanted and entry.reason != FAILED]
    tally = Tally(plan, len(problems), teacher.retries, past)
    failures = 0
    for attempt in range(plan.tries):
        async with aclosing(teacher.replies(_asks(tally, problems, attempt))) as replies:  # pyright: ignore[reportArgumentType]
            async for reply in replies:
                entry = judge(reply, task, plan)
                journal.add(entry)
                tally.add(entry)
                failures = failures + 1 if entry.reason == FAILED else 0
                if failures >= HOPELESS and not tally.answered:
                    raise TeacherError(f"{teacher.name} gave no reply to {failures} asks; the last: {entry.how}")
                watch(tally)
    return tally


def _asks(tally: Tally, problems: Sequence[Problem], attempt: int) -> Iterator[Ask]:
    """The asks of one round, drawn one by one: problems without a trace that were not asked in this round."""
    done = {entry.problem_id for entry in tally.entries if not entry.reason or entry.attempt == attempt}
    for problem in problems:
        if tally.plan.max_cost is not None and tally.cost >= tally.plan.max_cost:
            return
        if problem.id not in done:
            yield Ask(problem, attempt, tally.plan.template)


def judge(reply: Reply, task: Task, plan: Plan) -> Entry:
    """What a reply is worth."""
    text = canonical(reply.text)
    trace = parse_text(text, truncated=reply.finish == "length")
    similarity = most_alike(trace)
    how = ""
    if reply.finish == "error":
        reason, how = FAILED, reply.error
    elif reply.finish == "filter":
        reason = "withheld"
    elif reply.finish == "length":
        reason = "truncated"
    elif not text:
        reason = "empty"
    else:
        reason = fault_of(text, reply.ask.problem, task, needs_block=True)
        if not reason and similarity > plan.max_similarity:
            reason = "similar_paths"
        how = task.verify(reply.ask.problem, str(trace.answer_region)).how if not reason else ""
    return Entry(
        reply.ask.problem.id, reply.ask.attempt, reason, text, bool(trace.blocks) and trace.stack_check,
        len(trace.blocks), sum(len(block.paths) for block in trace.blocks), round(similarity, 4), how,
        reply.prompt_tokens, reply.completion_tokens,
    )  # fmt: skip


def write_traces(
    tally: Tally, problems: Sequence[Problem], teacher: str, file: Path, provenance: Mapping[str, Any]
) -> int:
    """Write the kept traces as Parquet, one a problem, with where each comes from; the number of rows.

    The columns question, answer and trace make the file a source for the maths tasks. ``provenance`` and the
    yield stand in the file's metadata under ``parallel_r1``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept: dict[str, Entry] = {}
    for entry in tally.entries:
        if not entry.reason:
            kept.setdefault(entry.problem_id, entry)
    rows = [
        {
            "problem_id": problem.id, "task": problem.task, "question": problem.question, "answer": problem.gold,
            "trace": entry.text, "teacher": teacher, "attempt": entry.attempt, "how": entry.how,
            "num_blocks": entry.num_blocks, "num_paths": entry.num_paths, "similarity": entry.similarity,
            "completion_tokens": entry.completion_tokens,
        }
        for problem in problems
        if (entry := kept.get(problem.id)) is not None
    ]  # fmt: skip
    metadata = json.dumps({**provenance, "yield": tally.report()}, ensure_ascii=False)
    table = pa.Table.from_pylist(rows, schema=_schema(pa)).replace_schema_metadata({"parallel_r1": metadata})
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(file.name + ".tmp")
    pq.write_table(table, aside, compression="zstd")
    os.replace(aside, file)
    return len(rows)


def _schema(pa: Any) -> Any:
    text, number = pa.string(), pa.int64()
    return pa.schema(
        [
            *((name, text) for name in ("problem_id", "task", "question", "answer", "trace", "teacher", "how")),
            *((name, number) for name in ("attempt", "num_blocks", "num_paths", "completion_tokens")),
            ("similarity", pa.float64()),
        ]
    )
