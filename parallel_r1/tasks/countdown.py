"""*search*: reach a target from a few numbers, each used exactly once.

    question   make 21 from 8 3 3
    attempt    8*3=24,24-3=21 ok          (or ``no`` when the last result is not the target)
    path       8*3=24,24-3=21 ok 8*3=24,24-3=21          (an attempt that holds is said again after its mark)
    answer     8*3=24,24-3=21

An attempt is a chain of steps ``a op b=c`` on a shrinking pool: a step takes two numbers out and
puts its result back. The candidate is stated in exactly the form in which the summary and the
answer repeat it, so picking a path is copying it. Paths try different candidates; the summary
copies the verified one or says ``none``. What a perfect checker gains from drawing candidates
blindly is known exactly (`random_null`), so success has to be read against it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from parallel_r1.tasks.base import FINAL_ANSWER, belongs_to, draw_distinct, final_answer
from parallel_r1.trace.tags import render_block
from parallel_r1.types import Problem, Size, Split, Verdict

MAX_NUMBER = 13
MAX_RESULT = 99
NUMBERS = {"easy": 3, "hard": 4}
NONE = "none"
SOLUTION_SHARE = 0.2
"""Share of attempts in generated text that are drawn from the solutions."""
MAX_ATTEMPTS = 4
_STEP = re.compile(r"(\d{1,6})([-+*/])(\d{1,6})=(\d{1,6})")

Steps = str
"""A comma-joined chain of steps, e.g. ``8*3=24,24-3=21``."""


class Countdown:
    """The search task. ``easy`` has three numbers, ``hard`` four.

    Args:
        unsolvable: share of problems without a solution, whose answer is ``none``. Every other trace ends
            well, because only right ones are kept; these teach how to end when nothing was found.

    Raises:
        ValueError: ``unsolvable`` is no share.
    """

    name = "countdown"
    OPTIONS = ("unsolvable",)

    def __init__(self, unsolvable: float = 0.0) -> None:
        if not isinstance(unsolvable, int | float) or not 0 <= unsolvable <= 1:
            raise ValueError(f"data.options.unsolvable = {unsolvable!r}: give a share between 0 and 1")
        self.unsolvable = unsolvable

    def problems(self, split: Split, size: Size, num: int, seed: int) -> list[Problem]:
        rng = random.Random(f"countdown/{split}/{size}/{seed}")
        # Held-out problems differ in content, so that an interval over problems counts each once; in training
        # the order of the numbers is variety.
        key = content if split == "test" else wording
        return draw_distinct(self._stream(split, size, rng), num, f"countdown {split}/{size}", key)

    def _stream(self, split: Split, size: Size, rng: random.Random) -> Iterator[Problem]:
        while True:
            numbers = tuple(rng.randint(1, MAX_NUMBER) for _ in range(NUMBERS[size]))
            if not belongs_to(split, numbers):
                continue
            outcomes = outcomes_by_target(tuple(sorted(numbers)))
            targets: Sequence[int] = list(outcomes)
            if self.unsolvable and rng.random() < self.unsolvable:
                targets = [t for t in range(1, MAX_RESULT + 1) if t not in outcomes]
            targets = [t for t in targets if t not in numbers]
            if targets:
                yield self.problem(numbers, rng.choice(targets), size)

    def problem(self, numbers: Sequence[int], target: int, size: Size) -> Problem:
        question = f"make {target} from {' '.join(map(str, numbers))}"
        gold = outcomes_by_target(tuple(sorted(numbers))).get(target, [NONE])[0]
        return Problem(question, self.name, size, question, gold, {"numbers": list(numbers), "target": target})

    def verify(self, problem: Problem, response: str) -> Verdict:
        answer = final_answer(response)
        if answer is None:
            return Verdict("no_answer", None, f"no line '{FINAL_ANSWER} ...'")
        if problem.gold == NONE:
            return Verdict("right" if answer == NONE else "wrong", answer, "there is no solution")
        fault = step_fault(answer, problem.data["numbers"], problem.data["target"])
        return Verdict("wrong" if fault else "right", answer, fault or "steps")

    def base_text(self, problem: Problem, rng: random.Random) -> str:
        attempts = draw_attempts(problem, rng, rng.randint(1, MAX_ATTEMPTS), stop_at_first=True)
        return "\n".join([*attempts, f"{FINAL_ANSWER} {pick(attempts)}"])

    def trace(self, problem: Problem, rng: random.Random, num_paths: int, max_blocks: int) -> str:
        text, picked = "", NONE
        for _ in range(max_blocks):
            paths = draw_attempts(problem, rng, num_paths, stop_at_first=False)
            picked = pick(paths)
            text += render_block([restated(path) for path in paths], picked) + "\n"
            if picked != NONE:
                break
        return f"{text}{FINAL_ANSWER} {picked}"


def content(problem: Problem) -> tuple[int, ...]:
    """The target and the numbers in order: what the problem is, however it is worded."""
    return (problem.data["target"], *sorted(problem.data["numbers"]))


def wording(problem: Problem) -> str:
    return problem.question


def draw_attempts(problem: Problem, rng: random.Random, num: int, stop_at_first: bool) -> list[str]:
    """Up to ``num`` distinct attempts, each a solution with probability `SOLUTION_SHARE`."""
    target = problem.data["target"]
    outcomes = outcomes_by_target(tuple(sorted(problem.data["numbers"])))
    everything = all_candidates(tuple(sorted(problem.data["numbers"])))
    attempts: list[str] = []
    seen: set[Steps] = set()
    for _ in range(20 * num):
        solve = rng.random() < SOLUTION_SHARE and target in outcomes
        result, steps = (target, rng.choice(outcomes[target])) if solve else rng.choice(everything)
        if steps in seen:
            continue
        seen.add(steps)
        attempts.append(f"{steps} {'ok' if result == target else 'no'}")
        if len(attempts) == num or (stop_at_first and result == target):
            break
    return attempts


def pick(attempts: Sequence[str]) -> str:
    """The first attempt marked ``ok``, without its mark, or ``none``."""
    return next((a.removesuffix(" ok") for a in attempts if a.endswith(" ok")), NONE)


def restated(attempt: str) -> str:
    """An attempt as a path: one that holds repeats its candidate after the mark.

    Sibling paths share their positions, and a token cannot know the mark that follows it. Only what stands
    after the mark carries the verdict, so that is what a summary can find and copy.
    """
    steps = attempt.removesuffix(" ok")
    return f"{attempt} {steps}" if attempt.endswith(" ok") else attempt


def read_path(path: str) -> tuple[Steps, bool]:
    """The candidate a path worked out, and whether the path marks it ``ok``; what follows the mark is a copy."""
    candidate, mark, _ = path.strip().partition(" ok")
    return candidate, bool(mark)


def is_attempt(line: str) -> bool:
    """Whether a line of a response without blocks is an attempt: it carries a mark, which an answer does not."""
    return " ok" in line or " no" in line.removesuffix(NONE)


def step_fault(answer: Steps, numbers: Sequence[int], target: int) -> str:
    """Why a chain of steps is no solution; the empty string when it is one. Nothing is evaluated."""
    pool = Counter(numbers)
    result = None
    for step in answer.replace(" ", "").split(","):
        match = _STEP.fullmatch(step)
        if match is None:
            return f"not a step: {step[:40]!r}"
        left, op, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
        if Counter((left, right)) - pool:
            return f"number not available: {step}"
        if apply(left, op, right) != result:
            return f"wrong step: {step}"
        pool -= Counter((left, right))
        pool[result] += 1
    if pool.total() != 1:
        return "not every number is used"
    return "" if result == target else f"reaches {result}, not {target}"


def apply(left: int, op: str, right: int) -> int | None:
    """``left op right`` over the positive integers; None where it has no such value."""
    if op == "+":
        return left + right
    if op == "-":
        return left - right if left > right else None
    if op == "*":
        return left * right
    return left // right if right and left % right == 0 else None


@lru_cache(maxsize=4096)
def all_candidates(numbers: tuple[int, ...]) -> tuple[tuple[int, Steps], ...]:
    """Every candidate as (result, steps): the larger operand first, no multiplication or division by 1."""
    if len(numbers) == 1:
        return ((numbers[0], ""),)
    found: dict[Steps, int] = {}
    for i in range(len(numbers)):
        for j in range(i):
            large, small = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
            rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
            for op in "+-*/":
                result = apply(large, op, small)
                if result is None or result > MAX_RESULT or (op in "*/" and small == 1):
                    continue
                step = f"{large}{op}{small}={result}"
                for final, tail in all_candidates(tuple(sorted([*rest, result]))):
                    found[f"{step},{tail}" if tail else step] = final
    return tuple((result, steps) for steps, result in found.items())


@lru_cache(maxsize=4096)
def outcomes_by_target(numbers: tuple[int, ...]) -> dict[int, list[Steps]]:
    """Reachable results, each with all its candidates."""
    outcomes: dict[int, list[Steps]] = {}
    for result, steps in all_candidates(numbers):
        outcomes.setdefault(result, []).append(steps)
    return outcomes


def success_share(problem: Problem) -> float:
    """The chance that one candidate drawn uniformly from all of them is a solution."""
    numbers = tuple(sorted(problem.data["numbers"]))
    return len(outcomes_by_target(numbers).get(problem.data["target"], ())) / len(all_candidates(numbers))


def random_null(problems: Sequence[Problem], attempts: float) -> float:
    """Share of problems that a uniform guesser with a perfect checker solves in ``attempts`` draws.

    Exact: the mean over problems of ``1 - (1 - s)**attempts`` with ``s`` the enumerated success
    share. ``attempts`` may be fractional (a measured mean).

    Raises:
        ValueError: no problems, or negative attempts.
    """
    if not problems or attempts < 0:
        raise ValueError(f"random_null needs problems and attempts >= 0; got {len(problems)} and {attempts}")
    return sum(1 - (1 - success_share(p)) ** attempts for p in problems) / len(problems)
