"""Judging single paths: which candidate is right, which arithmetic is."""

import random

import pytest

from parallel_r1.tasks import TASKS, load_task, paths
from parallel_r1.tasks.countdown import Countdown
from parallel_r1.trace.tags import linearise, parse_text, render_block
from parallel_r1.types import Problem

COUNTDOWN = Countdown().problem((8, 3, 3), 21, "easy")


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("8*3=24,24-3=21 ok", True),
        ("8*3=24,24-3=21 ok 8*3=24,24-3=21", True),
        ("8*3=24,24-3=22 ok 8*3=24,24-3=21", False),
        ("8*3=24,24-3=21 no", False),
        ("8*3=24,24-3=21", False),
        ("8*3=24,24+3=27 ok", False),
        ("8*3=25,25-3=21 ok", False),
        ("", False),
    ],
)
def test_a_right_countdown_path_is_a_solution_that_says_so(path, right):
    trace = parse_text(render_block([path, "8-3=5,5+3=8 no"], "s"))
    assert paths.right_paths(COUNTDOWN, trace) == [[right, False]]
    stored = Problem(COUNTDOWN.id, "countdown", "easy", COUNTDOWN.question, COUNTDOWN.gold)
    assert paths.right_paths(stored, trace) == [[right, False]]


def test_a_right_chain_path_ends_on_the_gold():
    problem = Problem("c", "chain", "easy", "compute 237+58-129", "166")
    trace = parse_text(render_block(["237-129=108,108+58=166", "237+58=295,295-129=156"], "166 156 so 166"))
    assert paths.right_paths(problem, trace) == [[True, False]]
    assert paths.step_counts(problem, paths.candidates(problem, trace)) == (3, 4)


def test_tasks_without_a_check_stay_open():
    problem = Problem("s", "serial", "easy", "run 1", "1")
    trace = parse_text(render_block(["1+1=3", "b"], "s"))
    assert paths.right_paths(problem, trace) is None
    assert paths.right_candidates(problem, ["1+1=3"]) is None
    assert paths.step_counts(problem, ["1+1=3"]) == (0, 0)


@pytest.mark.parametrize("step", ["6/3=2", "7-9=-2", "12*12=144", "5+5=10", "6/4=1", "6/0=0"])
def test_steps_are_judged_by_their_numbers(step):
    right = step in ("6/3=2", "12*12=144", "5+5=10")
    counted = paths.step_counts(COUNTDOWN, [step, "x"])
    assert counted == ((1, 1) if right else (0, 0) if "-9" in step else (0, 1))


@pytest.mark.parametrize("name", ["countdown", "chain"])
def test_generated_traces_are_consistent(name):
    task, rng = load_task(name), random.Random(0)
    for problem in task.problems("test", "easy", 20, 0):
        text = task.trace(problem, rng, 4, 2)
        trace = parse_text(text)
        tried = paths.candidates(problem, trace)
        right = paths.right_candidates(problem, tried)
        if name == "countdown":
            assert bool(right) == task.verify(problem, trace.answer_region).right
            done, steps = paths.step_counts(problem, paths.candidates(problem, trace))
            assert done == steps > 0
        # The same search without tags is read as the same attempts.
        flat = linearise(text)
        assert paths.candidates(problem, parse_text(flat)) == tried
        assert len(tried) == sum(len(b.paths) for b in trace.blocks)
        assert right == sum(map(sum, paths.right_paths(problem, trace)))


def test_attempts_after_a_block_count_too():
    text = (
        render_block(["8*3=24,24+3=27 no", "8-3=5,5+3=8 no"], "none")
        + "\n8*3=24,24-3=21 ok\nFinal Answer: 8*3=24,24-3=21"
    )
    assert len(paths.candidates(COUNTDOWN, parse_text(text))) == 3


def test_attempts_without_a_block_are_lines_with_steps():
    text = "8*3=24,24+3=27 no\n8*3=24,24-3=21 ok\nFinal Answer: 8*3=24,24-3=21"
    tried = paths.candidates(COUNTDOWN, parse_text(text))
    assert len(tried) == 2 and paths.right_candidates(COUNTDOWN, tried) == 1
    for idle in ("Final Answer: none", "8*3=24,24-3=21\nFinal Answer: 8*3=24,24-3=21", "none\nFinal Answer: none"):
        assert paths.candidates(COUNTDOWN, parse_text(idle)) == []


def test_checks_belong_to_tasks():
    assert set(paths.PATH_CHECKS) <= set(TASKS)
