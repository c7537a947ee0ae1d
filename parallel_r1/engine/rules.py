"""What may be sampled where: one table for all backends. Pure, free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from parallel_r1.trace.tags import TagIds


class Rule(IntEnum):
    """What may be sampled at a place; the rows of `FORBIDDEN`."""

    MAY_FORK = 0
    MAIN = 1
    PATH = 2
    SUMMARY = 3
    NO_FORK = 4
    FREE = 5
    COUNT = 6
    """The number of paths, and nothing else: see `parallel_r1.engine.sampling.Sampler.draw`."""


_ALL = frozenset(("parallel_open", "parallel_close", "path_open", "path_close", "summary_open", "summary_close"))
FORBIDDEN: dict[Rule, tuple[frozenset[str], bool]] = {
    Rule.MAY_FORK: (_ALL - {"parallel_open"}, False),
    Rule.MAIN: (_ALL, False),
    Rule.PATH: (_ALL - {"path_close"}, True),
    Rule.SUMMARY: (_ALL - {"summary_close"}, True),
    Rule.NO_FORK: (frozenset({"parallel_open"}), False),
    Rule.FREE: (frozenset(), False),
    Rule.COUNT: (_ALL, True),
}
"""Region -> (forbidden tags, is the end of the text forbidden). NO_FORK and FREE serve constraints = false
and mode = "linear"; there too no block opens that could not be finished."""


def forbidden_ids(rule: Rule, tags: TagIds, stop_ids: Sequence[int]) -> frozenset[int]:
    """The ids that may not be sampled under ``rule``."""
    names, no_stop = FORBIDDEN[rule]
    return frozenset(getattr(tags, name) for name in names) | (frozenset(stop_ids) if no_stop else frozenset())
