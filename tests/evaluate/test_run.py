"""Whole evaluations: rows, files, resuming, dropped prompts."""

import dataclasses
import json

import pytest

from parallel_r1.config import EngineConfig, EvalConfig, EvalSet, PromptConfig
from parallel_r1.evaluate import run
from parallel_r1.evaluate.run import evaluate_model

ENGINE = EngineConfig(max_response_tokens=250)
SETS = [EvalSet(task="countdown", size=size, num=8) for size in ("easy", "hard")]
EVAL = EvalConfig(sets=SETS, samples=3, pass_k=[1, 3])


def evaluate(loaded, engine, out_dir=None, config=EVAL, stage="final", **changes):
    return evaluate_model(
        loaded, engine.variant, config, PromptConfig(), ENGINE, 0, stage, out_dir, engine=engine, **changes
    )


def test_rows_say_what_the_summary_promises(loaded, solver):
    result = evaluate(loaded, solver())
    keys = "stage task split size num_problems samples_per_problem mean mean_ci pass_at_k parallel_ratio well_formed " \
        "total_tokens critical_tokens block_position sequential_mean path_right selection seconds"  # fmt: skip
    for row, size in zip(result.rows, ("easy", "hard"), strict=True):
        assert set(keys.split()) <= set(row)
        assert (row["stage"], row["size"], row["num_problems"], row["samples_per_problem"]) == ("final", size, 8, 3)
        assert row["mean_ci"][0] <= row["mean"] <= row["mean_ci"][1]
        assert row["pass_at_k"]["1"] == pytest.approx(row["mean"]) and row["pass_at_k"]["3"] >= row["mean"]
        assert row["parallel_ratio"] == row["well_formed"] == row["step_accuracy"] == 1.0
        # The solver copies the right path where there is one.
        assert row["path_right"] == pytest.approx(row["mean"]) and row["selection"] == pytest.approx(1.0)
        assert row["critical_tokens"] < row["total_tokens"] and row["block_position"] == 0.0
        assert row["difference"] == pytest.approx(row["mean"] - row["sequential_mean"])
        assert row["modes"]["sequential"]["parallel_ratio"] == 0.0
        assert 0 < row["success_per_attempt"] <= row["mean"]
        assert row["sequential_capped"] <= row["sequential_mean"] and row["majority"] is None
    assert json.loads(json.dumps(result.rows)) == result.rows


def test_a_set_may_have_samples_of_its_own(loaded, solver):
    config = EvalConfig(sets=[SETS[0], SETS[1].model_copy(update={"samples": 1})], samples=3, pass_k=[1, 3])
    easy, hard = evaluate(loaded, solver(), config=config).rows
    assert (easy["samples_per_problem"], set(easy["pass_at_k"])) == (3, {"1", "3"})
    assert (hard["samples_per_problem"], set(hard["pass_at_k"])) == (1, {"1"})


def test_all_modes_get_the_same_prompts_and_seeds(loaded, solver):
    engine = solver()
    evaluate(loaded, engine)
    asked = {mode: [r for m, r in engine.asked if m == mode] for mode in ("forked", "sequential")}
    assert asked["forked"] == asked["sequential"]
    assert len({r.seed for r in asked["forked"][:24]}) == 24


def test_files_and_counts(loaded, solver, tmp_path):
    result = evaluate(loaded, solver(), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "final.rollouts.jsonl").read_text().splitlines()]
    assert json.loads(json.dumps(result.rollouts)) == lines and len(lines) == 2 * 2 * 8 * 3
    assert json.loads((tmp_path / "final.json").read_text()) == result.rows
    counts = [json.loads(line) for line in (tmp_path / "final.problems.jsonl").read_text().splitlines()]
    assert len(counts) == 2 * 2 * 8 and {row["n"] for row in counts} == {3}
    right = sum(line["verdict"]["outcome"] == "right" for line in lines)
    assert sum(row["c"] for row in counts) == right > 0


def test_what_is_written_is_not_decoded_again(loaded, solver, tmp_path):
    first = evaluate(loaded, solver(), tmp_path)
    again = solver()
    assert evaluate(loaded, again, tmp_path).rows == first.rows and again.asked == []
    lost = next((tmp_path / "parts").glob("*hard*.sequential.jsonl"))
    lost.rename(lost.with_name(lost.name + ".tmp"))  # as if killed before the rename
    resumed = evaluate(loaded, again, tmp_path)
    assert {mode for mode, _ in again.asked} == {"sequential"}
    assert len(again.asked) == 8 * 3
    assert [row["mean"] for row in resumed.rows] == [row["mean"] for row in first.rows]


def test_changed_settings_or_weights_are_decoded_again(loaded, solver, tmp_path):
    evaluate(loaded, solver(), tmp_path)
    engine = solver()
    evaluate(loaded, engine, tmp_path, config=EVAL.model_copy(update={"samples": 4}))
    assert len(engine.asked) == 2 * 2 * 8 * 4
    before = run.weights_mark(loaded.model)
    weight = loaded.model.get_input_embeddings().weight
    kept = weight.data.clone()
    weight.data[-1] += 0.01
    try:
        assert run.weights_mark(loaded.model) != before
    finally:
        weight.data.copy_(kept)
    assert run.weights_mark(loaded.model) == before


def test_long_prompts_are_dropped_and_counted(loaded, solver):
    def prompt(num):
        return PromptConfig(parallel="x" * num + "{question}", plain="{question}")

    engine = solver()
    lengths = sorted({len(loaded.tokenizer.encode(p.question)) for p in list(engine.problems.values())[:8]})
    room = 400 - ENGINE.max_response_tokens
    one_set = EVAL.model_copy(update={"sets": SETS[:1]})
    pad = room - lengths[-1] + 1  # one token too many for the longest question alone
    result = evaluate_model(loaded, "structured", one_set, prompt(pad), ENGINE, 0, "s", engine=engine)
    (row,) = result.rows
    assert row["dropped_prompts"] >= 1 and row["num_problems"] == 8 - row["dropped_prompts"]
    assert max(len(r.prompt_ids) for _, r in engine.asked) <= room
    with pytest.raises(ValueError, match=r"evaluate\.sets: all 8 prompts"):
        evaluate_model(loaded, "structured", one_set, prompt(room), ENGINE, 0, "s", engine=engine)


def test_a_model_without_tags_is_decoded_sequentially_with_the_plain_prompt(loaded, solver):
    bare = dataclasses.replace(loaded, tags=None)
    engine = solver()
    result = evaluate(bare, engine, stage="base")
    assert {mode for mode, _ in engine.asked} == {"sequential"}
    row = result.rows[0]
    assert row["mode"] == "sequential" and row["mean"] == row["sequential_mean"] and row["difference"] is None
    assert row["parallel_ratio"] == 0.0 and row["well_formed"] is None and row["path_right"] is None
    question = engine.problems[engine.asked[0][1].problem_id].question
    assert loaded.tokenizer.decode(list(engine.asked[0][1].prompt_ids)) == f"{question}\n"


def test_linear_is_for_causal_models(loaded, solver):
    config = EVAL.model_copy(update={"modes": ["forked", "linear"]})
    with pytest.raises(ValueError, match="linear"):
        evaluate(loaded, solver(), config=config)
    row = evaluate(loaded, solver(variant="causal"), config=config).rows[0]
    assert set(row["modes"]) == {"forked", "linear"} and row["sequential_mean"] is None


@pytest.mark.slow
def test_with_the_tree_engine(loaded):
    config = EvalConfig(sets=[EvalSet(task="countdown", num=3)], samples=2, pass_k=[2])
    engine = EngineConfig(paths=2, max_blocks=1, max_response_tokens=40, path_budget=8, answer_reserve=8)
    result = evaluate_model(loaded, "structured", config, PromptConfig(), engine, 0, "s")
    assert result.rows[0]["num_problems"] == 3 and len(result.rollouts) == 12
