"""The layout rule against an oracle that follows its words, token by token."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.trace.layout import layout
from parallel_r1.trace.tags import TagIds

TAGS = TagIds(101, 102, 103, 104, 105, 106, newline=(10,))
OPEN, CLOSE, PATH, END_PATH, SUMMARY, END_SUMMARY = TAGS.in_order
TAG = st.sampled_from(TAGS.in_order)
TEXT = st.lists(st.integers(0, 90), max_size=6)
HEAD = st.lists(st.integers(0, 90), max_size=2)


@st.composite
def traces(draw, max_paths=8, max_blocks=3):
    """(ids, blocks); a block is the index of the last token before its paths, and those with their tags."""
    ids, blocks = [*draw(TEXT), 1], []
    for _ in range(draw(st.integers(0, max_blocks))):
        paths = [[PATH, *draw(TEXT), END_PATH] for _ in range(draw(st.integers(1, max_paths)))]
        ids += [OPEN, *draw(HEAD)]
        blocks.append((len(ids) - 1, paths))
        ids += [*(t for p in paths for t in p), CLOSE, 10, SUMMARY, *draw(TEXT), END_SUMMARY, *draw(TEXT)]
    return ids, blocks


def oracle(ids, variant, phase):
    """positions and the visibility matrix by definition: segments of each block, then pairs of tokens."""
    num = len(ids)
    segment, block, position = [None] * num, [None] * num, [0] * num
    closed_at, opener, fork, current, next_position = {}, None, 0, None, 0
    starts: dict[int, int] = {}
    for i, token in enumerate(ids):
        plain = variant == "causal" and (phase == "scoring" or (opener is not None and CLOSE in ids[opener:]))
        if opener is None:
            position[i] = next_position
            next_position += 1
            if token == OPEN:
                opener, fork, current, starts = i, i, None, {}
            continue
        if current is None and token not in (PATH, END_PATH, CLOSE):  # all paths see what stands before them
            position[i], fork = next_position, i
            next_position += 1
            continue
        if token == CLOSE:
            closed_at[opener] = i
            longest = max(starts.values(), default=0)
            position[i] = next_position if plain else position[fork] + 1 + longest
            next_position = position[i] + 1
            opener = None
            continue
        if token == PATH or current is None:
            current = i
        segment[i], block[i] = current, opener
        starts[current] = starts.get(current, 0) + 1
        position[i] = next_position if plain else position[fork] + starts[current]
        next_position += 1
        if token == END_PATH:
            current = i + 1
    visible = np.zeros((num, num), dtype=bool)
    for q in range(num):
        for k in range(q + 1):
            siblings = block[q] is not None and block[q] == block[k] and segment[q] != segment[k]
            if siblings and variant == "causal":
                siblings = phase == "decoding" and block[q] not in closed_at
            visible[q, k] = not siblings
    return position, visible


def assert_rule(ids, variant, phase="scoring"):
    row = layout(ids, TAGS, variant, phase)
    position, visible = oracle(ids, variant, phase)
    assert row.position.tolist() == position
    assert (row.visible() == visible).all()


VARIANTS = pytest.mark.parametrize("variant", ["causal", "structured"])
PHASES = pytest.mark.parametrize("phase", ["scoring", "decoding"])


@VARIANTS
@PHASES
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_the_oracle_cut_anywhere(variant, phase, data):
    ids, _ = data.draw(traces())
    assert_rule(ids[: data.draw(st.integers(0, len(ids)))], variant, phase)


@VARIANTS
@PHASES
@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.one_of(TAG, st.integers(0, 5)), max_size=30))
def test_equals_the_oracle_on_any_heap_of_tags(variant, phase, ids):
    assert_rule(ids, variant, phase)


@VARIANTS
@settings(max_examples=25, deadline=None)
@given(trace=traces())
def test_the_past_never_depends_on_the_future(variant, trace):
    ids, _ = trace
    whole = layout(ids, TAGS, variant)
    for cut in range(len(ids) + 1):
        row = layout(ids[:cut], TAGS, variant)
        assert (row.position == whole.position[:cut]).all()
        assert (row.visible() == whole.visible()[:cut, :cut]).all()


@settings(max_examples=40, deadline=None)
@given(trace=traces(max_blocks=1), seed=st.randoms(use_true_random=False))
def test_path_order_does_not_matter(trace, seed):
    ids, blocks = trace
    if not blocks:
        return
    (start, paths), order = blocks[0], list(range(len(blocks[0][1])))
    seed.shuffle(order)
    spans, at = [], start + 1
    for path in paths:
        spans.append(range(at, at + len(path)))
        at += len(path)
    old_places = [*range(start + 1), *(i for k in order for i in spans[k]), *range(at, len(ids))]
    row, shuffled = layout(ids, TAGS, "structured"), layout([ids[i] for i in old_places], TAGS, "structured")
    assert (shuffled.position == row.position[old_places]).all()
    # Across paths nothing is seen in either order; within a path the order is kept.
    assert (shuffled.visible()[at:] == row.visible()[at:][:, old_places]).all()
    for k in order:
        new = [old_places.index(i) for i in spans[k]]
        past = [*range(start + 1)]
        assert (
            shuffled.visible()[np.ix_(new, past + new)] == row.visible()[np.ix_(spans[k], past + list(spans[k]))]
        ).all()


def test_three_paths_by_hand():
    # Base 10, lengths 4, 9, 6: ends at 13, 18, 15, and </Parallel> at 19.
    paths = [[PATH, *[1] * (n - 2), END_PATH] for n in (4, 9, 6)]
    ids = [*range(9), OPEN, *(t for p in paths for t in p), CLOSE, 10]
    row = layout(ids, TAGS, "structured")
    assert row.position[9] == 9
    assert row.position[10:14].tolist() == [10, 11, 12, 13]
    assert row.position[14:23].tolist() == list(range(10, 19))
    assert row.position[23:29].tolist() == list(range(10, 16))
    assert row.position[29:].tolist() == [19, 20]
    visible = row.visible()
    assert visible[29, :30].all()
    assert not visible[14:23, 10:14].any() and not visible[23:29, 10:23].any()
    assert visible[28, :10].all()


def test_a_cut_block_stays_hidden_to_the_end_of_the_row():
    ids = [7, OPEN, PATH, 1, END_PATH, PATH, 2]
    row = layout(ids, TAGS, "structured")
    assert row.hidden_to[2:].tolist() == [len(ids)] * 5
    assert row.hidden_from[2:5].tolist() == [5] * 3


def test_text_between_paths_belongs_to_nobody():
    ids = [OPEN, PATH, 1, END_PATH, 6, PATH, 2, END_PATH, CLOSE, 9]
    row = layout(ids, TAGS, "structured")
    visible = row.visible()
    assert row.position.tolist() == [0, 1, 2, 3, 1, 1, 2, 3, 4, 5]
    assert not visible[4, 1:4].any() and not visible[5:8, 1:5].any()
    assert visible[8:, :8].all()


@VARIANTS
def test_all_paths_see_the_number_before_them(variant):
    ids = [7, OPEN, 2, PATH, 1, END_PATH, PATH, 3, 4, END_PATH, CLOSE, 9]
    row = layout(ids, TAGS, variant, "decoding")
    closed = [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]
    assert row.position.tolist() == (closed if variant == "structured" else list(range(12)))
    cut = layout(ids[:9], TAGS, variant, "decoding")
    assert cut.position.tolist() == closed[:9]
    assert cut.visible()[6:, :3].all() and not cut.visible()[6:, 3:6].any()


def test_causal_closed_blocks_are_plain_while_decoding():
    block = [OPEN, PATH, 1, END_PATH, PATH, 2, END_PATH, CLOSE]
    ids = [5, *block, 3, *block[:-1]]
    row = layout(ids, TAGS, "causal", "decoding")
    assert row.position[:11].tolist() == list(range(11))
    assert row.position[11:].tolist() == [11, 12, 13, 11, 12, 13]
    assert (layout(ids, TAGS, "causal").position == np.arange(len(ids))).all()


def test_unknown_variant_is_named():
    with pytest.raises(ValueError, match=r"variant = 'seen'.*structured"):
        layout([1], TAGS, "seen")


def test_a_training_batch_is_laid_out_in_milliseconds():
    paths = [PATH, *[1] * 15, END_PATH] * 4
    row = np.array([5] * 30 + [OPEN, *paths, CLOSE, 10, SUMMARY, *[2] * 10, END_SUMMARY] * 2)
    layout(row, TAGS, "structured")
    best = min(_seconds(lambda: [layout(row, TAGS, "structured") for _ in range(100)]) for _ in range(5))
    assert best < 0.05


def _seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
