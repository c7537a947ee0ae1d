"""The user's diagnostic: passes on a sound engine, fails on a wrong one, says what it measured."""

import json

import pytest

from parallel_r1.check.engine import check_engine
from parallel_r1.engine.branch import Branch
from parallel_r1.models.load import Loaded


@pytest.fixture(scope="module")
def scratch(make_model):
    model, tokenizer, tags = make_model()
    return Loaded(model, tokenizer, tags, (tokenizer.eos_token_id,), settings=None)


def test_both_variants_pass_and_are_written(scratch, tmp_path):
    path = tmp_path / "engine.json"
    result = check_engine(scratch, num_rollouts=4, json_path=path)
    assert result["passed"] and json.loads(path.read_text()) == result
    assert result["structured"]["max_abs_gap"] < 1e-4 and result["structured"]["num_rollouts"] == 4
    assert result["causal"]["max_abs_gap_exact_regions"] < 1e-4
    assert set(result["causal"]["gap_by_path"]) == {"2", "3", "4"}
    assert result["causal"]["gap_by_path"]["2"]["max"] > 1e-3
    assert result["structured"]["num_blocks"] > 4


def test_one_variant_alone(scratch):
    assert set(check_engine(scratch, "structured", num_rollouts=2)) == {"structured", "bound", "seed", "passed"}
    with pytest.raises(ValueError, match="num_rollouts = 0"):
        check_engine(scratch, num_rollouts=0)


def test_a_model_without_tags_is_given_them():
    assert check_engine("tiny-scratch", "structured", num_rollouts=1)["passed"]


def test_a_wrong_position_is_found(scratch, monkeypatch):
    join = Branch._join

    def late(self, feed):
        step = join(self, feed)
        self._position += 1
        return step._replace(feed=tuple(f._replace(position=f.position + f.sample) for f in step.feed))

    monkeypatch.setattr(Branch, "_join", late)
    assert not check_engine(scratch, "structured", num_rollouts=2)["passed"]
