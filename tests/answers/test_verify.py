"""Answers: extraction, the collected pairs, symmetry, and hostile text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.answers.extract import extract
from parallel_r1.answers.normalise import normalise, number
from parallel_r1.answers.verify import compare, verify


@pytest.mark.parametrize(
    ("region", "answer"),
    [
        ("Final Answer: 42", "42"),
        ("Final Answer: 1\nno\nFinal Answer: 2\nmore", "2"),
        ("**Final Answer:** $42$.", "42"),
        ("**Final answer: 42**", "42"),
        ("Final Answer:\n\\[ 42 \\]", "42"),
        (r"Final Answer: \(\boxed{\frac{1}{2}}\)", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2} done", "2"),
        (r"\fbox{42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{42}" + "x" * 1700, "42"),
        ("#### 42", "42"),
        (r"\boxed{42", None),
        (r"\boxed{1} \boxed{42", None),
        ("I considered 42 but could not finish.", None),
        ("Final Answer: ", None),
        ("**42**", None),
        ("", None),
    ],
)
def test_extract(region, answer):
    assert extract(region) == answer


PAIRS = [
    ("13", r"\text{13}", True),
    ("70000", r"\$70,000", True),
    ("29", r"\$29.00", True),
    ("(2,4)", "(2,4)", True),
    ("(2,4)", "(4,2)", False),
    ("[2,5)", "(2,5]", False),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", True),
    ("1,2", "2,1", True),
    ("x<3", r"(-\infty,3)", True),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", False),
    ("n=2,3,4", "n=1,2,3", False),
    ("D=(0,1)", "D=(0,1.5)", False),
    (r"\pm 2021", "2021", False),
    ("12:00", "1:00", False),
    (r"\dfrac{\pi}{2}", "pi/2", True),
    ("2x+4y-3=0", r"y=-\frac12x+\frac34", True),
    ("3x-y+13=0", "3x+4y+14=0", False),
    (r"\frac{x^2}{4}+\frac{y^2}{3}=1", r"\frac{x^2}{16}+\frac{y^2}{12}=1", False),
    ("2", "2 2/3", False),
    (r"\frac{1}{3}", r"\frac{1}{2}", False),
    ("E", r"\text{E}", True),
    ("-5", "5", False),
    (r"\frac{1}{2}", "0.5", True),
    ("7", "x=5 or x=7", False),
    ("28", r"28\%", False),
    (r"\frac13", "0.333", False),
    (r"\frac13", "0.3333333333", False),
    (r"\sqrt2", "1.41421", False),
    ("101_2", "5", False),
    (r"\frac{\pi}{2}", r"90^\circ", False),
    ("8/3", r"2\frac{2}{3}", True),
    ("-5", "\u22125", True),
    ("15", "\uff11\uff15", True),
    ("10", "10\u00b2", False),
    ("1200", "1{,}200.", True),
    ("18", "18 euros", True),
    ("5", "5 million", False),
    ("5", "5x", False),
    ("0.28", "28%", True),
    ("Yes", "yes", True),
    ("a", "A", False),
]


@pytest.mark.parametrize(("gold", "answer", "right"), PAIRS)
def test_pairs_both_ways_round(gold, answer, right):
    assert verify(gold, rf"so \boxed{{{answer}}}").right is right
    assert compare(gold, gold).right and compare(answer, answer).right
    if "euros" not in answer:
        assert compare(answer, gold).right is right


def test_a_percent_sign_means_nothing_when_the_question_asks_for_percent():
    assert verify("28", "Final Answer: 28%", "What percent of them?").right
    assert verify("28", "Final Answer: 28 percent", "What percentage?").right
    assert not verify("28", "Final Answer: 28%", "How many?").right


def test_only_the_answer_region_is_read():
    block = "<Parallel><Path>Final Answer: 1</Path><Path>\\boxed{2}</Path></Parallel>\n<Summary>#### 3</Summary>"
    assert verify("1", block).outcome == "no_answer"
    assert verify("4", f"{block}\nFinal Answer: 4").right
    assert verify("4", f"Final Answer: 4{block}").outcome == "no_answer"


def test_an_unreadable_gold_is_an_error_and_never_pays():
    assert verify("", "Final Answer: ").outcome == "no_answer"
    assert verify("  ", "Final Answer: 4").outcome == "error"


@settings(deadline=None)
@given(st.fractions(max_denominator=50), st.fractions(max_denominator=50))
def test_numbers_are_exact(left, right):
    text = rf"\frac{{{left.numerator}}}{{{left.denominator}}}"
    assert number(normalise(text)) == left
    assert compare(str(right), text).right == (left == right)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["{:,}", "${:,}", "{}.00", " {} ", "\\text{{{}}}", "${}$", "{}."]))
def test_spellings_of_a_number(value, spelling):
    assert compare(str(value), spelling.format(value)).right
    assert not compare(str(value + 1), spelling.format(value)).right


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_taken(gold, response):
    outcomes = ("right", "wrong", "no_answer", "error")
    assert verify(gold, response).outcome in outcomes
    assert verify(gold, f"Final Answer: {response}").outcome in outcomes
    normalise(response)


HOSTILE = [
    r"10^{10^{10^{10}}}", "9^9^9^9", "{" * 3000, "((9^9)^9)^9", "9" * 5000, "1e999999999", r"\frac{1}{0}", "1/0",
    "2000!", r"\sum_{k=1}^{9}k", r"\int_0^1 x dx", "-" * 2000, "1," * 2000, "\\text{" * 2000, "(" * 90, "$" * 4001,
    "=" * 99, "(a+b+c+d+e+f+g)^9*(a+b+c+d+h+k+m)^9", "((x+1)^9)^9", "a b c d" * 5,
    "1 " * 3000, "a " * 3000, "x=" * 2000, "\\" * 3001,
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: ascii(answer[:14]))
def test_hostile_answers_are_quick_and_never_right(answer):
    compare("x^2", "x^3")  # loads math-verify outside the clock
    started = time.process_time()
    for _ in range(5):
        assert compare("42", answer).outcome in ("wrong", "timeout")
        assert compare("x^2+1", answer).outcome in ("wrong", "timeout")
        assert not verify("42", rf"\boxed{{{answer}}}").right
        extract(answer * 20)
    assert time.process_time() - started < 2
    extract(r"\boxed{" * 50_000)
    assert time.process_time() - started < 3
