"""The state machine: grammar, budgets, inserted tokens. No model is needed."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.config import EngineConfig
from parallel_r1.engine.branch import Branch
from parallel_r1.engine.rules import Rule, forbidden_ids
from parallel_r1.engine.steps import MAIN, Sampled
from parallel_r1.trace.layout import layout
from parallel_r1.trace.tags import TagIds, parse_ids

COUNTS = tuple(range(91, 99))
TAGS = TagIds(101, 102, 103, 104, 105, 106, newline=(10,), counts=COUNTS)
OPEN, CLOSE, PATH, END_PATH, SUMMARY, END_SUMMARY = TAGS.in_order
STOP = 1
PROMPT = 5


VARIANTS = pytest.mark.parametrize("variant", ["causal", "structured"])


def config(**changes):
    base = {"paths": 2, "max_blocks": 2, "max_response_tokens": 80, "path_budget": 10, "answer_reserve": 10}
    return EngineConfig(**{**base, **changes})


def play(choose, cfg, variant="structured", tags=TAGS, listener=None):
    """Drive a branch; ``choose(branch, strand)`` gives the sampled token. Returns (branch, feeds, reason)."""
    branch = Branch(cfg, tags, (STOP,), variant, PROMPT, listener)
    feeds = []
    for _ in range(1000):
        step = branch.advance([Sampled(choose(branch, strand), -1.0, -0.5, 0.9) for strand in branch.strands])
        feeds.append(step)
        if step.done:
            return branch, feeds, step.done
    raise AssertionError("never ends")


def script(main, paths):
    """A chooser that reads the main strand and each (block, path) from lists, in order."""
    left = {MAIN: list(main)}

    def choose(branch, strand):
        key = MAIN if strand == MAIN else (branch.num_blocks - 1, strand)
        if key not in left:
            left[key] = list(paths[key[0]][strand])
        return left[key].pop(0)

    return choose


def ids_of(branch):
    return [w.token for w in branch.written]


def test_one_block_in_canonical_order_with_its_inserted_tokens():
    choose = script([7, OPEN, 8, END_SUMMARY, 9, STOP], [[[20, 21, END_PATH], [30, END_PATH]]])
    branch, _, reason = play(choose, config())
    assert reason == "stop" and not branch.truncated
    assert ids_of(branch) == [7, OPEN, PATH, 20, 21, END_PATH, PATH, 30, END_PATH, CLOSE, 10, SUMMARY, 8, END_SUMMARY,
                              9, STOP]  # fmt: skip
    inserted = [i for i, w in enumerate(branch.written) if w.forced]
    assert inserted == [2, 6, 9, 10, 11]
    for w in branch.written:
        numbers = (w.engine_logp, w.sampling_logp, w.allowed_mass)
        assert numbers == ((0.0, 0.0, 1.0) if w.forced else (-1.0, -0.5, 0.9))
    assert branch.critical_tokens == 16 - 3 and branch.num_blocks == 1


@pytest.mark.parametrize("variant", ["causal", "structured"])
def test_tokens_are_fed_at_the_positions_of_the_layout(variant):
    choose = script(
        [7, OPEN, 8, END_SUMMARY, OPEN, END_SUMMARY, 9, STOP],
        [[[20, 21, END_PATH], [30, END_PATH], [END_PATH]], [[END_PATH], [41, 42, 43, END_PATH], [50, END_PATH]]],
    )
    branch, steps, _ = play(choose, config(paths=3), variant)
    row = layout([2] * PROMPT + ids_of(branch), TAGS, variant)
    fed = {(f.token, f.position) for step in steps for f in step.feed}
    for token, position in list(zip(ids_of(branch), row.position[PROMPT:].tolist(), strict=True))[:-1]:
        assert (token, position) in fed
    assert sum(step.rewind for step in steps) == (2 if variant == "causal" else 0)


def test_causal_join_feeds_what_a_plain_reader_still_lacks():
    choose = script([OPEN, END_SUMMARY, STOP], [[[20, 21, END_PATH], [30, END_PATH]]])
    _, steps, _ = play(choose, config(), "causal")
    (join,) = [step for step in steps if step.rewind]
    # Path 1 ended last, so its own closing tag has not been read yet.
    assert [f.token for f in join.feed] == [END_PATH, PATH, 30, END_PATH, CLOSE, 10, SUMMARY]
    assert [f.position for f in join.feed] == list(range(PROMPT + 4, PROMPT + 11))
    assert [f.sample for f in join.feed] == [False] * 6 + [True]


def test_rules_of_every_region():
    seen = {}

    def choose(branch, strand):
        seen.setdefault((len(branch.written), strand), branch.rule(strand))
        return script_choose(branch, strand)

    script_choose = script([7, OPEN, 8, END_SUMMARY, STOP], [[[20, END_PATH], [END_PATH]]])
    play(choose, config(max_blocks=1))
    assert seen[(0, MAIN)] == Rule.MAY_FORK
    assert {rule for (_, strand), rule in seen.items() if strand != MAIN} == {Rule.PATH}
    assert seen[(10, MAIN)] == seen[(11, MAIN)] == Rule.SUMMARY
    assert seen[(12, MAIN)] == Rule.MAIN  # the block limit is reached


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (Rule.MAY_FORK, {OPEN, STOP}),
        (Rule.MAIN, {STOP}),
        (Rule.PATH, {END_PATH}),
        (Rule.SUMMARY, {END_SUMMARY}),
        (Rule.NO_FORK, set(TAGS.all) - {OPEN} | {STOP}),
        (Rule.FREE, set(TAGS.all) | {STOP}),
        (Rule.COUNT, set()),
    ],
)
def test_table_of_allowed_tags(rule, allowed):
    assert (set(TAGS.all) | {STOP}) - forbidden_ids(rule, TAGS, (STOP,)) == allowed


def test_a_path_that_meets_its_budget_is_closed_by_force():
    branch, _, reason = play(
        lambda b, s: OPEN if not b.num_blocks else END_SUMMARY if b.rule(s) == Rule.SUMMARY else 7 if s == 0
        else END_PATH if s == 1 else STOP,
        config(),
    )  # fmt: skip
    first = ids_of(branch)[1:11]
    assert first == [PATH, *[7] * 8, END_PATH] and branch.written[10].forced
    assert not branch.written[12].forced  # the second path closed itself
    assert branch.truncated and reason == "stop"


def test_no_block_opens_that_could_not_be_finished():
    cfg = config(max_response_tokens=40)
    main = 0

    def choose(branch, strand):
        nonlocal main
        if strand != MAIN:
            return 7
        main += 1
        may = branch.rule(strand) == Rule.MAY_FORK
        # 1 + 2 * 3 + 1 + 10 tokens must fit after the `main` ones.
        assert may == (main - 1 + 18 <= 40 and branch.num_blocks == 0) or branch.num_blocks
        return OPEN if may and main == 20 else END_SUMMARY if branch.rule(strand) == Rule.SUMMARY else 7

    branch, _, _ = play(choose, cfg)
    assert branch.num_blocks == 1
    assert len(branch.written) == 40 and parse_ids(ids_of(branch), TAGS).blocks[0].closed


def test_running_out_in_the_summary_is_truncated():
    branch, _, reason = play(lambda b, s: OPEN if b.rule(s) == Rule.MAY_FORK and b.num_blocks < 1 else 7, config())
    assert reason == "length" and branch.truncated and len(branch.written) == 80


def test_stopping_on_the_last_token_is_not_truncated():
    cfg = config(max_response_tokens=20, max_blocks=0)
    branch, _, reason = play(lambda b, s: STOP if len(b.written) == 19 else 7, cfg)
    assert reason == "stop" and not branch.truncated and len(branch.written) == 20


def test_empty_paths_and_one_path():
    choose = script([OPEN, END_SUMMARY, STOP], [[[END_PATH]]])
    branch, _, _ = play(choose, config(paths=1))
    assert ids_of(branch) == [OPEN, PATH, END_PATH, CLOSE, 10, SUMMARY, END_SUMMARY, STOP]


def test_early_join_closes_the_last_paths_by_force_and_marks_them():
    paths = [[20, 21, 22, 23, END_PATH], [30, END_PATH], [40, END_PATH], [50, 51, 52, END_PATH]]
    for share, lengths, cut in ((0.5, [4, 3, 3, 4], [(0, 0), (0, 3)]), (0.75, [6, 3, 3, 5], [(0, 0)])):
        branch, _, _ = play(script([OPEN, 8, END_SUMMARY, STOP], [paths]), config(paths=4, early_join=share))
        (block,) = parse_ids(ids_of(branch), TAGS).blocks
        expected = [4, 3, 3, 4] if share == 0.5 else [6, 3, 3, 5]
        assert [span.end - span.start for span in block.paths] == expected == lengths
        assert branch.cut_paths == cut and not branch.truncated and block.well_formed
        for number, span in enumerate(block.paths):
            assert branch.written[span.end - 1].forced == ((0, number) in cut)
        assert branch.critical_tokens == len(branch.written) - sum(lengths) + max(lengths)


def test_a_path_at_its_budget_is_marked_too():
    branch, _, _ = play(script([OPEN, END_SUMMARY, STOP], [[[7] * 20, [7, END_PATH]]]), config())
    assert branch.cut_paths == [(0, 0)] and branch.truncated


@VARIANTS
def test_the_model_says_how_many_paths_a_block_gets(variant):
    text = [7, OPEN, COUNTS[2], 8, END_SUMMARY, OPEN, COUNTS[0], 8, END_SUMMARY, 9, STOP]
    paths = [[[20, END_PATH], [30, 31, END_PATH], [40, END_PATH]], [[50, END_PATH]]]
    cfg = config(paths="auto", counted=True)
    rules = []

    def choose(branch, strand):
        rules.append(branch.rule(strand))
        return told(branch, strand)

    told = script(text, paths)
    branch, steps, _ = play(choose, cfg, variant)
    ids = ids_of(branch)
    assert rules.count(Rule.COUNT) == 2
    assert ids[:5] == [7, OPEN, COUNTS[2], PATH, 20] and not branch.written[2].forced
    trace = parse_ids(ids, TAGS)
    assert trace.well_formed and [len(b.paths) for b in trace.blocks] == [3, 1]
    row = layout([2] * PROMPT + ids, TAGS, variant)
    fed = {(f.token, f.position) for step in steps for f in step.feed}
    assert all(pair in fed for pair in list(zip(ids, row.position[PROMPT:].tolist(), strict=True))[:-1])


def test_a_fixed_number_of_paths_can_be_written_too():
    choose = script([OPEN, 8, END_SUMMARY, STOP], [[[20, END_PATH], [30, END_PATH]]])
    branch, _, _ = play(choose, config(counted=True))
    assert ids_of(branch)[:3] == [OPEN, COUNTS[1], PATH] and branch.written[1].forced
    assert parse_ids(ids_of(branch), TAGS).well_formed


def test_numbers_need_tokens_of_their_own():
    bare = TagIds(101, 102, 103, 104, 105, 106, newline=(10,))
    with pytest.raises(ValueError, match="no single tokens for the numbers"):
        Branch(config(counted=True), bare, (STOP,), "structured", PROMPT)


def test_a_forced_fork_is_inserted_once():
    choose = script([55, END_SUMMARY, 9, STOP], [[[20, END_PATH], [30, END_PATH]]])
    branch, _, _ = play(choose, config(force_fork=True))
    assert ids_of(branch)[:3] == [OPEN, PATH, 20] and branch.written[0].forced
    assert branch.num_blocks == 1 and not branch.written[-2].forced


def test_sequential_forbids_all_tags_and_needs_none():
    for tags in (TAGS, None):
        branch = Branch(config(mode="sequential"), tags, (STOP,), "structured", PROMPT)
        assert branch.rule(MAIN) == Rule.MAIN and branch.expected_tag(MAIN) == -1
    with pytest.raises(ValueError, match="needs a tokenizer with tags"):
        Branch(config(), None, (STOP,), "structured", PROMPT)


def test_linear_writes_its_own_tags():
    text = [7, OPEN, PATH, 20, END_PATH, CLOSE, 10, SUMMARY, END_SUMMARY, STOP]
    branch, steps, reason = play(script(text, []), config(mode="linear"), "causal")
    assert ids_of(branch) == text and reason == "stop" and branch.num_blocks == 1
    assert not any(w.forced for w in branch.written)
    assert branch.critical_tokens == len(text)  # nothing was decoded side by side
    assert [f.position for step in steps for f in step.feed] == list(range(PROMPT, PROMPT + 9))


def test_constraints_off_drops_the_end_of_text_inside_a_path():
    choose = script([OPEN, PATH, END_SUMMARY, STOP], [[[20, STOP], [STOP]]])
    branch, _, _ = play(choose, config(constraints=False))
    assert ids_of(branch)[:7] == [OPEN, PATH, 20, END_PATH, PATH, END_PATH, CLOSE]
    assert branch.written[3].forced and branch.written[3].engine_logp == 0.0


def test_constraints_off_still_never_opens_beyond_the_limit():
    branch = Branch(config(constraints=False, max_blocks=0), TAGS, (STOP,), "structured", PROMPT)
    assert branch.rule(MAIN) == Rule.NO_FORK


def test_listener_hears_every_token_with_its_region():
    heard = []
    choose = script([7, OPEN, 8, END_SUMMARY, STOP], [[[20, END_PATH], [END_PATH]]])
    branch, _, _ = play(choose, config(), listener=lambda *event: heard.append(event))
    assert sorted(t for t, _, _ in heard) == sorted(ids_of(branch))
    kinds = [(t, r.kind, r.block, r.path) for t, r, _ in heard]
    assert kinds[0] == (7, "main", -1, -1) and kinds[-1] == (STOP, "main", -1, -1)
    assert (OPEN, "block", 0, -1) in kinds and (CLOSE, "block", 0, -1) in kinds and (10, "block", 0, -1) in kinds
    assert (20, "path", 0, 0) in kinds and (PATH, "path", 0, 1) in kinds
    assert (SUMMARY, "summary", 0, -1) in kinds and (END_SUMMARY, "summary", 0, -1) in kinds
    assert [f for t, _, f in heard if t == PATH] == [True, True]


SPECIAL = {STOP, *TAGS.all}


def in_bulk(choose, cfg, variant):
    """`play`, but tokens that decide nothing are kept back and handed over by `extend`."""
    branch = Branch(cfg, TAGS, (STOP,), variant, PROMPT)
    while True:
        kept = {strand: [] for strand in branch.strands}
        quiet = {strand: branch.quiet(strand) for strand in branch.strands}
        while True:
            drawn = {strand: choose(strand) for strand in branch.strands}
            if any(t in SPECIAL or len(kept[s]) >= quiet[s] for s, t in drawn.items()):
                break
            for strand, token in drawn.items():
                kept[strand].append(token)
        for strand, tokens in kept.items():
            num = len(tokens)
            branch.extend(strand, tokens, [-1.0] * num, [-0.5] * num, [0.9] * num)
        step = branch.advance([Sampled(token, -1.0, -0.5, 0.9) for token in drawn.values()])
        if step.done:
            return branch


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    paths=st.sampled_from([1, 2, 4, 8, "auto"]),
    variant=st.sampled_from(["causal", "structured"]),
    changes=st.fixed_dictionaries(
        {
            "max_response_tokens": st.integers(50, 120),
            "path_budget": st.integers(3, 20),
            "early_join": st.sampled_from([0.5, 1.0]),
            "force_fork": st.booleans(),
            "constraints": st.booleans(),
        }
    ),
)
def test_handing_tokens_over_in_bulk_changes_nothing(seed, paths, variant, changes):
    cfg = config(paths=paths, counted=paths == "auto", **changes)
    rng = random.Random(seed)

    def choose(branch, strand):
        if branch.rule(strand) == Rule.COUNT:
            return rng.choice(COUNTS[: cfg.most_paths])
        banned = forbidden_ids(branch.rule(strand), TAGS, (STOP,))
        often = [7, 8, 9] * 4
        return rng.choice([t for t in (*often, STOP, *TAGS.in_order) if t not in banned])

    log = []
    branch, _, _ = play(lambda b, s: log.append((s, choose(b, s))) or log[-1][1], cfg, variant)
    tape = iter(log)

    def replay(strand):
        expected, token = next(tape)
        assert expected == strand
        return token

    bulk = in_bulk(replay, cfg, variant)
    for name in ("written", "num_blocks", "critical_tokens", "truncated", "cut_paths"):
        assert getattr(bulk, name) == getattr(branch, name)


@settings(max_examples=80, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    paths=st.integers(1, 8),
    blocks=st.integers(0, 3),
    total=st.integers(40, 120),
    budget=st.integers(3, 20),
    reserve=st.integers(1, 12),
    variant=st.sampled_from(["causal", "structured"]),
)
def test_any_obedient_sampler_gives_a_well_formed_or_cut_trace(rng, paths, blocks, total, budget, reserve, variant):
    cfg = config(paths=paths, max_blocks=blocks, max_response_tokens=total, path_budget=budget, answer_reserve=reserve)

    def choose(branch, strand):
        banned = forbidden_ids(branch.rule(strand), TAGS, (STOP,))
        return rng.choice([t for t in (7, 8, 9, STOP, *TAGS.in_order) if t not in banned])

    branch, _, reason = play(choose, cfg, variant)
    ids = ids_of(branch)
    assert len(ids) <= total and branch.num_blocks <= blocks
    trace = parse_ids(ids, TAGS, truncated=reason == "length")
    harmless = {"empty_path", "empty_summary", "duplicate_path", "truncated"}
    assert {fault.name for fault in trace.faults} <= harmless
    assert len(trace.blocks) == branch.num_blocks
    for block in trace.blocks:
        assert len(block.paths) == paths
        assert all(span.closed and span.end - span.start <= budget for span in block.paths)
    lengths = [[span.end - span.start for span in block.paths] for block in trace.blocks]
    assert branch.critical_tokens == len(ids) - sum(sum(row) - max(row) for row in lengths)
    assert (reason == "length") <= branch.truncated
