"""A model that decodes what it is told, and the smallest real one."""

import random

import pytest

from parallel_r1.engine.scripted import ScriptedEngine
from parallel_r1.models.load import Loaded
from parallel_r1.tasks import load_task
from parallel_r1.trace.tokens import encode_trace


@pytest.fixture(scope="session")
def loaded(make_model):
    model, tokenizer, tags = make_model(max_position_embeddings=400)
    return Loaded(model, tokenizer, tags, (tokenizer.eos_token_id,), None)


class Solver(ScriptedEngine):
    """Writes the task's own traces (forked) or worked texts (otherwise); counts what it is asked."""

    def __init__(self, loaded, variant="structured", task="countdown"):
        self.task = load_task(task)
        self.problems = {p.id: p for size in ("easy", "hard") for p in self.task.problems("test", size, 12, 0)}
        self.loaded, self.mode, self.asked = loaded, "forked", []
        super().__init__(self.write, loaded.tags, loaded.stop_ids, variant)

    def generate(self, requests, config, on_token=None):
        self.mode = config.mode
        self.asked += [(config.mode, request) for request in requests]
        return super().generate(requests, config, on_token)

    def write(self, request):
        problem, rng = self.problems[request.problem_id], random.Random(str(request.seed))
        text = self.task.trace(problem, rng, 3, 1) if self.mode == "forked" else self.task.base_text(problem, rng)
        return [*encode_trace(self.loaded.tokenizer, text, self.loaded.tags), *self.loaded.stop_ids[:1]]


@pytest.fixture
def solver(loaded):
    return lambda **settings: Solver(loaded, **settings)
