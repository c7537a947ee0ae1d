r"""Algebra on two single values: math-verify reads them, numbers decide, math-verify judges the rest.

math-verify alone is not enough for rewards: it calls ``1/2004!`` and ``1/2006!`` equal (both round to
zero), folds the case of names, reads ``2 3`` as five, and judges one way round. So names are told apart
before it reads them, decimals become fractions, and two expressions are equal when their values agree to
`DIGITS` digits at rational points, positive and negative. Exact fractions need no rounding at all.
What has no value (relations, sets) goes to math-verify's own judgement, both ways round.

Runs in a worker (`parallel_r1.answers.worker`), since sympy may take for ever: nothing here has a limit.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from parallel_r1.answers.forms import Kind
from parallel_r1.answers.normalise import number

DIGITS = 60
"""Behind the point, at least; and more than either side writes down: no decimal stands for what it approximates."""
SPARE = 15
"""Digits that two values need not agree in. Coincidences end far earlier (30 digits for e^(pi sqrt 163))."""
MAX_NAMES = 8
MAX_LENGTH = 300
_POINTS = ((7, 5, 11, 3, 13, 17, 19, 23), (-3, 8, -5, 12, 9, -14, 6, 25), (5, -11, 4, -7, 10, 16, -21, 18))
"""Numerators of the values of names, over `_BELOW`; one row is one point."""
_BELOW = 9
_CHARACTERS = re.compile(r"[0-9A-Za-z\\{}()\[\]+\-*/.,^ =|_!]+")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_FUNCTIONS = (
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp",
    "sqrt",
)  # fmt: skip
_KNOWN = frozenset([*_FUNCTIONS, "frac", "pi", "cdot", "circ", "binom", "lfloor", "rfloor", "lceil", "rceil", "infty"])
_GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau", "phi", "psi",
    "omega", "Delta", "Gamma", "Omega",
})  # fmt: skip
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_PLAIN = re.compile(rf"(?<![\\A-Za-z])({'|'.join([*_FUNCTIONS, 'pi'])})(?![a-z])")
_NAME = re.compile(
    r"\\(?:" + "|".join(sorted(_GREEK)) + r")(?![A-Za-z])|(?<![\\A-Za-z_])[A-Za-z](?:_(?:\{\w+\}|\w))?'?"
)
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])|(?<![\d.])(\d+)\.(?!\d)")
_NO_VALUE = (TypeError, ValueError, ArithmeticError, NotImplementedError, AttributeError)
"""What sympy raises where an expression has no value, such as the floor of a complex number."""
_CONSTANTS = ("e", "i")
_HUGE_POWER = re.compile(r"\^\s?(?:\{\s?-?\s?)?(?:\d{7,}|\d{3,6}\s?!)")
_POWER_OF_POWER = re.compile(r"\^\s?\{?\s?-?(\d{1,6})\s?\^\s?\{?\s?(\d{1,6})")
MAX_EXPONENT = 10**6
_HUGE_ARGUMENT = re.compile(r"\d{6,}\s?\)?\s?!|!\s?\)?\s?!|\\binom\s?\{\d{7,}")


def too_costly(text: str) -> str:
    """Why a value cannot be worked out in reasonable time and memory; empty where nothing speaks against it."""
    if _HUGE_ARGUMENT.search(text):
        return "a huge factorial"
    exponents = (int(base) ** min(int(power), 20) for base, power in _POWER_OF_POWER.findall(text))
    if _HUGE_POWER.search(text) or _tower(text) > 2 or any(exponent > MAX_EXPONENT for exponent in exponents):
        return "a tower of powers"
    return ""


def _tower(text: str) -> int:
    """Levels of powers in powers: 3 for ``a^{b^{c^d}}``; ``a^b^c`` counts as nested."""
    open_powers: list[bool] = []
    level = deepest = 0
    for place, character in enumerate(text):
        if character == "{":
            is_power = text[:place].rstrip().endswith("^")
            open_powers.append(is_power)
            level += is_power
        elif character == "}" and open_powers:
            level -= open_powers.pop()
        elif character == "^" and not re.match(r"\^\s?\{?\\circ", text[place : place + 9]):
            deepest = max(deepest, level + 1)
    chained = max((run.count("^") for run in re.findall(r"[0-9A-Za-z](?:\^\{?[0-9A-Za-z]+\}?)+", text)), default=0)
    return max(deepest, chained)


def judge(kind: Kind, left: str, right: str) -> bool:
    """Whether two normalised values are the same; see `parallel_r1.answers.forms.Judge`."""
    names = sorted({match[0] for text in (left, right) for match in _NAME.finditer(_split_words(text))})
    names = [name for name in names if name not in _CONSTANTS]
    digits = DIGITS + max(len(left), len(right))
    if len(names) > MAX_NAMES:
        return False
    if kind == "equation":
        sides = [text.split("=") for text in (left, right)]
        if any(len(side) != 2 for side in sides):
            return False
        read = [_read(rf"{one}-({other})", names) for one, other in sides]
        return None not in read and _proportional(read[0], read[1], digits)
    if "=" in left + right:
        return False
    expressions = [_read(text, names) for text in (left, right)]
    if None in expressions:  # what cannot be read, or divides by zero, is equal to nothing
        return False
    if kind == "rounding":
        return _rounds_to(left, expressions[1])
    return _equal(expressions[0], expressions[1], digits)


def warm_up() -> None:
    """Load everything that the first judgement would wait for."""
    judge("expression", r"\frac{1}{2}x^{2}+\sqrt{2}", r"(x^{2}+2\sqrt{2})/2")


def _read(text: str, names: Sequence[str]) -> Any | None:
    """The sympy expression of a normalised value; None where it is not one."""
    latex = _as_latex(text, names)
    if latex is None:
        return None
    import sympy

    expression = _parsed(latex)
    if not isinstance(expression, sympy.Basic) or expression.has(sympy.nan, sympy.zoo):
        return None
    return expression.subs({symbol: sympy.I for symbol in expression.free_symbols if str(symbol) == "i"})


def _as_latex(text: str, names: Sequence[str]) -> str | None:
    """What math-verify may read: names told apart, decimals as fractions, plain functions as commands."""
    if len(text) > MAX_LENGTH or not _CHARACTERS.fullmatch(text) or re.search(r"\d \d|\d\s?\.\s\d", text):
        return None
    if any(text.count(left) != text.count(right) for left, right in ("()", "{}", "[]")):
        return None
    commands = set(_COMMAND.findall(text))
    text = _split_words(text)
    if not (_KNOWN | _GREEK).issuperset(commands) or "," in text or any(map(_too_long, _WORD.findall(text))):
        return None
    text = _DECIMAL.sub(_as_fraction, text)
    text = re.sub(r"(\\frac\{\d+\}\{\d+\}|\d+)\s?\^\{?\\circ\}?", r"(\\frac{\1\\pi}{180})", text)
    if r"\circ" in text:
        return None
    text = re.sub(r"\\sqrt\s?\(([^()]*)\)", r"\\sqrt{\1}", text)
    # From left to right: "1/2 x" is half of x, as in every programming language.
    text = re.sub(r"\(([^()]*)\)\s?/\s?\(([^()]*)\)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<![\w.}^])(\d+)\s?/\s?(\d+)(?![\d.^])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<![\\A-Za-z])(\d+)\s?(?=\\frac)", r"\1\\cdot ", text)
    order = {name: f" x_{{{place}}} " for place, name in enumerate(names)}
    return _NAME.sub(lambda match: order.get(match[0], match[0]), text)


def _split_words(text: str) -> str:
    """Plain functions as commands, and short words as products: ``xy`` is ``x y``, ``sqrt(2)`` is ``\\sqrt(2)``."""
    text = _PLAIN.sub(r"\\\1 ", text)
    return re.sub(r"(?<![\\A-Za-z])[A-Za-z]{2,3}(?![A-Za-z])", lambda match: " ".join(match[0]), text)


def _too_long(word: str) -> bool:
    return len(word) > 3


def _as_fraction(match: re.Match[str]) -> str:
    if match[3]:
        return match[3]
    return rf"\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}}"


def _equal(left: Any, right: Any, digits: int) -> bool:
    if left == right:
        return True
    answers = [_agree(left, right, point, digits) for point in _points(left, right)]
    decided = [answer for answer in answers if answer is not None]
    if decided:
        return all(decided)
    return _math_verify_says(left, right) or _math_verify_says(right, left)


def _proportional(left: Any, right: Any, digits: int) -> bool:
    """Whether two sides of ``... = 0`` are multiples of each other by a number that is not zero."""

    if not left.free_symbols or left.free_symbols != right.free_symbols:
        return False
    ratios = []
    for point in _points(left, right):
        above, below = (_value(side, point, digits) for side in (left, right))
        if above is None or below is None or not below or not above:
            continue
        ratios.append(above / below)
    close = [
        ratio == ratios[0] if ratio.is_Rational else abs(ratio - ratios[0]) <= abs(ratios[0]) * _hair(digits)
        for ratio in ratios[1:]
    ]
    return bool(close) and all(close)


def _rounds_to(short: str, expression: Any) -> bool:
    value, wanted = _value(expression, {}), number(short)
    if value is None or wanted is None or not value.is_real:
        return False
    places = len(short.partition(".")[2])
    # Half of the last place, and a hair for ties that were rounded either way.
    return abs(Fraction(str(value)) - wanted) <= Fraction(1, 2 * 10**places)


def _points(left: Any, right: Any) -> list[dict[Any, Any]]:
    import sympy

    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return [{}]
    return [
        {symbol: sympy.Rational(value, _BELOW) for symbol, value in zip(symbols, row, strict=False)} for row in _POINTS
    ]


def _agree(left: Any, right: Any, point: dict[Any, Any], digits: int) -> bool | None:
    """Whether two expressions have the same value at a point; None where one has none."""
    import sympy

    if not all(isinstance(side, sympy.Expr) for side in (left, right)):
        return None
    values = [_value(side, point, digits) for side in (left, right)]
    if values[0] is None or values[1] is None:
        return None
    if values[0].is_Rational and values[1].is_Rational:
        return bool(values[0] == values[1])
    size = max(abs(values[0]), abs(values[1]))
    if size > 10:
        # Enough digits for those behind the point: 2^2008 + pi is not 2^2008 + e.
        wide = digits + int(sympy.log(size, 10).evalf())
        values = [_value(side, point, wide) for side in (left, right)]
    gap: Any = abs(values[0] - values[1])  # pyright: ignore[reportOptionalOperand]
    if gap <= min(size, 1) * _hair(digits):
        return True
    # Next to zero, and only there, nothing is left of the digits: ask for the difference itself.
    return bool((left - right).subs(point).equals(0)) if size < _hair(digits) else False


def _hair(digits: int) -> Any:
    import sympy

    return sympy.Float(10, digits) ** (SPARE - digits)


def _value(expression: Any, point: dict[Any, Any], digits: int = DIGITS) -> Any | None:
    """The exact fraction, else a number of ``digits`` digits, complex where it must be; None where there is none."""
    import sympy

    try:
        value = expression.subs(point).doit()
        value = value if value.is_Rational else value.evalf(digits)
    except _NO_VALUE:
        return None
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo) or value.free_symbols:
        return None
    real, imaginary = value.as_real_imag()
    if not (real.is_Number and imaginary.is_Number):
        return None
    return real + imaginary * sympy.I if imaginary else real


def _math_verify_says(left: Any, right: Any) -> bool:
    from math_verify import verify

    no_limit: Any = None  # the library's is a signal, which only works in the main thread
    return bool(verify([left], [right], timeout_seconds=no_limit, raise_on_error=True))


@lru_cache(512)
def _parsed(latex: str) -> Any | None:
    from math_verify import LatexExtractionConfig, parse

    no_limit: Any = None
    # It warns that there is no limit, once per call.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    found = parse(rf"\boxed{{{latex}}}", [LatexExtractionConfig()], parsing_timeout=no_limit)
    return found[0] if found else None
