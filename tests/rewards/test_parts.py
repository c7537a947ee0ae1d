"""Reward parts: the table of the paper's section on rewards, and what they may never do."""

import itertools
import math

import pytest

from parallel_r1.rewards.parts import accuracy, checked_rewards, parallel_and_accuracy, tiered


@pytest.mark.parametrize(
    ("part", "right", "good", "malformed", "total"),
    [
        (accuracy, True, False, False, 1.0),
        (accuracy, False, True, False, -1.0),
        (parallel_and_accuracy, True, True, False, 1.0),
        (parallel_and_accuracy, True, False, False, -1.0),
        (parallel_and_accuracy, False, True, False, -1.0),
        (tiered, True, True, False, 1.2),
        (tiered, True, False, False, 1.0),
        (tiered, True, False, True, 1.0),
        (tiered, False, True, False, -1.0),
        (tiered, False, False, True, -1.0),
    ],
)
def test_totals_are_the_papers(part, right, good, malformed, total):
    assert math.isclose(sum(part(right, good, malformed).values()), total)


@pytest.mark.parametrize(("right", "total"), [(True, -1.0), (False, -1.0)])
def test_release_compat_pays_nothing_for_a_malformed_block(right, total):
    for good in (False, True):
        assert sum(tiered(right, good, True, release_compat=True).values()) == total


def test_release_compat_changes_nothing_without_a_fault():
    for right, good in itertools.product((False, True), repeat=2):
        assert tiered(right, good, False, release_compat=True) == tiered(right, good, False)


@pytest.mark.parametrize("values", [[1.0], [1.0] * 9, [], [[1.0]] * 7])
def test_a_wrong_number_of_values_names_the_function(values):
    with pytest.raises(ValueError, match=rf"'my_reward' returned {len(values)} values, expected 8"):
        checked_rewards("my_reward", values, 8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "1"])
def test_a_value_that_is_no_number_names_the_function(bad):
    with pytest.raises(ValueError, match=r"'my_reward' returned .* for completion 2 of 3"):
        checked_rewards("my_reward", [1.0, 0, bad], 3)


def test_good_values_pass_unchanged():
    assert checked_rewards("my_reward", [1, True, -0.5], 3) == [1.0, 1.0, -0.5]
