"""*verify*: the value of a signed sum of larger numbers; a step may slip, the answer cannot be guessed.

    question   compute 237+58-129
    path       237-129=108,108+58=166
    summary    166 166 156 so 166
    answer     166

Paths add the terms up in different orders, so that their slips differ; the summary lists what they
found and decides by majority (the earliest value wins a tie). Generated text contains slips on
purpose (`SLIP_SHARE` of the steps): a comparison is only learnt from results that disagree.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from parallel_r1.tasks.base import FINAL_ANSWER, belongs_to, draw_distinct, final_answer
from parallel_r1.trace.tags import render_block
from parallel_r1.types import Problem, Size, Split, Verdict

TERMS = {"easy": 3, "hard": 5}
MIN_TERM, MAX_TERM, MAX_RESULT = 12, 399, 999
SLIP_SHARE = 0.02


class Chain:
    """The verification task. ``easy`` has three terms (two steps), ``hard`` five (four steps)."""

    name = "chain"

    def problems(self, split: Split, size: Size, num: int, seed: int) -> list[Problem]:
        rng = random.Random(f"chain/{split}/{size}/{seed}")
        return draw_distinct(self._stream(split, size, rng), num, f"chain {split}/{size}")

    def _stream(self, split: Split, size: Size, rng: random.Random) -> Iterator[Problem]:
        while True:
            terms = [rng.randint(MIN_TERM, MAX_TERM)]
            while len(terms) < TERMS[size]:
                value = rng.randint(MIN_TERM, MAX_TERM)
                terms.append(value if rng.random() < 0.5 else -value)
            total = sum(terms)
            if belongs_to(split, terms) and 0 < total <= MAX_RESULT and is_summable(terms):
                question = "compute " + str(terms[0]) + "".join(f"{t:+d}" for t in terms[1:])
                yield Problem(question, self.name, size, question, str(total), {"terms": terms})

    def verify(self, problem: Problem, response: str) -> Verdict:
        answer = final_answer(response)
        if answer is None:
            return Verdict("no_answer", None, f"no line '{FINAL_ANSWER} ...'")
        right = answer.isascii() and answer.isdigit() and len(answer) < 20 and int(answer) == int(problem.gold)
        return Verdict("right" if right else "wrong", answer, "numeric")

    def base_text(self, problem: Problem, rng: random.Random) -> str:
        paths = draw_paths(problem, rng, rng.choice((1, 1, 2, 3)))
        if len(paths) == 1:
            return f"{paths[0]}\n{FINAL_ANSWER} {result_of(paths[0])}"
        return "\n".join([*paths, compare(paths), f"{FINAL_ANSWER} {majority(paths)}"])

    def trace(self, problem: Problem, rng: random.Random, num_paths: int, max_blocks: int) -> str:
        paths = draw_paths(problem, rng, num_paths)
        return f"{render_block(paths, compare(paths))}\n{FINAL_ANSWER} {majority(paths)}"


def is_summable(terms: Sequence[int]) -> bool:
    """Whether the order largest-first-positive keeps every partial sum within 1..MAX_RESULT."""
    return any(keeps_in_range(order) for order in (sorted(terms, reverse=True), list(terms)))


def keeps_in_range(order: Sequence[int]) -> bool:
    total = 0
    for term in order:
        total += term
        if not 0 < total <= MAX_RESULT:
            return False
    return True


def draw_paths(problem: Problem, rng: random.Random, num: int) -> list[str]:
    """``num`` calculations in different orders where there are enough, each step slipping now and then."""
    terms = list(problem.data["terms"])
    fallback = terms if keeps_in_range(terms) else sorted(terms, reverse=True)
    paths: list[str] = []
    used: set[tuple[int, ...]] = set()
    for _ in range(num):
        order = fallback
        for _ in range(12):
            shuffled = rng.sample(terms, len(terms))
            if keeps_in_range(shuffled) and tuple(shuffled) not in used:
                order = shuffled
                break
        used.add(tuple(order))
        paths.append(calculation(order, rng))
    return paths


def calculation(order: Sequence[int], rng: random.Random) -> str:
    """The steps of one order; a slip changes one digit place of a result by one and is carried on."""
    steps, total = [], order[0]
    for term in order[1:]:
        result = total + term
        if rng.random() < SLIP_SHARE:
            slipped = result + rng.choice((-1, 1)) * rng.choice((1, 10, 100))
            result = slipped if 0 < slipped <= MAX_RESULT else result
        if result <= 0:
            break
        steps.append(f"{total}{term:+d}={result}")
        total = result
    return ",".join(steps)


def result_of(path: str) -> str:
    """The candidate a path ends on: what stands after its last ``=``."""
    return path.rpartition("=")[2].strip()


def majority(paths: Sequence[str]) -> str:
    """The most frequent result; the earliest of equally frequent ones."""
    return Counter(result_of(p) for p in paths).most_common(1)[0][0]


def compare(paths: Sequence[str]) -> str:
    """What the summary says: all results in order, then the decision."""
    return f"{' '.join(result_of(p) for p in paths)} so {majority(paths)}"
