"""From the responses of a set to its row in ``summary.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from parallel_r1.answers.normalise import normalise
from parallel_r1.config import EvalConfig, EvalSet
from parallel_r1.evaluate import metrics
from parallel_r1.tasks.countdown import random_null
from parallel_r1.types import DecodeMode, Problem

if TYPE_CHECKING:
    from parallel_r1.evaluate.run import Part

SEARCHED = frozenset({"countdown"})
"""Tasks whose problems have many right answers, so that votes say nothing."""


def result_row(
    stage: str,
    where: EvalSet,
    parts: Mapping[DecodeMode, Part],
    problems: Sequence[Problem],
    config: EvalConfig,
    seed: int,
) -> dict[str, Any]:
    """The row of one (stage, set). Its figures are of the first mode, "forked" where that was decoded.

    ``sequential_*`` is the same model, prompt, problems and seeds without forking; ``difference`` the
    paired gap to it. ``sequential_capped`` cuts it at the forked critical path, ``majority`` lets it vote
    with as many tokens (see `equal_budgets`). ``modes`` holds the figures of every mode.
    """
    by_id = {problem.id: problem for problem in problems}
    main: DecodeMode = "forked" if "forked" in parts else next(iter(parts))
    samples = config.samples_of(where)
    pass_k = [k for k in config.pass_k if k <= samples]
    figures = {mode: mode_figures(part.rollouts, by_id, pass_k, seed) for mode, part in parts.items()}
    row: dict[str, Any] = {
        "stage": stage, "task": where.task, "split": where.split, "size": where.size, "mode": main,
        "num_problems": figures[main]["num_problems"], "samples_per_problem": samples,
        **{k: v for k, v in figures[main].items() if k != "num_problems"},
        "sequential_mean": None, "sequential_ci": None, "sequential_tokens": None,
        "difference": None, "difference_ci": None, "sequential_capped": None, "majority": None,
        "dropped_prompts": len(parts[main].dropped), "seconds": sum(part.seconds for part in parts.values()),
        "seed": seed, "modes": figures,
    }  # fmt: skip
    if "sequential" in figures:
        other = figures["sequential"]
        row.update(
            sequential_mean=other["mean"], sequential_ci=other["mean_ci"], sequential_tokens=other["total_tokens"]
        )
        if main != "sequential":
            gap, interval = metrics.paired_difference(
                metrics.success_rates(counts_of(parts[main].rollouts)),
                metrics.success_rates(counts_of(parts["sequential"].rollouts)),
                seed,
            )
            row.update(difference=gap, difference_ci=list(interval))
            votes = where.task not in SEARCHED
            row.update(equal_budgets(parts[main].rollouts, parts["sequential"].rollouts, votes))
    return row


def equal_budgets(
    forked: Sequence[Mapping[str, Any]], sequential: Sequence[Mapping[str, Any]], votes: bool
) -> dict[str, float | int | None]:
    """What sequential decoding scores with the budget of the forked one.

    - ``sequential_capped``: at an equal critical path. A response longer than the mean critical path of
      its problem's forked responses counts as cut, and so as wrong: the answer comes last.
      ``sequential_capped_tokens`` is the mean length it achieved.
    - ``majority``: at equal tokens. ``majority_votes`` = floor(forked mean tokens / sequential mean
      tokens) samples vote, at most as many as were drawn; the earliest of equally frequent answers wins.
      ``majority_tokens`` are the tokens all voters took. None where ``votes`` is False: an answer that
      is one of many right ones cannot be voted on.
    """
    caps = {name: metrics.mean([r["critical_tokens"] for r in rows]) or 0 for name, rows in by_problem(forked).items()}
    groups = by_problem(sequential)
    capped = [
        metrics.share([is_right(r) and r["total_tokens"] <= caps.get(name, 0) for r in rows])
        for name, rows in groups.items()
    ]
    spent = [min(r["total_tokens"], caps.get(name, 0)) for name, rows in groups.items() for r in rows]
    found: dict[str, float | int | None] = {
        "sequential_capped": metrics.mean(capped), "sequential_capped_tokens": metrics.mean(spent),
        "majority": None, "majority_votes": None, "majority_tokens": None,
    }  # fmt: skip
    tokens, each = (metrics.mean([r["total_tokens"] for r in rows]) or 1 for rows in (forked, sequential))
    voters = min(max(1, int(tokens / each)), *map(len, groups.values()))
    if votes:
        found.update(
            majority=metrics.share([majority_is_right(rows[:voters]) for rows in groups.values()]),
            majority_votes=voters, majority_tokens=voters * each,
        )  # fmt: skip
    return found


def majority_is_right(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the most frequent answer of some responses is right; responses without an answer do not vote."""
    answers = [normalise(row["verdict"]["answer"]) for row in rows if row["verdict"]["answer"]]
    if not answers:
        return False
    winner = Counter(answers).most_common(1)[0][0]
    return any(is_right(row) for row in rows if normalise(row["verdict"]["answer"] or "") == winner)


def by_problem(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Responses of each problem, in the order in which the problems first appear."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rollouts:
        found.setdefault(row["problem_id"], []).append(row)
    return found


def is_right(row: Mapping[str, Any]) -> bool:
    return row["verdict"]["outcome"] == "right"


def counts_of(rollouts: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """(n, c) per problem, in the order in which the problems first appear."""
    return [(len(rows), sum(map(is_right, rows))) for rows in by_problem(rollouts).values()]


def mode_figures(
    rollouts: Sequence[Mapping[str, Any]], problems: Mapping[str, Problem], pass_k: Sequence[int], seed: int
) -> dict[str, Any]:
    """All figures of the responses of one mode. What a task or a mode does not have is None."""
    counts = counts_of(rollouts)
    accuracy = metrics.mean_at_k(counts)
    judged = [any(map(any, row["path_right"])) for row in rollouts if row["path_right"] is not None]
    with_blocks = [row for row in rollouts if row["num_blocks"]]
    has_right_path = metrics.share(judged) if with_blocks else None
    tried = [row["attempts"] for row in rollouts]
    hits = [row["right_attempts"] for row in rollouts if row["right_attempts"] is not None]
    right_steps, steps = (sum(row["steps"][i] for row in rollouts) for i in (0, 1))
    outcomes = [row["verdict"]["outcome"] for row in rollouts]
    return {
        "num_problems": len(counts), "mean": accuracy,
        "mean_ci": list(metrics.bootstrap_ci(metrics.success_rates(counts), seed)),
        "pass_at_k": {str(k): metrics.mean_pass_at_k(counts, k) for k in pass_k},
        "parallel_ratio": metrics.parallel_ratio([row["num_blocks"] for row in rollouts]),
        "well_formed": metrics.share([row["trace_state"] == "well_formed" for row in with_blocks]),
        "num_blocks": metrics.mean([row["num_blocks"] for row in rollouts]),
        "total_tokens": metrics.mean([row["total_tokens"] for row in rollouts]),
        "critical_tokens": metrics.mean([row["critical_tokens"] for row in rollouts]),
        "block_position": metrics.mean([p for row in rollouts for p in row["block_positions"]]),
        "path_right": has_right_path, "selection": metrics.selection(accuracy, has_right_path),
        "path_distinct": metrics.mean([row["distinctness"] for row in rollouts]),
        "step_accuracy": right_steps / steps if steps else None,
        "attempts": metrics.mean(tried), "success_per_attempt": sum(hits) / sum(tried) if hits and sum(tried) else None,
        "random_null": null_accuracy([problems[row["problem_id"]] for row in rollouts], tried),
        "truncated": metrics.share([bool(row["truncated"]) for row in rollouts]),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
    }  # fmt: skip


def null_accuracy(problems: Sequence[Problem], tried: Sequence[int]) -> float | None:
    """What a uniform guesser with a perfect checker would score with as many attempts, response by response.

    ``problems`` and ``tried`` have one entry per response; None for tasks without an exact null.
    """
    return metrics.mean(
        [random_null([p], t) for p, t in zip(problems, tried, strict=True) if p.task == "countdown" and p.data]
    )
