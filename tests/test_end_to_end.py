"""The real command line on a tiny random model: cold start, RL, evaluation, report; killed and resumed."""

import functools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from parallel_r1.run_dir import read_lines

pytestmark = pytest.mark.slow
RECIPE = """
name = "mini"
model = "tiny-scratch"
variant = "{variant}"

[engine]
paths = 2
max_blocks = 1
max_response_tokens = 60
path_budget = 12
answer_reserve = 16

[[stages]]
kind = "sft"
name = "cold-start"
data = [{{ task = "countdown", num = 8, texts = 16 }}]
batch_size = 8
micro_batch = 8
learning_rate = 1e-3
save_every = 1

[[stages]]
kind = "rl"
name = "rl-easy"
data = [{{ task = "countdown", num = 8 }}]
steps = 2
prompts_per_step = 2
samples = 2
micro_batch = 4
save_every = 1

[evaluate]
samples = 2
pass_k = [2]
modes = ["forked", "sequential"{more}]
sets = [{{ task = "countdown", num = 3 }}]
"""
ROW_KEYS = {
    "stage", "task", "split", "num_problems", "samples_per_problem", "mean", "mean_ci", "pass_at_k", "parallel_ratio",
    "well_formed", "total_tokens", "critical_tokens", "sequential_mean", "seconds",
}  # fmt: skip
TIMES = ("time", "seconds", "seconds_rollout", "seconds_update")


def command(*arguments):
    return [sys.executable, "-m", "parallel_r1", *map(str, arguments)]


def call(*arguments):
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(path):
    rows = [{key: value for key, value in row.items() if key not in TIMES} for row in read_lines(path)]
    return sorted((row for row in rows if row.get("kind") != "note"), key=json.dumps)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """``runs(variant) -> (recipe, run directory, output)``; each variant is run once."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def run(variant):
        recipe, out = folder / f"{variant}.toml", folder / variant
        recipe.write_text(RECIPE.format(variant=variant, more=', "linear"' if variant == "causal" else ""))
        return recipe, out, call("run", recipe, "--out", out)

    return run


@pytest.fixture
def finished(runs):
    return runs("structured")[:2]


@pytest.mark.parametrize("variant", ["structured", "causal"])
def test_the_whole_curriculum(runs, variant):
    _, out, text = runs(variant)
    summary = json.loads((out / "summary.json").read_text())
    assert [row["stage"] for row in summary["results"]] == ["base", "cold-start", "rl-easy"] and summary["finished"]
    assert all(row.keys() >= ROW_KEYS for row in summary["results"])
    kinds = [(row["stage"], row["kind"]) for row in read_lines(out / "metrics.jsonl") if row["kind"] != "note"]
    assert kinds == [("base", "eval"), *[("cold-start", "sft")] * 2, ("cold-start", "eval"), *[("rl-easy", "rl")] * 2,
                     ("rl-easy", "eval")]  # fmt: skip
    assert len(list(read_lines(out / "rollouts" / "rl-easy.jsonl"))) == 8
    assert "<html" in (out / "report.html").read_text() and "rl-easy" in text


def test_a_run_that_is_killed_again_and_again_ends_the_same(finished, tmp_path):
    recipe, reference = finished
    out = tmp_path / "run"
    lines = 0
    for _ in range(3):
        running = subprocess.Popen(
            command("run", recipe, "--out", out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 120
        while running.poll() is None and time.monotonic() < deadline:
            now = (out / "metrics.jsonl").read_text().count("\n") if (out / "metrics.jsonl").is_file() else 0
            if now > lines + 1:  # at least two lines further than at the last kill
                break
            time.sleep(0.01)
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        lines = (out / "metrics.jsonl").read_text().count("\n")
    call("run", recipe, "--out", out)
    for name in ("metrics.jsonl", "rollouts/rl-easy.jsonl", "eval/rl-easy.rollouts.jsonl"):
        assert numbers(out / name) == numbers(reference / name), name
    for stage in ("cold-start", "rl-easy"):
        weights = [(run / stage / "final" / "model.safetensors").read_bytes() for run in (out, reference)]
        assert weights[0] == weights[1], stage


def test_single_stages_evaluation_and_report(finished, tmp_path):
    recipe, reference = finished
    out = tmp_path / "run"
    call("sft", recipe, "--out", out)
    call("rl", recipe, "--out", out)
    weights = [(run / "rl-easy" / "final" / "model.safetensors").read_bytes() for run in (out, reference)]
    assert weights[0] == weights[1]
    call("eval", recipe, "--out", out)
    rows = [json.loads((run / "summary.json").read_text())["results"] for run in (out, reference)]
    assert [(row["stage"], row["mean"]) for row in rows[0]] == [(row["stage"], row["mean"]) for row in rows[1]]
    assert call("report", out).strip().endswith("report.html")


def test_a_trained_model_alone(finished, tmp_path):
    recipe, reference = finished
    model = reference / "rl-easy" / "final"
    call("eval", recipe, "--model", model, "--out", tmp_path / "e")
    assert json.loads((tmp_path / "e" / "summary.json").read_text())["results"][0]["num_problems"] == 3
    assert "critical path" in call("generate", model, "make 21 from 8 3 3", "--paths", "3")
    figures = tmp_path / "gaps.json"
    call("check", "engine", model, "--rollouts", "8", "--json", figures)
    found = json.loads(figures.read_text())
    assert found["passed"] and found["structured"]["max_abs_gap"] < 1e-4 and "gap_by_path" in found["causal"]
