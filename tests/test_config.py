"""Recipes: strict keys, sums that must divide, overrides, variables, and messages that name key, value and fix."""

import json

import pytest

from parallel_r1.config import EngineConfig
from parallel_r1.preflight import preflight
from parallel_r1.recipe import RecipeError, load_recipe, parse_recipe, recipes_folder

RECIPE = """
name = "small"
model = "tiny-scratch"

[[stages]]
kind = "sft"
name = "cold-start"
data = [{ task = "countdown", num = 8 }]
batch_size = 8
micro_batch = 4

[[stages]]
kind = "rl"
name = "rl-easy"
data = [{ task = "countdown", num = 8 }]
steps = 3
prompts_per_step = 4
samples = 4
micro_batch = 16

[evaluate]
sets = [{ task = "countdown", num = 5 }]
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def load(recipe_file):
    return lambda *overrides: load_recipe(recipe_file, overrides)


def test_a_recipe_is_read_with_defaults(load):
    recipe = load()
    assert [stage.name for stage in recipe.stages] == ["cold-start", "rl-easy"]
    assert recipe.evaluate.sets[0].split == "test" and recipe.stages[0].data[0].split == "train"


@pytest.mark.parametrize("name", sorted(path.stem for path in recipes_folder().glob("*.toml")))
def test_shipped_recipes_are_valid(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    preflight(recipe)


@pytest.mark.parametrize("asked", ["tiny", "tiny.toml", "recipes/tiny.toml"])
def test_shipped_recipes_are_found_from_anywhere(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe(asked).name == "tiny"


def test_a_resolved_recipe_can_be_read_again(load, tmp_path):
    recipe = load()
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe.model_dump(mode="json")))
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("override", "value"), [("stages.0.epochs=3", 3), ("stages.cold-start.epochs=3", 3), ("stages.1.steps=3", 1)]
)
def test_items_of_lists_go_by_index_or_name(load, override, value):
    assert load(override).stages[0].epochs == value


def test_overrides_make_missing_tables_and_take_bare_words(load):
    recipe = load("engine.paths=2", "variant=causal", "stages.rl-easy.data.countdown.size=hard")
    assert (recipe.engine.paths, recipe.variant, recipe.stages[1].data[0].size) == (2, "causal", "hard")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("stages.rl-easy.leraning_rate=1e-6", ["stages.1.leraning_rate = 1e-06", "did you mean 'learning_rate'"]),
        ("grpo.leraning_rate=1e-6", ["grpo", "did you mean 'learning_rate'"]),
        ("engine.pahts=2", ["engine.pahts = 2", "did you mean 'paths'"]),
        ("evaluate.sets.0.nmu=2", ["evaluate.sets.0.nmu", "did you mean 'num'"]),
        ("stages.rl-easy.reward.scheduel=1", ["reward.scheduel", "did you mean 'schedule'"]),
        ("stages.rl-easy.engine.pahts=2", ["rl-easy", "engine.pahts = 2", "did you mean 'paths'"]),
        ("zzz=1", ["zzz = 1", "known keys: name, model"]),
        ("engine.paths=9", ["engine.paths = 9", "from 1 to 8", "'auto'"]),
        ("engine.paths='auto'", ["engine.paths = 'auto'", "counted = true"]),
        ("engine.paths='4'", ["engine.paths = '4'", "from 1 to 8"]),
        ("seed=true", ["seed = True", "valid integer"]),
        ("stages.rl-easy.learning_rate=0", ["learning_rate = 0", "greater than 0"]),
        ("stages.rl-easy.learning_rate=inf", ["learning_rate = inf", "finite"]),
        ("stages.rl-easy.micro_batch=5", ["micro_batch = 5", "try micro_batch = 4"]),
        ("stages.rl-easy.updates_per_step=3", ["updates_per_step = 3", "try updates_per_step = 2"]),
        ("stages.cold-start.micro_batch=3", ["micro_batch = 3", "try cold-start.micro_batch = 2"]),
        ("stages.rl-easy.name=cold-start", ["distinct names"]),
        ("stages.rl-easy.name=eval", ["stages.1.name = 'eval'", "none of base, eval"]),
        ("stages.rl-easy.name=../x", ["'../x'", "folder"]),
        ("evaluate.pass_k=[8]", ["evaluate.pass_k = 8", "samples >= 8"]),
        ("evaluate.modes=['linear']", ["linear", "causal"]),
        ("engine.max_response_tokens=20", ["max_response_tokens = 20", "use at least"]),
        ("prompt.plain=x", ["prompt.plain", "{question}", "exactly once"]),
        ("stages.rl-easy.engine.temperature=0", ["temperature = 0"]),
        ("stages.2.steps=1", ["'2' is no item", "below 2", "cold-start, rl-easy"]),
        ("name.x=1", ["name holds a plain value"]),
        ("steps", ["write key=value"]),
        ("vars.nowhere=a", ["vars.nowhere", "remove it"]),
        ("model=${where}", ["${where}", "--set vars.where"]),
    ],
)
def test_what_is_wrong_is_named(load, override, parts):
    with pytest.raises(RecipeError) as raised:
        load(override)
    assert not [part for part in parts if part not in str(raised.value)], str(raised.value)


def test_all_faults_are_told_at_once(load):
    with pytest.raises(RecipeError, match=r"(?s)engine\.pahts.*zzz"):
        load("engine.pahts=2", "zzz=1")


def test_a_recipe_says_how_it_differs_from_another(recipe_file, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(
        'extends = "' + recipe_file.stem + '"\nname = "other"\nvariant = "causal"\nengine.paths = 3\n'
        '[[stages]]\nname = "rl-easy"\nsteps = 7\nreward = { schedule = "alternating" }\n'
    )
    base, found = load_recipe(recipe_file), load_recipe(other)
    assert (found.name, found.variant, found.engine.paths) == ("other", "causal", 3)
    assert found.engine == base.engine.model_copy(update={"paths": 3})
    (stage,) = found.stages
    assert (stage.steps, stage.reward.schedule) == (7, "alternating")
    assert stage.data == base.stages[1].data
    again = tmp_path / "again.toml"
    again.write_text('extends = "other"\nname = "again"\n[stages.rl-easy]\nsteps = 9\n[stages.nowhere]\nsteps = 1\n')
    assert [stage.steps for stage in load_recipe(again).stages] == [9]
    other.write_text('extends = "again"\n')
    with pytest.raises(RecipeError, match="leads back to itself"):
        load_recipe(again)
    again.write_text('extends = "tiny"\nstages = 3\n')
    with pytest.raises(RecipeError, match=r"write \[\[stages\]\]"):
        load_recipe(again)
    again.write_text('extends = "nowhere"\n')
    with pytest.raises(RecipeError, match="recipe nowhere: cannot be read"):
        load_recipe(again)


def test_variables_are_filled_in(recipe_file):
    recipe_file.write_text(RECIPE.replace('task = "countdown", num = 5', 'task = "gsm8k", num = 5, path = "${data}/x"')
                           + '\n[vars]\ndata = "here"\n')  # fmt: skip
    assert load_recipe(recipe_file).evaluate.sets[0].path == "here/x"
    assert load_recipe(recipe_file, ["vars.data=there"]).evaluate.sets[0].path == "there/x"
    with pytest.raises(RecipeError, match="did you mean 'data'"):
        load_recipe(recipe_file, ["vars.dta=there"])


@pytest.mark.parametrize("content", ["name = ", "\xff", "[1]"])
def test_files_that_are_no_recipe(tmp_path, content):
    path = tmp_path / "broken.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(RecipeError, match=r"broken\.toml"):
        load_recipe(path)


def test_a_missing_recipe_names_those_there_are():
    with pytest.raises(RecipeError, match=r"one of causal_no_easy, .*gsm8k_smollm2, .*tiny_parallel"):
        load_recipe("nope")


def test_the_engine_of_a_stage_is_the_recipes_with_overrides(load):
    recipe = load("engine.paths=3", "stages.rl-easy.engine.mode=sequential")
    assert recipe.stage_engine(recipe.stages[0]) == EngineConfig(paths=3)
    assert recipe.stage_engine(recipe.stages[1]) == EngineConfig(paths=3, mode="sequential")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=/no/such/folder", "no such folder"),
        ("model=none.gguf", "no such file"),
        ("stages.rl-easy.data.0.task=coutndown", r"stages\.rl-easy\.data\.0: .*did you mean 'countdown'"),
        ("stages.rl-easy.data.0.path=x", "generated, and it takes only options unsolvable"),
        ("evaluate.sets.0={task='gsm8k', path='no.parquet'}", r"evaluate\.sets\.0\.path = 'no\.parquet': no such file"),
        ("stages.cold-start.data.0={task='gsm8k'}", "a column 'trace'"),
    ],
)
def test_what_is_not_there_is_found_before_anything_is_loaded(load, override, message):
    with pytest.raises(RecipeError, match=message):
        preflight(load(override))


def test_a_response_must_leave_room_for_the_prompt(load, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 320}))
    with pytest.raises(RecipeError, match=r"engine\.max_response_tokens = 320: the model has 320 positions"):
        preflight(load(f"model={tmp_path}"))


def test_parsing_a_mapping_says_where(load):
    with pytest.raises(RecipeError, match=r"(?s)here:.*stages: missing"):
        parse_recipe({"name": "x"}, "here")
