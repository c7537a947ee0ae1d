"""The recipes that come with the package: all of them can be read, and each is what the paper says it is."""

import pytest

from parallel_r1.config import RLStage, SFTStage
from parallel_r1.recipe import RecipeError, load_recipe, recipes_folder

NAMES = sorted(path.stem for path in recipes_folder().glob("*.toml"))
PAPER = sorted(path.stem for path in recipes_folder().glob("*.toml") if "Qwen3-4B" in load_recipe(path).model)


def stages(name):
    return [(stage.name, stage.reward.schedule if isinstance(stage, RLStage) else stage.epochs)
            for stage in load_recipe(name).stages]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_valid_and_named_after_its_file(name):
    assert load_recipe(name).name == name


@pytest.mark.parametrize("name", PAPER)
def test_every_paper_recipe_has_a_laptop_scale_with_the_same_method(name):
    large, small = load_recipe(name), load_recipe(f"{name}-tiny")
    assert (small.name, small.model) == (f"{name}-tiny", "tiny")
    assert (small.variant, small.engine.mode, small.prompt.ask) == (large.variant, large.engine.mode, large.prompt.ask)
    assert small.evaluate.modes == large.evaluate.modes
    for big, little in zip(large.stages, small.stages, strict=True):
        assert (big.name, big.kind) == (little.name, little.kind)
        assert all(source.task in ("countdown", "chain", "serial") for source in little.data)
        if isinstance(big, RLStage) and isinstance(little, RLStage):
            assert (big.reward, big.clip_high, big.kl) == (little.reward, little.clip_high, little.kl)
        elif isinstance(big, SFTStage) and isinstance(little, SFTStage):
            assert big.format == little.format


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("parallel_r1_causal", [("cold-start", 1), ("rl-easy", "parallel_and_accuracy"), ("rl-hard", "accuracy")]),
        ("structured_s1", [("cold-start", 5), ("rl-hard", "accuracy")]),
        ("structured_s2", [("cold-start", 5), ("rl-hard", "alternating")]),
        ("structured_easy", [("cold-start", 5), ("rl-easy", "parallel_and_accuracy"), ("rl-hard", "accuracy")]),
        ("parallel_only", [("cold-start", 5), ("rl-hard", "parallel_and_accuracy")]),
        ("causal_no_easy", [("cold-start", 1), ("rl-hard", "accuracy")]),
        ("no_cold_start", [("rl-easy", "parallel_and_accuracy"), ("rl-hard", "accuracy")]),
        ("grpo", [("rl-hard", "accuracy")]),
        ("grpo_easy", [("rl-easy", "accuracy"), ("rl-hard", "accuracy")]),
        ("sft_causal", [("cold-start", 1)]),
        ("sft_structured", [("cold-start", 5)]),
        ("midtraining", [("cold-start", 5), ("rl-hard", "alternating"), ("rl-accuracy", "accuracy")]),
    ],
)
def test_the_curricula_are_the_papers(name, expected):
    assert stages(name) == expected


def test_the_papers_numbers():
    recipe = load_recipe("parallel_r1_causal")
    cold, easy, hard = recipe.stages
    assert (cold.batch_size, cold.learning_rate, cold.warmup_ratio, cold.max_length) == (128, 1e-5, 0.1, 4096)
    assert (easy.steps, easy.prompts_per_step, easy.samples, easy.learning_rate) == (35, 1024, 5, 1e-6)
    assert (hard.steps, hard.prompts_per_step, hard.samples) == (300, 512, 8)
    assert (hard.clip_low, hard.clip_high, hard.kl, recipe.engine.temperature) == (0.2, 0.2, 0.0, 1.0)
    assert load_recipe("structured_s2").stages[1].clip_high == 0.28
    assert [stage.steps for stage in load_recipe("midtraining").stages[1:]] == [200, 100]
    assert load_recipe("causal_plain_prompt").prompt.asked == recipe.prompt.plain


def test_a_scale_that_does_not_exist_is_an_unknown_recipe():
    with pytest.raises(RecipeError, match="recipe structured_s1-huge: cannot be read"):
        load_recipe("structured_s1-huge")
    assert load_recipe("structured_s1-tiny", ["stages.rl-hard.steps=3"]).stages[1].steps == 3
