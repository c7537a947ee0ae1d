r"""The form of an answer: list, tuple or interval, union, matrix, equation, inequality, or a single value.

Two answers are the same when their forms are and their parts are: in order inside brackets and matrices,
in any order in lists and unions, ``x<3`` as ``(-\infty,3)``, ``1\pm\sqrt2`` as its two values. Single values
are compared as exact fractions, as words, and last by ``judge``, who may do algebra.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from parallel_r1.answers.normalise import number, squeeze
from parallel_r1.answers.units import compatible, split_unit

Kind = Literal["expression", "equation", "rounding"]
Judge = Callable[[Kind, str, str], bool]
"""(kind, left, right) -> the same? Told of normalised single values that are neither numbers nor words.

"rounding": does the right one, rounded to the places of the left one, give the left one?
"""


class Asked(NamedTuple):
    """What the question says of how an answer is to be written."""

    percent: bool = False
    """It asks for a percentage, so a percent sign may be left out or added."""
    approximate: bool = False
    """It asks for a rounded value, so a decimal stands for what rounds to it."""


@dataclass(frozen=True, slots=True)
class Form:
    """``kind``: "value", "list", "union", "matrix ...", "chain ...", or the two brackets of a tuple or interval."""

    kind: str
    text: str
    parts: tuple[Form, ...] = ()
    name: str = ""
    """The ``x`` of ``x=5``."""


_CLOSER = {"(": ")", "[": "]"}
_NAME = re.compile(
    r"([A-Za-z](?:_\{?\w{1,3}\}?|')?|[A-Z]{2,3}|\\[a-z]{2,7}|[A-Za-z]\([a-z]\))(?:=|\s?\\in\s?(?=[\[({\\]))"
)
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
_MATRIX = re.compile(r"\\begin\{([bpBvV]?matrix|array)\}(?:\{[lcr|]+\})?(.*)\\end\{\1\}", re.DOTALL)
_RELATION = re.compile(r"(<|>|\\le(?![a-z])|\\ge(?![a-z]))")
_WORDS = re.compile(r"[A-Za-z]{2,}[A-Za-z ,.'-]*|[A-Za-z]")
_PRODUCT = re.compile(r"[a-cu-z]{2,3}")
"""Letters that are names of numbers: ``xy`` is a product, ``no`` is a word."""
_BASED = re.compile(r"(-?[0-9A-Z]+(?:\.[0-9A-Z]+)?)\s?_\s?\{?(\d{1,2})\}?")
_PLACES = re.compile(r"-?\d*\.(\d+)")
MAX_DEPTH = 40


def same(gold: str, answer: str, asked: Asked, judge: Judge) -> bool:
    """Whether two normalised answers say the same.

    A gold that gives one value in several ways (``0.56=56%``) is met by any of them; an answer that does
    must be right in all.
    """
    golds, answers = _equal_ways(gold), _equal_ways(answer)
    return all(any(_same_form(read(g), read(a), asked, judge) for g in golds) for a in answers)


def read(text: str, depth: int = 0) -> Form:
    """The form of a normalised answer."""
    text = text.strip().removesuffix(",").strip()
    name = _NAME.match(text)
    rest = text[name.end() :].strip() if name else text
    if name and not re.search(r"=|" + _RELATION.pattern, rest):
        return replace(_read_unnamed(rest, depth), text=text, name=name[1])
    return _read_unnamed(text, depth)


def _read_unnamed(text: str, depth: int) -> Form:
    if depth > MAX_DEPTH:
        return Form("value", text)
    text = r"(-\infty,\infty)" if text in (r"\mathbb{R}", "all real numbers") else text
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _read_matrix(text, matrix, depth)
    if text.startswith(r"\{") and text.endswith(r"\}") and r"\}" not in text[2:-2]:
        inner = text[2:-2].strip()
        return read(inner, depth + 1) if inner else Form("value", r"\emptyset")
    bare = re.sub(r"^\{([^{}]*)\}$", r"\1", text)
    if not _WORDS.fullmatch(bare) or "," in bare or " and " in bare:
        parts = split_top(re.sub(r",?\s?(?<![A-Za-z])(?:and|or)(?![A-Za-z])|;", ",", bare), ",")
        if len(parts) > 1:
            return _read_list(text, parts, depth)
    parts = split_top(text, r"\cup")
    if len(parts) > 1:
        return Form("union", text, tuple(read(part, depth + 1) for part in parts))
    inner = text[1:-1]
    if text[:1] in _CLOSER and text[-1:] in (")", "]") and _is_closed(inner):
        parts = split_top(inner, ",")
        if len(parts) > 1:
            return Form(text[0] + text[-1], text, tuple(read(part, depth + 1) for part in parts))
    if text.count(r"\pm") == 1 and r"\mp" not in text:
        return Form("list", text, tuple(Form("value", text.replace(r"\pm", sign).strip("+ ")) for sign in "+-"))
    return _read_inequality(text) or Form("value", text)


def _read_list(text: str, parts: Sequence[str], depth: int) -> Form:
    forms = [read(part, depth + 1) for part in parts]
    if all(form.kind in ("()", "(]", "[)", "[]") and _RELATION.search(form.text) for form in forms):
        return Form("union", text, tuple(forms))
    flat: list[Form] = []
    for form in forms:
        flat += form.parts if form.kind == "list" and not form.name else [form]
    return Form("list", text, tuple(flat))


def _read_matrix(text: str, matrix: re.Match[str], depth: int) -> Form:
    rows = [row.split("&") for row in re.sub(r"\\\\\s*$", "", matrix[2].strip()).split(r"\\")]
    brackets = {"v": "|", "V": "||"}.get(matrix[1][0], "")
    shape = f"matrix{brackets} {len(rows)}x{'/'.join(str(len(row)) for row in rows)}"
    return Form(shape, text, tuple(read(cell, depth + 1) for row in rows for cell in row))


def _read_inequality(text: str) -> Form | None:
    """``x<3`` and ``1\\le x<3`` as intervals; None for anything else."""
    pieces = [piece.strip() for piece in _RELATION.split(text)]
    if len(pieces) not in (3, 5):
        return None
    if any(operator in (">", r"\ge") for operator in pieces[1::2]):
        pieces = [{">": "<", r"\ge": r"\le"}.get(piece, piece) for piece in reversed(pieces)]
        if any(operator not in ("<", r"\le") for operator in pieces[1::2]):
            return None
    names = [bool(_VARIABLE.fullmatch(piece)) for piece in pieces[::2]]
    if len(pieces) == 3 and names[0] != names[1]:
        low, high = (pieces[0], r"\infty") if names[1] else (r"-\infty", pieces[2])
        open_low, open_high = (pieces[1] == "<", True) if names[1] else (True, pieces[1] == "<")
    elif names == [False, True, False]:
        low, high, open_low, open_high = pieces[0], pieces[4], pieces[1] == "<", pieces[3] == "<"
    else:
        chain = " ".join(["chain", *pieces[1::2]])
        return Form(chain, text, tuple(Form("value", piece) for piece in pieces[::2]))
    brackets = ("(" if open_low else "[") + (")" if open_high else "]")
    return Form(brackets, text, (Form("value", low), Form("value", high)))


def split_top(text: str, separator: str) -> list[str]:
    """Split where no bracket is open; one part where brackets do not match or a part would be empty."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(text):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
            if depth < 0:
                return [text]
        elif depth == 0 and text.startswith(separator, index):
            parts.append(text[start:index].strip())
            start = index + len(separator)
            index = start - 1
        index += 1
    parts.append(text[start:].strip())
    parts = [part for part in parts if part] if separator == "," else parts
    return parts if all(parts) and depth == 0 else [text]


def _is_closed(inner: str) -> bool:
    """Whether what stands between two brackets is whole: ``(1,2),(3,4)`` is not one tuple."""
    depth = 0
    for character in inner:
        depth += (character in "([{") - (character in ")]}")
        if depth < 0:
            return False
    return depth == 0


def _equal_ways(text: str) -> list[str]:
    """The sides of a chain of equal values without a variable: ``0.56=56%``."""
    sides = [side.strip() for side in re.split(r"=|\\approx", text)]
    if len(sides) < 2 or not all(sides) or _NAME.match(text) or _VARIABLE.search(text) or "," in text:
        return [text]
    return sides


def _same_form(gold: Form, answer: Form, asked: Asked, judge: Judge) -> bool:
    if squeeze(gold.text) == squeeze(answer.text):
        return True
    equations = [("=" in form.text) for form in (gold, answer)]
    if gold.kind == answer.kind == "value" and all(equations) and gold.name != answer.name:
        return bool(_VARIABLE.search(gold.text) or gold.name) and judge("equation", gold.text, answer.text)
    if gold.name and answer.name and gold.name != answer.name:
        return False
    if gold.kind != answer.kind or len(gold.parts) != len(answer.parts):
        return False
    if gold.kind in ("list", "union"):
        return _same_in_any_order(gold.parts, answer.parts, asked, judge)
    if gold.kind != "value":
        return all(_same_form(g, a, asked, judge) for g, a in zip(gold.parts, answer.parts, strict=True))
    return _same_value(_bare(gold), _bare(answer), asked, judge)


def _same_in_any_order(gold: Sequence[Form], answer: Sequence[Form], asked: Asked, judge: Judge) -> bool:
    if any(len({form.name for form in forms if form.name}) > 1 for forms in (gold, answer)) and (
        not all(form.name for form in (*gold, *answer))
    ):
        return all(_same_form(g, a, asked, judge) for g, a in zip(gold, answer, strict=True))
    left = Counter(_key(form, asked) for form in gold)
    right = Counter(_key(form, asked) for form in answer)
    only_gold, only_answer = list((left - right).elements()), list((right - left).elements())
    if not only_gold:
        return True
    forms = {_key(form, asked): form for form in (*gold, *answer)}
    rest = [forms[key] for key in only_answer]
    for key in only_gold:
        found = next((form for form in rest if _same_form(forms[key], form, asked, judge)), None)
        if found is None:
            return False
        rest.remove(found)
    return True


def _key(form: Form, asked: Asked) -> str:
    value = number(_bare(form), asked.percent) if form.kind == "value" else None
    return f"{form.name}={value}" if value is not None else squeeze(form.text)


def _bare(form: Form) -> str:
    return form.text.partition("=")[2].strip() if form.name else form.text


def _same_value(gold: str, answer: str, asked: Asked, judge: Judge) -> bool:
    """Two single values."""
    based = _BASED.fullmatch(gold)
    if based:
        # The digits alone are enough, since the gold says in which base it was asked for.
        other = _BASED.fullmatch(answer)
        return (other[1] == based[1] and other[2] == based[2]) if other else squeeze(answer) == squeeze(based[1])
    if _BASED.fullmatch(answer):
        return False
    (gold, gold_unit), (answer, answer_unit) = split_unit(gold), split_unit(answer)
    if not compatible(gold_unit, answer_unit):
        return False
    if squeeze(gold) == squeeze(answer):
        return True
    left, right = number(gold, asked.percent), number(answer, asked.percent)
    if left is not None and right is not None:
        return left == right or (asked.approximate and _rounds_to(gold, answer, judge))
    if all(_WORDS.fullmatch(text) and not _PRODUCT.fullmatch(text) for text in (gold, answer)) or ":" in gold + answer:
        return False
    if asked.approximate and (_PLACES.fullmatch(gold) or _PLACES.fullmatch(answer)):
        return _rounds_to(gold, answer, judge)
    return judge("expression", gold, answer)


def _rounds_to(gold: str, answer: str, judge: Judge) -> bool:
    r"""Whether the answer rounds to a decimal gold, or a decimal answer is what the gold rounds to.

    At least two places, and never fewer than the gold has: ``3.14`` is not ``3.142``.
    """
    short, full = (gold, answer) if _PLACES.fullmatch(gold) else (answer, gold)
    places, more = _PLACES.fullmatch(short), _PLACES.fullmatch(full)
    if places is None or len(places[1]) < 2 or (more and len(more[1]) <= len(places[1])):
        return False
    return judge("rounding", short, full)
