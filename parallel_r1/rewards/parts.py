"""Reward parts: pure functions of what the checker and the parser found (paper section on rewards).

    right        the checker accepted the answer
    good_block   ``b``: a fault-free block with at least two distinct, non-empty paths
    malformed    the trace has a fault anywhere; a response without tags has none

A part returns named summands; their sum is the reward. So a total can always be explained, and a
right answer never earns less than a wrong one. A new reward is a function here and a line in
`parallel_r1.rewards.schedule.PARTS`. Values of bonuses are in [0, 1]; weight, bound and gate are the recipe's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

WRONG, RIGHT = -1.0, 1.0


def accuracy(right: bool, good_block: bool, malformed: bool) -> dict[str, float]:
    """+1 for a right answer, else -1."""
    return {"accuracy": RIGHT if right else WRONG}


def parallel_and_accuracy(right: bool, good_block: bool, malformed: bool) -> dict[str, float]:
    """+1 for a right answer with a good block, else -1 (also for a right answer without one)."""
    return {"parallel_and_accuracy": RIGHT if right and good_block else WRONG}


def tiered(
    right: bool, good_block: bool, malformed: bool, *, bonus: float = 0.2, release_compat: bool = False
) -> dict[str, float]:
    """+1 for a right answer, ``bonus`` on top with a good block, else -1.

    A malformed block costs a right answer nothing but the bonus. The paper's release gives -1 there;
    ``release_compat`` does the same.
    """
    parts = accuracy(right, good_block, malformed)
    if right and release_compat and malformed:
        parts["malformed"] = WRONG - RIGHT
    elif right and good_block:
        parts["parallel"] = bonus
    return parts


def critical_path(total_tokens: int, critical_tokens: int) -> float:
    """The share of tokens that did not have to be waited for, in [0, 1) (ThreadWeaver, arXiv 2512.07843)."""
    return 1.0 - critical_tokens / total_tokens if total_tokens else 0.0


def diversity(blocks: Sequence[Sequence[str]]) -> float:
    """1 minus the mean BLEU of each path against each of its siblings, in [0, 1] (the paper's path diversity).

    ``blocks``: the texts of the paths, block by block; blocks of fewer than two paths do not count, and
    without any the value is 0.
    """
    pairs = [pair for paths in blocks for pair in permutations(paths, 2)]
    if not pairs:
        return 0.0
    bleu = _bleu()
    scores = [bleu.sentence_score(one, [other]).score for one, other in pairs]
    return max(0.0, 1.0 - sum(scores) / len(scores) / 100)


@cache
def _bleu() -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)


def checked_rewards(name: str, values: Sequence[float | None], expected: int) -> list[float]:
    """The values of a reward function, after a look at how many there are and whether they are numbers.

    Raises:
        ValueError: another number of values than ``expected``, or one that is no finite number.
    """
    if len(values) != expected:
        raise ValueError(
            f"reward function {name!r} returned {len(values)} values, expected {expected}; return one per completion"
        )
    for index, value in enumerate(values):
        if isinstance(value, bool | int | float) and math.isfinite(value):
            continue
        raise ValueError(
            f"reward function {name!r} returned {value!r} for completion {index} of {expected}, expected a finite "
            "number; score what cannot be judged as wrong, or drop the problem from the data"
        )
    return [float(value) for value in values]  # pyright: ignore[reportArgumentType]
