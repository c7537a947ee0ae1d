"""SFT on TRL: the order of rows, one gradient whatever the split, the layout rule, and resuming."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from parallel_r1.config import DataSource, PromptConfig, SFTStage
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.models.load import SavedSettings, load_model
from parallel_r1.train.guards import GradientGuard
from parallel_r1.train.sft import row_order, run_sft


def stage(**settings):
    base = {"kind": "sft", "name": "cold", "data": [DataSource(task="countdown", num=12)], "batch_size": 8}
    return SFTStage.model_validate({**base, "micro_batch": 4, "learning_rate": 3e-3, "save_every": 100, **settings})


def rows_for(loaded, settings, seed=0):
    from parallel_r1.coldstart.generate import build_rows

    return build_rows(settings, loaded.tokenizer, loaded.tags, PromptConfig(), seed)[0]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4),
    st.integers(0, 3),
)  # fmt: skip
def test_every_row_is_seen_once_an_epoch_and_none_is_lost(lengths, epochs, micro, pieces, seed):
    settings = stage(epochs=epochs, batch_size=micro * pieces, micro_batch=micro)
    order, filled = row_order(lengths, settings, seed)
    assert len(order) == epochs * len(lengths) + filled
    assert len(order) % settings.batch_size == 0
    assert filled < settings.batch_size
    counts = [order.count(row) for row in range(len(lengths))]

    assert min(counts) >= epochs
    assert sum(counts) - epochs * len(lengths) == filled
    for i in range(0, len(order), settings.batch_size):
        batch = [lengths[row] for row in order[i : i + settings.batch_size]]
        assert batch == sorted(batch)
    assert row_order(lengths, settings, seed) == (order, filled)


def test_updates_hold_a_random_mix_of_lengths():
    lengths = [random.Random(1).randint(1, 100) for _ in range(400)]
    order, _ = row_order(lengths, stage(batch_size=40, micro_batch=4), 0)
    means = [sum(lengths[r] for r in order[i : i + 40]) / 40 for i in range(0, 400, 40)]
    assert max(means) - min(means) < 30
    assert row_order(lengths, stage(batch_size=40, micro_batch=4), 1)[0] != order


def trained(make_loaded, tmp_path, name="out", seed=0, variant="structured", rows=None, log=None, **settings):
    loaded = make_loaded()
    settings = stage(**settings)
    run_sft(loaded, rows or rows_for(loaded, settings), settings, variant, tmp_path / name, seed, log=log)
    return loaded


@pytest.fixture
def gradients(monkeypatch):
    """The gradients of each update, before the optimiser sees them."""
    seen = []
    original = GradientGuard.on_pre_optimizer_step

    def look(self, args, state, control, **kwargs):
        seen.append({name: p.grad.clone() for name, p in kwargs["model"].named_parameters()})
        return original(self, args, state, control, **kwargs)

    monkeypatch.setattr(GradientGuard, "on_pre_optimizer_step", look)
    return seen


def test_any_split_into_micro_batches_gives_the_same_gradient(make_loaded, tmp_path, gradients):
    for micro in (8, 4, 1):
        trained(make_loaded, tmp_path, name=str(micro), micro_batch=micro, max_grad_norm=1e9)
    whole, halves, singles = gradients[0], gradients[2], gradients[4]
    for other in (halves, singles):
        for name, gradient in whole.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_token_mean_under_the_layout_rule(make_loaded, tmp_path, loaded):
    rows = rows_for(loaded, stage())[:8]
    for variant in ("structured", "causal"):
        logged = []
        trained(make_loaded, tmp_path, name=variant, variant=variant, rows=rows, log=logged.append)
        fresh = make_loaded()
        total = count = 0
        with install_layout_hook(fresh.model, fresh.tags, variant), torch.no_grad():
            for row in rows:
                logits = fresh.model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
                labels = torch.tensor(row["labels"][1:])
                total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum", ignore_index=-100))
                count += int((labels != -100).sum())
        assert logged[0]["loss"] == pytest.approx(total / count, rel=1e-5), variant


def test_numbers_of_every_update_and_rows_to_fill_the_last(make_loaded, tmp_path):
    logged = []
    trained(make_loaded, tmp_path, log=logged.append, epochs=3)
    notes = [line for line in logged if line["kind"] == "note"]
    updates = [line for line in logged if line["kind"] == "sft"]
    assert notes[0]["note"] == "4 rows repeated to fill the last batch"
    assert [line["step"] for line in updates] == [1, 2, 3, 4, 5]
    assert {line["steps"] for line in updates} == {5}
    assert updates[-1]["loss"] < updates[0]["loss"]
    assert all(0 <= line["token_accuracy"] <= 1 and line["seconds"] > 0 for line in updates)


def test_a_model_without_tags_is_trained_on_whole_texts(make_loaded, tmp_path):
    loaded = load_model("tiny-scratch")
    assert loaded.tags is None
    logged = []
    settings = stage(format="base", epochs=1)
    rows = rows_for(loaded, settings)
    run_sft(loaded, rows, settings, "structured", tmp_path, 0, log=logged.append)
    assert math.isfinite(logged[-1]["loss"])
    assert not loaded.model.training
    assert "forward" not in loaded.model.__dict__


def test_resumed_training_is_the_same_to_the_bit(make_loaded, tmp_path):
    lines = []
    whole = trained(make_loaded, tmp_path, name="whole", log=lines.append, epochs=3, save_every=2)

    class Crash(Exception):
        pass

    again = []

    def crash(line):
        again.append(line)
        if line.get("step") == 3:
            raise Crash

    with pytest.raises(Crash):
        trained(make_loaded, tmp_path, name="cut", log=crash, epochs=3, save_every=2)
    resumed = trained(make_loaded, tmp_path, name="cut", log=again.append, epochs=3, save_every=2)
    assert [line["step"] for line in again if "step" in line] == [1, 2, 3, 3, 4, 5]
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    losses = {line["step"]: line["loss"] for line in again if "loss" in line}
    assert losses == {line["step"]: line["loss"] for line in lines if "loss" in line}
    # A finished stage is loaded, not trained again.
    finished = []
    last = trained(make_loaded, tmp_path, name="cut", log=finished.append, epochs=3, save_every=2)
    assert not [line for line in finished if line["kind"] == "sft"]
    assert torch.equal(last.model.lm_head.weight, resumed.model.lm_head.weight)


def test_checkpoints_hold_a_model_folder(make_loaded, tmp_path):
    loaded = make_loaded()
    settings = SavedSettings(variant="causal", stop_ids=loaded.stop_ids)
    run_sft(loaded, rows_for(loaded, stage()), stage(), "causal", tmp_path, 0, settings=settings)
    (checkpoint,) = tmp_path.glob("checkpoint-*")
    again = load_model(checkpoint)
    assert again.settings == settings
    assert again.tags == loaded.tags
    assert torch.equal(again.model.lm_head.weight, loaded.model.lm_head.weight)
    assert not (tmp_path / "README.md").exists()


def test_a_save_that_fails_leaves_nothing_to_resume_from(make_loaded, tmp_path, monkeypatch):
    from parallel_r1.train import checkpoint

    def full(*args):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(checkpoint, "publish", full)
        trained(make_loaded, tmp_path, save_every=1)
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    logged = []
    trained(make_loaded, tmp_path, save_every=1, log=logged.append)
    assert [line["step"] for line in logged if "step" in line] == [1, 2]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["checkpoint-1", "checkpoint-2"]


def test_useless_rows_are_refused(loaded, tmp_path):
    with pytest.raises(ValueError, match="no rows to train on"):
        run_sft(loaded, [], stage(), "causal", tmp_path, 0)
    with pytest.raises(ValueError, match="row 0 has 3 ids"):
        run_sft(loaded, [{"input_ids": [1, 2, 3], "labels": [1, -100, -100]}], stage(), "causal", tmp_path, 0)


def test_a_gradient_that_is_no_number_stops_before_the_weights(make_loaded, tmp_path):
    loaded = make_loaded()
    with torch.no_grad():
        loaded.model.model.layers[0].mlp.up_proj.weight[0, 0] = math.inf
    before = loaded.model.lm_head.weight.clone()
    notes = []
    with pytest.raises(FloatingPointError, match="not finite, for the 3rd time"):
        run_sft(loaded, rows_for(loaded, stage()), stage(epochs=5), "causal", tmp_path, 0, log=notes.append)
    assert torch.equal(loaded.model.lm_head.weight, before)
    assert sum("skipped" in line.get("note", "") for line in notes) == 2
    kept = load_file(tmp_path / "broken-3.safetensors")
    assert {name.partition(".")[2] for name in kept} >= {"input_ids", "labels"}
