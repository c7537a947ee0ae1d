"""Metrics against enumeration and hand-counted cases."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.evaluate import metrics
from parallel_r1.trace.tags import parse_text, render_block


def test_one_right_of_sixteen():
    assert metrics.pass_at_k(16, 1, 8) == pytest.approx(0.5)
    assert metrics.pass_at_k(16, 1, 16) == 1.0
    assert metrics.mean_at_k([(16, 1)]) == pytest.approx(0.0625)
    with pytest.raises(ValueError, match=r"k = 32.*n = 16"):
        metrics.pass_at_k(16, 1, 32)


@given(st.integers(1, 8), st.data())
@settings(deadline=None, max_examples=60)
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations(range(n), k))
    share = sum(any(i < c for i in subset) for subset in subsets) / len(subsets)
    assert metrics.pass_at_k(n, c, k) == pytest.approx(share)


def test_pass_at_one_is_the_mean():
    counts = [(4, 1), (8, 8), (2, 0)]
    assert metrics.mean_pass_at_k(counts, 1) == pytest.approx(metrics.mean_at_k(counts))


@pytest.mark.parametrize("counts", [[], [(0, 0)], [(4, 5)], [(4, -1)]])
def test_counts_that_cannot_be(counts):
    with pytest.raises(ValueError, match="problem"):
        metrics.mean_at_k(counts)


def test_bootstrap_is_seeded_and_covers_the_mean():
    values = np.random.default_rng(0).random(100).tolist()
    low, high = metrics.bootstrap_ci(values, seed=3)
    assert (low, high) == metrics.bootstrap_ci(values, seed=3) != metrics.bootstrap_ci(values, seed=4)
    assert low < np.mean(values) < high
    # The normal approximation of the same interval.
    assert high - low == pytest.approx(2 * 1.96 * np.std(values) / 10, rel=0.1)


def test_bootstrap_in_chunks_equals_one_draw(monkeypatch):
    values = [0.0, 0.25, 1.0, 0.5, 0.75]
    whole = metrics.bootstrap_ci(values)
    monkeypatch.setattr(metrics, "_CHUNK", 37)
    assert metrics.bootstrap_ci(values) == whole


def test_bootstrap_of_equal_values_is_a_point():
    assert metrics.bootstrap_ci([0.5] * 9) == (0.5, 0.5)
    with pytest.raises(ValueError, match="at least one problem"):
        metrics.bootstrap_ci([])


def test_pairing_takes_out_what_both_arms_share():
    hard = np.random.default_rng(1).random(60)
    gap, (low, high) = metrics.paired_difference((hard + 0.05).tolist(), hard.tolist())
    assert gap == pytest.approx(0.05) and low == pytest.approx(0.05) and high == pytest.approx(0.05)
    with pytest.raises(ValueError, match="same problems"):
        metrics.paired_difference([1.0], [1.0, 0.0])


def test_shares_over_responses():
    block = render_block(["a", "b"], "s")
    traces = [parse_text(t) for t in ("no block", block, block.replace("</Summary>", ""), f"xx{block}")]
    assert metrics.parallel_ratio([len(t.blocks) for t in traces]) == 0.75
    assert metrics.well_formed_share(traces) == pytest.approx(2 / 3)
    assert metrics.well_formed_share(traces[:1]) is None
    assert metrics.block_positions(traces[3], len(block) + 2) == [2 / (len(block) + 2)]
    assert metrics.block_positions(traces[0], 8) == []


def test_distinctness():
    assert metrics.path_distinctness(["8*3=24", "8*3=24"]) == 0.0
    assert metrics.path_distinctness(["8*3=24", "5+6=11"]) == 1.0
    assert 0 < metrics.path_distinctness(["8*3=24,24-3=21", "8*3=24,24+3=27"]) < 1
    assert metrics.path_distinctness(["8*3=24"]) is None
    assert metrics.path_distinctness(["", ""]) == 0.0


def test_selection():
    assert metrics.selection(0.2, 0.4) == pytest.approx(0.5)
    assert metrics.selection(0.2, None) is None and metrics.selection(0.2, 0.0) is None
