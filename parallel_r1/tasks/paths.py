"""What can be said of a single path: did it reach a right candidate, is its arithmetic right.

A task whose paths can be judged has a line in `PATH_CHECKS`; for the others both questions stay open
(None), never "wrong".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from parallel_r1.tasks.base import FINAL_ANSWER
from parallel_r1.tasks.chain import result_of
from parallel_r1.tasks.countdown import is_attempt, read_path, step_fault
from parallel_r1.types import Problem, Trace

_STEP = re.compile(r"(\d{1,6})([-+*/])(\d{1,6})=(\d{1,6})(?!\d)")
_QUESTION = re.compile(r"make (\d+) from ([\d ]+)")
PathCheck = Callable[[Problem, str], bool]


def _countdown_path(problem: Problem, path: str) -> bool:
    """The path calls its candidate ``ok``, and it is a solution."""
    candidate, holds = read_path(path)
    if not holds:
        return False
    numbers, target = _countdown_data(problem)
    return step_fault(candidate, numbers, target) == ""


def _countdown_data(problem: Problem) -> tuple[list[int], int]:
    """Numbers and target; read off the question where a stored rollout has nothing else."""
    if "numbers" in problem.data:
        return list(problem.data["numbers"]), int(problem.data["target"])
    match = _QUESTION.fullmatch(problem.question.strip())
    return ([int(n) for n in match[2].split()], int(match[1])) if match else ([], -1)


def _chain_path(problem: Problem, path: str) -> bool:
    """The result of the path is the gold."""
    return result_of(path) == problem.gold


PATH_CHECKS: dict[str, PathCheck] = {"countdown": _countdown_path, "chain": _chain_path}
"""Task -> does this path state a right candidate?"""


def candidate_of(task: str, path: str) -> str:
    """What a path proposes as the answer, in the form in which an answer states it."""
    return result_of(path) if task == "chain" else read_path(path)[0].removesuffix(" no")


def right_paths(problem: Problem, trace: Trace) -> list[list[bool]] | None:
    """Per block and path of a text trace, whether the path is right; None for tasks without a check."""
    check = PATH_CHECKS.get(problem.task)
    if check is None:
        return None
    return [[check(problem, str(path.content)) for path in block.paths] for block in trace.blocks]


def candidates(problem: Problem, trace: Trace) -> list[str]:
    """What a response tried: its paths, and the worked lines before the answer that stand outside of blocks."""
    region = str(trace.answer_region)
    worked = (region.rpartition(FINAL_ANSWER)[0] or region).splitlines()
    lines = [line for line in worked if _STEP.search(line) and (problem.task != "countdown" or is_attempt(line))]
    return [str(path.content) for block in trace.blocks for path in block.paths] + lines


def right_candidates(problem: Problem, tried: Sequence[str]) -> int | None:
    """How many of the tried candidates are right; None for tasks without a check."""
    check = PATH_CHECKS.get(problem.task)
    return None if check is None else sum(check(problem, candidate) for candidate in tried)


def step_counts(problem: Problem, tried: Sequence[str]) -> tuple[int, int]:
    """(right, all) steps ``a op b=c`` of the tried candidates; (0, 0) for tasks without such steps."""
    if problem.task not in PATH_CHECKS:
        return 0, 0
    # A restated candidate counts once; chain has no mark to restate behind.
    steps = [_right_step(match) for candidate in tried for match in _STEP.finditer(read_path(candidate)[0])]
    return sum(steps), len(steps)


def _right_step(match: re.Match[str]) -> bool:
    left, operator, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
    if operator == "/":
        return right != 0 and left == result * right
    return result == {"+": left + right, "-": left - right, "*": left * right}[operator]
