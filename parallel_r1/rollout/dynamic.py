"""Dynamic sampling: groups that teach nothing are drawn again with other problems (DAPO, arXiv 2503.14476).

A group in which every token's advantage is 0 costs a rollout and moves no weight. It is replaced while
there are rounds left; what still teaches nothing then stays, and is counted. Which problem comes in is
a function of (run seed, step, place, round), so nothing has to be stored to resume, and no process
needs to know of another.

The groups that are trained on are a selected sample: their accuracy is drawn towards one half. What the
policy really solves is the accuracy over everything drawn (`Replacing.drawn`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from parallel_r1.rollout.sample import SampleStep
from parallel_r1.types import Group, Problem


@dataclass
class Replacing:
    """A `SampleStep` that replaces groups without signal.

    Args:
        sample: what it draws with.
        spare: the problems that may come in.
        rounds: how often a place may be drawn again in one step.
        num_places: places of a step over all processes.
        seed: any text that names the run and the stage.
        has_signal: whether a group teaches anything.
    """

    sample: SampleStep
    spare: Sequence[Problem]
    rounds: int
    num_places: int
    seed: str
    has_signal: Callable[[Group], bool]
    num_replaced: int = 0
    """Of the last step."""
    drawn: list[Group] = field(default_factory=list)
    """Every group of the last step, also those that were thrown away."""

    def __call__(self, problems: Sequence[Problem], places: Sequence[int], step: int) -> list[Group]:
        groups = self.sample(problems, places, step)
        self.drawn, self.num_replaced = list(groups), 0
        for number in range(1, self.rounds + 1):
            idle = [index for index, group in enumerate(groups) if not self.has_signal(group)]
            if not idle:
                break
            # Places beyond those of the step: the random numbers of a second draw are its own.
            again = [places[index] + number * self.num_places for index in idle]
            fresh = self.sample([self._problem(step, place) for place in again], again, step)
            self.drawn += fresh
            for index, group in zip(idle, fresh, strict=True):
                if self.has_signal(group):
                    groups[index] = group
                    self.num_replaced += 1
        return groups

    def _problem(self, step: int, place: int) -> Problem:
        return random.Random(f"{self.seed}/{step}/{place}").choice(self.spare)
