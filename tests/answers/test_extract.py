"""Where an answer is found, and where there is none."""

import pytest

from parallel_r1.answers.extract import extract


@pytest.mark.parametrize(
    ("region", "answer"),
    [
        ("Final Answer: 42", "42"),
        ("Final Answer: 1\nno\nFinal Answer: 2\nmore", "2"),
        ("**Final Answer:** $42$.", "42"),
        ("**Final answer: 42**", "42"),
        ("Final Answer:\n\\[ 42 \\]", "42"),
        ("Final Answer:\n\\[\n42\n\\]\nDone", "42"),
        ("Final Answer: $$\n42\n$$", "42"),
        (r"Final Answer: \(\boxed{\frac{1}{2}}\)", r"\frac{1}{2}"),
        (r"Final Answer: 5, since \boxed{6} was wrong", "6"),
        (r"\boxed{6}, but Final Answer: 5", "5"),
        ("Final Answer: \\boxed{\\begin{pmatrix} 1\\\\\n2 \\end{pmatrix}}", "\\begin{pmatrix} 1\\\\\n2 \\end{pmatrix}"),
        ("Final Answer: \\frac{1}\n{2} is it", "\\frac{1}"),
        ("Final Answer: \\text{two\nlines}", "\\text{two lines}"),
        (r"\boxed{1} then \boxed{2} done", "2"),
        (r"\fbox{42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"Final Answer: $\$5.50$", r"\$5.50"),
        ("Final Answer: $1$ and $2$", "$1$ and $2$"),
        (r"\boxed{42}" + "x" * 1700, "42"),
        ("#### 42", "42"),
        ("Final Answer: 5!", "5!"),
        (r"\boxed{42", None),
        (r"\boxed{1} \boxed{42", None),
        ("Final Answer: \\boxed{42", None),
        ("I considered 42 but could not finish.", None),
        ("Final Answer: ", None),
        ("**42**", None),
        ("", None),
    ],
)
def test_extract(region, answer):
    assert extract(region) == answer


def test_two_boxes_on_the_final_line_are_two_answers():
    assert extract(r"Final Answer: \boxed{42} or $\boxed{43}$") == "42 or 43"
