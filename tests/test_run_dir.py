"""A run directory: one recipe, one process, lines that a kill cannot spoil."""

import json
import os
import subprocess
import sys

import pytest

from parallel_r1.recipe import parse_recipe
from parallel_r1.run_dir import METRICS, RECIPE, RunDir, flatten, open_run, read_lines

RAW = {
    "name": "small", "model": "tiny-scratch",
    "stages": [
        {"kind": "sft", "name": "cold-start", "data": [{"task": "countdown"}]},
        {"kind": "rl", "name": "rl-easy", "data": [{"task": "countdown"}], "steps": 4},
    ],
}  # fmt: skip


def changed(**entries):
    """The recipe with some entries of its last stage, or of itself, replaced."""
    last = {key: value for key, value in entries.items() if key in ("steps", "name", "micro_batch")}
    top = {key: value for key, value in entries.items() if key not in last}
    return parse_recipe({**RAW, **top, "stages": [RAW["stages"][0], {**RAW["stages"][1], **last}]})


def begin(folder, *stages):
    with open_run(folder, changed()) as run:
        for stage in stages:
            run.write_manifest(stage, status="training")
    return run


def test_the_resolved_recipe_is_written(tmp_path):
    run = begin(tmp_path / "run")
    assert parse_recipe(json.loads((run.folder / RECIPE).read_text())) == changed()
    assert not list(run.folder.glob("*.lock"))


def test_another_recipe_is_refused_and_its_keys_named(tmp_path):
    begin(tmp_path, "cold-start", "rl-easy")
    with (
        pytest.raises(ValueError, match=r"stages\.1\.steps \(4 there, 5 now\).*--fresh"),
        open_run(tmp_path, changed(steps=5)),
    ):
        pass
    with pytest.raises(ValueError, match=r"seed \(0 there, 3 now\)"), open_run(tmp_path, changed(seed=3)):
        pass


def test_a_stage_that_has_not_begun_may_still_change(tmp_path):
    begin(tmp_path, "cold-start")
    with open_run(tmp_path, changed(steps=5, name="rl-other")):
        pass
    assert json.loads((tmp_path / RECIPE).read_text())["stages"][1]["steps"] == 5


def test_settings_of_speed_may_change(tmp_path):
    begin(tmp_path, "cold-start", "rl-easy")
    with open_run(tmp_path, changed(micro_batch=24)):
        pass


def test_fresh_deletes_what_the_run_wrote_and_nothing_else(tmp_path):
    begin(tmp_path, "cold-start")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / METRICS).write_text("{}\n")
    with open_run(tmp_path, changed(seed=3), fresh=True):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", RECIPE]


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"holds thesis\.tex .* give another folder"), open_run(tmp_path, changed()):
        pass
    with pytest.raises(ValueError, match="no run"), open_run(tmp_path, changed(), fresh=True):
        pass


def test_only_one_process_may_work_in_it(tmp_path):
    with open_run(tmp_path, changed()), pytest.raises(ValueError, match=f"process {os.getpid()}.*another --out"):  # noqa: SIM117
        with open_run(tmp_path, changed()):
            pass
    with open_run(tmp_path, changed()):
        pass


def test_the_lock_of_a_killed_process_counts_for_nothing(tmp_path):
    code = (
        "import json, os, sys, signal\n"
        "from parallel_r1.recipe import parse_recipe\n"
        "from parallel_r1.run_dir import open_run\n"
        f"with open_run({str(tmp_path)!r}, parse_recipe({RAW!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (tmp_path / "run.lock").is_file()
    with open_run(tmp_path, changed()):
        pass


def test_a_reused_process_id_is_not_taken_for_the_holder(tmp_path):
    import socket

    (tmp_path / "run.lock").write_text(json.dumps({"pid": os.getpid(), "started": 1.0, "host": socket.gethostname()}))
    with open_run(tmp_path, changed()):
        pass


def test_lines_of_steps_that_come_again_are_dropped(tmp_path):
    run = RunDir(tmp_path)
    for stage, kind, step in [("a", "sft", 1), ("b", "note", None), ("b", "rl", 1), ("b", "rl", 2), ("b", "rl", 3)]:
        run.log({"stage": stage, "kind": kind, **({"step": step} if step else {})})
        run.record(stage, [{"stage": stage, "step": step or 1}])
    run.log_results("b", [{"stage": "b", "mean": 0.5}])
    run.rewind("b", 2)
    assert [(row["stage"], row["kind"], row["step"]) for row in read_lines(tmp_path / METRICS)] == [
        ("a", "sft", 1), ("b", "rl", 1), ("b", "rl", 2),
    ]  # fmt: skip
    assert [row["step"] for row in read_lines(tmp_path / "rollouts" / "b.jsonl")] == [1, 1, 2]
    assert run.last_step("b") == 2 and run.last_step("nothing") == 0


def test_a_half_written_line_is_mended_before_the_next_is_added(tmp_path):
    run = begin(tmp_path)
    run.log({"stage": "a", "kind": "sft", "step": 1})
    with (tmp_path / METRICS).open("a") as stream:
        stream.write('{"stage": "a", "ki')
    with open_run(tmp_path, changed()) as run:
        run.log({"stage": "a", "kind": "sft", "step": 2})
    assert [json.loads(line)["step"] for line in (tmp_path / METRICS).read_text().splitlines()] == [1, 2]


def test_results_replace_earlier_ones(tmp_path):
    run = RunDir(tmp_path)
    run.log_results("a", [{"stage": "a", "mean": 0.1}])
    run.log_results("a", [{"stage": "a", "mean": 0.2}])
    assert [(row["kind"], row["mean"]) for row in read_lines(tmp_path / METRICS)] == [("eval", 0.2)]


def test_flatten():
    assert flatten({"a": {"b": 1}, "c": [2, {"d": 3}]}) == {"a.b": 1, "c.0": 2, "c.1.d": 3}
