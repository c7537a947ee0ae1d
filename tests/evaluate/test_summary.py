"""From responses to figures: equal budgets, votes, the null."""

import pytest

from parallel_r1.evaluate.summary import equal_budgets, majority_is_right, null_accuracy
from parallel_r1.tasks.countdown import Countdown, random_null
from parallel_r1.types import Problem

COUNTDOWN = Countdown().problem((8, 3, 3), 21, "easy")


def response(problem, answer, right, total, critical=0):
    verdict = {"outcome": "right" if right else "wrong" if answer else "no_answer", "answer": answer}
    return {"problem_id": problem, "verdict": verdict, "total_tokens": total, "critical_tokens": critical}


def test_equal_budgets_by_hand():
    forked = [response("a", "1", True, 90, 30), response("a", "1", True, 110, 50), response("b", "2", True, 100, 10)]
    sequential = [
        response("a", "1", True, 40), response("a", "9", False, 41), response("a", "1.0", False, 20),
        response("b", "7", False, 20), response("b", "2", True, 12), response("b", "2", True, 9),
    ]  # fmt: skip
    found = equal_budgets(forked, sequential, votes=True)
    # Critical paths: 40 for a, 10 for b.
    assert found["sequential_capped"] == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert found["sequential_capped_tokens"] == pytest.approx((40 + 40 + 20 + 10 + 10 + 9) / 6)
    # 100 tokens pay for 4 samples of 23.7; three were drawn. a: 1, 9, 1.0 (the first wins); b: 7, 2, 2.
    assert found["majority_votes"] == 3 and found["majority"] == 1.0
    assert found["majority_tokens"] == pytest.approx(3 * 142 / 6)
    one = equal_budgets(forked[:2], sequential, votes=True)
    assert equal_budgets(forked, sequential, votes=False)["majority"] is None
    assert one["sequential_capped"] == pytest.approx(1 / 3 / 2)  # no forked response of b: nothing fits


def test_a_vote_takes_the_earliest_of_equally_frequent_answers_and_skips_silence():
    rows = [response("a", None, False, 9), response("a", "3", False, 9), response("a", "4", True, 9)]
    assert not majority_is_right(rows) and majority_is_right(rows[::-1]) and not majority_is_right(rows[:1])


def test_the_null_uses_the_attempts_of_each_response():
    expected = (random_null([COUNTDOWN], 1) + random_null([COUNTDOWN], 4)) / 2
    assert null_accuracy([COUNTDOWN, COUNTDOWN], [1, 4]) == pytest.approx(expected)
    assert null_accuracy([Problem("s", "serial", "easy", "q", "1")], [3]) is None
