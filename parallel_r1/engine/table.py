"""Rows in flight as arrays, so that an ordinary step costs no Python per token.

Most tokens decide nothing: they are recorded, and read in the next pass. The table does that for all
rows at once and hands a row's record to its `parallel_r1.engine.branch.Branch` when a tag, an end of text
or a budget needs a decision.

Legend: R rows, K columns (strands) of a row: the paths of an open block, or column 0 for the main chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from parallel_r1.config import MAX_PATHS
from parallel_r1.engine.branch import Branch
from parallel_r1.engine.steps import MAIN, Feed

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD = 64
"""Tokens of a strand that are recorded before they are handed over."""
NO_FORK = 2**31 - 1


class RowTable:
    """Arrays of shape (R,) or (R, K); row r of the table is row r of the key cache."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray] = {}
        strand = (MAX_PATHS,)
        self.key = self._column("key", np.uint64)
        """Hash of the request's seed."""
        self.length = self._column("length", np.int64)
        """Keys stored."""
        self.fork = self._column("fork", np.int64)
        """Slot of the first path token of the open block; `NO_FORK` outside of one."""
        self.block = self._column("block", np.int64)
        self.in_paths = self._column("in_paths", np.bool_)
        self.special = self._column("special", np.bool_)
        """The row reads a `Step` of its branch next, not one token per strand."""
        self.watched = self._column("watched", np.bool_)
        """A listener wants every token at once."""
        self.setting = self._column("setting", np.int64)
        self.live = self._column("live", np.bool_, strand)
        self.token = self._column("token", np.int64, strand)
        """What the strand reads next, at `position`."""
        self.position = self._column("position", np.int64, strand)
        self.rule = self._column("rule", np.int64, strand)
        self.expected = self._column("expected", np.int64, strand)
        self.index = self._column("index", np.int64, strand)
        """Draws of the strand so far."""
        self.quiet = self._column("quiet", np.int64, strand)
        """Tokens it may still record without a decision."""
        self.taken = self._column("taken", np.int64, strand)
        """Tokens recorded."""
        self.tokens = self._column("tokens", np.int64, (*strand, RECORD))
        self.numbers = self._column("numbers", np.float32, (*strand, RECORD, 3))

    def _column(self, name: str, kind: type, shape: tuple[int, ...] = ()) -> NDArray:
        self._arrays[name] = np.zeros((0, *shape), dtype=kind)
        return self._arrays[name]

    def reserve(self, num_rows: int) -> None:
        """Make room for rows; what is there stays."""
        have = len(self.key)
        if num_rows <= have:
            return
        size = max(num_rows, 2 * have)
        for name, old in self._arrays.items():
            new = np.zeros((size, *old.shape[1:]), dtype=old.dtype)
            new[:have] = old
            self._arrays[name] = new
            setattr(self, name, new)

    def move(self, source: int, target: int) -> None:
        """Row ``source`` takes the place of row ``target``."""
        for array in self._arrays.values():
            array[target] = array[source]

    def open(self, place: int, key: int, watched: bool, setting: int) -> None:
        """A row that has read nothing yet."""
        self.key[place], self.watched[place], self.setting[place] = key, watched, setting
        self.length[place], self.fork[place] = 0, NO_FORK

    def follow(self, place: int, branch: Branch, feed: Sequence[Feed]) -> None:
        """Take over what the branch has decided: its strands, and what the row reads next."""
        self.live[place] = False
        self.taken[place] = 0
        self.in_paths[place] = branch.strands != [MAIN]
        self.special[place] = len(feed) != len(branch.strands)
        for token, position, strand, sample in feed:
            if not sample:
                continue
            column = max(strand, 0)
            self.live[place, column] = True
            self.token[place, column], self.position[place, column] = token, position
            self.rule[place, column] = branch.rule(strand)
            self.expected[place, column] = branch.expected_tag(strand)
            self.quiet[place, column] = 0 if self.watched[place] else min(branch.quiet(strand), RECORD)
            self.block[place], _, self.index[place, column] = branch.counter(strand)

    def ordinary(self, num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(row, column) of every strand that reads one token next, row by row."""
        place, column = np.nonzero(self.live[:num_rows] & ~self.special[:num_rows, None])
        return place, column

    def counters(self, place: NDArray[np.int64], column: NDArray[np.int64]) -> NDArray[np.int64]:
        """`Branch.counter` of strands, (N, 3)."""
        path = np.where(self.in_paths[place], column + 1, 0)
        return np.stack([self.block[place], path, self.index[place, column]], axis=1)

    def record(
        self,
        place: NDArray[np.int64],
        column: NDArray[np.int64],
        tokens: NDArray[np.int64],
        numbers: NDArray[np.float32],
    ) -> None:
        """Strands that drew a token that decides nothing: ``tokens`` (N,), ``numbers`` (N, 3)."""
        at = (place, column)
        self.tokens[(*at, self.taken[at])] = tokens
        self.numbers[(*at, self.taken[at])] = numbers
        self.token[at] = tokens
        self.position[at] += 1
        self.index[at] += 1
        self.taken[at] += 1
        self.quiet[at] -= 1
        self.special[place] = False

    def hand_over(self, place: int, branch: Branch) -> None:
        """Give the branch what its strands have recorded."""
        for strand in branch.strands:
            column = max(strand, 0)
            num = int(self.taken[place, column])
            if num:
                numbers = self.numbers[place, column, :num].T.tolist()
                branch.extend(strand, self.tokens[place, column, :num].tolist(), *numbers)
        self.taken[place] = 0
