"""Verdicts: the collected pairs, the policies of docs/answers.md, and text of any kind."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.answers.normalise import normalise
from parallel_r1.answers.verify import compare, verify, verify_all

RIGHT = [
    ("13", r"\text{13}"),
    ("70000", r"\$70,000"),
    ("29", r"\$29.00"),
    ("(2,4)", "(2,4)"),
    ("[2,5)", "[2,5)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
    (r"\begin{pmatrix}1/2&0\end{pmatrix}", r"\begin{pmatrix}0.5&0\end{pmatrix}"),
    ("1,2", "2,1"),
    ("1,2", r"\{2,1\}"),
    ("1,2", r"x=1 \text{ or } x=2"),
    (r"2, 3, \text{ and } 4", "4,3,2"),
    ("81, 256", "81,256"),
    ("(1,2),(3,4)", "(3,4); (1,2)"),
    ("AB=9, CD=4", "CD=4, AB=9"),
    ("AB=9, CD=4", "9,4"),
    (r"1\pm\sqrt{19}", r"1-\sqrt{19},1+\sqrt{19}"),
    ("x<3", r"(-\infty,3)"),
    ("3>x", "x<3"),
    (r"x\in(1,2]", r"1<x\le 2"),
    (r"x<-2 \text{ or } x>3", r"(-\infty,-2)\cup(3,\infty)"),
    (r"[0,1)\cup(2,3)", r"(2,3)\cup[0,1)"),
    (r"s^2 \le 8r^2", r"8r^2\ge s^2"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    ("e^{16}-1", "-1 + exp(16)"),
    (r"\dfrac{\pi}{2}", "pi/2"),
    ("14-i", "14.0 + -1.0i"),
    ("2x+4y-3=0", r"y=-\frac12x+\frac34"),
    ("y=2x+3", "2x+3"),
    ("E", r"\text{(E)}"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\text{A,D}", "D, A"),
    (r"\frac{1}{2}", "0.5"),
    ("8/3", r"2\frac{2}{3}"),
    ("-5", "\u22125"),
    ("15", "\uff11\uff15"),
    ("100", "10\u00b2"),
    ("1200", "1{,}200."),
    ("5000000", "5 million"),
    ("120000", r"1.2\times10^5"),
    ("0.28", "28%"),
    ("0.56 = 56\\%", "0.56"),
    ("4\\!:\\!51\\!:\\!06 \\text{ p.m.}", "4:51:06 PM"),
    ("18", "18 euros"),
    (r"5\text{ cm}", "5"),
    (r"45 \text{ units}^2", "45 square units"),
    (r"118 \text{ dollars}", r"\$118"),
    ("90^\\circ", "90 degrees"),
    (r"480 + 480\sqrt{3}\text{ feet}", r"480(1+\sqrt3)"),
    (r"\cos 58^\circ", r"\sin 32^\circ"),
    (r"2\cos 15^\circ", r"\frac{\sqrt6+\sqrt2}{2}"),
    ("4(3-x)(3+x)", "36-4x^2"),
    ("xy", "yx"),
    ("x/2", "1/2x"),
    ("x_{1}+x_{2}", "x_2+x_1"),
    ("1024", "2^{10}"),
    (r"2", r"\frac{\sqrt8}{\sqrt2}"),
    ("2^{2008}-2", "2(2^{2007}-1)"),
    (r"3^{100}+\sqrt8", r"9^{50}+2\sqrt2"),
    ("Yes", "yes"),
]
WRONG = [
    ("(2,4)", "(4,2)"),
    ("(2,4)", "[2,4]"),
    ("[2,5)", "(2,5]"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("1,2", "1,2,2"),
    ("AB=9, CD=4", "4,9"),
    ("n=2,3,4", "n=1,2,3"),
    ("D=(0,1)", "D=(0,1.5)"),
    (r"\pm 2021", "2021"),
    ("12:00", "1:00"),
    ("3:1", "1:3"),
    (r"9\text{ a.m.}", "9 p.m."),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    ("e^{-200}", "e^{-201}"),
    ("2^{2008}-2", "2^{2008}-3"),
    (r"2^{2008}+\pi", "2^{2008}+e"),
    ("x+y=10^{50}", "x+y=10^{50}+1"),
    ("3x-y+13=0", "3x+4y+14=0"),
    (r"\frac{x^2}{4}+\frac{y^2}{3}=1", r"\frac{x^2}{16}+\frac{y^2}{12}=1"),
    ("x=3", "y=3"),
    ("2", "2 2/3"),
    (r"\frac{1}{3}", r"\frac{1}{2}"),
    ("-5", "5"),
    ("7", "x=5 or x=7"),
    ("28", r"28\%"),
    (r"\frac13", "0.333"),
    (r"\frac13", "0.3333333333"),
    (r"\sqrt2", "1.41421"),
    (r"\sqrt2", "1.41421356237309504880168872420969807856967187537"),
    ("101_2", "5"),
    ("52_8", "53_8"),
    (r"\frac{\pi}{2}", r"90^\circ"),
    (r"\cos 58^\circ", r"\cos 58"),
    ("ax+b", "cx+d"),
    ("2B", "2b"),
    ("a", "A"),
    (r"\log 2", r"\ln 2"),
    (r"\sqrt{x^2}", "x"),
    (r"5\text{ cm}", "5 m"),
    (r"5\text{ cm}", r"5\text{ cm}^2"),
    ("115,000", "115,0"),
    ("10", "10\u00b2"),
    ("5", "5 million"),
    ("5", "5x"),
    ("2", "2x=4"),
    ("42", r"\frac{1}{0}"),
    ("neither", "both"),
    ("x^2+1", "."),
]


@pytest.mark.parametrize(("gold", "answer", "right"), [(*p, True) for p in RIGHT] + [(*p, False) for p in WRONG])
def test_pairs_both_ways_round(gold, answer, right):
    assert verify(gold, rf"so \boxed{{{answer}}}").right is right
    assert compare(answer, gold).right is right
    assert compare(gold, gold, exact=False).right and (compare(answer, answer, exact=False).right or not right)


@pytest.mark.parametrize(
    ("gold", "answer"), [("101_8", "101"), ("152A_{11}", "152A"), (r"\$\dfrac23 \approx \$0.67", "2/3")]
)
def test_what_only_a_gold_may_say(gold, answer):
    assert compare(gold, answer).right
    assert not compare(answer, gold).right


@pytest.mark.parametrize(
    ("gold", "answer", "question", "right"),
    [
        ("28", "28%", "What percent of them?", True),
        ("28", "28 percent", "What percentage?", True),
        (r"28\%", "28", "What percent of them?", True),
        ("28", "28%", "How many?", False),
        (r"\sqrt2", "1.414", "Give an approximate value.", True),
        ("1.41", r"\sqrt2", "Round to the nearest hundredth.", True),
        ("3.142", "3.14159", "to three decimal places", True),
        ("3.142", "3.14", "to three decimal places", False),
        ("3", "3.14", "to the nearest integer", False),
        ("81", "3^4", "Compute $3^4$.", False),
        ("81", "9^2", "Compute $3^4$.", True),
        ("3^4", "3^4", "Write $3^4$ as a power.", True),
    ],
)
def test_what_the_question_asks_for(gold, answer, question, right):
    assert verify(gold, f"Final Answer: {answer}", question).right is right


def test_only_the_answer_region_is_read():
    block = "<Parallel><Path>Final Answer: 1</Path><Path>\\boxed{2}</Path></Parallel>\n<Summary>#### 3</Summary>"
    assert verify("1", block).outcome == "no_answer"
    assert verify("4", f"{block}\nFinal Answer: 4").right
    assert verify("4", f"Final Answer: 4{block}").outcome == "no_answer"


def test_a_hedge_is_wrong_whatever_its_form():
    for hedge in (r"\boxed{5} or \boxed{7}", "5 or 7", "x=5, x=7", r"\{5, 7\}", "5 = 7"):
        assert not verify("7", f"Final Answer: {hedge}").right
        assert not verify("5", f"Final Answer: {hedge}").right


def test_an_unreadable_gold_is_an_error_and_never_pays():
    assert verify("", "Final Answer: ").outcome == "no_answer"
    assert verify("  ", "Final Answer: 4").outcome == "error"


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_whole_numbers(gold, answer):
    assert compare(str(gold), f"${answer:,}$").right is (gold == answer)


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_taken(gold, response):
    verdict = verify(gold, f"Final Answer: {response}")
    assert verdict.outcome in ("right", "wrong", "no_answer", "timeout") or not gold.strip()
    assert not gold.strip() or compare(gold, gold).right
    assert normalise(normalise(response)) == normalise(response) or len(response) > 1


@pytest.mark.skipif("PARALLEL_R1_DATA" not in os.environ, reason="PARALLEL_R1_DATA names no folder of data sets")
def test_real_golds_equal_themselves():
    parquet = pytest.importorskip("pyarrow.parquet")
    golds = []
    for path in sorted(Path(os.environ["PARALLEL_R1_DATA"]).glob("*.parquet")):
        golds += parquet.read_table(path, columns=["answer"]).column("answer").to_pylist()[::10]
    assert golds
    for spelling in ("Final Answer: {}", r"\boxed{{{}}}"):
        verdicts = verify_all([(gold, spelling.format(gold), "") for gold in golds])
        assert [gold for gold, verdict in zip(golds, verdicts, strict=True) if not verdict.right] == []
