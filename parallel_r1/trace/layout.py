"""The layout rule: from ids to a position and a hidden interval per token. Pure, free of torch.

Everything special about parallel thinking is this one rule (paper section 3.3; the two variants are
its "Seen" and "Unseen" models). A query at index q sees the key at index k when

    visible(q, k) = k <= q and not (hidden_from[k] <= q < hidden_to[k])

A block runs from ``<Parallel>`` to ``</Parallel>``. What stands before its first path tag (the number
of paths, where a block names it) belongs to the main chain: all paths see it. From there on a new
segment starts at every ``<Path>`` and after every ``</Path>``; so a path is a segment, and so is stray
text between paths.

- structured: every segment starts at position p + 1 (p: the position of the token before the first
  segment, which is ``<Parallel>`` where no number follows it); its tokens
  are hidden from the segment's end until ``</Parallel>``, which stands at p + 1 + the longest
  segment. A block that never closes stays hidden to the end of the row.
- causal, scoring: positions 0, 1, 2, ...; nothing is hidden.
- causal, decoding: closed blocks are plain, an open block is laid out as in structured, because its
  paths are decoded apart and each starts at p + 1.

Three readers: the training mask (`parallel_r1.models.attention`), the rollout engine (which reads
the rule token by token: `path_start`, `close_position`) and the brute-force oracle in the tests.
Paths do not nest: a tag that does not belong where it stands is an ordinary token. Nested blocks
would give a token one interval per level; `Layout` is the place to hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from parallel_r1.types import Phase, Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from parallel_r1.trace.tags import TagIds

VARIANTS = ("causal", "structured")
PHASES = ("scoring", "decoding")


@dataclass(frozen=True, slots=True)
class Layout:
    """Three int64 arrays of shape (T,). An empty interval (``hidden_from >= hidden_to``) hides nothing."""

    position: NDArray[np.int64]
    hidden_from: NDArray[np.int64]
    hidden_to: NDArray[np.int64]

    def visible(self) -> NDArray[np.bool_]:
        """The rule as a (T queries, T keys) boolean matrix."""
        query = np.arange(len(self.position))[:, None]
        hidden = (self.hidden_from[None, :] <= query) & (query < self.hidden_to[None, :])
        return (query >= query.T) & ~hidden


def path_start(fork_position: int) -> int:
    """Position of the first token of every path (structured, and while decoding).

    ``fork_position`` is that of the last token that all paths share: ``<Parallel>`` or the number after it.
    """
    return fork_position + 1


def close_position(fork_position: int, longest: int) -> int:
    """Position of ``</Parallel>`` after a longest path of ``longest`` tokens, tags included (structured)."""
    return fork_position + 1 + longest


def layout(ids: Sequence[int], tags: TagIds, variant: Variant, phase: Phase = "scoring") -> Layout:
    """Lay out one unpadded row. The prompt may be part of it: it has no tags, so it is plain.

    >>> from types import SimpleNamespace
    >>> tags = SimpleNamespace(parallel_open=90, parallel_close=91, path_open=92, path_close=93)
    >>> row = layout([5, 90, 92, 1, 2, 93, 92, 3, 93, 91, 6], tags, "structured")
    >>> row.position.tolist()
    [0, 1, 2, 3, 4, 5, 2, 3, 4, 6, 7]
    >>> row.hidden_from.tolist(), row.hidden_to.tolist()
    ([0, 0, 6, 6, 6, 6, 9, 9, 9, 0, 0], [0, 0, 9, 9, 9, 9, 9, 9, 9, 0, 0])
    >>> layout([5, 90, 2, 92, 1, 93, 92, 3, 93, 91, 6], tags, "structured").position.tolist()
    [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]

    Raises:
        ValueError: an unknown variant or phase.
    """
    if variant not in VARIANTS or phase not in PHASES:
        raise ValueError(
            f"variant = {variant!r}, phase = {phase!r}: no such layout; use one of {VARIANTS} and one of {PHASES}"
        )
    row = np.asarray(ids, dtype=np.int64)
    num_tokens = len(row)
    position = np.arange(num_tokens, dtype=np.int64)
    hidden_from = np.zeros(num_tokens, dtype=np.int64)
    hidden_to = np.zeros(num_tokens, dtype=np.int64)
    if variant == "structured" or phase == "decoding":
        _lay_out_blocks(row, tags, variant == "causal", position, hidden_from, hidden_to)
    return Layout(position, hidden_from, hidden_to)


def _lay_out_blocks(
    row: NDArray[np.int64],
    tags: TagIds,
    only_open: bool,
    position: NDArray[np.int64],
    hidden_from: NDArray[np.int64],
    hidden_to: NDArray[np.int64],
) -> None:
    """Write the blocks of ``row`` into the three arrays, jumping from tag to tag."""
    num_tokens = len(row)
    is_open = False
    cuts: list[int] = []  # of the open block; empty before its first path tag
    for index, tag in _tags_of(row, tags):
        if not is_open:
            is_open, cuts = tag == tags.parallel_open, []
        elif tag == tags.path_open:
            cuts.append(index)
        elif tag == tags.path_close:
            cuts += [index, index + 1] if not cuts else [index + 1]
        elif tag == tags.parallel_close:
            if cuts and not only_open:
                cuts.append(index)
                fork_position = int(position[cuts[0] - 1])
                longest = _lay_out_segments(cuts, fork_position, index, position, hidden_from, hidden_to)
                first = close_position(fork_position, longest)
                position[index:] = np.arange(first, first + num_tokens - index)
            is_open = False
    if is_open and cuts:
        cuts.append(num_tokens)
        _lay_out_segments(cuts, int(position[cuts[0] - 1]), num_tokens, position, hidden_from, hidden_to)


def _tags_of(row: NDArray[np.int64], tags: TagIds) -> list[tuple[int, int]]:
    """(index, id) of every block and path tag of the row, in order."""
    wanted = (tags.parallel_open, tags.parallel_close, tags.path_open, tags.path_close)
    # Tags are added last, so one comparison throws out almost every token of the row.
    indices = np.flatnonzero(row >= min(wanted))
    return [(i, t) for i, t in zip(indices.tolist(), row[indices].tolist(), strict=True) if t in wanted]


def _lay_out_segments(
    cuts: list[int],
    fork_position: int,
    close: int,
    position: NDArray[np.int64],
    hidden_from: NDArray[np.int64],
    hidden_to: NDArray[np.int64],
) -> int:
    """Lay out the segments between neighbouring cuts; ``close`` is where they become visible again.

    Returns the length of the longest segment.
    """
    longest = 0
    first = path_start(fork_position)
    hidden_to[cuts[0] : close] = close
    for start, end in pairwise(cuts):
        if end > start:
            position[start:end] = np.arange(first, first + end - start)
            hidden_from[start:end] = end
            longest = max(longest, end - start)
    return longest
