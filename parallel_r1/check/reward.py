"""Does a recipe's reward pay for form alone? Hostile responses through every phase of every RL stage.

Each response is scored as if its answer were right and as if it were wrong. A reward passes when

- no wrong response earns as much as a right one (equal is allowed, and said, where a schedule means it:
  ``parallel_and_accuracy`` and ``release_compat``);
- a right response with a hollow or broken block earns no more than one without a block;
- no number of blocks earns more than one good block.

Hostile responses follow what public reward functions were found to pay for: empty and twin paths, summaries
that never close, text between paths, look-alike tags, many tiny blocks, responses cut inside a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallel_r1.config import Recipe, RewardConfig, RLStage
from parallel_r1.rewards.schedule import phase, reward
from parallel_r1.trace.tags import parse_text, render_block
from parallel_r1.types import Verdict

ANSWER = "\nFinal Answer: 42"
HONEST = render_block(["6*7=42", "40+2=42"], "both say 42")
PLAIN = {"no block": "6*7=42" + ANSWER}
HONEST_WORK = {
    "one good block": HONEST + ANSWER,
    "fifty good blocks": HONEST * 50 + ANSWER,
    "a stray path, an honest block": "<Path>6*7=42</Path>" + HONEST + ANSWER,
}
"""At least one block is good; none may earn more than one alone."""
HOLLOW = {
    "empty paths": render_block(["", ""], "") + ANSWER,
    "blank paths": render_block([" ", "\n"], "s") + ANSWER,
    "twin paths": render_block(["6*7=42", "6*7=42"], "42") + ANSWER,
    "a single path": render_block(["6*7=42"], "42") + ANSWER,
    "empty summary": render_block(["6*7=42", "40+2=42"], "") + ANSWER,
    "unclosed summary": HONEST.replace("</Summary>", "") + ANSWER,
    "unclosed path": HONEST.replace("</Path><Path>", "<Path>") + ANSWER,
    "text between paths": HONEST.replace("</Path><Path>", "</Path>hidden work<Path>") + ANSWER,
    "block in a path": render_block([HONEST, "40+2=42"], "42") + ANSWER,
    "no summary": HONEST.partition("<Summary>")[0] + ANSWER,
    "closing tags first": "</Summary></Parallel></Path>" + ANSWER,
    "look-alike tags": "<parallel>< Path >6*7=42</ Path >&lt;Path&gt;</parallel>" + ANSWER,
    "fifty hollow blocks": render_block(["", ""], "") * 50 + ANSWER,
}
LENGTHS = (100, 10)
"""Tokens in all and on the critical path: as short as a bonus could wish."""


@dataclass(frozen=True)
class Payment:
    """What one response earns in one phase of a stage."""

    stage: str
    phase: str
    response: str
    right: float
    wrong: float


def check_reward(recipe: Recipe) -> dict[str, Any]:
    """Every payment of a recipe, and what is wrong with them.

    Returns ``{"payments": [...], "faults": [...], "notes": [...], "passed": bool}``.

    Raises:
        ValueError: the recipe has no RL stage.
    """
    stages = [stage for stage in recipe.stages if isinstance(stage, RLStage)]
    if not stages:
        raise ValueError(f"{recipe.name}: the recipe has no stage of kind 'rl', so nothing is rewarded")
    payments: list[Payment] = []
    faults: list[str] = []
    notes: list[str] = []
    for stage in stages:
        for name, step in phases(stage.reward).items():
            paid = [pay(stage, name, step, response, text) for response, text in everything().items()]
            payments += paid
            found, said = judge(stage, name, {p.response: p for p in paid})
            faults += found
            notes += said
    return {"payments": [vars(p) for p in payments], "faults": faults, "notes": notes, "passed": not faults}


def everything() -> dict[str, str]:
    """All responses by name."""
    return {**PLAIN, **HONEST_WORK, **HOLLOW}


def phases(config: RewardConfig) -> dict[str, int]:
    """Each phase of a schedule, with the first step that pays it."""
    found: dict[str, int] = {}
    for step in range(1, config.window + 1):
        found.setdefault(phase(config, step), step)
    return found


def pay(stage: RLStage, name: str, step: int, response: str, text: str) -> Payment:
    trace = parse_text(text)
    paths = [[str(path.content) for path in block.paths] for block in trace.blocks]
    right, wrong = (
        reward(stage.reward, step, Verdict(outcome), trace, LENGTHS if trace.blocks else (100, 100), paths)[0]
        for outcome in ("right", "wrong")
    )
    return Payment(stage.name, name, response, right, wrong)


def judge(stage: RLStage, name: str, paid: Mapping[str, Payment]) -> tuple[list[str], list[str]]:
    """(faults, notes) of one phase."""
    where = f"{stage.name}, {name}"
    faults, notes = [], []
    best_wrong = max(paid.values(), key=lambda p: p.wrong)
    worst_right = min(paid.values(), key=lambda p: p.right)
    if best_wrong.wrong >= worst_right.right:
        text = (
            f"{where}: wrong with {best_wrong.response} earns {best_wrong.wrong:g}, right with {worst_right.response} "
            f"earns {worst_right.right:g}"
        )
        meant = name == "parallel_and_accuracy" or (name == "tiered" and stage.reward.release_compat)
        (notes if meant and best_wrong.wrong == worst_right.right else faults).append(text)
    plain = paid["no block"].right
    for response in HOLLOW:
        if paid[response].right > plain:
            faults.append(f"{where}: {response} earns {paid[response].right:g}, no block {plain:g}")
    one = paid["one good block"].right
    for response in HONEST_WORK:
        if paid[response].right > one:
            faults.append(f"{where}: {response} earns {paid[response].right:g}, one good block {one:g}")
    return faults, notes
