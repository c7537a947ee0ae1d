"""Which reward is paid at which step: the schedules of the paper's three settings.

    accuracy                the answer alone, always
    parallel_and_accuracy   the answer counts only with a good block, always
    alternating             windows of 10 steps: 8 pay accuracy, then 2 pay the tiered reward

Steps are rollout steps, counted from 1, whatever the number of optimiser updates per step. The best
wrong total is below the worst right total in every phase; only parallel_and_accuracy (and the
release's treatment of malformed blocks) makes them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from parallel_r1.config import RewardConfig
from parallel_r1.rewards.parts import accuracy, checked_rewards, critical_path, diversity, parallel_and_accuracy, tiered
from parallel_r1.trace.tags import good_block
from parallel_r1.types import Trace, Verdict

Phase = Literal["accuracy", "parallel_and_accuracy", "tiered"]
Part = Callable[[bool, bool, bool], dict[str, float]]

PARTS: dict[Phase, Callable[[RewardConfig], Part]] = {
    "accuracy": lambda config: accuracy,
    "parallel_and_accuracy": lambda config: parallel_and_accuracy,
    "tiered": lambda config: partial(tiered, bonus=config.bonus, release_compat=config.release_compat),
}
"""From a phase's name to its function of (right, good_block, malformed)."""


def phase(config: RewardConfig, step: int) -> Phase:
    """The name of what step ``step`` pays.

    Raises:
        ValueError: ``step`` is below 1.
    """
    if step < 1:
        raise ValueError(f"step = {step}: rollout steps count from 1")
    if config.schedule != "alternating":
        return config.schedule
    place = (step - 1) % config.window
    num_tiered = tiered_steps(config)
    if config.order == "parallel_first":
        return "tiered" if place < num_tiered else "accuracy"
    return "tiered" if place >= config.window - num_tiered else "accuracy"


def tiered_steps(config: RewardConfig) -> int:
    """How many steps of a window pay the tiered reward: its share, rounded, but at least one if there is any."""
    rounded = int(config.window * config.parallel_share + 0.5)
    return max(rounded, 1) if config.parallel_share > 0 else 0


def reward(
    config: RewardConfig,
    step: int,
    verdict: Verdict,
    trace: Trace,
    lengths: tuple[int, int] = (0, 0),
    paths: Sequence[Sequence[str]] = (),
) -> tuple[float, dict[str, float]]:
    """The reward of one response and the parts that it is the sum of.

    Args:
        lengths: (all tokens, tokens on the critical path), for bonuses.
        paths: texts of the paths, block by block, for bonuses.
    """
    name = phase(config, step)
    good = good_block(trace)
    parts = PARTS[name](config)(verdict.right, good, bool(trace.faults))
    for bonus in config.bonuses if verdict.right and good else ():
        value = critical_path(*lengths) if bonus.part == "critical_path" else diversity(paths)
        assert bonus.cap is not None  # config.py refuses a bonus without a bound
        parts[bonus.part] = min(bonus.weight * value, bonus.cap)
    total = checked_rewards(name, [sum(parts.values())], 1)[0]
    return total, parts
