"""Rows for SFT: generated texts of the built-in tasks, or real traces from a file.

A text is a worked text without tags (``format = "base"``, trained from its first token), a trace with
tags (``trace``) or the same trace without them (``linear``), the last two trained on the response
alone. Traces pass `parallel_r1.coldstart.check`; generated ones are drawn again until one does, so
that hard problems do not thin out. Base texts are not checked: a base model must also see searches
that fail. Teacher prompting (SPEC section 3) is left out: real traces are read, not made.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from parallel_r1.coldstart.check import Counts, fault_of
from parallel_r1.config import DataSource, PromptConfig, SFTStage
from parallel_r1.tasks import load_task
from parallel_r1.tasks.base import Task, TraceTask
from parallel_r1.trace.tags import TagIds, canonical, linearise, with_counts
from parallel_r1.trace.tokens import encode_prompt, encode_trace
from parallel_r1.types import Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label of a token that is not trained on."""
MAX_TRIES = 12
"""Draws per text of a generated task before its problem is given up."""


class Row(TypedDict):
    """One text as token ids; ``labels`` are the same ids, or `IGNORED` on the prompt."""

    input_ids: list[int]
    labels: list[int]


def build_rows(
    stage: SFTStage,
    tokenizer: PreTrainedTokenizerBase,
    tags: TagIds | None,
    prompt: PromptConfig,
    seed: int,
) -> tuple[list[Row], Counts]:
    """All rows of a stage, source by source, and what was dropped on the way.

    Raises:
        ValueError: ``format = "trace"`` without tags, a source without texts of this format, or
            nothing left to train on.
    """
    if stage.format == "trace" and tags is None:
        raise ValueError(
            f"{stage.name}.format = 'trace' needs a tokenizer with tags; call add_tags first, or use format = 'base'"
        )
    rows: list[Row] = []
    counts = Counts()
    for source in stage.data:
        for problem, text in _texts(stage, source, seed, counts):
            row = encode_row(stage.format, tokenizer, tags, prompt, problem.question, text)
            length = len(row["input_ids"])
            if length > stage.max_length:
                counts.too_long.append((problem.id, length))
                counts.dropped["too_long"] += 1
            else:
                rows.append(row)
    counts.kept = len(rows)
    if not rows:
        raise ValueError(f"{stage.name}: no text is left to train on: {counts}")
    return rows, counts


def encode_row(
    form: str,
    tokenizer: PreTrainedTokenizerBase,
    tags: TagIds | None,
    prompt: PromptConfig,
    question: str,
    text: str,
) -> Row:
    """One text after its prompt, ended by the end of text."""
    template = prompt.asked if form == "trace" else prompt.plain
    prompt_ids = encode_prompt(tokenizer, template, question, tags)
    eos = tokenizer.eos_token_id
    if not isinstance(eos, int):
        raise ValueError(f"the tokenizer's eos_token_id = {eos!r}: SFT needs an end of text; set tokenizer.eos_token")
    response_ids = [*encode_trace(tokenizer, text, tags if form == "trace" else None), eos]
    trained_prompt = prompt_ids if form == "base" else [IGNORED] * len(prompt_ids)
    return {"input_ids": prompt_ids + response_ids, "labels": trained_prompt + response_ids}


def _texts(stage: SFTStage, source: DataSource, seed: int, counts: Counts) -> list[tuple[Problem, str]]:
    """(problem, text) pairs of one source, cycling over its problems."""
    task = load_task(source)
    problems = task.problems(source.split, source.size, source.num, seed)
    rng = random.Random(f"{seed}/{source.task}/{source.size}")
    widths = source.widths or range(stage.min_paths, stage.max_paths + 1)
    pairs: list[tuple[Problem, str]] = []
    for index in range(source.texts or len(problems)):
        problem = problems[index % len(problems)]
        text = _write(stage, task, problem, widths, rng, counts)
        if text is None:
            counts.given_up.append(problem.id)
        else:
            pairs.append((problem, text))
    return pairs


def _write(
    stage: SFTStage, task: Task, problem: Problem, widths: Sequence[int], rng: random.Random, counts: Counts
) -> str | None:
    """One usable text of a problem in the stage's format, or None."""
    if not isinstance(task, TraceTask):
        return _real_trace(stage, task, problem, counts)
    if stage.format == "base":
        return task.base_text(problem, rng)
    for _ in range(MAX_TRIES):
        num_paths = rng.choice(widths)
        text = canonical(task.trace(problem, rng, num_paths, stage.max_blocks))
        fault = fault_of(text, problem, task, needs_block=False, min_paths=num_paths)
        if not fault:
            return _formed(stage, text)
        counts.dropped[fault] += 1
    return None


def _formed(stage: SFTStage, text: str) -> str:
    """A sound trace in the stage's form."""
    if stage.format == "linear":
        return linearise(text)
    return with_counts(text) if stage.counted else text


def _real_trace(stage: SFTStage, task: Task, problem: Problem, counts: Counts) -> str | None:
    if stage.format == "base" or "trace" not in problem.data:
        raise ValueError(
            f"{stage.name}: the task {task.name!r} writes no texts of its own (format = {stage.format!r}, problem "
            f"{problem.id}); give a file with a column 'trace' and format = 'trace' or 'linear'"
        )
    text = canonical(problem.data["trace"])
    fault = fault_of(text, problem, task, needs_block=True)
    if fault:
        counts.dropped[fault] += 1
        return None
    return _formed(stage, text)
