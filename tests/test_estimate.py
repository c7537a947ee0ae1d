"""What a recipe will cost, worked out by hand for some."""

import pytest

from parallel_r1.estimate import estimate, model_size
from parallel_r1.recipe import load_recipe


def test_the_demo_by_hand():
    cost = estimate(load_recipe("tiny", ["stages.rl-easy.steps=5", "stages.cold-start.max_length=100"]))
    cold, easy, _ = cost.stages
    assert (cold.updates, cold.rollouts, cold.tokens) == (-(-7500 // 32), 0, 7500 * 100)
    assert (easy.updates, easy.rollouts, easy.tokens) == (5, 5 * 24 * 8, 5 * 24 * 8 * 480)
    assert cost.eval_responses == 2 * 60 * 2 * 2
    assert cost.model_gib == pytest.approx(4 * 4 * cost.parameters / 2**30)
    assert easy.logits_gib == pytest.approx(48 * 480 * 109 * 4 / 2**30, rel=0.05)


def test_the_built_in_model_is_counted_and_a_hub_name_is_read():
    from parallel_r1.models.load import load_model

    assert model_size("tiny")[0] == sum(p.numel() for p in load_model("tiny").model.parameters())
    assert model_size("Qwen/Qwen3-4B-Base")[0] == 4_000_000_000
    assert model_size("HuggingFaceTB/SmolLM2-135M-Instruct")[0] == 135_000_000
    assert model_size("Qwen/Qwen3-0.6B")[0] == 600_000_000
    assert model_size("somebody/model-v2")[0] is None


def test_paper_scale_counts_updates_and_says_what_it_does_not_know():
    cost = estimate(load_recipe("parallel_r1_causal"))
    assert [stage.updates for stage in cost.stages] == [59, 35 * 8, 300 * 4]
    assert any("4,000.0 M parameters" in line for line in cost.lines())
    unknown = estimate(load_recipe("parallel_r1_causal", ["model=somebody/model"]))
    assert "of unknown size" in next(unknown.lines())
