"""Does a model answer from its paths? Knock out the path that holds the verified answer and look.

Responses in which one block holds a right and a wrong path are continued four times from that block's
summary on, with the same random numbers: with the paths as they were, with right paths overwritten by wrong
ones, without the right paths, and with a right and a wrong path in each other's place. A model that reads
its paths keeps its answer in the first and the last case and loses it in the other two.
"""

from __future__ import annotations

from typing import Any

from parallel_r1.config import EngineConfig, PromptConfig
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.evaluate.intervene import knock_out
from parallel_r1.models.load import load_model
from parallel_r1.rollout.sample import single_requests
from parallel_r1.tasks import load_task
from parallel_r1.types import Size

STREAM = 0x6B6E6F63
"""Part of every seed here, so that nothing repeats the random numbers of training or evaluation."""
LOST, KEPT = 0.2, 0.9
"""Passed: edits that take the right path away leave at most this share of the control's right answers;
swapping paths leaves at least that."""


def check_faithfulness(
    model: str, task: str = "countdown", size: Size = "easy", num: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Run the check on ``num`` held-out problems, one response each, with the model's own settings.

    Returns `knock_out`'s figures, and per edit ``left``: right answers over those of the control;
    ``passed`` says whether the answers follow the paths.

    Raises:
        ValueError: a task whose paths cannot be judged, a model without tags, or no response to edit.
    """
    loaded = load_model(model)
    saved = loaded.settings
    prompt, config = (saved.prompt, saved.engine) if saved else (PromptConfig(), EngineConfig())
    engine = TreeEngine(
        loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, saved.variant if saved else "structured"
    )
    judge = load_task(task)
    problems = judge.problems("test", size, num, seed)
    requests = single_requests(problems, loaded.tokenizer, loaded.tags, prompt, (seed, STREAM))
    found = knock_out(loaded, engine, judge, problems, requests, config)
    control = found["kept"]["right"]
    for which in ("corrupted", "dropped", "swapped"):
        found[which]["left"] = found[which]["right"] / control if control else None
    found["passed"] = bool(control) and (
        max(found["corrupted"]["left"], found["dropped"]["left"]) <= LOST and found["swapped"]["left"] >= KEPT
    )
    return found
