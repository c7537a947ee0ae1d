r"""Judge a response against a gold answer: extract, then exact, normalised, numeric, symbolic.

Numbers are compared as exact fractions, never as floats, and nothing is evaluated: ``0.333`` is not
a third, ``28%`` is 28/100 and therefore not 28 (unless the question asks for a percentage), a list
of solutions has no order but a pair in brackets has. Two numbers that differ are wrong at once; only
what is no number may go to math-verify, and only short and harmless expressions do (it takes seconds
over a tower of powers, and rounds tiny numbers to zero).

Not here: a time limit that can kill (`grader`), and the decisions about text answers beyond
white space and case.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from parallel_r1.answers.extract import extract, last_box
from parallel_r1.answers.normalise import normalise, number, solutions
from parallel_r1.trace.tags import parse_text
from parallel_r1.types import Verdict

MAX_LENGTH = 1000
"""Longer answers are only compared exactly."""
MAX_SYMBOLIC = 80
"""Longer expressions are not given to math-verify."""
MAX_NAMES = 3
_HARMLESS = re.compile(r"[0-9A-Za-z\\{}()\[\]+\-*/.,^ =<>|_]+")
# Only a letter or a digit may be raised, to one digit or letter: powers of sums explode when expanded.
_POWER = re.compile(r"(?<=[0-9A-Za-z])\^(?:[0-9A-Za-z]|\{-?[0-9A-Za-z]\})(?![0-9^])")
_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|ln|log)")
MAX_POWERS = 3
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_KNOWN = {
    "frac", "sqrt", "pi", "infty", "cup", "cap", "le", "ge", "leq", "geq", "lt", "gt", "ne", "neq", "sin", "cos",
    "tan", "ln", "log", "pm", "cdot", "times", "circ", "in", "emptyset", "theta",
}  # fmt: skip
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_PLAIN_MATHS = {"sqrt": r"\sqrt", "pi": r"\pi", "sin": r"\sin", "cos": r"\cos", "tan": r"\tan", "ln": r"\ln"}


def verify(gold: str, response: str, question: str = "") -> Verdict:
    """Judge a response, which may hold tags: only its answer region is read.

    ``question`` decides whether a percent sign may be left out or added. Outcomes: right, wrong,
    no_answer, error (the gold cannot be read, or a library failed; never counted as wrong).
    """
    region = str(parse_text(response).answer_region)
    answer = extract(region)
    if answer is None:
        return Verdict("no_answer", None, "no 'Final Answer:' line, box or ####")
    gold = last_box(gold) or gold.strip()
    if not gold:
        return Verdict("error", answer, "the gold answer is empty")
    return compare(gold, answer, question)


def compare(gold: str, answer: str, question: str = "") -> Verdict:
    """Judge an extracted answer; see `verify`."""
    if answer.strip() == gold.strip():
        return Verdict("right", answer, "exact")
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return Verdict("wrong", answer, f"longer than {MAX_LENGTH} characters and not exactly equal")
    plain_gold, plain = normalise(gold), normalise(answer)
    if _squeeze(plain) == _squeeze(plain_gold) and plain:
        return Verdict("right", answer, "normalised")
    percent = "percent" in question.lower() or "%" in question
    wanted, got = solutions(plain_gold), solutions(plain)
    numbers = [number(part, percent) for part in wanted], [number(part, percent, units=True) for part in got]
    if None not in numbers[0] and None not in numbers[1]:
        right = _same_numbers(*numbers)
        return Verdict("right" if right else "wrong", answer, "numeric")
    if len(wanted) > 1 and sorted(map(_squeeze, wanted)) == sorted(map(_squeeze, got)):
        return Verdict("right", answer, "unordered")
    return _symbolic(plain_gold, plain, answer)


def _same_numbers(left: list[Fraction | None], right: list[Fraction | None]) -> bool:
    return sorted(n for n in left if n is not None) == sorted(n for n in right if n is not None)


def _squeeze(text: str) -> str:
    """Without white space; words without case (one letter is a name, and keeps its case)."""
    text = re.sub(r"\s+", "", text)
    return text.casefold() if text.isalpha() and len(text) > 1 else text


def _symbolic(gold: str, plain: str, answer: str) -> Verdict:
    """math-verify, asked both ways round because it is not symmetric; short, harmless input only."""
    left, right = _as_latex(gold), _as_latex(plain)
    # Two names or words: the library folds their case, and has nothing else to say.
    if left is None or right is None or (gold.isalpha() and plain.isalpha()):
        return Verdict("wrong", answer, "different text")
    judge = _math_verify()
    if judge is None:
        return Verdict("wrong", answer, "different text (math-verify is not installed)")
    try:
        same = judge(left, right) or judge(right, left)
    except Exception as error:  # a third-party parser on model output: anything may come
        return Verdict("error", answer, f"math-verify: {type(error).__name__}")
    return Verdict("right" if same else "wrong", answer, "symbolic")


def _as_latex(text: str) -> str | None:
    """The expression for math-verify, or None where it must not see it."""
    if sum(map(text.count, "([")) != sum(map(text.count, ")]")) or text.count("{") != text.count("}"):
        return None
    powers = text.count("^")
    if len(text) > MAX_SYMBOLIC or powers > MAX_POWERS or powers != len(_POWER.findall(text)):
        return None
    if not _HARMLESS.fullmatch(text) or not _KNOWN.issuperset(_COMMAND.findall(text)):
        return None
    if len(set(_NAME.findall(text))) > MAX_NAMES or len(_FUNCTION.findall(text)) > 1 or _by_zero(text):
        return None
    text = re.sub(r"\+\s?-", "-", text)
    for word in set(_WORD.findall(text)):
        if word not in _PLAIN_MATHS:
            return None
        text = re.sub(rf"(?<![\\A-Za-z]){word}(?![A-Za-z])", lambda _, w=word: _PLAIN_MATHS[w], text)
    return re.sub(r"\\sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}", text)


def _by_zero(text: str) -> bool:
    return re.search(r"/\s*0+(?![0-9.])|\}\{\s*0+\s*\}", text) is not None


def _math_verify() -> Callable[[str, str], bool] | None:
    try:
        from math_verify import LatexExtractionConfig, parse
        from math_verify import verify as judge
    except ImportError:
        return None
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    # No time limit of the library: it is a signal, which only works in the main thread.
    no_limit: Any = None

    def same(gold: str, answer: str) -> bool:
        # What cannot be read as an expression is no answer that equals one; that is not an error.
        sides = [
            parse(rf"\boxed{{{text}}}", [LatexExtractionConfig()], parsing_timeout=no_limit) for text in (gold, answer)
        ]
        return all(sides) and bool(judge(sides[0], sides[1], timeout_seconds=no_limit, raise_on_error=True))

    return same
