"""Order of stages, what is repeated after a stop and what is not. Trainers are stand-ins that change nothing."""

import errno
import io
import json

import pytest
from rich.console import Console

from parallel_r1.curriculum import is_full_disk, run_recipe
from parallel_r1.recipe import parse_recipe
from parallel_r1.run_dir import METRICS, SUMMARY, read_lines

STEPS = 3


def stage(kind, name, **entries):
    return {"kind": kind, "name": name, "data": [{"task": "countdown", "num": 4}], **entries}


def recipe(*stages, **entries):
    sets = {"sets": [{"task": "serial", "num": 2}], "samples": 1, "pass_k": [1]}
    return parse_recipe({"name": "r", "model": "tiny-scratch", "evaluate": sets, "stages": list(stages), **entries})


WHOLE = recipe(stage("sft", "cold"), stage("rl", "easy", steps=STEPS), stage("rl", "hard", steps=STEPS))


class Stopped(Exception):
    pass


class World:
    """Stand-ins for both trainers and the evaluation, and what they were asked for."""

    def __init__(self):
        self.trained, self.evaluated, self.tagged = [], [], {}
        self.stop_at = None

    def train(self, loaded, name, log, row):
        self.trained.append(name)
        self.tagged[name] = loaded.tags is not None
        for step in range(1, STEPS + 1):
            if (name, step) == self.stop_at:
                raise Stopped
            log({"stage": name, "step": step, **row})

    def run_sft(self, loaded, rows, stage, variant, folder, seed, log, settings):
        self.train(loaded, stage.name, log, {"kind": "sft", "steps": STEPS, "loss": 1.0})

    def run_grpo(self, loaded, stage, recipe, folder, log, record):
        self.train(loaded, stage.name, log, {"kind": "rl", "reward": 0.0})

    def evaluate_model(self, loaded, variant, config, prompt, engine_config, seed, stage, out_dir, **_):
        from parallel_r1.evaluate.run import EvalResult

        self.evaluated.append(stage)
        rows = [{"stage": stage, "task": "serial", "size": "easy", "mean": 0.5, "sequential_mean": None,
                 "parallel_ratio": 0.0, "total_tokens": 9, "critical_tokens": 9}]  # fmt: skip
        out_dir.mkdir(exist_ok=True)
        (out_dir / f"{stage}.json").write_text(json.dumps(rows))
        return EvalResult(rows)


@pytest.fixture
def world(monkeypatch):
    world = World()
    monkeypatch.setattr("parallel_r1.train.sft.run_sft", world.run_sft)
    monkeypatch.setattr("parallel_r1.train.grpo.run_grpo", world.run_grpo)
    monkeypatch.setattr("parallel_r1.evaluate.run.evaluate_model", world.evaluate_model)
    return world


@pytest.fixture
def go(tmp_path):
    def go(recipe=WHOLE, **settings):
        console = Console(file=io.StringIO(), width=160)
        run_recipe(recipe, tmp_path / "run", console=console, **settings)
        return console.file.getvalue()

    return go


def test_stages_run_in_order_and_each_is_evaluated(world, go, tmp_path):
    text = go()
    assert world.trained == ["cold", "easy", "hard"] and world.evaluated == ["base", "cold", "easy", "hard"]
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert [row["stage"] for row in summary["results"]] == world.evaluated
    assert summary["finished"] and summary["seed"] == 0 and "torch" in summary["versions"]
    assert (tmp_path / "run" / "report.html").is_file() and "report.html" in text


def test_a_finished_run_does_nothing_again(world, go):
    go()
    text = go()
    assert len(world.trained) == 3 and len(world.evaluated) == 4 and "accuracy" in text


def test_fresh_does_everything_again(world, go):
    go()
    go(resume=False)
    assert len(world.trained) == 6 and len(world.evaluated) == 8


def test_after_a_stop_only_what_is_missing_is_done(world, go, tmp_path):
    world.stop_at = ("easy", 2)
    with pytest.raises(Stopped):
        go()
    summary = json.loads((tmp_path / "run" / SUMMARY).read_text())
    assert not summary["finished"] and [row["stage"] for row in summary["results"]] == ["base", "cold"]
    world.stop_at = None
    go()
    assert world.trained == ["cold", "easy", "easy", "hard"] and world.evaluated == ["base", "cold", "easy", "hard"]
    logged = [(row["stage"], row["step"]) for row in read_lines(tmp_path / "run" / METRICS) if row["kind"] == "rl"]
    assert logged == [(name, step) for name in ("easy", "hard") for step in (1, 2, 3)]


def test_a_stage_whose_model_is_whole_is_finished_even_if_its_manifest_is_not(world, go, tmp_path):
    go()
    manifest = tmp_path / "run" / "easy" / "stage.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "status": "training"}))
    go()
    assert len(world.trained) == 3 and json.loads(manifest.read_text())["status"] == "trained"


def test_each_stage_starts_from_the_model_of_the_one_before(world, go, tmp_path):
    go()
    starts = [
        json.loads((tmp_path / "run" / name / "stage.json").read_text())["started_from"] for name in world.trained
    ]
    assert starts[0] == "tiny-scratch" and [start.split("/")[-2] for start in starts[1:]] == ["cold", "easy"]


@pytest.mark.parametrize(
    ("stages", "tagged"),
    [
        ((stage("sft", "base-text", format="base"), stage("sft", "cold")), {"base-text": False, "cold": True}),
        ((stage("sft", "lines", format="linear"), stage("rl", "seq", engine={"mode": "sequential"})),
         {"lines": False, "seq": False}),
        ((stage("rl", "zero"),), {"zero": True}),
    ],
)  # fmt: skip
def test_tags_enter_before_the_first_stage_that_needs_them(world, go, stages, tagged):
    go(recipe(*stages))
    assert world.tagged == tagged


def test_single_stages_need_those_before_them(world, go):
    with pytest.raises(ValueError, match="easy starts from cold, which has not finished"):
        go(only=["easy"])
    go(only=["cold"])
    go(only=["easy"])
    assert world.trained == ["cold", "easy"] and world.evaluated == []


def test_several_processes_are_refused(go, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE = 2"):
        go()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "x"), RuntimeError("I/O error: No space left on device (os error 28)")]
)
def test_a_full_disk_is_one_message(world, go, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr("parallel_r1.curriculum.save_final", full)
    with pytest.raises(OSError, match=r"disk of .* is full\. Make room and give the same command again"):
        go()


def test_other_errors_are_no_full_disk(tmp_path):
    assert not is_full_disk(RuntimeError("unexpected pos 1 vs 2"), tmp_path)
    assert not is_full_disk(ValueError("x"), tmp_path)
