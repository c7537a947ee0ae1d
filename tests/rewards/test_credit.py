"""Advantages per token: GRPO by hand, paths by their own merit, exact zeros."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_r1.models.tiny import tiny_tokenizer
from parallel_r1.rewards.credit import relative, token_advantages
from parallel_r1.tasks.countdown import Countdown
from parallel_r1.trace.tags import TAGS, parse_ids, render_block
from parallel_r1.trace.tokens import encode_trace, tag_ids
from parallel_r1.types import Group, Rollout, ScoredRollout, Verdict

TOKENIZER = tiny_tokenizer()
TOKENIZER.add_tokens(list(TAGS))
TAG_IDS = tag_ids(TOKENIZER)
PROBLEM = Countdown().problem((8, 3, 3), 21, "easy")


def member(paths, reward, judged):
    ids = tuple(encode_trace(TOKENIZER, render_block(paths, "s") + "yy", TAG_IDS))
    zeros = (0.0,) * len(ids)
    rollout = Rollout(
        "p", (1,), ids, (False,) * len(ids), zeros, zeros, (1.0,) * len(ids), "stop", False, (0,), 0, 1, 1
    )
    verdict = Verdict("right" if reward > 0 else "wrong", None)
    return ScoredRollout(rollout, "", parse_ids(ids, TAG_IDS), verdict, reward, {}, judged)


def spans(one):
    return [(path.start, path.end) for block in one.trace.blocks for path in block.paths]


def test_a_response_shares_one_advantage():
    group = Group(PROBLEM, (member(["a", "b"], 1.0, ((True, False),)), member(["c", "d"], -1.0, ((False, False),))))
    right, wrong = token_advantages(group, "response", "mean_std")
    assert np.allclose(right, 1 / (2**0.5 + 1e-4)) and np.allclose(wrong, -right[0])
    assert [a[0] for a in token_advantages(group, "response", "mean")] == [1.0, -1.0]


def test_a_path_earns_its_own():
    judged = [((True, False),), ((False, False),), None]
    members = [member(["aa", "b"], 1.0, judged[0]), member(["c", "dd"], -1.0, judged[1]), member(["e", "f"], 1.0, None)]
    found = token_advantages(Group(PROBLEM, tuple(members)), "path", "mean")
    values = [0.75, -0.25, -0.25, -0.25]
    places = [(index, *span) for index in (0, 1) for span in spans(members[index])]
    for (index, start, end), value in zip(places, values, strict=True):
        assert np.allclose(found[index][start:end], value)
    assert np.allclose(found[2], 2 / 3)  # nothing is known of its paths: the response's own advantage


def test_the_rest_is_compared_with_what_stands_in_the_same_place():
    """A summary is praised or blamed for what it made of its paths, not for what they were."""
    copied, missed = member(["aa", "b"], 1.0, ((True, False),)), member(["aa", "c"], -1.0, ((True, False),))
    honest, other = member(["b", "c"], -1.0, ((False, False),)), member(["d", "e"], -1.0, ((False, False),))
    group = Group(PROBLEM, (copied, missed, honest, other))
    found = token_advantages(group, "path", "mean")
    after = [advantages[spans(one)[-1][1] :] for one, advantages in zip(group.members, found, strict=True)]
    assert [set(values.tolist()) for values in after] == [{1.0}, {-1.0}, {0.0}, {0.0}]
    before = [advantages[0] for advantages in found]
    assert before == [1.5, -0.5, -0.5, -0.5]  # whether to fork is compared over the whole group
    assert [a[-1] for a in token_advantages(group, "response", "mean")] == [1.5, -0.5, -0.5, -0.5]


def test_a_second_block_is_another_place():
    ids = tuple(encode_trace(TOKENIZER, render_block(["a", "b"], "s") + render_block(["c", "d"], "s") + "y", TAG_IDS))
    one = member(["a", "b"], 1.0, None)
    trace = parse_ids(ids, TAG_IDS)
    rollout = dataclasses.replace(one.rollout, response_ids=ids, allowed_mass=(1.0,) * len(ids))
    found_late = dataclasses.replace(one, rollout=rollout, trace=trace, path_right=((False, False), (False, True)))
    never = dataclasses.replace(found_late, path_right=((False, False), (False, False)), reward=-1.0)
    first, second = token_advantages(Group(PROBLEM, (found_late, never)), "path", "mean")
    between = slice(trace.blocks[0].paths[-1].end, trace.blocks[1].paths[0].start)
    assert set(first[between].tolist()) == {1.0} and set(second[between].tolist()) == {-1.0}
    assert first[-1] == second[-1] == 0.0  # each is alone in its situation


def test_paths_teach_where_all_responses_earn_the_same():
    members = tuple(member(["a", "b"], 1.0, ((True, right),)) for right in (True, False))
    found = token_advantages(Group(PROBLEM, members), "path", "mean_std")
    start, end = spans(members[1])[1]
    assert (found[1][start:end] < 0).all() and (found[0][spans(members[0])[0][0]] > 0)
    assert found[0][0] == found[1][-1] == 0.0


@pytest.mark.parametrize("credit", ["response", "path"])
def test_equal_rewards_and_verdicts_are_exactly_zero(credit):
    members = tuple(member(["a", "b"], 0.1 + 0.2, ((False, False),)) for _ in range(3))
    assert all(
        (advantages == 0.0).all() for advantages in token_advantages(Group(PROBLEM, members), credit, "mean_std")
    )


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=9), st.sampled_from(["mean_std", "mean"]))
def test_relative_values_sum_to_zero_and_keep_their_order(values, scale):
    found = relative(values, scale)
    assert abs(found.sum()) < 1e-6 * max(1.0, abs(found).max())
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= -1e-9).all()
