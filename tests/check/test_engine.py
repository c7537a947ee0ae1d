"""The user's diagnostic: passes on a sound engine, fails on a wrong one, says what it measured."""

import json

import pytest
import torch

from parallel_r1.check.engine import check_engine
from parallel_r1.engine.branch import Branch
from parallel_r1.models.load import Loaded


@pytest.fixture(scope="module")
def scratch(make_model):
    model, tokenizer, tags = make_model()
    return Loaded(model, tokenizer, tags, (tokenizer.eos_token_id,), settings=None)


def test_both_variants_pass_by_region_and_are_written(scratch, tmp_path):
    path = tmp_path / "engine.json"
    result = check_engine(scratch, num_rollouts=10, json_path=path)
    assert result["passed"] and json.loads(path.read_text()) == result and "agree" in result["verdict"]
    regions = {"main", "count", "summary", *(f"path {i}" for i in range(1, 9))}
    for variant in ("structured", "causal"):
        figures = result[variant]
        assert set(figures["regions"]) == regions and figures["num_rollouts"] == 10 and figures["num_blocks"] > 10
        assert figures["max_abs_gap"] < 1e-4
        assert sum(r["tokens"] for r in figures["regions"].values()) == figures["num_tokens"]
        loose = {name for name, r in figures["regions"].items() if not r["must_agree"]}
        assert loose == (set() if variant == "structured" else {f"path {i}" for i in range(2, 9)})
        assert (figures["counters"]["reread_tokens"] > 0) == (variant == "causal")
    assert result["causal"]["max_abs_gap_exact_regions"] < 1e-4
    assert set(result["causal"]["gap_by_path"]) == {str(number) for number in range(2, 9)}
    assert result["causal"]["gap_by_path"]["2"]["max"] > 1e-3
    assert result["causal"]["regions"]["path 2"]["max"] > 1e-3 > result["causal"]["regions"]["path 1"]["max"]
    assert "KiB a token" in result["memory"]


def test_one_variant_alone(scratch):
    result = check_engine(scratch, "structured", num_rollouts=2)
    assert "structured" in result and "causal" not in result
    with pytest.raises(ValueError, match="num_rollouts = 0"):
        check_engine(scratch, num_rollouts=0)


def test_bf16_is_judged_by_its_mean(make_model):
    model, tokenizer, tags = make_model()
    loaded = Loaded(model.to(torch.bfloat16), tokenizer, tags, (tokenizer.eos_token_id,), settings=None)
    result = check_engine(loaded, "structured", num_rollouts=10)
    assert result["passed"] and result["dtype"] == "bfloat16"
    assert 1e-4 < result["structured"]["mean_abs_gap"] < result["bound"] == 0.02


def test_a_model_without_tags_is_given_them():
    assert check_engine("tiny-scratch", "structured", num_rollouts=1)["passed"]


def test_a_wrong_position_is_found(scratch, monkeypatch):
    join = Branch._join

    def late(self, feed):
        step = join(self, feed)
        self._position += 1
        return step._replace(feed=tuple(f._replace(position=f.position + f.sample) for f in step.feed))

    monkeypatch.setattr(Branch, "_join", late)
    result = check_engine(scratch, "structured", num_rollouts=2)
    assert not result["passed"] and "structured: a gap of" in result["verdict"]
