"""The figures of an evaluation: pure functions of counts, lengths and flags. Free of torch.

Samples of one problem are never mixed with problems: intervals resample problems, pass@k is the closed
form per problem (a bootstrapped best-of-k is low). Follows the paper's evaluation (Mean@n, Pass@n) and
its analysis of where blocks begin; critical path, path distinctness, path success and selection are ours.

Legend: P problems, n samples of one problem, c right ones among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from parallel_r1.types import Trace

RESAMPLES = 2000
_CHUNK = 4_000_000
"""Numbers drawn at once by the bootstrap."""


def mean_at_k(counts: Sequence[tuple[int, int]]) -> float:
    """Mean over problems of c / n, from one ``(n, c)`` per problem.

    Raises:
        ValueError: no problems, or a problem without samples.
    """
    return float(np.mean(success_rates(counts)))


def success_rates(counts: Sequence[tuple[int, int]]) -> list[float]:
    """c / n per problem, shape (P,). Raises as `mean_at_k`."""
    if not counts:
        raise ValueError("counts = []: no problems to average over; evaluate at least one")
    for n, c in counts:
        if n < 1 or not 0 <= c <= n:
            raise ValueError(f"counts hold n = {n}, c = {c}: a problem needs n >= 1 samples and 0 <= c <= n")
    return [c / n for n, c in counts]


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k samples drawn without replacement from n hold one of the c right ones.

    ``1 - C(n - c, k) / C(n, k)``: the unbiased closed form (Chen et al. 2021).

    >>> pass_at_k(16, 1, 8), pass_at_k(16, 1, 16)
    (0.5, 1.0)

    Raises:
        ValueError: k > n, or counts that cannot be.
    """
    if n < 1 or not 0 <= c <= n:
        raise ValueError(f"n = {n}, c = {c}: a problem needs n >= 1 samples and 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"k = {k}: pass@k needs 1 <= k <= n = {n} samples; draw more samples or lower k")
    return 1.0 - comb(n - c, k) / comb(n, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Mean of `pass_at_k` over problems."""
    success_rates(counts)
    return float(np.mean([pass_at_k(n, c, k) for n, c in counts]))


def bootstrap_ci(
    values: Sequence[float], seed: int = 0, level: float = 0.95, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """Percentile interval of the mean of one value per problem, by resampling problems.

    Raises:
        ValueError: no values, or a level that is no share.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or not data.size:
        raise ValueError(f"values of shape {data.shape}: give one number per problem, for at least one problem")
    if not 0 < level < 1:
        raise ValueError(f"level = {level}: give a share between 0 and 1, such as 0.95")
    rng = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    per_draw = max(1, _CHUNK // data.size)
    left = resamples
    while left > 0:
        rows = min(left, per_draw)
        means.append(data[rng.integers(0, data.size, (rows, data.size))].mean(axis=1))
        left -= rows
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(
    first: Sequence[float], second: Sequence[float], seed: int = 0, level: float = 0.95
) -> tuple[float, tuple[float, float]]:
    """Mean of ``first - second`` over the same problems in the same order, and its interval.

    Raises:
        ValueError: the arms have different numbers of problems.
    """
    if len(first) != len(second):
        raise ValueError(
            f"paired_difference: {len(first)} and {len(second)} problems; both arms need the same problems in order"
        )
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    interval = bootstrap_ci(gaps, seed, level)
    return float(np.mean(gaps)), interval


def share(flags: Sequence[bool]) -> float | None:
    """Share of true flags; None when there are none at all."""
    return sum(flags) / len(flags) if flags else None


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there; None when none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def parallel_ratio(num_blocks: Sequence[int]) -> float | None:
    """Share of responses with at least one block."""
    return share([num > 0 for num in num_blocks])


def well_formed_share(traces: Sequence[Trace]) -> float | None:
    """Share of fault-free traces among those with a block; None when no trace has one.

    A trace cut by a limit counts as not well-formed.
    """
    return share([trace.well_formed for trace in traces if trace.blocks])


def block_positions(trace: Trace, length: int) -> list[float]:
    """Start of each block over the length of the response, in the units the trace was parsed in."""
    return [block.start / length for block in trace.blocks] if length else []


def path_distinctness(paths: Sequence[str]) -> float | None:
    """How different the paths of one block are: 1 minus their mean pairwise overlap of word trigrams.

    Overlap is the Jaccard index over runs of three words, a word being a number, a name or a sign; 0
    when all paths say the same, 1 when no two share a trigram, None with fewer than two paths.
    """
    if len(paths) < 2:
        return None
    grams = [_trigrams(path) for path in paths]
    overlaps = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in combinations(grams, 2)]
    return 1.0 - sum(overlaps) / len(overlaps)


def selection(accuracy: float, right_path_share: float | None) -> float | None:
    """Accuracy over the share of responses with a right path: what the summary makes of its paths.

    Above 1 where answers are right without a right path; None when no response has one.
    """
    return accuracy / right_path_share if right_path_share else None


def _trigrams(text: str) -> set[tuple[str, ...]]:
    words: list[str] = []
    kind = ""
    for character in text:
        new = "d" if character.isdigit() else "a" if character.isalpha() else ""
        if new and new == kind:
            words[-1] += character
        elif not character.isspace():
            words.append(character)
        kind = new
    width = min(3, len(words))
    return {tuple(words[i : i + width]) for i in range(len(words) - width + 1)} if words else set()
