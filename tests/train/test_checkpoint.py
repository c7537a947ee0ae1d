"""Whole checkpoints: what was half written never counts."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("transformers")

from parallel_r1.train.checkpoint import (
    MARKER,
    SAVING,
    final_model,
    latest_complete,
    publish,
    read_marker,
    save_final,
    start_point,
)  # fmt: skip


def write(folder, step, marks=None, whole=True):
    aside = folder / SAVING / f"checkpoint-{step}"
    (aside / "deep").mkdir(parents=True)
    (aside / "model.safetensors").write_bytes(b"w" * 100)
    (aside / "deep" / "state.json").write_text("{}")
    target = folder / f"checkpoint-{step}"
    if not whole:
        return os.rename(aside, target)
    return publish(aside, target, {"step": step, "stage": marks or {}})


def test_the_whole_one_with_most_steps_counts(tmp_path):
    assert latest_complete(tmp_path) is None
    assert latest_complete(tmp_path / "nowhere") is None
    for step in (2, 10, 9):
        write(tmp_path, step)
    assert latest_complete(tmp_path) == tmp_path / "checkpoint-10"
    assert read_marker(tmp_path / "checkpoint-10")["files"] == {"deep/state.json": 2, "model.safetensors": 100}


@pytest.mark.parametrize("damage", ["no marker", "missing file", "short file", "marker cut"])
def test_half_written_ones_are_passed_over_and_removed(tmp_path, damage):
    write(tmp_path, 2)
    broken = tmp_path / "checkpoint-4"
    write(tmp_path, 4, whole=damage != "no marker")
    (tmp_path / SAVING / "checkpoint-6").mkdir(parents=True)
    if damage == "missing file":
        (broken / "deep" / "state.json").unlink()
    elif damage == "short file":
        (broken / "model.safetensors").write_bytes(b"w" * 99)
    elif damage == "marker cut":
        (broken / MARKER).write_text((broken / MARKER).read_text()[:20])
    assert latest_complete(tmp_path, remove_broken=False) == tmp_path / "checkpoint-2"
    assert broken.exists()
    assert latest_complete(tmp_path) == tmp_path / "checkpoint-2"
    assert not broken.exists()
    assert not (tmp_path / SAVING).exists()


def test_another_stage_is_not_resumed(tmp_path):
    write(tmp_path, 2, {"learning_rate": 1e-3, "seed": 0})
    assert start_point(tmp_path, {"learning_rate": 1e-3, "seed": 0}) == str(tmp_path / "checkpoint-2")
    with pytest.raises(ValueError, match=r"learning_rate = 0\.001, now learning_rate = 0\.002"):
        start_point(tmp_path, {"learning_rate": 2e-3, "seed": 0})
    assert start_point(tmp_path, {"learning_rate": 2e-3}, resume=False) is None
    assert not (tmp_path / "checkpoint-2").exists()


def test_replacing_a_folder_keeps_one(tmp_path):
    write(tmp_path, 2, {"a": 1})
    write(tmp_path, 2, {"a": 2})
    assert read_marker(tmp_path / "checkpoint-2")["stage"] == {"a": 2}


def test_a_process_killed_while_saving_leaves_the_last_whole_one(tmp_path):
    script = """
        import pathlib, sys
        from parallel_r1.train.checkpoint import SAVING, publish
        folder = pathlib.Path(sys.argv[1])
        for step in range(1, 10_000):
            aside = folder / SAVING / f"checkpoint-{step}"
            aside.mkdir(parents=True)
            for part in range(8):
                with open(aside / f"part-{part}", "wb") as file:
                    for _ in range(20):
                        file.write(bytes(1000))
                        file.flush()
            publish(aside, folder / aside.name, {"step": step})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "checkpoint-3").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = latest_complete(tmp_path)
    steps = sorted(int(p.name.split("-")[1]) for p in tmp_path.glob("checkpoint-*"))
    assert found == tmp_path / f"checkpoint-{steps[-1]}"
    assert all((found / f"part-{part}").stat().st_size == 20_000 for part in range(8))
    assert not (tmp_path / SAVING).exists()


def test_the_final_model_can_be_loaded(tmp_path, loaded):
    import torch

    from parallel_r1.models.load import SavedSettings, load_model

    assert final_model(tmp_path) is None
    settings = SavedSettings(variant="structured", stop_ids=loaded.stop_ids)
    assert save_final(loaded, tmp_path, settings) == final_model(tmp_path) == tmp_path / "final"
    again = load_model(tmp_path / "final")
    assert again.settings == settings
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(again.model(ids).logits, loaded.model(ids).logits)
    marker = tmp_path / "final" / MARKER
    marker.write_text(json.dumps({"files": {"gone": 1}}))
    assert final_model(tmp_path) is None
