r"""Answers in one spelling, and exact numbers read from them. Pure text; every pattern is linear.

What is folded: mark-up (``$..$``, ``\text{}``, ``\left``), ``\dfrac``, spacing commands, currency
signs, thousands separators, unicode digits, signs and operators, punctuation at the end. What is not:
percent signs, units (`parallel_r1.answers.units`), names before ``=``, order, and anything that would
need arithmetic.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from parallel_r1.answers.extract import unwrap

MAX_DIGITS = 200
_MINUS = "\u2212\u2013\u2014\u2010\u2011\ufe63\uff0d"
_COMMANDS = {
    "\u03c0": "pi", "\u221a": "sqrt", "\u221e": "infty", "\u2264": "le", "\u2265": "ge", "\u2260": "ne",
    "\u00d7": "cdot", "\u00b7": "cdot", "\u22c5": "cdot", "\u222a": "cup", "\u2229": "cap", "\u2208": "in",
    "\u00b1": "pm", "\u2205": "emptyset", "\u2248": "approx", "\u03b8": "theta", "\u03b1": "alpha", "\u03b2": "beta",
}  # fmt: skip
"""Operators and Greek letters, written by code point since many look like a letter."""
_UNICODE = (
    dict.fromkeys(map(ord, _MINUS), "-")
    | {ord(character): rf"\{command} " for character, command in _COMMANDS.items()}
    | {
        ord("\u00f7"): "/",
        ord("\u2044"): "/",
        ord("\u2215"): "/",
        ord("\u00b0"): r"^\circ",
        ord("\u211d"): r"\mathbb{R}",
    }
)
_FRACTIONS = "\u00bd\u2153\u2154\u00bc\u00be\u2155\u2156\u2157\u2158\u2159\u215a\u215b\u215c\u215d\u215e"
_HALVES = {character: unicodedata.normalize("NFKC", character) for character in _FRACTIONS}
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_POWER = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_TEXT = re.compile(
    r"\\(?:text|textbf|textrm|textnormal|textit|mathrm|mathbf|mathit|mbox|operatorname|hbox)\s?\{([^{}]*)\}"
)
_SPACING = re.compile(
    r"(?<!\\)\\[!,;:> ]|\\quad|\\qquad|~|\\left(?![a-z])|\\right(?![a-z])"
    r"|\\[bB]igg?[lr]?(?![a-z])|\\displaystyle|\\phantom"
)
_SAME = [
    (re.compile(pattern), text) for pattern, text in (
        (r"\\[dtc]frac(?![a-z])", r"\\frac"), (r"\\[dt]binom(?![a-z])", r"\\binom"),
        (r"\\(?:leq|leqslant)(?![a-z])|<=|=<", r"\\le "), (r"\\(?:geq|geqslant)(?![a-z])|>=", r"\\ge "),
        (r"\\neq(?![a-z])|!=", r"\\ne "), (r"\\lt(?![a-z])", "<"), (r"\\gt(?![a-z])", ">"),
        (r"\\times(?![a-z])|\*\*?(?!\*)", lambda m: "^" if m[0] == "**" else r"\cdot "),
        (r"\\(?:varnothing|O)(?![a-z])", r"\\emptyset"), (r"\^\s?\{\s?\\circ\s?\}", r"^\\circ"),
        (r"\\degree(?![a-z])", r"^\\circ"), (r"\\lbrace(?![a-z])", r"\\{"), (r"\\rbrace(?![a-z])", r"\\}"),
        (r"([bpvBV]?)matrix\*", r"\1matrix"),
        (r"(?<=[\d}])\s?percent(?![a-z])", "%"),
        (r"(?<=\d)(?:\s+|\s?(?=[aApP]\.))([aApP])\.?\s?[mM]\.?(?![A-Za-z])", lambda m: f" {m[1].lower()}m"),
    )
]  # fmt: skip
_CURRENCY = re.compile(r"[$\u20ac\u00a3\u00a5]\s?(?=[-+.\d\\])|(?<=[\d}])\s?[\u20ac\u00a3\u00a5$]")
_CLOSE_COMMA = re.compile(r"\{\s?,\s?\}|,\s?\\!\s?(?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?: \d{3})+)(?![\d/]| ?[\d/])")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)")
_THOUSANDS_IN_BRACES = re.compile(r"(?<=\{)\d{1,3}(?:,\d{3})+(?=\})")
_ANSWER_IS = re.compile(r"(?:so |thus |hence |therefore,? )?(?:the |my )?(?:final )?answer(?: is|:)\s?:?\s?", re.I)
_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"
_DECIMAL = re.compile(rf"([+-]?)\s?({_DIGITS})(?:[eE]([+-]?\d{{1,2}}))?")
_SCIENTIFIC = re.compile(rf"([+-]?)\s?({_DIGITS})\s?\\cdot 10\^(?:\{{([+-]?\d{{1,2}})\}}|(\d))")
_RATIO = re.compile(rf"([+-]?)\s?({_DIGITS})\s?/\s?(-?{_DIGITS})")
_FRAC = re.compile(rf"([+-]?)\s?(\d+)?\s?\\frac\{{\s?(-?{_DIGITS})\s?\}}\{{\s?(-?{_DIGITS})\s?\}}")
_MIXED = re.compile(r"([+-]?)\s?(\d+)(?:\s|\s?\+\s?)(\d+)\s?/\s?(\d+)")
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_LARGE_WORD = re.compile(rf"(.*\d)\s?({'|'.join(_LARGE)})s?")


def normalise(answer: str, thousands: bool = True) -> str:
    r"""One spelling of an answer. ``thousands``: ``12,345`` is one number, not two.

    >>> normalise(r"\$70{,}000."), normalise(r"\text{(E)}"), normalise("x = \u22125"), normalise(r"\dfrac12")
    ('70000', 'E', 'x=-5', '\\frac{1}{2}')
    """
    text = unwrap("".join(map(_ascii, _unicode_powers(answer).translate(_UNICODE))))
    text = _CLOSE_COMMA.sub("", text.replace("\\$", "$").replace(r"\%", "%"))
    text = unwrap(text).replace(r"\!", "")
    text = _TEXT.sub(r" \1 ", text)
    for pattern, replacement in _SAME:
        text = pattern.sub(replacement, text)
    text = re.sub(r"(?<=\d)\\[,; ]\s?(?=\d{3}(?!\d))", "", text)
    text = " ".join(_SPACING.sub(" ", text).split())
    text = _ANSWER_IS.sub("", text, count=1) if _ANSWER_IS.match(text) else text
    text = _CURRENCY.sub("", text.removeprefix(r"\approx").strip())
    text = _braced(_braced(text, r"\frac", 2), r"\sqrt", 1)
    text = re.sub(r"\^\s?([0-9A-Za-z])(?![0-9A-Za-z])", r"^{\1}", text)
    text = re.sub(r"_\s?([0-9A-Za-z])(?![0-9A-Za-z])", r"_{\1}", text)
    text = re.sub(r"\+\s?-", "-", re.sub(r"-\s?-", "+", text))
    text = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), text)
    if thousands:
        is_plain = not re.search(r"[(\[;]|\\\{", text)
        pattern = _THOUSANDS if is_plain else _THOUSANDS_IN_BRACES
        text = pattern.sub(lambda match: match[0].replace(",", ""), text)
    text = unwrap(re.sub(r"\s?([=<>])\s?", r"\1", text)).rstrip(", ")
    choice = re.fullmatch(r"\(\s?([A-Za-z])\s?\)", text)
    return choice[1] if choice else text


def squeeze(text: str) -> str:
    """Without white space; words without case (one letter is a name, and keeps its case)."""
    is_words = re.fullmatch(r"[A-Za-z]+(?:[ ,;-]+[A-Za-z]+)*", text) is not None and len(text) > 1
    text = re.sub(r"(?<=\d) (?=\d)", "_", text)
    text = re.sub(r"\s+", "", re.sub(r"(?<=[A-Za-z]) (?=[A-Za-z])", "_", text) if is_words else text)
    return text.casefold() if is_words and not re.fullmatch(r"[A-Za-z](?:[,;][A-Za-z])*", text) else text


def number(text: str, percent: bool = False) -> Fraction | None:
    r"""The exact value of a normalised decimal, ratio, ``\frac``, mixed number or ``5 million``; None for all else.

    ``percent``: a percent sign means nothing (the question asks for a percentage); else it divides
    by a hundred.
    """
    text = text.strip()
    if len(text) > MAX_DIGITS or not text or text[-1] not in "0123456789}.%ns":
        return None
    scale = Fraction(1)
    large = _LARGE_WORD.fullmatch(text)
    if large:
        text, scale = large[1], Fraction(_LARGE[large[2]])
    if text.endswith("%"):
        text, scale = text[:-1].strip(), scale if percent else scale / 100
    value = _value(text)
    return None if value is None else value * scale


def _value(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if match:
        return Fraction(f"{match[1]}{match[2]}") * Fraction(10) ** int(match[3] or 0)
    match = _SCIENTIFIC.fullmatch(text)
    if match:
        return Fraction(f"{match[1]}{match[2]}") * Fraction(10) ** int(match[3] or match[4])
    for pattern in (_MIXED, _FRAC):
        match = pattern.fullmatch(text)
        if match and Fraction(match[4]):
            if match[2] and "-" in match[3] + match[4]:
                return None
            whole, part = int(match[2] or 0), Fraction(match[3]) / Fraction(match[4])
            return (-1 if match[1] == "-" else 1) * (whole + part)
    match = _RATIO.fullmatch(text)
    if match and Fraction(match[3]):
        return (-1 if match[1] == "-" else 1) * Fraction(match[2]) / Fraction(match[3])
    return None


def _braced(text: str, command: str, count: int) -> str:
    r"""``\frac12``, ``\frac 3{4}``, ``\sqrt2`` with braces around each of ``count`` arguments."""
    start = text.rfind(command)
    while start >= 0:
        place = start + len(command)
        if not text[place : place + 1].isalpha() and text[place : place + 1] != "[":
            arguments: list[str] = []
            for _ in range(count):
                argument, place = _argument(text, place)
                arguments.append(argument)
            if all(arguments):
                text = text[:start] + command + "".join(f"{{{argument}}}" for argument in arguments) + text[place:]
        start = text.rfind(command, 0, start)
    return text


def _argument(text: str, place: int) -> tuple[str, int]:
    """(argument at ``place`` without braces, place behind it); an empty one when there is none."""
    while text[place : place + 1] == " ":
        place += 1
    if text[place : place + 1] == "{":
        depth = 0
        for index in range(place, len(text)):
            depth += (text[index] == "{") - (text[index] == "}")
            if depth == 0:
                return text[place + 1 : index].strip(), index + 1
        return "", place
    match = re.compile(r"\\[A-Za-z]+|[0-9A-Za-z]").match(text, place)
    return (match[0], match.end()) if match and match[0] not in (r"\frac", r"\sqrt") else ("", place)


def _unicode_powers(text: str) -> str:
    if text.isascii():
        return text
    text = _POWER.sub(lambda match: f"^{{{match[0].translate(_SUPERSCRIPTS)}}}", text)
    for character, plain in _HALVES.items():
        text = text.replace(character, f" {plain} ")
    return text


def _ascii(character: str) -> str:
    """Any decimal digit and full-width sign as ASCII."""
    if character.isascii():
        return character
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.digit(character))
    if "\uff01" <= character <= "\uff5e":
        return chr(ord(character) - 0xFEE0)
    return " " if character.isspace() else character
