"""One spelling per answer, exact numbers, and units."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_r1.answers.normalise import normalise, number
from parallel_r1.answers.units import compatible, split_unit


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (r"\$70{,}000.", "70000"),
        (r"371,\!043,\!400", "371043400"),
        ("1 234 567", "1234567"),
        (r"12\,345", "12345"),
        ("(2,100)", "(2,100)"),
        (r"\{100,200\}", r"\{100,200\}"),
        ("1,200, 300", "1200, 300"),
        (r"\frac{1}{2,004!} + 1,008 \sqrt2", r"\frac{1}{2004!} + 1008 \sqrt{2}"),
        ("10,000_2", "10000_{2}"),
        ("1, 200", "1, 200"),
        (r"\text{(E)}", "E"),
        (r"\frac \pi4", r"\frac{\pi}{4}"),
        (r"\dfrac{\frac12}3", r"\frac{\frac{1}{2}}{3}"),
        (r"\sqrt 2", r"\sqrt{2}"),
        ("\u221a2", r"\sqrt{2}"),
        ("10\u00b2", "10^{2}"),
        ("x = \u22125", "x=-5"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"4\!:\!51 \text{ p.m.}", "4:51 pm"),
        ("4:51 PM", "4:51 pm"),
        ("14.0 + -1.0i", "14.0 -1.0i"),
        ("The answer is 5.", "5"),
        ("5!", "5!"),
        ("$.$", ""),
    ],
)
def test_normalise(written, plain):
    assert normalise(written) == plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 2/3", Fraction(8, 3)),
        (r"2\frac{2}{3}", Fraction(8, 3)),
        (r"-\frac{1}{-2}", Fraction(1, 2)),
        (r"2\frac{-2}{3}", None),
        ("1.5e3", 1500),
        (r"1.2\cdot 10^{-2}", Fraction(12, 1000)),
        ("5 million", 5_000_000),
        ("50%", Fraction(1, 2)),
        ("1/0", None),
        ("2x", None),
        ("9" * 201, None),
        ("", None),
    ],
)
def test_number(text, value):
    assert number(text) == value


def test_a_percentage_is_not_divided_where_one_is_asked_for():
    assert number("28%", percent=True) == 28


@given(st.fractions(max_denominator=50), st.sampled_from([r"\frac{%d}{%d}", r"\dfrac{%d}{%d}", "%d/%d"]))
def test_fractions_are_exact(value, spelling):
    assert number(normalise(spelling % (value.numerator, value.denominator))) == value


@given(st.integers(0, 10**9), st.sampled_from(["{:,}", "${:,}", "{}.00", " {} ", "\\text{{{}}}", "${}$", "{}."]))
def test_spellings_of_a_whole_number(value, spelling):
    assert number(normalise(spelling.format(value))) == value


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("18 students", "18", "students"),
        ("45 sq. units", "45", "unit^2"),
        ("12 cm ^2", "12", "centimeter^2"),
        ("5cm", "5", "centimeter"),
        (r"\frac{3}{4}\pi inches", r"\frac{3}{4}\pi", "inch"),
        ("5 million", "5 million", ""),
        ("9 am", "9 am", ""),
        ("5xy", "5xy", ""),
        (r"90^\circ", "90", "degree"),
        (r"\cos 58^\circ", r"\cos 58^\circ", ""),
        ("neither", "neither", ""),
    ],
)
def test_units(text, value, unit):
    assert split_unit(text) == (value, unit)


def test_only_known_measures_can_disagree():
    assert compatible("inch", "") and compatible("students", "people")
    assert not compatible("inch", "meter") and not compatible("meter", "meter^2")
