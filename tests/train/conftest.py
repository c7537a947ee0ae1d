"""A small model to train, and a task whose answers a random model gets right half of the time."""

import gc

import pytest

from parallel_r1.types import Problem, Verdict


@pytest.fixture(scope="session", autouse=True)
def quick_collections():
    """Every training run collects garbage once; without this it walks all of torch and TRL each time."""
    import parallel_r1.train.grpo
    import parallel_r1.train.sft  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def make_loaded(make_model):
    """``make_loaded(**shape) -> Loaded``: the same weights on every call."""
    from parallel_r1.models.load import Loaded
    from parallel_r1.trace.tokens import stop_ids

    def make(**overrides):
        model, tokenizer, tags = make_model(**overrides)
        return Loaded(model, tokenizer, tags, stop_ids(tokenizer, model.config), None)

    return make


@pytest.fixture
def loaded(make_loaded):
    return make_loaded()


class Parity:
    """Right when the response region has an even number of characters."""

    name = "parity"

    def problems(self, split, size, num, seed):
        return [Problem(f"parity-{i}", self.name, size, f"make {i} from {seed}", "even") for i in range(num)]

    def verify(self, problem, response):
        return Verdict("wrong" if len(response) % 2 else "right", response)


@pytest.fixture
def parity(monkeypatch):
    from parallel_r1.tasks import TASKS

    monkeypatch.setitem(TASKS, "parity", Parity)
    return Parity()
