"""What a task is: it owns its wording, its problems, its checker and (if generated) its traces.

Generated tasks split by content: the multiset of numbers in a problem decides whether it is a
training or a held-out problem, so no test problem is a re-wording of a training one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol, runtime_checkable

from parallel_r1.types import Problem, Size, Split, Verdict

FINAL_ANSWER = "Final Answer:"
HELD_OUT_SHARE = 0.25
PATIENCE = 20


@runtime_checkable
class Task(Protocol):
    """The public surface of every task."""

    name: str

    def problems(self, split: Split, size: Size, num: int, seed: int) -> list[Problem]:
        """``num`` distinct problems; the same arguments give the same list.

        Raises:
            ValueError: the task has fewer than ``num`` problems of this split and size.
        """
        ...

    def verify(self, problem: Problem, response: str) -> Verdict:
        """Judge the answer region of a response (the text after the last closed block)."""
        ...


@runtime_checkable
class TraceTask(Task, Protocol):
    """A generated task that can also write its own pre-training text and cold-start traces."""

    def base_text(self, problem: Problem, rng: random.Random) -> str:
        """A sequential worked response without tags, as the base model is pre-trained on."""
        ...

    def trace(self, problem: Problem, rng: random.Random, num_paths: int, max_blocks: int) -> str:
        """A canonical trace with tags; tasks that forking cannot help return one without a block."""
        ...


def is_held_out(numbers: Sequence[int]) -> bool:
    """Whether a problem with this multiset of numbers belongs to the test split."""
    key = ",".join(str(n) for n in sorted(numbers)).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:4], "big") < HELD_OUT_SHARE * 2**32


def belongs_to(split: Split, numbers: Sequence[int]) -> bool:
    """Whether a problem with this multiset of numbers is part of ``split``."""
    return is_held_out(numbers) == (split == "test")


def final_answer(response: str) -> str | None:
    """The text after the last ``Final Answer:`` up to the end of its line; None when absent or empty."""
    _, found, tail = response.rpartition(FINAL_ANSWER)
    answer = tail.strip().split("\n", 1)[0].strip() if found else ""
    return answer or None


def draw_distinct(
    candidates: Iterable[Problem], num: int, where: str, key: Callable[[Problem], Hashable] = lambda p: p.question
) -> list[Problem]:
    """The first ``num`` problems of a random stream that differ in ``key`` (their question).

    A stream is given up after a long run without anything new: `PATIENCE` draws for each problem found
    so far. With N equally likely problems the last one takes N draws on average.

    Raises:
        ValueError: the stream holds too few distinct problems.
    """
    found: dict[Hashable, Problem] = {}
    fruitless = 0
    for problem in candidates:
        if len(found) >= num or fruitless > PATIENCE * (len(found) + 100):
            break
        fruitless += 1
        if key(problem) not in found:
            found[key(problem)] = problem
            fruitless = 0
    if len(found) < num:
        raise ValueError(f"{where} holds only {len(found)} distinct problems; ask for at most that many (num={num})")
    return list(found.values())
