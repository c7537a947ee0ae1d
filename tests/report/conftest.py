"""A synthetic run directory: real tasks and real traces, figures that were made up."""

import json
import random

import pytest

from parallel_r1.tasks import load_task
from parallel_r1.trace.tags import parse_text

HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>"
STAGES = ("cold-start", "rl-easy", "rl-hard")


def write_lines(path, rows, tail=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail, encoding="utf-8")


def rollout(task, problem, stage, step, sample, mode, rng, tokenizer=None, tags=None):
    """One stored rollout as training and evaluation write them."""
    text = task.trace(problem, rng, rng.choice([2, 3, 4]), 2) if mode == "forked" else task.base_text(problem, rng)
    if rng.random() < 0.3:
        text = text.rpartition(" ")[0] + " 7*3=21"
    trace = parse_text(text)
    verdict = task.verify(problem, trace.answer_region)
    ids, forced = [], []
    if tokenizer is not None:
        from parallel_r1.trace.tokens import encode_trace

        ids = [*encode_trace(tokenizer, text, tags), tokenizer.eos_token_id]
        always = {tags.path_open, tags.parallel_close, tags.summary_open}
        forced = [i in always or (i in tags.newline and ids[k - 1] == tags.parallel_close) for k, i in enumerate(ids)]
    saved = sum(len(p.content) for b in trace.blocks for p in b.paths[1:])
    return {
        "stage": stage, "step": step, "problem_id": problem.id, "task": problem.task, "size": problem.size,
        "question": problem.question, "gold": problem.gold, "sample": sample, "mode": mode, "prompt_ids": [5, 6],
        "response_ids": ids, "forced": forced, "text": text,
        "verdict": {"outcome": verdict.outcome, "answer": verdict.answer, "how": verdict.how},
        "reward": 1.0 if verdict.right else -1.0, "reward_parts": {"accuracy": 1.0}, "trace_state": trace.state,
        "num_blocks": len(trace.blocks), "total_tokens": len(text), "critical_tokens": len(text) - saved,
        "truncated": False, "stop_reason": "stop",
    }  # fmt: skip


def result(stage, index, task, size, rng):
    mean = {"countdown": 0.12, "chain": 0.35}[task] + 0.11 * index - (0.08 if size == "hard" else 0)
    forked = stage != "base"
    flat = mean - 0.05 * index
    return {
        "stage": stage, "task": task, "split": "test", "size": size, "mode": "forked" if forked else "sequential",
        "num_problems": 200, "samples_per_problem": 4, "mean": mean, "mean_ci": [mean - 0.04, mean + 0.045],
        "pass_at_k": {"4": mean + 0.2}, "parallel_ratio": 0.9 - 0.1 * index if forked else 0.0,
        "well_formed": 1.0 if forked else None, "total_tokens": 80 + 9 * index, "critical_tokens": 50 + 4 * index,
        "block_position": 0.05 + 0.1 * index if forked else None, "sequential_mean": flat,
        "sequential_ci": [flat - 0.03, flat + 0.03], "sequential_tokens": 44, "difference": mean - flat,
        "difference_ci": [mean - flat - 0.02, mean - flat + 0.03], "path_right": mean + 0.15 if forked else None,
        "selection": mean / (mean + 0.15) if forked else None, "seconds": 12.5,
        "random_null": 0.18 if task == "countdown" else None,
        "sequential_capped": flat - 0.02, "majority": flat + 0.02 if task == "chain" else None,
        "majority_votes": 2 if task == "chain" else None, "success_per_attempt": 0.1,
    }  # fmt: skip


def logged(rng):
    for step in range(10, 240, 10):
        yield {"stage": "cold-start", "kind": "sft", "step": step, "steps": 230, "loss": 2.5 / step**0.5 + 0.05}
    for stage, steps in (("rl-easy", 30), ("rl-hard", 60)):
        for step in range(1, steps + 1):
            rise = step / steps
            yield {
                "stage": stage, "kind": "rl", "step": step, "seconds": 3.2,
                "reward": -0.5 + 0.8 * rise + rng.gauss(0, 0.05),
                "accuracy": 0.25 + 0.4 * rise, "parallel_ratio": 0.95 - 0.3 * rise, "well_formed": 1.0,
                "num_blocks": 1.3, "total_tokens": 90 + 10 * rise + rng.gauss(0, 2),
                "critical_tokens": 55 + 5 * rise + rng.gauss(0, 1), "truncated": 0.0,
                "first_block_position": 0.04 + 0.3 * rise if step != 12 else None, "loss": 0.01, "reward_parts": {},
            }  # fmt: skip


@pytest.fixture(scope="session")
def tokenizer_and_tags():
    from transformers import AddedToken

    from parallel_r1.models.tiny import tiny_tokenizer
    from parallel_r1.trace.tags import TAGS
    from parallel_r1.trace.tokens import tag_ids

    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer, tag_ids(tokenizer)


def make_run(folder, tokenizer=None, tags=None):
    """Write a finished run with one hostile rollout and a half-written last line."""
    rng = random.Random(0)
    stages = [{"name": name, "kind": "sft" if i == 0 else "rl"} for i, name in enumerate(STAGES)]
    recipe = {"name": "tiny", "model": "tiny", "variant": "structured", "seed": 0, "stages": stages}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(json.dumps(recipe))
    sets = [("countdown", "easy"), ("countdown", "hard"), ("chain", "hard")]
    rows = [result(s, i, *where, rng) for i, s in enumerate(("base", *STAGES)) for where in sets]
    summary = {
        "name": "tiny", "seed": 0, "variant": "structured", "git_revision": "0123456789abcdef",
        "versions": {"parallel_r1": "0.1.0", "torch": "2.13.0"}, "results": rows,
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    write_lines(folder / "metrics.jsonl", logged(rng), tail='{"stage": "rl-hard", "kind": "rl", "st')
    where = [(load_task(task), size) for task, size in sets]
    problems = [(task, p) for task, size in where for p in task.problems("train", size, 8, 0)]
    for stage in STAGES[1:]:
        found = [
            rollout(task, p, stage, step, 0, "forked", rng, tokenizer, tags)
            for step in range(1, 6) for task, p in problems
        ]  # fmt: skip
        # An outcome of its own, so that the sample on the page cannot miss it.
        hostile = {
            **found[0], "question": HOSTILE, "text": f"{HOSTILE}\u2028 {HOSTILE}", "response_ids": [], "forced": [],
            "verdict": {"outcome": "error", "answer": HOSTILE, "how": HOSTILE},
        }  # fmt: skip
        write_lines(folder / "rollouts" / f"{stage}.jsonl", [hostile, *found], tail='{"text": "half')
    for stage in ("base", *STAGES):
        modes = ("forked", "sequential") if stage != "base" else ("sequential",)
        found = [rollout(t, p, stage, 0, 0, m, rng, tokenizer, tags) for m in modes for t, p in problems]
        write_lines(folder / "eval" / f"{stage}.rollouts.jsonl", found)
    if tokenizer is not None:
        final = folder / STAGES[-1] / "final"
        final.mkdir(parents=True)
        tokenizer.save_pretrained(final)
    return folder


@pytest.fixture
def run_dir(tmp_path, tokenizer_and_tags):
    return make_run(tmp_path / "run", *tokenizer_and_tags)
