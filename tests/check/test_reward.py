"""Hostile responses through rewards that are sound and through some that are not."""

import pytest

import parallel_r1.rewards.schedule as schedule
from parallel_r1.check.reward import check_reward, everything, phases
from parallel_r1.config import RewardConfig
from parallel_r1.recipe import load_recipe
from parallel_r1.trace.tags import parse_text


def checked(*overrides):
    return check_reward(load_recipe("tiny", [f"stages.rl-easy.reward.{o}" for o in overrides]))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["schedule=alternating"],
        ["schedule=alternating", "bonus=3.0"],
        ["bonuses=[{part='critical_path', weight=5.0, cap=0.2}, {part='diversity', cap=0.3}]"],
    ],
)
def test_our_rewards_pass(overrides):
    result = checked(*overrides)
    assert result["passed"] and result["faults"] == result["notes"] == []
    assert {p["response"] for p in result["payments"]} == set(everything())


@pytest.mark.parametrize(
    "overrides", [["schedule=parallel_and_accuracy"], ["schedule=alternating", "release_compat=true"]]
)
def test_meant_ties_are_notes(overrides):
    result = checked(*overrides)
    assert result["passed"] and len(result["notes"]) == 1
    assert "earns -1" in result["notes"][0]


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        (lambda good, malformed: 0.5 * (not malformed), None),
        (lambda good, malformed: 2.5 * good, "wrong with one good block"),
        (lambda good, malformed: 0.5 * malformed, "empty paths earns 1.5"),
    ],
)
def test_unsound_rewards_are_named(monkeypatch, form, fault):
    def part(right, good, malformed):
        return {"accuracy": 1.0 if right else -1.0, "form": form(good, malformed)}

    monkeypatch.setitem(schedule.PARTS, "accuracy", lambda config: part)
    result = checked()
    assert result["passed"] == (fault is None)
    assert fault is None or any(fault in text for text in result["faults"])


def test_every_phase_is_seen_once():
    assert phases(RewardConfig(schedule="alternating")) == {"accuracy": 1, "tiered": 9}
    assert phases(RewardConfig(schedule="alternating", order="parallel_first")) == {"tiered": 1, "accuracy": 3}
    assert phases(RewardConfig()) == {"accuracy": 1}


def test_a_recipe_without_rl_is_an_error():
    with pytest.raises(ValueError, match="no stage of kind 'rl'"):
        check_reward(load_recipe("tiny_base", []))


def test_the_hostile_responses_are_what_they_say():
    states = {name: parse_text(text).state for name, text in everything().items()}
    assert states["no block"] == states["look-alike tags"] == "no_block"
    assert all(states[name] == "well_formed" for name in states if "good" in name)
