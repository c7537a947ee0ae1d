"""GRPO on TRL over forked rollouts: counts, order, one gradient whatever the split, dead groups, resuming."""

import math
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from parallel_r1.config import DataSource, EngineConfig, Recipe, RewardConfig, RLStage
from parallel_r1.engine.scripted import ScriptedEngine
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.load import load_model
from parallel_r1.rollout.sample import reach
from parallel_r1.trace.tags import render_block
from parallel_r1.trace.tokens import encode_trace
from parallel_r1.train import trl_privates
from parallel_r1.train.grpo import grpo_config, run_grpo
from parallel_r1.train.guards import GradientGuard
from parallel_r1.train.problems import problem_order

ENGINE = EngineConfig(paths=2, max_blocks=1, max_response_tokens=48, path_budget=12, answer_reserve=12)


def stage(**settings):
    base = {"kind": "rl", "name": "rl", "data": [DataSource(task="parity", num=6)], "steps": 1, "prompts_per_step": 2}
    return RLStage.model_validate(
        {**base, "samples": 4, "micro_batch": 8, "learning_rate": 1e-2, "save_every": 100, **settings}
    )


def recipe_of(settings, variant="structured", **others):
    return Recipe(name="test", variant=variant, engine=ENGINE, stages=[settings], **others)


def forking(loaded, variant="structured"):
    """An engine that opens and closes blocks often, though the model knows nothing."""
    return TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, variant, tag_rate=0.2)


class Run:
    """One stage on fresh weights, with what it told."""

    def __init__(self, loaded, out_dir, variant="structured", engine=None, log=None, recipe=None, **settings):
        self.loaded, self.lines, self.groups = loaded, [], {}
        settings = stage(**settings)
        engine = engine or forking(loaded, variant)

        def tell(line):
            self.lines.append(line)
            if log is not None:
                log(line)

        run_grpo(
            loaded, settings, recipe or recipe_of(settings, variant), out_dir, log=tell, engine=engine,
            record=lambda groups, step: self.groups.update({step: groups}),
        )  # fmt: skip

    @property
    def weights(self):
        return {name: weight.clone() for name, weight in self.loaded.model.state_dict().items()}


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


def scripted(loaded, texts, variant="structured"):
    """Sample k of every prompt says ``texts[k]``."""
    ids = [[*encode_trace(loaded.tokenizer, text, loaded.tags), loaded.stop_ids[0]] for text in texts]
    return ScriptedEngine(lambda request: ids[request.seed[3]], loaded.tags, loaded.stop_ids, variant)


# --- counts and order -------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompts", "samples", "updates", "micro"), [(24, 8, 1, 48), (512, 8, 2, 16), (6, 4, 3, 4)])
def test_prompts_become_completions(tmp_path, prompts, samples, updates, micro):
    settings = stage(
        prompts_per_step=prompts, samples=samples, updates_per_step=updates, micro_batch=micro, steps=5, save_every=2,
        clip_low=0.1, clip_high=0.3, advantage="mean",
    )  # fmt: skip
    args = grpo_config(settings, ENGINE, tmp_path, 3, use_cpu=True)
    assert args.generation_batch_size == prompts * samples
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * updates == prompts * samples
    assert args.per_device_train_batch_size == micro
    assert args.num_generations == samples
    assert args.save_steps == 2 * updates
    assert (args.epsilon, args.epsilon_high, args.scale_rewards) == (0.1, 0.3, "none")
    assert (args.loss_type, args.beta, args.bf16, args.gradient_checkpointing) == ("dapo", 0.0, False, False)
    assert (args.use_vllm, args.shuffle_dataset, args.temperature) == (False, False, 1.0)


def test_several_processes_need_whole_groups(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="times 2 processes"):
        grpo_config(stage(prompts_per_step=3, samples=4, micro_batch=4), ENGINE, tmp_path, 0, use_cpu=True)


def test_problems_cycle_in_a_seeded_order(parity):
    sources = [DataSource(task="parity", num=6), DataSource(task="countdown", num=3)]
    settings = stage(data=sources, steps=9, prompts_per_step=4)
    order, tasks, dropped = problem_order(settings, 0)
    assert set(tasks) == {"parity", "countdown"}
    assert len(order) == 36
    assert dropped == []
    for cycle in (order[i : i + 9] for i in range(0, 36, 9)):
        assert Counter(problem.task for problem in cycle) == {"parity": 6, "countdown": 3}
        assert len({problem.id for problem in cycle}) == 9
    assert order[:9] != order[9:18]
    assert problem_order(settings, 0)[0] == order
    assert problem_order(settings, 1)[0] != order
    assert problem_order(stage(data=sources, steps=2, prompts_per_step=4), 0)[0] == order[:8]
    kept, _, dropped = problem_order(settings, 0, lambda problem: problem.task == "parity")
    assert {problem.task for problem in kept} == {"parity"}
    assert len(dropped) == 3
    with pytest.raises(ValueError, match="none of 9 problems fits"):
        problem_order(settings, 0, lambda problem: False)


# --- one update ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["structured", "causal"])
def test_any_split_and_any_padding_give_the_same_gradient(make_loaded, parity, tmp_path, gradients, variant):
    texts = ["x", render_block(["a", "b=1"], "c") + "yy", "x" * 30, render_block(["a" * 9, "bb", "c"], "d") + "yyy"]
    for micro in (8, 2, 1):
        loaded = make_loaded()
        engine = scripted(loaded, texts, variant)
        Run(loaded, tmp_path / str(micro), variant, engine, micro_batch=micro, max_grad_norm=1e9)
    whole, pairs, singles = gradients
    assert max(float(gradient.abs().max()) for gradient in whole.values()) > 1e-3
    for other in (pairs, singles):
        for name, gradient in whole.items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_the_token_mean_over_sampled_tokens(make_loaded, parity, tmp_path, gradients):
    """By hand: sum over sampled tokens of -advantage * reach * log p, over their number."""
    from parallel_r1.models.attention import install_layout_hook

    run = Run(make_loaded(), tmp_path, micro_batch=4, max_grad_norm=1e9)
    fresh = make_loaded()
    total, count = torch.zeros(()), 0
    with install_layout_hook(fresh.model, fresh.tags, "structured"):
        for group in run.groups[1]:
            rewards = torch.tensor([m.reward for m in group.members])
            scaled = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            for advantage, member in zip(scaled, group.members, strict=True):
                rollout = member.rollout
                ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]])
                logps = fresh.model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                start = len(rollout.prompt_ids) - 1
                weights = reach(rollout, fresh.tags)
                for t, (token, forced) in enumerate(zip(rollout.response_ids, rollout.forced, strict=True)):
                    if not forced:
                        count += 1
                        if not group.dead:
                            total = total - advantage * weights[t] * logps[start + t, token]
    (total / count).backward()
    for name, parameter in fresh.model.named_parameters():
        torch.testing.assert_close(gradients[0][name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_engine_and_trainer_agree(make_loaded, parity, tmp_path):
    structured = Run(make_loaded(), tmp_path / "s").lines[0]
    assert structured["gap_max"] < 1e-4
    assert structured["gap_by_path"] == {}
    causal = Run(make_loaded(), tmp_path / "c", "causal").lines[0]
    assert causal["gap_max"] < 1e-4
    assert causal["gap_by_path"]["2"]["max"] > 1e-3
    tempered = Recipe(
        name="t", variant="structured", engine=ENGINE.model_copy(update={"temperature": 0.6}), stages=[stage()]
    )
    assert Run(make_loaded(), tmp_path / "t", recipe=tempered).lines[0]["gap_max"] < 1e-4


def test_numbers_of_a_step(make_loaded, parity, tmp_path):
    run = Run(
        make_loaded(), tmp_path, steps=2, reward=RewardConfig(schedule="alternating", window=2, parallel_share=0.5)
    )
    wanted = (
        "stage kind step seconds reward accuracy parallel_ratio well_formed num_blocks total_tokens critical_tokens "
        "truncated dead_groups dead_right dead_wrong first_block_position gap_mean gap_max loss grad_norm entropy "
        "reward_parts"
    )
    for step, line in enumerate(run.lines, start=1):
        assert set(wanted.split()) <= set(line)
        assert line["step"] == step
        members = [m for g in run.groups[step] for m in g.members]
        assert line["reward"] == pytest.approx(sum(m.reward for m in members) / len(members))
        assert line["seconds_rollout"] + line["seconds_update"] == pytest.approx(line["seconds"])
        assert all(m.rollout.weight_version == step for m in members)
    assert [line["reward_phase"] for line in run.lines] == ["accuracy", "tiered"]


def test_several_updates_per_step(make_loaded, parity, tmp_path):
    run = Run(make_loaded(), tmp_path, steps=2, updates_per_step=2, micro_batch=2, prompts_per_step=4)
    assert [line["step"] for line in run.lines] == [1, 2]
    assert sorted(run.groups) == [1, 2]
    assert all(line["gap_max"] < 1e-4 for line in run.lines)  # measured at the weights that sampled
    assert all(len(groups) == 4 for groups in run.groups.values())


# --- nothing to learn -----------------------------------------------------------------------------------


def test_equal_rewards_move_nothing(make_loaded, parity, tmp_path):
    loaded = make_loaded()
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    run = Run(loaded, tmp_path, engine=scripted(loaded, ["xx"] * 4), steps=3, weight_decay=0.5)
    assert [line["skipped_updates"] for line in run.lines] == [1, 1, 1]
    assert [line["dead_groups"] for line in run.lines] == [2, 2, 2]
    assert [line["dead_right"] for line in run.lines] == [2, 2, 2]
    assert all(line["loss"] == 0 for line in run.lines)
    for name, weight in run.weights.items():
        assert torch.equal(weight, before[name]), name


def test_a_dead_group_gets_exactly_zero_and_a_mixed_one_does_not(make_loaded, parity, tmp_path, monkeypatch):
    seen = []
    fold = trl_privates.fold_advantages

    def look(groups, *settings):
        seen.append((groups, fold(groups, *settings)))
        return seen[-1][1]

    monkeypatch.setattr(trl_privates, "fold_advantages", look)
    loaded = make_loaded()
    ids = [[*encode_trace(loaded.tokenizer, text, loaded.tags), loaded.stop_ids[0]] for text in ("xx", "xxx")]
    engine = ScriptedEngine(
        lambda r: ids[r.seed[3] % 2 if r.seed[2] else 0], loaded.tags, loaded.stop_ids, "structured"
    )
    monkeypatch.setattr("parallel_r1.rewards.parts.RIGHT", 0.95)
    monkeypatch.setattr("parallel_r1.rewards.parts.WRONG", -0.95)
    Run(loaded, tmp_path, engine=engine)
    ((groups, folded),) = seen
    assert [group.dead for group in groups] == [True, False]
    assert [m.reward for m in groups[0].members] == [0.95] * 4
    assert torch.equal(folded[:4], torch.zeros_like(folded[:4]))
    assert bool((folded[4:, :3] != 0).all())


def test_a_batch_without_a_trainable_token_is_skipped(make_loaded, parity, tmp_path, monkeypatch):
    import dataclasses

    loaded = make_loaded()
    inner = scripted(loaded, ["x", "xx", "xxx", "xxxx"])
    generate = inner.generate

    def all_forced(requests, config, on_token=None):
        return [
            dataclasses.replace(rollout, forced=(True,) * rollout.total_tokens)
            for rollout in generate(requests, config, on_token)
        ]

    inner.generate = all_forced
    run = Run(loaded, tmp_path, engine=inner, steps=2)
    assert [line["skipped_updates"] for line in run.lines] == [1, 1]
    assert all(line["loss"] == 0 and line["entropy"] is None for line in run.lines)


def test_a_loss_that_is_no_number_leaves_the_weights_untouched(make_loaded, parity, tmp_path):
    loaded = make_loaded()
    with torch.no_grad():
        loaded.model.model.layers[0].mlp.up_proj.weight[0, 0] = math.inf
    before = loaded.model.lm_head.weight.clone()
    lines = []
    with pytest.raises(FloatingPointError, match=r"update 3: the gradient is not finite, for the 3rd time"):
        Run(loaded, tmp_path, engine=scripted(loaded, ["x", "xx", "xxx", "xxxx"]), steps=5, log=lines.append)
    assert torch.equal(loaded.model.lm_head.weight, before)
    assert "forward" not in loaded.model.__dict__
    assert [line["kind"] for line in lines] == ["note", "rl", "note", "rl"]
    assert lines[1]["loss"] is None and lines[1]["skipped_updates"] == 1
    kept = load_file(tmp_path / "broken-1.safetensors")
    assert {"0.completion_ids", "0.advantages"} <= set(kept)


def test_one_broken_update_is_skipped_and_the_stage_goes_on(make_loaded, parity, tmp_path, monkeypatch):
    """A batch that breaks once costs its update and nothing else."""
    fold, calls = trl_privates.fold_advantages, []

    def break_second(groups, *rest):
        calls.append(1)
        return fold(groups, *rest) * (math.nan if len(calls) == 2 else 1.0)

    monkeypatch.setattr(trl_privates, "fold_advantages", break_second)
    run = Run(make_loaded(), tmp_path, steps=3)
    lines = [line for line in run.lines if line["kind"] == "rl"]
    assert [line["skipped_updates"] for line in lines] == [0, 1, 0]
    assert all(bool(weight.isfinite().all()) for weight in run.weights.values())


def test_a_checker_that_keeps_failing_stops_the_stage(make_loaded, parity, tmp_path, monkeypatch):
    from parallel_r1.types import Verdict

    monkeypatch.setattr(type(parity), "verify", lambda self, problem, response: Verdict("timeout"))
    with pytest.raises(RuntimeError, match="the checker failed on 16 of 16 responses"):
        Run(make_loaded(), tmp_path, steps=5)


# --- the rest ---------------------------------------------------------------------------------------------


def test_constraints_weigh_advantages_by_the_reach(make_loaded, parity, tmp_path, monkeypatch):
    import dataclasses

    seen = []
    fold = trl_privates.fold_advantages
    monkeypatch.setattr(
        trl_privates, "fold_advantages", lambda groups, *rest: seen.append((groups, fold(groups, *rest))) or seen[-1][1]
    )
    loaded = make_loaded()
    engine = scripted(loaded, ["x", "xx", "xxx", "xxxx"])
    generate = engine.generate

    def constrained(requests, config, on_token=None):
        rollouts = generate(requests, config, on_token)
        return [
            dataclasses.replace(r, allowed_mass=tuple(0.5 + 0.1 * (t % 3) for t in range(r.total_tokens)))
            for r in rollouts
        ]

    engine.generate = constrained
    Run(loaded, tmp_path, engine=engine)
    ((groups, folded),) = seen
    plain = torch.tensor([m.reward for group in groups for m in group.members]).view(-1, 4)
    plain = ((plain - plain.mean(1, keepdim=True)) / (plain.std(1, keepdim=True) + 1e-4)).flatten()
    torch.testing.assert_close(folded[:, 0], plain * 0.5)
    torch.testing.assert_close(folded[3, :5], plain[3] * torch.tensor([0.5, 0.3, 0.21, 0.105, 0.063]))
    assert bool((folded[0, 2:] == 0).all())  # padding


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_correct_a_sampler_that_was_off(
    make_loaded, parity, tmp_path, gradients, monkeypatch, level
):
    """An engine that reports other log-probs than the trainer's is weighed by their ratio; an exact one is not."""
    import dataclasses

    texts = ["x", "yy", "xyx", "yyxy"]
    Run(make_loaded(), tmp_path / "exact", importance=level)
    Run(make_loaded(), tmp_path / "plain")
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-6)
    del gradients[:]
    found = []
    for shift, settings in ((0.0, {}), (math.log(2), {"importance": level, "importance_cap": 1e6})):
        loaded = make_loaded()
        engine = scripted(loaded, texts)
        generate = engine.generate

        def shifted(requests, config, on_token=None, generate=generate, shift=shift, loaded=loaded):
            rollouts = []
            for rollout in generate(requests, config, on_token):
                ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]])
                with torch.no_grad():
                    logps = loaded.model(input_ids=ids).logits[0, :-1].log_softmax(-1)
                start = len(rollout.prompt_ids) - 1
                own = [float(logps[start + t, token]) for t, token in enumerate(rollout.response_ids)]
                # Twice as likely to the trainer as to the engine, on the first token only.
                own[0] -= shift
                rollouts.append(dataclasses.replace(rollout, engine_logps=tuple(own)))
            return rollouts

        engine.generate = shifted
        found.append(Run(loaded, tmp_path / str(shift), engine=engine, max_grad_norm=1e9, **settings))
    plain, weighed = gradients
    assert found[1].lines[0]["ratio_quantiles"]["1.0"] == pytest.approx(2.0, rel=1e-3)
    if level == "sequence":
        for name, gradient in plain.items():
            torch.testing.assert_close(weighed[name], 2 * gradient, rtol=1e-2, atol=1e-5)
    else:
        assert any(not torch.allclose(weighed[name], gradient, rtol=1e-2) for name, gradient in plain.items())


def test_groups_without_signal_are_replaced_and_counted(make_loaded, parity, tmp_path):
    loaded = make_loaded()
    ids = [[*encode_trace(loaded.tokenizer, text, loaded.tags), loaded.stop_ids[0]] for text in ("xx", "xxx")]
    # Place 0 teaches nothing at first; the places of a second draw do.
    engine = ScriptedEngine(
        lambda r: ids[r.seed[3] % 2 if r.seed[2] else 0], loaded.tags, loaded.stop_ids, "structured"
    )
    line = Run(loaded, tmp_path, engine=engine, replace_rounds=1).lines[0]
    assert (line["dead_groups"], line["replaced_groups"], line["drawn_groups"]) == (0, 1, 3)
    assert line["accuracy"] == 0.5 and line["drawn_accuracy"] == pytest.approx(2 / 3)


def test_a_kl_reference_stays_where_the_stage_began(make_loaded, parity, tmp_path):
    loaded = make_loaded()
    run = Run(loaded, tmp_path, steps=3, kl=0.1)
    assert run.lines[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert run.lines[2]["kl"] > 1e-4


def test_learning_happens(make_loaded, parity, tmp_path):
    loaded = make_loaded()
    texts = ["xx", "xxx", "x" * 4, "x" * 5]
    fresh = loaded.model.lm_head.weight.clone()
    run = Run(loaded, tmp_path, engine=scripted(loaded, texts), steps=3, learning_rate=1e-3)
    assert run.lines[0]["grad_norm"] > 0
    assert not torch.equal(loaded.model.lm_head.weight, fresh)
    assert not loaded.model.training


def test_sequential_baseline_without_tags(parity, tmp_path):
    loaded = load_model("tiny-scratch")
    settings = stage(engine={"mode": "sequential", "max_response_tokens": 24})
    engine = ScriptedEngine(
        lambda r: [*encode_trace(loaded.tokenizer, "x" * (r.seed[3] + 1), None), loaded.stop_ids[0]],
        None, loaded.stop_ids, "structured",
    )  # fmt: skip
    lines = []
    run_grpo(loaded, settings, recipe_of(settings), tmp_path, log=lines.append, engine=engine)
    assert lines[0]["parallel_ratio"] == 0
    with pytest.raises(ValueError, match="needs a tokenizer with tags"):
        run_grpo(loaded, stage(), recipe_of(stage()), tmp_path)


@pytest.mark.parametrize(("engine", "message"), [({"top_p": 0.9}, r"top_p = 0\.9"), ({"top_k": 5}, "top_k = 5")])
def test_sampling_that_the_trainer_does_not_score_is_refused(loaded, parity, tmp_path, engine, message):
    settings = stage(engine=engine)
    with pytest.raises(ValueError, match=message):
        run_grpo(loaded, settings, recipe_of(settings), tmp_path)


def test_prompts_that_do_not_fit_are_dropped_and_told(make_loaded, parity, tmp_path):
    settings = stage(data=[DataSource(task="parity", num=6), DataSource(task="long", num=2)])

    class Long(type(parity)):
        name = "long"

        def problems(self, split, size, num, seed):
            import dataclasses

            return [
                dataclasses.replace(p, id="long-" + p.id, question="9" * 500)
                for p in super().problems(split, size, num, seed)
            ]

    from parallel_r1.tasks import TASKS

    TASKS["long"] = Long
    try:
        loaded = make_loaded()
        lines = []
        run_grpo(loaded, settings, recipe_of(settings), tmp_path, log=lines.append, engine=scripted(loaded, ["xx"] * 4))
    finally:
        del TASKS["long"]
    assert lines[0]["dropped"] == ["long-parity-0", "long-parity-1"]
    assert lines[1]["kind"] == "rl"


def test_resumed_training_is_the_same_to_the_bit(make_loaded, parity, tmp_path):
    settings = {
        "steps": 4, "micro_batch": 4, "save_every": 2, "learning_rate": 1e-3, "lr_schedule": "linear",
        "reward": RewardConfig(schedule="alternating", window=2, parallel_share=0.5),
    }  # fmt: skip
    whole = Run(make_loaded(), tmp_path / "whole", **settings)

    class Crash(Exception):
        pass

    def crash(line):
        if line["step"] == 3:
            raise Crash

    with pytest.raises(Crash):
        Run(make_loaded(), tmp_path / "cut", log=crash, **settings)
    resumed = Run(make_loaded(), tmp_path / "cut", **settings)
    assert [line["step"] for line in resumed.lines] == [3, 4]
    for step in (3, 4):
        texts = [[m.text for g in run.groups[step] for m in g.members] for run in (whole, resumed)]
        assert texts[0] == texts[1]
        for key in ("reward", "loss", "grad_norm", "reward_phase", "learning_rate", "entropy"):
            assert whole.lines[step - 1][key] == resumed.lines[step - 3][key], key
    assert any(line["grad_norm"] > 0 for line in whole.lines[:2])
    for name, weight in whole.weights.items():
        assert torch.equal(weight, resumed.weights[name]), name
    with pytest.raises(ValueError, match="learning_rate"):
        Run(make_loaded(), tmp_path / "cut", **{**settings, "learning_rate": 2e-3})


def test_groups_of_one_question_stay_apart(make_loaded, tmp_path, parity, monkeypatch):
    one = type(parity)().problems("train", "easy", 1, 0)
    monkeypatch.setattr(type(parity), "problems", lambda self, *args: one * 2)
    loaded = make_loaded()
    run = Run(loaded, tmp_path, engine=scripted(loaded, ["x", "xx", render_block(["a", "b"], "c"), "xxxx"]))
    assert len(run.groups[1]) == 2
    assert {group.problem.id for group in run.groups[1]} == {"parity-0"}
    assert {m.rollout.seed[2] for m in run.groups[1][1].members} == {1}
