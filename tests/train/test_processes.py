"""Two processes train exactly what one does: seeds never come from the rank, groups stay whole."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import json, sys
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config
    from parallel_r1.config import DataSource, EngineConfig, Recipe, RLStage
    from parallel_r1.engine.tree import TreeEngine
    from parallel_r1.models.load import Loaded
    from parallel_r1.models.tiny import tiny_tokenizer
    from parallel_r1.tasks import TASKS
    from parallel_r1.trace.tokens import add_tags, stop_ids
    from parallel_r1.train.grpo import run_grpo
    from parallel_r1.types import Problem, Verdict

    class Parity:
        name = "parity"
        def problems(self, split, size, num, seed):
            return [Problem(f"p{i}", "parity", size, f"make {i}", "") for i in range(num)]
        def verify(self, problem, response):
            return Verdict("wrong" if len(response) % 2 else "right", response)

    TASKS["parity"] = Parity
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=512, rope_theta=1000.0, initializer_range=0.25,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, bos_token_id=None)).eval()
    loaded = Loaded(model, tokenizer, add_tags(model, tokenizer), stop_ids(tokenizer, model.config), None)
    stage = RLStage(kind="rl", name="rl", data=[DataSource(task="parity", num=10)], steps=2, prompts_per_step=4,
                    samples=4, micro_batch=4, learning_rate=1e-3)
    recipe = Recipe(name="x", variant="structured", stages=[stage], engine=EngineConfig(
        paths=2, max_blocks=1, max_response_tokens=60, path_budget=16, answer_reserve=16))
    engine = TreeEngine(model, tokenizer, loaded.tags, loaded.stop_ids, "structured", tag_rate=0.2)
    keys = ("step", "reward", "loss", "grad_norm", "dead_groups", "entropy", "total_tokens")
    run_grpo(loaded, stage, recipe, sys.argv[1], engine=engine,
             log=lambda line: print("LINE", json.dumps([line[key] for key in keys]), flush=True),
             record=lambda groups, step: print("LINE", json.dumps([len(groups)]), flush=True))
    import torch.distributed as dist
    assert (dist.get_world_size() if dist.is_initialized() else 1) == int(sys.argv[2])
"""


def lines(tmp_path, processes):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"] if processes == 2 else []
    command = [sys.executable, *launch, str(script), str(tmp_path / str(processes)), str(processes)]
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("LINE ")]


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    one, two = lines(tmp_path, 1), lines(tmp_path, 2)
    assert len(one) == 4
    for left, right in zip(one, two, strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
