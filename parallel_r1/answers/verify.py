r"""Judge a response against a gold answer: extract, then exact, normalised, numbers and forms, algebra.

Numbers are compared as exact fractions, never as floats: ``0.333`` is not a third. What the policies are
(percent, degrees, units, bases, rounding, lists) stands in ``docs/answers.md``. All but algebra is decided
here and at once; algebra goes to a worker process that can be killed (`parallel_r1.answers.grader`), so a
verdict takes a bounded time, in any thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from parallel_r1.answers import grader
from parallel_r1.answers.extract import extract, last_box
from parallel_r1.answers.forms import Asked, Kind, same
from parallel_r1.answers.normalise import normalise, number, squeeze
from parallel_r1.answers.symbolic import too_costly
from parallel_r1.trace.tags import parse_text
from parallel_r1.types import Verdict

MAX_LENGTH = 1000
"""Characters; longer answers are only compared exactly."""
_PERCENT = re.compile(r"percent|%", re.IGNORECASE)
_APPROXIMATE = re.compile(r"approximat|nearest|decimal place|rounded? (?:off|to|your)|significant (?:digit|fig)", re.I)
_GROUP_OF_ZEROS = re.compile(r",0\d")
_OPERATION = re.compile(r"[\dA-Za-z)}!]\s?(?:[-+*/^]|\\cdot)|\\(?:frac|binom|sqrt)|!")


def verify(gold: str, response: str, question: str = "") -> Verdict:
    """Judge a response, which may hold tags: only its answer region is read.

    ``question`` tells whether a percentage or a rounded value was asked for, and what was copied from it.
    Outcomes: right, wrong, no_answer, error (the gold is empty, or a library failed; never counted as
    wrong), timeout (it could not be worked out within the limits).
    """
    region = str(parse_text(response).answer_region)
    answer = extract(region)
    if answer is None:
        return Verdict("no_answer", None, "no 'Final Answer:' line, box or ####")
    return compare(last_box(gold) or gold.strip(), answer, question)


def verify_all(items: Sequence[tuple[str, str, str]]) -> list[Verdict]:
    """Verdicts on many (gold, response, question), in their order; all workers of the grader are kept busy."""
    with ThreadPoolExecutor(grader.shared().workers) as threads:
        return list(threads.map(lambda item: verify(*item), items))


def compare(gold: str, answer: str, question: str = "", *, exact: bool = True) -> Verdict:
    """Judge an extracted answer; see `verify`. ``exact=False`` leaves out the first stage (for measurements)."""
    if not gold.strip():
        return Verdict("error", answer, "the gold answer is empty")
    if exact and answer.strip() == gold.strip():
        return Verdict("right", answer, "exact")
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return Verdict("wrong", answer, f"longer than {MAX_LENGTH} characters and not exactly equal")
    plain_gold, plain = normalise(gold), normalise(answer)
    if ("," in plain) != ("," in plain_gold) and not _GROUP_OF_ZEROS.search(gold + answer):
        # Where one side is a list, "100,200" of the other is one too.
        plain_gold, plain = normalise(gold, thousands=False), normalise(answer, thousands=False)
    if not plain:
        return Verdict("wrong", answer, "nothing but punctuation")
    if squeeze(plain) == squeeze(plain_gold):
        return Verdict("right", answer, "normalised")
    asked = Asked(_PERCENT.search(question) is not None, _APPROXIMATE.search(question) is not None)
    numbers = number(plain_gold, asked.percent), number(plain, asked.percent)
    if None not in numbers and not asked.approximate:
        return Verdict("right" if numbers[0] == numbers[1] else "wrong", answer, "numeric")
    try:
        right = same(plain_gold, plain, asked, _needs_algebra)
    except _NeedsAlgebra:
        return _with_algebra(plain_gold, plain, answer, question, asked)
    return Verdict("right" if right else "wrong", answer, "form")


class _NeedsAlgebra(Exception):
    """A comparison got to values that only algebra can tell apart."""


def _needs_algebra(kind: Kind, left: str, right: str) -> NoReturn:
    raise _NeedsAlgebra


def _with_algebra(gold: str, plain: str, answer: str, question: str, asked: Asked) -> Verdict:
    costly = too_costly(plain) or too_costly(gold)
    if costly:
        return Verdict("timeout", answer, f"{costly} was not worked out")
    outcome, how = grader.shared().judge(gold, plain, asked)
    if outcome == "right" and number(gold) is not None and _copied(plain, question):
        return Verdict("wrong", answer, "an expression copied from the question")
    return Verdict(outcome, answer, how)


def _copied(plain: str, question: str) -> bool:
    """Whether an answer is an expression of the question as it stands, not worked out."""
    return _OPERATION.search(plain) is not None and squeeze(plain) in squeeze(normalise(question))
