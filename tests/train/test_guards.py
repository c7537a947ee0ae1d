"""Alarms: what is said, when, and how often."""

from parallel_r1.train.guards import Alarms


def said(values, key="entropy"):
    alarms = Alarms()
    return [alarms.look({key: value}) for value in values]


def test_entropy_that_leaves_its_range_is_said_once_each_way():
    quiet = said([0.5, 0.6, 0.4, 0.5, 0.9, 0.2, None])
    assert quiet == [[]] * 7
    found = said([0.5, 0.5, 0.5, 1.4, 1.5, 0.1, 0.1])
    assert [len(texts) for texts in found] == [0, 0, 0, 1, 0, 1, 0]
    assert "comes apart" in found[3][0] and "began at 0.50" in found[3][0] and "become alike" in found[5][0]


def test_accuracy_that_halves_is_said_and_one_bad_step_is_not():
    assert said([0.5, 0.5, 0.5, 0.1, 0.5, 0.5], "accuracy") == [[]] * 6
    found = said([0.6, 0.6, 0.6, 0.2, 0.2, 0.2, 0.2], "accuracy")
    assert [len(texts) for texts in found] == [0, 0, 0, 0, 0, 1, 0]
    assert "it was 0.60" in found[5][0]


def test_dynamic_sampling_does_not_hide_a_fall():
    alarms = Alarms()
    steps = [{"accuracy": 0.5, "drawn_accuracy": value} for value in (0.8, 0.8, 0.8, 0.1, 0.1, 0.1)]
    assert sum(len(alarms.look(step)) for step in steps) == 1
