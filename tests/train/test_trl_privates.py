"""What this project expects of TRL beyond its public doors. A new TRL breaks here, not in a run."""

import inspect

import pytest
import torch
import transformers
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_trainer import SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from parallel_r1.config import DataSource, Recipe, RLStage
from parallel_r1.engine.scripted import ScriptedEngine
from parallel_r1.train import trl_privates
from parallel_r1.train.checkpoint import WholeCheckpoints
from parallel_r1.train.grpo import run_grpo
from parallel_r1.train.trl_privates import (
    FoldingGRPOTrainer,
    Gap,
    Measured,
    importance_weights,
    repack,
    without_padding_columns,
)


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_extended_methods_have_the_signatures_they_had():
    assert parameters(GRPOTrainer._generate_and_score_completions) == ["self", "inputs"]
    assert parameters(GRPOTrainer._prepare_inputs) == ["self", "generation_batch"]
    source = inspect.getsource(GRPOTrainer._prepare_inputs)
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in source
    assert parameters(GRPOTrainer._compute_loss) == ["self", "model", "inputs"]
    assert parameters(GRPOTrainer._get_per_token_logps_and_entropies)[:5] == [
        "self", "model", "input_ids", "attention_mask", "logits_to_keep",
    ]  # fmt: skip
    assert parameters(add_fused_lm_head)[:2] == ["model", "temperature"]


@pytest.mark.parametrize("trainer", [GRPOTrainer, SFTTrainer])
def test_checkpoints_are_written_where_get_output_dir_says(trainer):
    assert issubclass(trainer, transformers.Trainer)
    assert parameters(trainer._save_checkpoint) == ["self", "model", "trial"]
    assert parameters(trainer._get_output_dir) == ["self", "trial"]
    assert "self._get_output_dir(trial=trial)" in inspect.getsource(transformers.Trainer._save_checkpoint)
    for name in ("create_model_card", "_send_telemetry"):
        assert callable(getattr(trainer, name))
        assert name in vars(WholeCheckpoints)


def test_our_layers_come_before_trls():
    order = FoldingGRPOTrainer.__mro__
    assert order.index(WholeCheckpoints) < order.index(GRPOTrainer) < order.index(transformers.Trainer)


def test_one_rollout_has_the_columns_that_are_read(make_loaded, parity, tmp_path, monkeypatch):
    """Also: the loss takes advantages per token, and a constant one equals one per completion."""
    seen = {}
    compute = GRPOTrainer._compute_loss

    def look(self, model, inputs):
        seen["inputs"] = dict(inputs)
        seen["per_token"] = float(compute(self, model, inputs).detach())
        seen["per_completion"] = float(
            compute(self, model, {**inputs, "advantages": inputs["advantages"][:, 0]}).detach()
        )
        return compute(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", look)
    settings = RLStage(
        kind="rl", name="rl", data=[DataSource(task="parity", num=2)], steps=1, prompts_per_step=1, samples=4,
        micro_batch=4,
    )  # fmt: skip
    loaded = make_loaded()
    ids = [[*[9] * (k + 1), loaded.stop_ids[0]] for k in range(4)]
    engine = ScriptedEngine(lambda request: ids[request.seed[3]], loaded.tags, loaded.stop_ids, "structured")
    run_grpo(loaded, settings, Recipe(name="t", stages=[settings]), tmp_path, engine=engine)
    inputs = seen["inputs"]
    rows, columns = inputs["completion_ids"].shape
    for name in ("completion_mask", "tool_mask", "advantages", "sampling_per_token_logps", "later_path"):
        assert inputs[name].shape == (rows, columns), name
    assert inputs["num_items_in_batch"].ndim == 0
    assert int(inputs["num_items_in_batch"]) == int((inputs["completion_mask"] * inputs["tool_mask"]).sum())
    assert "old_per_token_logps" not in inputs
    assert seen["per_token"] == pytest.approx(seen["per_completion"], abs=1e-6)


def test_padding_columns_are_cut_and_nothing_else():
    prompt_mask = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    completion_mask = torch.tensor([[1, 0, 0, 0, 0], [1, 1, 1, 0, 0]])
    inputs = {
        "prompt_ids": torch.arange(8).view(2, 4), "prompt_mask": prompt_mask,
        "completion_ids": torch.arange(10).view(2, 5), "completion_mask": completion_mask,
        "advantages": torch.rand(2, 5), "num_items_in_batch": torch.tensor(4),
    }  # fmt: skip
    cut = without_padding_columns(inputs)
    assert cut["prompt_ids"].tolist() == [[1, 2, 3], [5, 6, 7]]
    assert cut["completion_ids"].tolist() == [[0, 1, 2], [5, 6, 7]]
    assert torch.equal(cut["advantages"], inputs["advantages"][:, :3])
    assert cut["num_items_in_batch"] is inputs["num_items_in_batch"]
    assert int(cut["completion_mask"].sum()) == int(completion_mask.sum())
    whole = {**inputs, "prompt_mask": torch.ones(2, 4), "completion_mask": torch.ones(2, 5)}
    assert without_padding_columns(whole)["completion_ids"].shape == (2, 5)


def micro_batches(advantages, lengths, size):
    rows, columns = len(lengths), max(lengths)
    mask = torch.tensor([[int(t < n) for t in range(columns)] for n in lengths])
    whole = {
        "completion_ids": torch.arange(rows)[:, None].expand(rows, columns), "completion_mask": mask,
        "advantages": torch.tensor(advantages)[:, None] * mask, "num_items_in_batch": mask.sum(), "images": None,
    }  # fmt: skip
    return [
        {k: v[i : i + size] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in whole.items()}
        for i in range(0, rows, size)
    ]


def test_repacked_micro_batches_hold_the_rows_with_a_gradient():
    batches = micro_batches([0.5, 0.0, -1.0, 0.0, 0.0, 2.0], [5, 9, 2, 1, 1, 3], 3)
    packed = repack(batches, at_least=2)
    assert [batch["completion_ids"][:, 0].tolist() for batch in packed] == [[2, 5], [0]]
    assert all(int(batch["num_items_in_batch"]) == 21 for batch in packed)
    assert packed[0]["images"] is None
    everything = repack(batches, at_least=6)
    assert [batch["completion_ids"][:, 0].tolist() for batch in everything] == [[3, 4, 2], [5, 0, 1]]


def test_no_repacked_micro_batch_is_empty():
    packed = repack(micro_batches([0.0] * 4, [4, 3, 2, 1], 2), at_least=2)
    assert [batch["completion_ids"][:, 0].tolist() for batch in packed] == [[3], [2]]
    packed = repack(micro_batches([0.0, 1.0, 0.0, 0.0], [4, 3, 2, 1], 1), at_least=4)
    assert [batch["completion_ids"][:, 0].tolist() for batch in packed] == [[3], [2], [1], [0]]


def test_measurements_of_processes_add_up():
    left, right = Measured(), Measured()
    left.exact.add(torch.tensor([1.0, 3.0]))
    right.exact.add(torch.tensor([5.0]))
    right.exact.add(torch.tensor([]))
    right.by_path[2] = Gap(2.0, 1.5, 2)
    left.merge(right)
    assert (left.exact.mean, left.exact.largest, left.exact.num) == (3.0, 5.0, 3)
    assert left.by_path[2].mean == 1.0
    assert Measured().exact.mean is None


def test_the_file_names_every_private_it_touches():
    documented = trl_privates.__doc__ or ""
    for name in vars(FoldingGRPOTrainer):
        if name.startswith("_") and not name.startswith("__") and hasattr(GRPOTrainer, name):
            assert name in documented, name
    for name in vars(WholeCheckpoints):
        if name.startswith("_") and not name.startswith("__") and hasattr(GRPOTrainer, name):
            assert name in documented, name


def test_importance_weights_are_cut_and_never_below_zero():
    ratio = torch.log(torch.tensor([[0.5, 1.0, 8.0], [1.0, 1.0, 1.0]]))
    torch.testing.assert_close(
        importance_weights(ratio, "token", 2.0), torch.tensor([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]])
    )
    torch.testing.assert_close(importance_weights(ratio, "sequence", 9.0), torch.tensor([[4.0], [1.0]]))
    torch.testing.assert_close(importance_weights(ratio, "sequence", 2.0), torch.tensor([[2.0], [1.0]]))


def test_ratio_quantiles_by_hand():
    measured, other = Measured(), Measured()
    assert measured.ratio_quantiles() == {}
    measured.log_ratios.append(torch.zeros(3))
    other.log_ratios.append(torch.log(torch.tensor([2.0, 0.25])))
    measured.merge(other)
    assert measured.ratio_quantiles() == pytest.approx({"0.0": 0.25, "0.01": 0.25, "0.5": 1.0, "0.99": 2.0, "1.0": 2.0})
