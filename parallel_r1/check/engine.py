"""``parallel-r1 check engine``: does the rollout engine sample from the model that the trainer scores?

Rollouts are sampled with 1 to 8 paths a block, with a number of paths that the model chooses, and with
paths closed early, all in one batch; then prompt + response goes through the plain model under the layout
hook, and the two log-probs of every sampled token are compared, region by region. Forks are drawn by
force (`TreeEngine`'s ``tag_rate``), so a model that never forks can be checked too.

Structured: every token must agree. Causal: all but later paths must agree; those are sampled apart but
scored with their older siblings in view, so there the gap is a property of the method.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from parallel_r1.config import MAX_PATHS, EngineConfig, PromptConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.models.load import Loaded, load_model
from parallel_r1.trace.tags import TagIds, parse_ids
from parallel_r1.trace.tokens import add_tags, encode_prompt
from parallel_r1.types import Rollout, Variant

BOUND = 1e-4
"""Largest gap of log-probs (nats) that fp32 arithmetic explains."""
BF16_BOUND = 0.02
"""Largest mean gap in bfloat16."""
_SCORED_AT_ONCE = 16


def check_engine(
    name: str | os.PathLike[str] | Loaded,
    variant: Variant | None = None,
    num_rollouts: int = 64,
    seed: int = 0,
    json_path: str | os.PathLike[str] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> dict[str, Any]:
    """Compare engine and plain forward pass; ``variant`` None checks both.

    Returns:
        ``{"structured": figures, "causal": figures, "bound", "dtype", "seed", "memory", "passed", "verdict"}``.
        Figures hold ``regions`` (main, count, path 1 ..., summary -> tokens, mean and largest gap, and
        whether they must agree), ``max_abs_gap`` and ``mean_abs_gap`` over the regions that must, and
        what the model was made to do. Causal figures name two of them as well: ``max_abs_gap_exact_regions``
        (the same as ``max_abs_gap``) and ``gap_by_path``, the mean and largest gap of later paths by number.
        Not passed either when nothing was compared. Written to ``json_path`` as well where given.

    Raises:
        ValueError: the model cannot be loaded or decoded.
    """
    if num_rollouts < 1:
        raise ValueError(f"num_rollouts = {num_rollouts}: nothing to compare; use at least 1")
    loaded = name if isinstance(name, Loaded) else load_model(name, dtype=dtype)
    tags = loaded.tags or add_tags(loaded.model, loaded.tokenizer)
    exact = loaded.model.dtype == torch.float32
    result: dict[str, Any] = {
        "dtype": str(loaded.model.dtype).removeprefix("torch."), "bound": BOUND if exact else BF16_BOUND, "seed": seed
    }  # fmt: skip
    faults: list[str] = []
    for which in (variant,) if variant else ("structured", "causal"):
        figures, result["memory"] = _figures(loaded, tags, which, num_rollouts, seed)
        result[which] = figures
        gap = figures["max_abs_gap" if exact else "mean_abs_gap"]
        if not gap <= result["bound"]:  # NaN fails too
            faults.append(f"{which}: a gap of {gap:.3g} nats exceeds {result['bound']:g}")
        if not figures["num_blocks"]:
            faults.append(f"{which}: no block was decoded, so nothing was proven; use more rollouts")
    result["passed"] = not faults
    result["verdict"] = "; ".join(faults) or "engine and trainer agree wherever they must"
    if json_path is not None:
        Path(json_path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def _figures(
    loaded: Loaded, tags: TagIds, variant: Variant, num_rollouts: int, seed: int
) -> tuple[dict[str, Any], str]:
    """What was measured of one variant, and the memory plan in words."""
    engine = TreeEngine(loaded.model, loaded.tokenizer, tags, loaded.stop_ids, variant, tag_rate=0.15)
    rollouts, memory = _sample(engine, loaded, tags, num_rollouts, seed)
    gaps = _gaps(loaded, tags, variant, rollouts)
    must = {region: not (variant == "causal" and _is_later_path(region)) for region in gaps}
    agreeing = [gap for region, found in gaps.items() if must[region] for gap in found]
    largest = max(agreeing, default=float("nan"))
    regions = {
        region: {"tokens": len(found), "mean": sum(found) / len(found), "max": max(found), "must_agree": must[region]}
        for region, found in sorted(gaps.items())
    }
    figures = {
        "num_rollouts": len(rollouts),
        "num_blocks": sum(rollout.num_blocks for rollout in rollouts),
        "num_tokens": sum(map(len, gaps.values())),
        "max_abs_gap": largest,
        "mean_abs_gap": sum(agreeing) / len(agreeing) if agreeing else float("nan"),
        "regions": regions,
        "counters": asdict(engine.counters),
    }
    if variant == "causal":
        figures["max_abs_gap_exact_regions"] = largest
        figures["gap_by_path"] = {
            region.removeprefix("path "): {"mean": figure["mean"], "max": figure["max"]}
            for region, figure in regions.items()
            if not must[region]
        }
    return figures, memory


def _settings(tags: TagIds) -> list[EngineConfig]:
    """1 to 8 paths, a width that the model chooses, paths that are closed early."""
    wanted: list[dict[str, Any]] = [{"paths": paths} for paths in range(1, MAX_PATHS + 1)]
    if tags.counts:
        wanted.append({"paths": "auto", "counted": True, "max_paths": MAX_PATHS})
    wanted.append({"paths": 4, "early_join": 0.5})
    shared = {"max_blocks": 3, "path_budget": 20, "answer_reserve": 20}
    return [
        EngineConfig.model_validate({**shared, "max_response_tokens": 100 + 30 * MAX_PATHS, **part}) for part in wanted
    ]


def _sample(
    engine: TreeEngine, loaded: Loaded, tags: TagIds, num_rollouts: int, seed: int
) -> tuple[list[Rollout], str]:
    template = (loaded.settings.prompt if loaded.settings else PromptConfig()).asked
    rng = random.Random(seed)
    settings = _settings(tags)
    rollouts: dict[int, Rollout] = {}
    with engine.session(settings[0]) as session:
        need = 0
        for i in range(num_rollouts):
            numbers = " ".join(str(rng.randint(1, 30)) for _ in range(rng.randint(2, 5)))
            question = f"make {rng.randint(1, 99)} from {numbers}"
            prompt = encode_prompt(loaded.tokenizer, template, question, tags)
            config = settings[i % len(settings)]
            need = max(need, len(prompt) + config.max_response_tokens)
            session.submit(Request(f"check-{i}", tuple(prompt), (seed, i)), config)
        while session.busy:
            rollouts.update((done.ticket, done.rollout) for done in session.step())
        memory = session.plan.describe(need, session.config.max_rows)
    return list(rollouts.values()), memory


def _gaps(loaded: Loaded, tags: TagIds, variant: Variant, rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """|engine - plain| of every sampled token, by region."""
    gaps: dict[str, list[float]] = {}
    with install_layout_hook(loaded.model, tags, variant):
        for start in range(0, len(rollouts), _SCORED_AT_ONCE):
            batch = rollouts[start : start + _SCORED_AT_ONCE]
            for rollout, logps in zip(batch, plain_logps(loaded, batch), strict=True):
                regions = dict(_regions(rollout, tags))
                for i, plain in enumerate(logps):
                    if not rollout.forced[i]:
                        gap = abs(plain - rollout.engine_logps[i])
                        gaps.setdefault(regions.get(i, "main"), []).append(gap)
    return gaps


def _regions(rollout: Rollout, tags: TagIds) -> Iterator[tuple[int, str]]:
    """(index of a response token, its region), for all tokens outside of the main chain."""
    for block in parse_ids(rollout.response_ids, tags, truncated=rollout.truncated).blocks:
        for number, span in enumerate(block.paths, start=1):
            yield from ((i, f"path {number}") for i in range(span.start, span.end))
        if block.paths:
            yield from ((i, "count") for i in range(block.start + 1, block.paths[0].start))
        if block.summary_start is not None:
            yield from ((i, "summary") for i in range(block.summary_start, block.end))


def _is_later_path(region: str) -> bool:
    return region.startswith("path ") and region != "path 1"


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
