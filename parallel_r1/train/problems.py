"""Which problems an RL stage trains on, in which order."""

from __future__ import annotations

import random
from collections.abc import Callable

from parallel_r1.config import EngineConfig, Recipe, RLStage
from parallel_r1.models.load import Loaded
from parallel_r1.rollout.sample import prompt_template
from parallel_r1.tasks import load_task
from parallel_r1.tasks.base import Task
from parallel_r1.trace.tokens import encode_prompt
from parallel_r1.types import Problem


def problem_order(
    stage: RLStage, seed: int, fits: Callable[[Problem], bool] | None = None
) -> tuple[list[Problem], dict[str, Task], list[str]]:
    """The problems of all steps in order, their tasks, and the ids of those that do not fit.

    All sources together are shuffled and gone through, then shuffled anew; so a source's share is its
    share of problems. The order depends on (seed, stage name) alone, and more steps only make it longer.

    Raises:
        ValueError: no problem fits.
    """
    tasks: dict[str, Task] = {}
    found: list[Problem] = []
    kept: list[Problem] = []
    dropped: list[str] = []
    for source in stage.data:
        task = load_task(source)
        tasks[task.name] = task
        found += task.problems(source.split, source.size, source.num, seed)
    for problem in found:
        if fits is None or fits(problem):
            kept.append(problem)
        else:
            dropped.append(problem.id)
    if not kept:
        raise ValueError(f"{stage.name}: none of {len(found)} problems fits the model; lower max_response_tokens")
    order: list[Problem] = []
    total = stage.steps * stage.prompts_per_step
    cycle = 0
    while len(order) < total:
        shuffled = list(kept)
        random.Random(f"rl/{seed}/{stage.name}/{cycle}").shuffle(shuffled)
        order += shuffled[: total - len(order)]
        cycle += 1
    return order, tasks, dropped


def fits_model(problem: Problem, loaded: Loaded, recipe: Recipe, config: EngineConfig) -> bool:
    """Whether prompt and response fit the model's positions. A prompt that does not is dropped, never cut."""
    longest = getattr(loaded.model.config, "max_position_embeddings", None)
    prompt = encode_prompt(loaded.tokenizer, prompt_template(recipe.prompt, loaded.tags), problem.question, loaded.tags)
    return not longest or len(prompt) + config.max_response_tokens <= longest
