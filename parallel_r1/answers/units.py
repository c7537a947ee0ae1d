r"""Words after a value. A unit may be left out or added; two known measures that differ are two answers.

``5`` is ``5 \text{ cm}`` and ``5 students``, but ``5 cm`` is not ``5 m`` and ``5 cm`` is not ``5 cm^2``.
Degrees are a unit too, so ``90^\circ`` is ``90`` and never ``\frac{\pi}{2}``.
"""

from __future__ import annotations

import re

_MEASURES = {
    "millimeter": "mm millimetre", "centimeter": "cm centimetre", "meter": "metre", "kilometer": "km kilometre",
    "inch": "in inches", "foot": "ft feet", "yard": "yd", "mile": "mi", "gram": "gm", "kilogram": "kg",
    "milligram": "mg", "pound": "lb lbs", "ounce": "oz", "ton": "tonne", "second": "sec", "minute": "min", "hour": "hr",
    "day": "", "week": "", "month": "", "year": "yr", "cent": "", "dollar": "usd", "euro": "eur", "degree": "",
    "radian": "rad", "liter": "litre", "milliliter": "ml millilitre", "gallon": "gal", "quart": "", "pint": "",
    "acre": "", "mph": "", "kph": "", "unit": "",
}  # fmt: skip
_NAMES = {
    name: measure
    for measure, others in _MEASURES.items()
    for word in (measure, *others.split())
    for name in (word, f"{word}s")
}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "sq.": 2, "cubic": 3, "cubed": 3, "cu": 3, "cu.": 3}
_NO_UNIT = {
    "or", "and", "to", "not", "if", "when", "per", "minus", "plus", "times", "over", "mod", "base", "hundred",
    "thousand", "million", "billion", "trillion", "dozen", "percent", "half", "halves", "thirds", "quarters", "pi",
    "sqrt", "factorial", "choose", "remainder", "am", "pm", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln",
    "exp", "only", "is", "but", "otherwise", "for", "where", "with", "modulo", "infinity", "inf",
}  # fmt: skip
_UNIT = re.compile(
    r"(?P<value>.*(?:[\d})\]]|\\pi|[\d}] ?i))(?P<gap>\s?)"
    r"(?P<unit>[A-Za-z]{2,}\.?(?:[ -][A-Za-z]{2,}\.?){0,4})(?:\s?\^\s?\{?(?P<power>[23])\}?)?"
)
_DEGREES = re.compile(r"(.*[\d})])\s?\^\s?\{?\\circ\}?")


def split_unit(text: str) -> tuple[str, str]:
    r"""(value, unit) of a normalised answer; the unit is empty when there is none.

    >>> split_unit("45 sq. units"), split_unit("12 cm^2"), split_unit("5 million"), split_unit(r"90^\circ")
    (('45', 'unit^2'), ('12', 'centimeter^2'), ('5 million', ''), ('90', 'degree'))
    """
    degrees = _DEGREES.fullmatch(text)
    if degrees and "^\\circ" not in degrees[1] and not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", degrees[1]):
        return degrees[1].strip(), "degree"
    match = _UNIT.fullmatch(text)
    if match is None:
        return text, ""
    words = re.split("[ -]", match["unit"].lower())
    measures = [word for word in words if word not in _POWERS]
    known = len(measures) == 1 and measures[0].rstrip(".") in _NAMES
    if not _NO_UNIT.isdisjoint(words) or not (known or (match["gap"] and len(words[0]) > 2 and not match["power"])):
        return text, ""
    power = next((_POWERS[word] for word in words if word in _POWERS), None) or int(match["power"] or 1)
    name = _NAMES[measures[0].rstrip(".")] if known else " ".join(words)
    return match["value"].strip(), name if power == 1 else f"{name}^{power}"


def compatible(left: str, right: str) -> bool:
    """Whether two units can belong to one answer: one is left out, or they are not both known measures."""
    known = [unit.partition("^")[0] in _MEASURES for unit in (left, right)]
    return not left or not right or left == right or not all(known)
