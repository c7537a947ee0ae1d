r"""Answers in one spelling, and exact numbers read from them. Pure text; every pattern is linear.

What is folded: mark-up (``$..$``, ``\text{}``, ``\left``), ``\dfrac``, spacing commands, currency
signs, thousands separators, unicode minus signs and digits, punctuation at the end. What is not:
percent signs, degrees, order inside brackets, and anything that would need arithmetic.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from parallel_r1.answers.extract import unwrap

MAX_DIGITS = 200
_MINUS = dict.fromkeys(map(ord, "\u2212\u2013\u2014\u2010\u2011\ufe63\uff0d"), "-")
_TEXT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|operatorname)\s?\{([^{}]*)\}")
_SPACING = re.compile(r"\\[!,;: ]|\\quad|\\qquad|~|\\left(?![a-z])|\\right(?![a-z])|\\displaystyle")
_SHORT_FRAC = re.compile(r"\\frac\s?(\d)\s?(\d)")
_HALF_FRAC = re.compile(r"\\frac\s?\{([^{}]*)\}\s?(\d)(?!\d)")
_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:,\d{3})+)(?![\d,])")
_NAMED = re.compile(r"[A-Za-z]\s?(?:=|\\in(?![a-z]))\s?(?=[^=])")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DECIMAL = re.compile(rf"([+-]?){_DIGITS}(?:[eE][+-]?\d{{1,2}})?")
_RATIO = re.compile(rf"([+-]?)\s?({_DIGITS})\s?/\s?({_DIGITS})")
_FRAC = re.compile(rf"([+-]?)\s?(\d+)?\s?\\frac\{{\s?(-?{_DIGITS})\s?\}}\{{\s?(-?{_DIGITS})\s?\}}")
_MIXED = re.compile(r"([+-]?)(\d+)\s(\d+)\s?/\s?(\d+)")
_UNIT = re.compile(r"(.*[\d}%])\s([A-Za-z]+(?:[ -][A-Za-z]+){0,3})\.?")
_NO_UNIT = {
    "or", "and", "to", "not", "if", "when", "per", "minus", "plus", "times", "over", "mod", "base", "hundred",
    "thousand", "million", "billion", "trillion", "dozen", "percent", "half", "halves", "thirds", "quarters", "pi",
    "sqrt", "squared", "cubed", "factorial", "choose", "remainder", "i", "e", "x", "y", "z", "n",
}  # fmt: skip


def normalise(answer: str) -> str:
    r"""One spelling of an answer.

    >>> normalise(r"\$70{,}000."), normalise(r"\text{E}"), normalise("x = \u22125")
    ('70000', 'E', '-5')
    """
    text = "".join(_ascii_digit(character) for character in answer.translate(_MINUS))
    text = unwrap(text.replace("\\$", "$").replace(r"\%", "%").replace("{,}", ","))
    text = re.sub(r"\\[dtc]frac(?![a-z])", r"\\frac", text)
    text = _TEXT.sub(r" \1 ", text)
    text = _SPACING.sub(" ", text)
    text = _SHORT_FRAC.sub(r"\\frac{\1}{\2}", text)
    text = _HALF_FRAC.sub(r"\\frac{\1}{\2}", text)
    text = re.sub(r"[$\u20ac\u00a3\u00a5]\s?(?=[-+.\d\\])|(?<=[\d}])\s?[\u20ac\u00a3\u00a5$]", "", text)
    text = _THOUSANDS.sub(lambda match: match[1] + match[2].replace(",", ""), text)
    text = " ".join(text.split())
    named = _NAMED.match(text)
    if named and text.count("=") <= 1 and not _VARIABLE.search(text, named.end()):
        text = text[named.end() :]
    return unwrap(text).rstrip(",")


def number(text: str, percent: bool = False, units: bool = False) -> Fraction | None:
    r"""The exact value of a decimal, ratio, ``\frac`` or mixed number; None for all else.

    ``percent``: a percent sign means nothing (the question asks for a percentage); else it divides
    by a hundred. ``units``: words after the number are dropped, unless they change its value.
    """
    text = text.strip()
    if len(text) > MAX_DIGITS:
        return None
    unit = _UNIT.fullmatch(text) if units else None
    if unit:
        words = re.split("[ -]", unit[2].lower())
        if _NO_UNIT.isdisjoint(words) or (percent and words == ["percent"]):
            text = unit[1].strip()
    scale = Fraction(1)
    if text.endswith("%"):
        text, scale = text[:-1].strip(), scale if percent else Fraction(1, 100)
    value = _value(text)
    return None if value is None else value * scale


def solutions(text: str) -> list[str]:
    """The parts of an unordered list ``a, b and c``; one part for brackets and everything else."""
    if any(bracket in text for bracket in "()[]|") or len(text) > MAX_DIGITS:
        return [text]
    inner = text.removeprefix(r"\{").removesuffix(r"\}")
    parts = [part.strip() for part in re.split(r",| and ", inner)]
    return parts if all(parts) else [text]


def _value(text: str) -> Fraction | None:
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    for pattern in (_MIXED, _FRAC):
        match = pattern.fullmatch(text)
        if match and Fraction(match[4]):
            whole, part = int(match[2] or 0), Fraction(match[3]) / Fraction(match[4])
            return (-1 if match[1] == "-" else 1) * (whole + part)
    match = _RATIO.fullmatch(text)
    if match and Fraction(match[3]):
        return (-1 if match[1] == "-" else 1) * Fraction(match[2]) / Fraction(match[3])
    return None


def _ascii_digit(character: str) -> str:
    """Any decimal digit and full-width sign as ASCII; superscripts stay, they are powers."""
    if character.isascii():
        return character
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.digit(character))
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    return " " if character.isspace() else character
