"""Loading and saving: round trips, errors that say what was tried, settings beside the weights."""

import json

import pytest
import torch

from parallel_r1.config import EngineConfig, PromptConfig
from parallel_r1.models.load import SETTINGS_FILE, SavedSettings, load_model, load_settings, save_model
from parallel_r1.trace.tokens import add_tags, tag_ids

SETTINGS = SavedSettings(
    variant="causal", prompt=PromptConfig(parallel="p: {question}"), engine=EngineConfig(paths=3), stop_ids=(1,)
)


def test_scratch_is_random_but_seeded_and_has_no_tags():
    first, again, other = load_model("tiny-scratch"), load_model("tiny-scratch"), load_model("tiny-scratch", seed=1)
    weight = first.model.get_input_embeddings().weight
    assert torch.equal(weight, again.model.get_input_embeddings().weight)
    assert not torch.equal(weight, other.model.get_input_embeddings().weight)
    assert first.tags is None and first.settings is None
    assert first.stop_ids == (first.tokenizer.eos_token_id,)
    assert not first.model.training and first.model.dtype == torch.float32


def test_save_and_load_give_the_same_logits_tags_and_settings(make_model, tmp_path):
    model, tokenizer, tags = make_model()
    save_model(model, tokenizer, tmp_path / "m", SETTINGS)
    loaded = load_model(tmp_path / "m")
    ids = torch.tensor([[20, *tags.in_order, 30]])
    torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits)
    assert loaded.tags == tags == tag_ids(loaded.tokenizer)
    assert loaded.settings == SETTINGS and loaded.stop_ids == (1,)
    assert [p.name for p in (tmp_path / "m").iterdir() if p.suffix in (".bin", ".pt")] == []
    again = save_model(loaded, None, tmp_path / "again", loaded.settings)
    assert load_settings(again) == SETTINGS


def test_tied_weights_stay_tied_after_tags_and_reload(tmp_path):
    loaded = load_model("tiny-scratch")
    tags = add_tags(loaded.model, loaded.tokenizer)
    save_model(loaded.model, loaded.tokenizer, tmp_path, None)
    again = load_model(tmp_path)
    assert again.tags == tags and again.settings is None
    model = again.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.get_input_embeddings().num_embeddings == len(again.tokenizer)


def test_padded_embeddings_are_cut_to_the_tokenizer(make_model, tmp_path):
    model, tokenizer, _ = make_model()
    model.resize_token_embeddings(len(tokenizer) + 13, mean_resizing=False)
    save_model(model, tokenizer, tmp_path, None)
    loaded = load_model(tmp_path)
    assert loaded.model.config.vocab_size == loaded.model(torch.tensor([[20]])).logits.shape[-1] == len(tokenizer)


def test_bfloat16(make_model, tmp_path):
    model, tokenizer, _ = make_model()
    save_model(model.to(torch.bfloat16), tokenizer, tmp_path, None)
    assert load_model(tmp_path, dtype="bfloat16").model.dtype == torch.bfloat16
    assert load_model(tmp_path).model.dtype == torch.float32
    with pytest.raises(ValueError, match="dtype = 'float16'"):
        load_model(tmp_path, dtype="float16")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nothing/here", "no such folder; give an existing folder"),
        ("/nowhere/x.gguf", "no such file; give the path of a .gguf file"),
        ("no-such-model", r"tried no folder of that name, then the hub as 'no-such-model'.*'tiny-scratch'"),
    ],
)
def test_missing_models_are_named_with_what_was_tried(name, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=message):
        load_model(name)


def test_damaged_folders_are_named(make_model, tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_model(tmp_path)
    model, tokenizer, _ = make_model()
    save_model(model, tokenizer, tmp_path, SETTINGS)
    (tmp_path / SETTINGS_FILE).write_text(json.dumps({"variant": "seen"}))
    with pytest.raises(ValueError, match=r"parallel_r1\.json: not valid settings"):
        load_model(tmp_path)
    (tmp_path / SETTINGS_FILE).unlink()
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ValueError, match=r"cannot be loaded \(tried the folder"):
        load_model(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF?")
    with pytest.raises(ValueError, match="not a readable GGUF model"):
        load_model(tmp_path / "broken.gguf")
