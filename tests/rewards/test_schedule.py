"""Schedules: which phase a step is in, and that a right answer never earns less than a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_r1.config import BonusConfig, RewardConfig
from parallel_r1.rewards.schedule import phase, reward
from parallel_r1.trace.tags import parse_text, render_block
from parallel_r1.types import Verdict

GOOD = render_block(["8*3=24 no", "8-3=5 ok"], "8-3=5") + "\nFinal Answer: 8-3=5"
TRACES = {
    "plain": "Final Answer: 8-3=5",
    "good": GOOD,
    "fifty": render_block(["1", "2"], "3") * 50 + "Final Answer: 8-3=5",
    "empty": render_block(["", ""], "") + "\nFinal Answer: 8-3=5",
    "twins": render_block(["x=1", "x=1"], "1") + "\nFinal Answer: 8-3=5",
    "single": render_block(["x=1"], "1") + "\nFinal Answer: 8-3=5",
    "unclosed": GOOD.replace("</Summary>", ""),
    "stray": "<Path>a</Path>" + GOOD,
    "between": GOOD.replace("</Path><Path>", "</Path>hidden<Path>"),
    "lookalike": "<parallel>&lt;Path&gt;a Final Answer: 8-3=5",
}
PARSED = [parse_text(text, cut) for text in TRACES.values() for cut in (False, True)]
CONFIGS = st.builds(
    RewardConfig,
    schedule=st.sampled_from(["accuracy", "parallel_and_accuracy", "alternating"]),
    window=st.integers(1, 12),
    parallel_share=st.floats(0, 1),
    bonus=st.floats(0, 5),
    order=st.sampled_from(["accuracy_first", "parallel_first"]),
    release_compat=st.booleans(),
    bonuses=st.lists(
        st.builds(
            BonusConfig,
            part=st.sampled_from(["critical_path", "diversity"]),
            weight=st.floats(0.01, 50),
            cap=st.floats(0.01, 50),
        ),
        max_size=2,
        unique_by=lambda bonus: bonus.part,
    ),
)


def totals(config, step, outcome):
    return [reward(config, step, Verdict(outcome), trace, (90, 40), [["a b", "c"]])[0] for trace in PARSED]


@given(CONFIGS, st.integers(1, 40))
def test_best_wrong_is_below_worst_right(config, step):
    wrong = [t for outcome in ("wrong", "no_answer", "error", "timeout") for t in totals(config, step, outcome)]
    right = totals(config, step, "right")
    equal_allowed = config.schedule == "parallel_and_accuracy" or (
        config.release_compat and phase(config, step) == "tiered"
    )
    assert max(wrong) <= min(right)
    assert equal_allowed or max(wrong) < min(right)


@given(CONFIGS, st.integers(1, 40), st.sampled_from(sorted(TRACES)), st.booleans())
def test_parts_add_up_to_the_reward(config, step, name, right):
    total, parts = reward(config, step, Verdict("right" if right else "wrong"), parse_text(TRACES[name]))
    assert total == sum(parts.values())


def test_hollow_blocks_earn_no_bonus_and_many_blocks_earn_one():
    config = RewardConfig(schedule="alternating", window=10)
    paid = {name: reward(config, 9, Verdict("right"), parse_text(text))[0] for name, text in TRACES.items()}
    assert paid["good"] == paid["fifty"] == 1.2
    for name in ("plain", "empty", "twins", "single", "unclosed", "between", "lookalike"):
        assert paid[name] == 1.0, name


@pytest.mark.parametrize(
    ("settings", "tiered"),
    [
        ({}, {9, 10, 19, 20}),
        ({"order": "parallel_first"}, {1, 2, 11, 12}),
        ({"window": 4, "parallel_share": 0.5}, {3, 4, 7, 8, 11, 12, 15, 16, 19, 20}),
        ({"parallel_share": 0.0}, set()),
        ({"parallel_share": 1.0}, set(range(1, 21))),
        ({"window": 20, "parallel_share": 0.01}, {20}),
    ],
)
def test_alternating_windows(settings, tiered):
    config = RewardConfig(schedule="alternating", **settings)
    assert {step for step in range(1, 21) if phase(config, step) == "tiered"} == tiered


def test_other_schedules_have_one_phase():
    assert {phase(RewardConfig(schedule="accuracy"), step) for step in range(1, 30)} == {"accuracy"}
    assert phase(RewardConfig(schedule="parallel_and_accuracy"), 9) == "parallel_and_accuracy"


def test_steps_count_from_one():
    with pytest.raises(ValueError, match="count from 1"):
        phase(RewardConfig(), 0)


def test_the_verdict_alone_decides_right():
    config = RewardConfig()
    assert reward(config, 1, Verdict("right"), parse_text("anything"))[0] == 1.0
    assert reward(config, 1, Verdict("timeout"), parse_text("anything"))[0] == -1.0


def test_bonuses_are_bounded_and_only_for_right_answers_with_a_good_block():
    bonuses = [
        BonusConfig(part="critical_path", weight=0.5, cap=0.2),
        BonusConfig(part="diversity", weight=0.1, cap=1.0),
    ]
    config = RewardConfig(bonuses=bonuses)

    def parts(outcome, name, lengths, paths=(("8*3=24 no", "8*3=24 no"),)):
        return reward(config, 1, Verdict(outcome), parse_text(TRACES[name]), lengths, paths)[1]

    assert parts("right", "good", (100, 70)) == {
        "accuracy": 1.0,
        "critical_path": pytest.approx(0.15),
        "diversity": 0.0,
    }
    assert parts("right", "good", (100, 10))["critical_path"] == 0.2
    assert parts("right", "good", (100, 100))["critical_path"] == 0.0
    assert parts("right", "good", (100, 70), [["one two three", "x"], ["alone"]])["diversity"] == pytest.approx(0.1)
    assert parts("wrong", "good", (100, 10)) == {"accuracy": -1.0}
    for name in ("plain", "twins", "empty", "unclosed"):
        assert parts("right", name, (100, 10)) == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"part": "critical_path"}, "cap is missing; without a bound"),
        ({"part": "diversity", "cap": 0.2, "when": "always"}, "also pays wrong answers"),
    ],
)
def test_a_bonus_without_bound_or_gate_is_refused_with_the_reason(settings, message):
    with pytest.raises(ValueError, match=message):
        BonusConfig(**settings)
    with pytest.raises(ValueError, match="give each part once"):
        RewardConfig(bonuses=[BonusConfig(part="diversity", cap=0.1)] * 2)
