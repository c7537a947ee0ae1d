"""Reward parts: pure functions of what the checker and the parser found (paper section on rewards).

    right        the checker accepted the answer
    good_block   ``b``: a fault-free block with at least two distinct, non-empty paths
    malformed    the trace has a fault anywhere; a response without tags has none

A part returns named summands; their sum is the reward. So a total can always be explained, and a
right answer never earns less than a wrong one. A new reward is a function here and a line in
`parallel_r1.rewards.schedule.PARTS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
