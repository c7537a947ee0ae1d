"""Which token earns what: from the rewards of a group to one advantage per token.

    response   every token of a response gets the response's advantage over its group (GRPO; paper section 3.3)
    path       every token is compared with others in its own situation:
               - tokens of a path with all paths of the group: was its candidate right;
               - what follows a block (its summary, the main chain up to the next block) with what follows
                 that block in responses that had found a right path by then, or had not, as it had.

Under "response" a wrong path that stands beside a right one is praised like it, and a summary that rightly
says "none" is blamed for paths that found nothing. Neither is biased, since on average over a
situation that cancels, but it is noise: sibling paths are independent draws from one distribution, so the
share of right ones is what search can improve, and each path is a sample of it; and where no path is right,
no summary can earn anything. Where a task cannot judge a path, "path" is the same as "response".

Legend: G samples of a group, T tokens of one response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from parallel_r1.types import Group

if TYPE_CHECKING:
    from numpy.typing import NDArray

Credit = Literal["response", "path"]
Scale = Literal["mean_std", "mean"]
_LEAST = 1e-4
"""Added to the deviation, as TRL does."""


def relative(values: Sequence[float], scale: Scale) -> NDArray[np.float64]:
    """Values over their mean, divided by their (unbiased) deviation where asked; exactly 0 where all are equal."""
    found = np.asarray(values, dtype=np.float64)
    if found.size < 2 or (found == found[0]).all():
        return np.zeros(found.shape)
    centred = found - found.mean()
    return centred / (found.std(ddof=1) + _LEAST) if scale == "mean_std" else centred


def token_advantages(group: Group, credit: Credit, scale: Scale) -> list[NDArray[np.float64]]:
    """One array of shape (T,) per member of the group."""
    of_response = relative([member.reward for member in group.members], scale)
    advantages = [
        np.full(member.rollout.total_tokens, value) for member, value in zip(group.members, of_response, strict=True)
    ]
    if credit == "path":
        _credit_paths(group, scale, advantages)
        _credit_the_rest(group, scale, advantages)
    return advantages


def has_signal(group: Group, credit: Credit) -> bool:
    """Whether any token of the group gets an advantage other than 0."""
    return any(bool(advantages.any()) for advantages in token_advantages(group, credit, "mean"))


def _credit_paths(group: Group, scale: Scale, advantages: list[NDArray[np.float64]]) -> None:
    """Overwrite the tokens of all judged paths of the group."""
    spans = [
        (index, path.start, path.end, right)
        for index, member in enumerate(group.members)
        for block, verdicts in zip(member.trace.blocks, member.path_right or (), strict=False)
        for path, right in zip(block.paths, verdicts, strict=True)
    ]
    values = relative([float(right) for *_, right in spans], scale)
    for (index, start, end, _), value in zip(spans, values, strict=True):
        advantages[index][start:end] = value


def _credit_the_rest(group: Group, scale: Scale, advantages: list[NDArray[np.float64]]) -> None:
    """Overwrite what stands outside of paths, stretch by stretch."""
    situations: dict[tuple[int, bool], list[tuple[int, int, int]]] = {}
    for index, member in enumerate(group.members):
        if member.path_right is None:
            continue
        start, found = 0, False
        for number, (block, verdicts) in enumerate(zip(member.trace.blocks, member.path_right, strict=True)):
            if not block.paths:
                continue
            situations.setdefault((number, found), []).append((index, start, block.paths[0].start))
            start, found = block.paths[-1].end, found or any(verdicts)
        last = (len(member.trace.blocks), found)
        situations.setdefault(last, []).append((index, start, member.rollout.total_tokens))
    for stretches in situations.values():
        values = relative([group.members[index].reward for index, *_ in stretches], scale)
        for (index, start, end), value in zip(stretches, values, strict=True):
            advantages[index][start:end] = value
