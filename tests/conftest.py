"""Fixtures that several packages' tests share."""

import os
import shutil
from pathlib import Path

import pytest

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def make_model():
    """``make(family, **overrides) -> (model, tokenizer, tags)``: small random models of four families.

    The initial weights are wide, so that a wrong mask or position shows in the logits. Every call makes
    a new model with the same weights.
    """
    import torch
    from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

    from parallel_r1.models.tiny import tiny_tokenizer
    from parallel_r1.trace.tokens import add_tags

    families = {"qwen3": Qwen3Config, "llama": LlamaConfig, "qwen2": Qwen2Config, "gemma3": Gemma3TextConfig}

    def make(family="qwen3", **overrides):
        tokenizer = tiny_tokenizer()
        shape = {
            "vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
            "rope_theta": 1000.0, "initializer_range": 0.25, "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
        }  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(families[family](**{**shape, **overrides})).eval()
            tags = add_tags(model, tokenizer)
            torch.nn.init.normal_(model.get_output_embeddings().weight, std=0.25)
        return model, tokenizer, tags

    return make


@pytest.fixture(scope="session")
def real_data():
    """The folder of real data that PARALLEL_R1_DATA names; tests that need it skip without."""
    folder = Path(os.environ.get("PARALLEL_R1_DATA", "")).expanduser()
    if not (folder / "gsm8k_test.parquet").is_file():
        pytest.skip("PARALLEL_R1_DATA names no folder with the real data")
    return folder


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; tests that need it skip without."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
