"""The generated tasks: gold against gold, honest splits, hostile answers and the exact random null."""

import ast
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import parallel_r1
from parallel_r1.config import DataSource
from parallel_r1.tasks import TASKS, TraceTask, load_task
from parallel_r1.tasks.base import draw_distinct
from parallel_r1.tasks.countdown import (
    MAX_RESULT,
    all_candidates,
    outcomes_by_target,
    random_null,
    step_fault,
    success_share,
)  # fmt: skip
from parallel_r1.trace.tags import canonical, parse_text

GENERATED = ("countdown", "chain", "serial")
SIZES = ("easy", "hard")
both = pytest.mark.parametrize(("name", "size"), [(name, size) for name in GENERATED for size in SIZES])


def numbers_of(problem) -> tuple[int, ...]:
    data = problem.data
    own = data.get("numbers") or data.get("terms") or [data["start"], *(int(u[1:]) for u in data["updates"])]
    return tuple(sorted(own))


@both
def test_held_out_problems_are_many_right_and_apart_from_training(name, size):
    task = load_task(name)
    test, train = task.problems("test", size, 1000, seed=3), task.problems("train", size, 1000, seed=3)
    assert len({p.question for p in test}) == len({p.id for p in test}) == 1000
    assert {numbers_of(p) for p in test}.isdisjoint({numbers_of(p) for p in train})
    for problem in [*test, *train[:100]]:
        assert task.verify(problem, f"so\nFinal Answer: {problem.gold}").right
        assert task.verify(problem, problem.gold).outcome == "no_answer"


@pytest.mark.parametrize("size", SIZES)
def test_held_out_countdown_problems_differ_in_content(size):
    test = load_task("countdown").problems("test", size, 1000, seed=5)
    assert len({(numbers_of(p), p.data["target"]) for p in test}) == 1000


def test_problems_without_a_solution():
    task = load_task(DataSource(task="countdown", options={"unsolvable": 0.4}))
    problems = task.problems("train", "easy", 300, seed=0)
    without = [p for p in problems if p.gold == "none"]
    assert 80 < len(without) < 160
    rng = random.Random(0)
    for problem in without:
        assert success_share(problem) == 0
        text = task.trace(problem, rng, 3, 2)
        assert len(parse_text(text).blocks) == 2 and text.endswith("Final Answer: none")
        assert task.verify(problem, text).right and task.verify(problem, "Final Answer: 1+1=2").outcome == "wrong"
        assert " ok" not in task.base_text(problem, rng)
    assert all(p.gold != "none" for p in load_task("countdown").problems("train", "easy", 300, seed=0))
    for share in (-0.1, 1.5, "half"):
        with pytest.raises(ValueError, match="give a share between 0 and 1"):
            load_task(DataSource(task="countdown", options={"unsolvable": share}))
    with pytest.raises(ValueError, match="takes only options unsolvable"):
        load_task(DataSource(task="countdown", options={"unsolvble": 0.1}))


@both
def test_the_same_seed_gives_the_same_problems(name, size):
    task = load_task(name)
    assert task.problems("train", size, 20, 7) == task.problems("train", size, 20, 7)
    assert task.problems("train", size, 20, 7) != task.problems("train", size, 20, 8)


def test_asking_for_too_many_problems_says_how_many_there_are():
    few = load_task("countdown").problems("test", "easy", 5, seed=0)
    with pytest.raises(ValueError, match=r"here holds only 5 distinct problems; .*num=6"):
        draw_distinct(itertools.cycle(few), 6, where="here")


@both
def test_traces_are_canonical_and_fault_free(name, size):
    task = load_task(name)
    assert isinstance(task, TraceTask)
    rng = random.Random(0)
    for problem in task.problems("train", size, 30, seed=0):
        text = task.trace(problem, rng, num_paths=3, max_blocks=2)
        assert canonical(text) == text
        assert {f.name for f in parse_text(text).faults} <= {"duplicate_path"}
        assert "<" not in task.base_text(problem, rng)


@settings(deadline=None)
@given(st.text(), st.sampled_from(GENERATED))
def test_any_answer_is_taken(answer, name):
    task = load_task(name)
    problem = task.problems("test", "easy", 1, seed=0)[0]
    assert task.verify(problem, answer).outcome in ("right", "wrong", "no_answer")
    assert task.verify(problem, f"Final Answer: {answer}").outcome in ("right", "wrong", "no_answer")


HOSTILE = [
    "__import__('os').system('true')", "9" * 5000, "1e9999", "\u00b2", "-0", "none", "()", "8*3=24,24-3=21,", "1/0=1",
    "0*0=0", "=", ",,,", "(" * 5000, "10**10**10", "NaN", "True", "answer", "\x00",
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: ascii(answer[:12]))
@pytest.mark.parametrize("name", GENERATED)
def test_hostile_answers_are_wrong(name, answer):
    task = load_task(name)
    for problem in task.problems("test", "hard", 5, seed=0):
        assert not task.verify(problem, f"Final Answer: {answer}").right


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("8*3=24,24-3=21", ""),
        ("3*8=24, 24-3=21", ""),
        ("8*3=24,24-3=20", "wrong step"),
        ("8*3=24", "not every number"),
        ("8+3=11,11+3=14", "reaches 14"),
        ("8*3=24,24-4=20", "not available"),
        ("8*3=24,24-3=21,21*1=21", "not available"),
        ("8-8=0,24-3=21", "not available"),
        ("", "not a step"),
    ],
)
def test_countdown_steps(answer, fault):
    said = step_fault(answer, [8, 3, 3], 21)
    assert said.startswith(fault) if fault == "" else fault in said
    assert bool(said) == bool(fault)


def chains(pool: Counter) -> dict[str, int]:
    """Oracle: every chain over a pool by plain enumeration, each with its last result."""
    found = {}
    for left in pool:
        for right in pool:
            if left < right or (left == right and pool[left] < 2):
                continue
            results = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}
            for op, result in results.items():
                if result != int(result) or not 0 < result <= MAX_RESULT or (op in "*/" and right == 1):
                    continue
                rest = pool - Counter([left]) - Counter([right])
                step = f"{left}{op}{right}={int(result)}"
                if not rest:
                    found[step] = int(result)
                for tail, last in chains(rest + Counter([int(result)])).items() if rest else ():
                    found[f"{step},{tail}"] = last
    return found


@pytest.mark.parametrize("numbers", [(3, 3, 8), (1, 2, 12), (5, 5, 5), (2, 3, 7, 11), (1, 1, 4, 4)])
def test_candidates_against_enumeration(numbers):
    candidates = all_candidates(numbers)
    assert {steps: result for result, steps in candidates} == chains(Counter(numbers))
    for result, steps in candidates:
        assert step_fault(steps, numbers, result) == ""


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_random_null_against_a_simulation(attempts):
    problems = load_task("countdown").problems("test", "easy", 40, seed=1)
    rng = random.Random(0)
    rounds = 300
    solved = 0
    for problem in problems:
        drawn = all_candidates(numbers_of(problem))
        for _ in range(rounds):
            solved += any(rng.choice(drawn)[0] == problem.data["target"] for _ in range(attempts))
    assert random_null(problems, attempts) == pytest.approx(solved / (rounds * len(problems)), abs=0.016)


def test_random_null_by_hand_and_at_the_ends():
    problem = load_task("countdown").problem([3, 3, 8], 21, "easy")
    share = success_share(problem)
    assert share == len(outcomes_by_target((3, 3, 8))[21]) / len(all_candidates((3, 3, 8)))
    assert random_null([problem], 0) == 0
    assert random_null([problem], 2) == pytest.approx(share + (1 - share) * share)
    assert random_null([problem], 10_000) == pytest.approx(1)
    with pytest.raises(ValueError, match="needs problems"):
        random_null([], 1)


def test_serial_and_chain_answers_by_plain_arithmetic():
    for problem in load_task("chain").problems("test", "hard", 50, seed=2):
        assert int(problem.gold) == sum(problem.data["terms"])
    for problem in load_task("serial").problems("test", "hard", 50, seed=2):
        state = problem.data["start"]
        for update in problem.data["updates"]:
            sign, digit = update[0], int(update[1:])
            state = (state * digit if sign == "*" else state + digit if sign == "+" else state - digit) % 10
        assert int(problem.gold) == state


def test_nothing_is_evaluated():
    package = Path(parallel_r1.__file__).parent
    for file in [*package.glob("tasks/*.py"), *package.glob("answers/*.py"), *package.glob("coldstart/*.py")]:
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        assert not {c.id for c in calls if isinstance(c, ast.Name)} & {"eval", "exec", "compile", "__import__"}, file


def test_unknown_task_and_misplaced_settings():
    from parallel_r1.config import DataSource

    assert set(GENERATED) < set(TASKS)
    with pytest.raises(ValueError, match="did you mean 'countdown'"):
        load_task("coutdown")
    with pytest.raises(ValueError, match=r"path = 'x.parquet': the task 'chain' is generated"):
        load_task(DataSource(task="chain", path="x.parquet"))
    with pytest.raises(ValueError, match="options"):
        load_task(DataSource(task="serial", options={"max_steps": 3}))
