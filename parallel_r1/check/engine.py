"""``parallel-r1 check engine``: does the rollout engine sample from the model that the trainer scores?

Rollouts are sampled with 1 to 4 paths and up to 3 blocks, then prompt + response goes through the plain
model under the layout hook, and the two log-probs of every sampled token are compared. Forks are drawn
by force (`TreeEngine`'s ``tag_rate``), so a model that never forks can be checked too.

Structured: every token must agree. Causal: the main chain, the first path and the summary must agree;
later paths are sampled apart but scored with their older siblings in view, so there the gap is a
property of the method, reported by path index.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from parallel_r1.config import EngineConfig, PromptConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.models.load import Loaded, load_model
from parallel_r1.trace.tags import TagIds, parse_ids
from parallel_r1.trace.tokens import add_tags, encode_prompt
from parallel_r1.types import Rollout, Variant

BOUND = 1e-4
"""Largest gap of log-probs (nats) that fp32 arithmetic explains."""
_SCORED_AT_ONCE = 16


def check_engine(
    name: str | os.PathLike[str] | Loaded,
    variant: Variant | None = None,
    num_rollouts: int = 64,
    seed: int = 0,
    json_path: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Compare engine and plain forward pass in fp32; ``variant`` None checks both.

    Returns:
        ``{"structured": {"max_abs_gap", ...}, "causal": {"max_abs_gap_exact_regions", "gap_by_path", ...},
        "bound", "passed"}``; ``gap_by_path`` maps the path index (from 2) to {"mean", "max"}. Not passed
        either when nothing was compared. Written to ``json_path`` as well where given.

    Raises:
        ValueError: the model cannot be loaded or decoded.
    """
    if num_rollouts < 1:
        raise ValueError(f"num_rollouts = {num_rollouts}: nothing to compare; use at least 1")
    loaded = name if isinstance(name, Loaded) else load_model(name, dtype="float32")
    tags = loaded.tags or add_tags(loaded.model, loaded.tokenizer)
    result: dict[str, Any] = {"bound": BOUND, "seed": seed}
    passed = True
    for which in (variant,) if variant else ("structured", "causal"):
        rollouts = _sample(loaded, tags, which, num_rollouts, seed)
        exact, apart = _gaps(loaded, tags, which, rollouts)
        largest = max(exact, default=float("nan"))
        num_blocks = sum(rollout.num_blocks for rollout in rollouts)
        figures: dict[str, Any] = {
            "num_rollouts": len(rollouts),
            "num_blocks": num_blocks,
            "num_tokens": len(exact) + sum(map(len, apart.values())),
        }
        if which == "structured":
            figures["max_abs_gap"] = largest
        else:
            figures["max_abs_gap_exact_regions"] = largest
            figures["gap_by_path"] = {
                str(path + 1): {"mean": sum(gaps) / len(gaps), "max": max(gaps)} for path, gaps in sorted(apart.items())
            }
        result[which] = figures
        passed = passed and largest <= BOUND and num_blocks > 0  # a NaN fails too
    result["passed"] = passed
    if json_path is not None:
        Path(json_path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def _sample(loaded: Loaded, tags: TagIds, variant: Variant, num_rollouts: int, seed: int) -> list[Rollout]:
    engine = TreeEngine(loaded.model, loaded.tokenizer, tags, loaded.stop_ids, variant, tag_rate=0.15)
    template = (loaded.settings.prompt if loaded.settings else PromptConfig()).parallel
    rng = random.Random(seed)
    requests: list[list[Request]] = [[], [], [], []]
    for i in range(num_rollouts):
        numbers = " ".join(str(rng.randint(1, 30)) for _ in range(rng.randint(2, 5)))
        question = f"make {rng.randint(1, 99)} from {numbers}"
        prompt = encode_prompt(loaded.tokenizer, template, question, tags)
        requests[i % 4].append(Request(f"check-{i}", tuple(prompt), (seed, i)))
    rollouts: list[Rollout] = []
    for paths, part in enumerate(requests, start=1):
        config = EngineConfig(
            paths=paths, max_blocks=3, max_response_tokens=60 + 60 * paths, path_budget=20, answer_reserve=20
        )
        rollouts += engine.generate(part, config)
    return rollouts


def _gaps(
    loaded: Loaded, tags: TagIds, variant: Variant, rollouts: Sequence[Rollout]
) -> tuple[list[float], dict[int, list[float]]]:
    """|engine - plain| of every sampled token: where both must agree, and by path index elsewhere."""
    exact: list[float] = []
    apart: dict[int, list[float]] = {}
    with install_layout_hook(loaded.model, tags, variant):
        for start in range(0, len(rollouts), _SCORED_AT_ONCE):
            batch = rollouts[start : start + _SCORED_AT_ONCE]
            for rollout, logps in zip(batch, plain_logps(loaded, batch), strict=True):
                later = _later_paths(rollout, tags) if variant == "causal" else {}
                for i, (plain, engine, forced) in enumerate(
                    zip(logps, rollout.engine_logps, rollout.forced, strict=True)
                ):
                    if not forced:
                        target = apart.setdefault(later[i], []) if i in later else exact
                        target.append(abs(plain - engine))
    return exact, apart


def _later_paths(rollout: Rollout, tags: TagIds) -> dict[int, int]:
    """Index of a response token -> index of its path, for paths after the first."""
    blocks = parse_ids(rollout.response_ids, tags, truncated=rollout.truncated).blocks
    return {
        i: path
        for block in blocks
        for path, span in enumerate(block.paths)
        if path > 0
        for i in range(span.start, span.end)
    }


def plain_logps(loaded: Loaded, rollouts: Sequence[Rollout], temperature: float = 1.0) -> list[list[float]]:
    """Log-probs of every response token from one plain forward pass over the padded batch."""
    rows = [[*rollout.prompt_ids, *rollout.response_ids] for rollout in rollouts]
    width = max(map(len, rows))
    device = loaded.model.device
    ids = torch.tensor([row + [row[-1]] * (width - len(row)) for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
    with torch.no_grad():
        logits = loaded.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    scores = (logits[:, :-1, : len(loaded.tokenizer)].float() / temperature).log_softmax(-1)
    picked = scores.gather(2, ids[:, 1:, None])[:, :, 0].tolist()
    return [
        line[len(rollout.prompt_ids) - 1 : len(row) - 1]
        for line, rollout, row in zip(picked, rollouts, rows, strict=True)
    ]
