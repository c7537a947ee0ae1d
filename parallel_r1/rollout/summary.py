"""One step's groups in numbers, and one rollout as a line of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from parallel_r1.types import DecodeMode, Group, ScoredRollout

FAILED = ("error", "timeout")
"""Outcomes that say something of the checker, not of the answer."""


def step_metrics(groups: Sequence[Group]) -> dict[str, Any]:
    """Means over all responses of a step; counts of groups without signal; None where nothing was measured.

    ``well_formed`` is the share of fault-free traces among those with a block, ``faults`` the share of
    responses with each fault, ``path_right`` the share of forked responses with a right path,
    ``path_success`` the share of right paths (both where the task judges paths), ``first_block_position``
    the mean start of the first block over the length of its response, ``allowed_mass`` the mean Z of
    sampled tokens (1 where constraints forbid nothing that the model wants), ``path_distinct`` the mean
    share of distinct, non-empty paths of a block, ``entropy`` the mean surprise of sampled tokens, which
    estimates the model's entropy per token.
    """
    members = [member for group in groups for member in group.members]
    forked = [m for m in members if m.trace.blocks]
    dead = [group for group in groups if group.dead]
    dead_right = sum(all(m.verdict.right for m in group.members) for group in dead)
    dead_wrong = sum(not any(m.verdict.right for m in group.members) for group in dead)
    sampled = [
        (mass, logp)
        for member in members
        for mass, logp, forced in zip(
            member.rollout.allowed_mass, member.rollout.engine_logps, member.rollout.forced, strict=True
        )
        if not forced
    ]
    names = sorted({name for m in members for name in m.reward_parts})
    judged = [[right for block in m.path_right for right in block] for m in members if m.path_right]
    faults = Counter(name for m in members for name in {fault.name for fault in m.trace.faults})
    return {
        "reward": _mean([m.reward for m in members]),
        "accuracy": _mean([m.verdict.right for m in members]),
        "parallel_ratio": _mean([bool(m.trace.blocks) for m in members]),
        "well_formed": _mean([m.trace.well_formed for m in forked]),
        "num_blocks": _mean([len(m.trace.blocks) for m in members]),
        "paths_per_block": _mean([len(block.paths) for m in members for block in m.trace.blocks]),
        "path_distinct": _mean(
            [block.num_distinct_paths / len(block.paths) for m in members for block in m.trace.blocks if block.paths]
        ),
        "total_tokens": _mean([m.rollout.total_tokens for m in members]),
        "critical_tokens": _mean([m.rollout.critical_tokens for m in members]),
        "truncated": _mean([m.rollout.truncated for m in members]),
        "faults": {name: count / len(members) for name, count in sorted(faults.items())},
        "path_right": _mean([any(paths) for paths in judged]),
        "path_success": _mean([right for paths in judged for right in paths]),
        "failed_checks": sum(m.verdict.outcome in FAILED for m in members),
        "dead_groups": len(dead),
        "dead_right": dead_right,
        "dead_wrong": dead_wrong,
        "first_block_position": _mean([m.trace.blocks[0].start / m.rollout.total_tokens for m in forked]),
        "allowed_mass": _mean([mass for mass, _ in sampled]),
        "entropy": _mean([-logp for _, logp in sampled]),
        "entropy_by_region": entropy_by_region(members),
        "reward_parts": {name: _mean([m.reward_parts.get(name, 0.0) for m in members]) for name in names},
    }


def entropy_by_region(members: Sequence[ScoredRollout]) -> dict[str, float]:
    """Mean surprise of sampled tokens in the main chain, in paths and in summaries; empty regions are left out."""
    found: dict[str, list[float]] = {"main": [], "path": [], "summary": []}
    for member in members:
        regions = ["main"] * member.rollout.total_tokens
        for block in member.trace.blocks:
            spans = [("path", path.start, path.end) for path in block.paths]
            if block.summary_start is not None:
                spans.append(("summary", block.summary_start, block.end))
            for name, start, end in spans:
                regions[start:end] = [name] * (end - start)
        rollout = member.rollout
        for name, logp, forced in zip(regions, rollout.engine_logps, rollout.forced, strict=True):
            if not forced:
                found[name].append(-logp)
    return {name: sum(values) / len(values) for name, values in found.items() if values}


def rollout_rows(groups: Sequence[Group], stage: str, step: int, mode: DecodeMode) -> Iterator[dict[str, Any]]:
    """Every scored rollout as a JSON-able object (one line of ``rollouts/<stage>.jsonl``)."""
    for group in groups:
        problem = group.problem
        for sample, member in enumerate(group.members):
            rollout, verdict = member.rollout, member.verdict
            yield {
                "stage": stage, "step": step, "problem_id": problem.id, "task": problem.task, "size": problem.size,
                "question": problem.question, "gold": problem.gold, "sample": sample, "mode": mode,
                "prompt_ids": list(rollout.prompt_ids), "response_ids": list(rollout.response_ids),
                "forced": [int(forced) for forced in rollout.forced], "text": member.text,
                "verdict": {"outcome": verdict.outcome, "answer": verdict.answer, "how": verdict.how},
                "reward": member.reward, "reward_parts": dict(member.reward_parts),
                "trace_state": member.trace.state, "num_blocks": len(member.trace.blocks),
                "total_tokens": rollout.total_tokens, "critical_tokens": rollout.critical_tokens,
                "truncated": rollout.truncated, "stop_reason": rollout.stop_reason,
            }  # fmt: skip


def _mean(values: Sequence[float | bool]) -> float | None:
    return float(sum(values)) / len(values) if values else None
