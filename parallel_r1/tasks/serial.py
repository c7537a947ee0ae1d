"""*serial*: one digit updated step by step, modulo ten. Forking cannot help; a good policy does not fork.

question   run 7 +4 *3 -5 +8
response   +4>1,*3>3,-5>8,+8>6
answer     6
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from parallel_r1.tasks.base import FINAL_ANSWER, belongs_to, draw_distinct, final_answer
from parallel_r1.types import Problem, Size, Split, Verdict

STEPS = {"easy": 4, "hard": 8}
UPDATES = (*(f"{sign}{digit}" for sign in "+-" for digit in range(1, 10)), "*3", "*7", "*9")
"""Multipliers are the units modulo ten, so that no step forgets the state."""


class Serial:
    """The sequential task. ``easy`` has four updates, ``hard`` eight."""

    name = "serial"

    def problems(self, split: Split, size: Size, num: int, seed: int) -> list[Problem]:
        rng = random.Random(f"serial/{split}/{size}/{seed}")
        return draw_distinct(self._stream(split, size, rng), num, f"serial {split}/{size}")

    def _stream(self, split: Split, size: Size, rng: random.Random) -> Iterator[Problem]:
        while True:
            start = rng.randint(0, 9)
            updates = [rng.choice(UPDATES) for _ in range(STEPS[size])]
            if belongs_to(split, [start, *(int(u[1:]) for u in updates)]):
                question = f"run {start} {' '.join(updates)}"
                states = run(start, updates)
                yield Problem(
                    question, self.name, size, question, str(states[-1]), {"start": start, "updates": updates}
                )

    def verify(self, problem: Problem, response: str) -> Verdict:
        answer = final_answer(response)
        if answer is None:
            return Verdict("no_answer", None, f"no line '{FINAL_ANSWER} ...'")
        return Verdict("right" if answer == problem.gold else "wrong", answer, "exact")

    def base_text(self, problem: Problem, rng: random.Random) -> str:
        updates = problem.data["updates"]
        states = run(problem.data["start"], updates)
        steps = ",".join(f"{update}>{state}" for update, state in zip(updates, states, strict=True))
        return f"{steps}\n{FINAL_ANSWER} {states[-1]}"

    def trace(self, problem: Problem, rng: random.Random, num_paths: int, max_blocks: int) -> str:
        return self.base_text(problem, rng)


def run(start: int, updates: list[str]) -> list[int]:
    """The state after each update."""
    states, state = [], start
    for update in updates:
        digit = int(update[1:])
        state = {"+": state + digit, "-": state - digit, "*": state * digit}[update[0]] % 10
        states.append(state)
    return states
