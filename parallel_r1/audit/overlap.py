r"""Which problems of one set stand in another, in other words or almost: shared n-grams of normalised text.

Text becomes words, numbers and signs of operation; layout, ``\left`` and drawings are left out. The score of
a pair is the share of n-grams of the shorter problem that the longer one has too. Two problems of one mould
share most of their words, so a pair counts only if the numbers of one are all among those of the other: "a
train travels 270 miles in 3 hours" is no copy of "a plane travels 1200 miles in 3 hours". Nor do two problems
whose drawings differ.

Everything is counted exactly; sets of ten thousand problems take seconds. Meaning is not looked at: a problem
told in entirely different words is not found.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

N = 8
"""Words in an n-gram."""
LEAST_SHARED = 8
"""Shared n-grams that a pair needs, unless its texts are equal."""
NEAR, COPY = 0.6, 0.9
"""Scores: from `NEAR` on a pair is an overlap, from `COPY` on a copy."""
COMMON = 50
"""An n-gram in more problems than this is a turn of phrase."""
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_LAYOUT = re.compile(
    r"\\(?:left|right|textbf|textit|text|mathrm|mathbf|mathbb|mathcal|mbox|displaystyle|boldsymbol|operatorname|q?quad|"
    r"begin|end|overline|hline)(?![a-z])|\\[,;:! ]"
)
_SAME = {"dfrac": "frac", "tfrac": "frac", "cdots": "dots", "ldots": "dots", "leq": "le", "geq": "ge", "neq": "ne"}
_TOKEN = re.compile(r"[a-z]+|\d+(?:[.,]\d+)*|[\u3400-\u9fff]|[-+*/^=<>]")


@dataclass(frozen=True, slots=True)
class Pair:
    """A problem of the searched set and the one of the other set that is most like it, by their places."""

    index: int
    other: int
    score: float

    @property
    def copy(self) -> bool:
        return self.score >= COPY


def words(text: str) -> list[str]:
    r"""Normalised words of a problem.

    >>> words(r"Find $\left(\dfrac{1}{2}\right)^3$.")
    ['find', 'frac', '1', '2', '^', '3']
    """
    text = _LAYOUT.sub(" ", _DRAWING.sub(" ", text).lower())
    found: list[str] = _TOKEN.findall(text)
    return [_SAME.get(word, word.replace(",", "")) for word in found]


def overlaps(texts: Sequence[str], others: Sequence[str], near: float = NEAR) -> list[Pair]:
    """For every text that stands in ``others`` too, the pair with the highest score; in the order of ``texts``."""
    sources = [words(text) for text in others]
    drawings = [_drawing(text) for text in others]
    grams = [_grams(source) for source in sources]
    index: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, own in enumerate(grams):
        for gram in own:
            index[gram].append(place)
    equal: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for other, source in enumerate(sources):
        equal[tuple(source)].append(other)
    pairs: list[Pair] = []
    for place, text in enumerate(texts):
        mine, drawing = words(text), _drawing(text)
        same = [(1.0, other) for other in equal[tuple(mine)]] if mine else []
        for score, other in same + _scored(_grams(mine), grams, index):
            if score < near:
                break
            if _numbers_fit(mine, sources[other]) and _drawings_fit(drawing, drawings[other]):
                pairs.append(Pair(place, other, score))
                break
    return pairs


def _scored(
    own: set[tuple[str, ...]], grams: Sequence[set[tuple[str, ...]]], index: Mapping[tuple[str, ...], list[int]]
) -> list[tuple[float, int]]:
    """(score, place) of all texts that share enough n-grams, best first."""
    found = [index[gram] for gram in own if gram in index]
    shared = Counter(other for places in found if len(places) <= COMMON for other in places)
    scores = [(n / min(len(own), len(grams[other])), other) for other, n in shared.items() if n >= LEAST_SHARED]
    return sorted(scores, key=lambda pair: (-pair[0], pair[1]))


def _grams(source: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(source[start : start + N]) for start in range(len(source) - N + 1)}


def _drawing(text: str) -> str:
    """The drawings of a problem without white space; empty where one is cut off, since it says nothing."""
    found = _DRAWING.findall(text)
    return "".join("".join(found).split()) if all(part.endswith("[/asy]") for part in found) else ""


def _drawings_fit(one: str, other: str) -> bool:
    return not one or not other or one == other


def _numbers_fit(one: Sequence[str], other: Sequence[str]) -> bool:
    left, right = (Counter(word for word in source if word[0].isdigit()) for source in (one, other))
    return left <= right or right <= left
