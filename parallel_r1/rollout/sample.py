"""Prompts to scored groups, and the same as TRL's ``rollout_func`` (paper section on RL).

A `Group` is built where its samples are drawn: all samples of one occurrence of one problem. Nothing
is grouped by text later, so the same question twice in a step makes two groups. Verdict and reward
are worked out here too, from the response's ids; TRL only hands the reward on.

Not here: replacing groups without signal (`parallel_r1.rollout.dynamic`).

Legend: P problems of a step, G samples of a problem, T tokens of a response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_r1.config import EngineConfig, PromptConfig, RewardConfig
from parallel_r1.engine.base import Engine, Request
from parallel_r1.rewards.parts import checked_rewards
from parallel_r1.rewards.schedule import reward as score_reward
from parallel_r1.tasks.base import Task
from parallel_r1.tasks.paths import right_paths
from parallel_r1.trace.layout import layout
from parallel_r1.trace.tags import TagIds, parse_ids, parse_text
from parallel_r1.trace.tokens import decode_response, encode_prompt
from parallel_r1.types import Group, Problem, Rollout, ScoredRollout, Trace, Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase


def score(
    rollout: Rollout,
    problem: Problem,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    tags: TagIds | None,
    *,
    reward: RewardConfig | None = None,
    step: int = 1,
) -> ScoredRollout:
    """Parse a response from its ids, have its answer region checked and pay it what ``step`` pays."""
    text = decode_response(tokenizer, rollout.response_ids)
    as_text = parse_text(text, rollout.truncated)
    if tags is None:
        trace, answer = as_text, str(as_text.answer_region)
    else:
        trace = parse_ids(rollout.response_ids, tags, rollout.truncated)
        answer = decode_response(tokenizer, [int(token) for token in trace.answer_region])
    verdict = task.verify(problem, answer)
    total, parts = score_reward(
        reward or RewardConfig(), step, verdict, trace, (rollout.total_tokens, rollout.critical_tokens),
        [[str(path.content) for path in block.paths] for block in as_text.blocks],
    )  # fmt: skip
    return ScoredRollout(rollout, text, trace, verdict, total, parts, _judged_paths(problem, as_text, trace))


def _judged_paths(problem: Problem, as_text: Trace, trace: Trace) -> tuple[tuple[bool, ...], ...] | None:
    """Verdicts on the paths of an id trace, read off its text; None where both do not have the same paths."""
    found = right_paths(problem, as_text)
    if found is None or list(map(len, found)) != [len(block.paths) for block in trace.blocks]:
        return None
    return tuple(map(tuple, found))


def sample_groups(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    tags: TagIds | None,
    tasks: Mapping[str, Task],
    problems: Sequence[Problem],
    *,
    prompt: PromptConfig,
    config: EngineConfig,
    reward: RewardConfig,
    step: int,
    samples: int,
    run_seed: int,
    places: Sequence[int] | None = None,
) -> list[Group]:
    """Sample and score ``samples`` responses per problem; one group per problem, in their order.

    A model without tags gets the plain prompt, any other the one that asks for parallel thinking.

    Args:
        places: place of each problem within the step (default: 0, 1, 2, ...). A response's seed is
            (run_seed, step, place, sample), so it does not depend on who samples it.

    Raises:
        ValueError: a problem of an unknown task, or more or fewer places than problems.
    """
    places = range(len(problems)) if places is None else places
    if len(places) != len(problems):
        raise ValueError(f"{len(places)} places for {len(problems)} problems; give one each")
    for problem in problems:
        if problem.task not in tasks:
            raise ValueError(f"problem {problem.id!r}: no task {problem.task!r} was given; known: {', '.join(tasks)}")
    template = prompt_template(prompt, tags)
    requests = []
    for problem, place in zip(problems, places, strict=True):
        ids = tuple(encode_prompt(tokenizer, template, problem.question, tags))
        requests += [Request(problem.id, ids, (run_seed, step, place, sample)) for sample in range(samples)]
    rollouts = engine.generate(requests, config)
    groups = []
    for index, problem in enumerate(problems):
        drawn = rollouts[index * samples : (index + 1) * samples]
        members = [
            score(rollout, problem, tasks[problem.task], tokenizer, tags, reward=reward, step=step) for rollout in drawn
        ]
        groups.append(Group(problem, tuple(members)))
    return groups


def single_requests(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    tags: TagIds | None,
    prompt: PromptConfig,
    seed: tuple[int, ...],
) -> list[Request]:
    """One request per problem, for measurements beside training; its seed is (*seed, index, 0)."""
    template = prompt_template(prompt, tags)
    return [
        Request(problem.id, tuple(encode_prompt(tokenizer, template, problem.question, tags)), (*seed, index, 0))
        for index, problem in enumerate(problems)
    ]


def prompt_template(prompt: PromptConfig, tags: TagIds | None) -> str:
    """The template that a model with or without tags is asked with."""
    return prompt.asked if tags is not None else prompt.plain


def later_paths(member: ScoredRollout, variant: Variant) -> list[int]:
    """Per response token: 0 where engine and trainer must agree exactly, else the path's number (from 2).

    In the causal variant all paths but the first are sampled without, and scored with, their older
    siblings in view; so their log-probs differ by design.
    """
    marks = [0] * member.rollout.total_tokens
    if variant == "causal":
        for block in member.trace.blocks:
            for number, path in enumerate(block.paths[1:], start=2):
                marks[path.start : path.end] = [number] * (path.end - path.start)
    return marks


def reach(rollout: Rollout, tags: TagIds | None) -> NDArray[np.float64]:
    """Per response token: the chance that the unconstrained model chose nothing forbidden up to it, shape (T,).

    The product of Z (``allowed_mass``) over the token and all that was there when it was decoded, which is
    what the layout shows it. It is the importance weight of a token sampled under constraints: a
    constrained trajectory is as likely as the same unconstrained one divided by this product. Where the
    model wants only what is forbidden (one more block than allowed, say) it falls to nearly 0 and stays there.
    """
    log_mass = np.log(np.maximum(rollout.allowed_mass, np.finfo(np.float64).tiny))
    if tags is None:
        return np.exp(np.cumsum(log_mass))
    return np.exp(layout(rollout.response_ids, tags, "structured").visible() @ log_mass)


SampleStep = Callable[[Sequence[Problem], Sequence[int], int], list[Group]]
"""(problems, their places within the step, step from 1) -> groups; `sample_groups` with the rest bound."""


class RowRollouts:
    """TRL's ``rollout_func``. TRL hands over prompts alone, so its prompts are row numbers of ``order``.

    It hands each over ``samples`` times, one after the other. ``groups`` holds what the last call
    sampled, in the order of the rows, and ``seconds`` how long that took.
    """

    def __init__(self, sample: SampleStep, order: Sequence[Problem], prompts_per_step: int, samples: int) -> None:
        self.sample, self.order = sample, order
        self.prompts_per_step, self.samples = prompts_per_step, samples
        self.groups: list[Group] = []
        self.step = 0
        self.seconds = 0.0

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list]:
        """Sample the rows; one entry per completion in every list.

        Raises:
            ValueError: a group that is not whole on this process, or rows of different steps.
        """
        started = time.perf_counter()
        rows = [int(prompt) for prompt in prompts]
        firsts = rows[:: self.samples]
        if [row for row in firsts for _ in range(self.samples)] != rows:
            raise ValueError(
                f"a process got {len(rows)} rows that are no whole groups of {self.samples}; choose prompts_per_step "
                "and micro_batch so that every process gets whole groups"
            )
        steps = {row // self.prompts_per_step + 1 for row in firsts}
        if len(steps) != 1:
            raise ValueError(f"rows of steps {sorted(steps)} in one rollout; prompts_per_step does not fit the sampler")
        (self.step,) = steps
        places = [row % self.prompts_per_step for row in firsts]
        self.groups = self.sample([self.order[row] for row in firsts], places, self.step)
        self.seconds = time.perf_counter() - started
        return as_trl(self.groups)


def as_trl(groups: Sequence[Group]) -> dict[str, list]:
    """Groups as TRL wants them: lists over all completions, group by group.

    ``logprobs`` are the engine's unconstrained ones at the sampling temperature, ``env_mask`` is 0 on
    tokens that the engine inserted.
    """
    members = [member for group in groups for member in group.members]
    problems = [group.problem for group in groups for _ in group.members]
    return {
        "prompt_ids": [list(m.rollout.prompt_ids) for m in members],
        "completion_ids": [list(m.rollout.response_ids) for m in members],
        "logprobs": [list(m.rollout.engine_logps) for m in members],
        "env_mask": [[0 if forced else 1 for forced in m.rollout.forced] for m in members],
        "reward": [m.reward for m in members],
        "problem_id": [problem.id for problem in problems],
        "gold": [problem.gold for problem in problems],
        "outcome": [m.verdict.outcome for m in members],
        "reward_parts": [dict(m.reward_parts) for m in members],
    }


def sampled_reward(
    completion_ids: Sequence[Sequence[int]], reward: Sequence[float], **columns: Any
) -> list[float | None]:
    """TRL's reward function: hands on the rewards that were worked out while sampling."""
    return [*checked_rewards("sampled_reward", reward, len(completion_ids))]
