"""Servers to talk to: real HTTP over a real engine thread, with a model or with dice in its place."""

import contextlib
import hashlib
import threading
import time
from dataclasses import replace

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import uvicorn

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Finished, TokenEvent
from parallel_r1.engine.branch import Branch, Sampled
from parallel_r1.models.tiny import tiny_tokenizer
from parallel_r1.serve.guard import Limits
from parallel_r1.serve.served import ServedModel
from parallel_r1.serve.server import bind, uvicorn_config
from parallel_r1.trace.tags import TAGS
from parallel_r1.trace.tokens import plain_ids
from parallel_r1.types import Rollout

CONFIG = EngineConfig(paths=3, max_blocks=2, max_response_tokens=120, path_budget=16, answer_reserve=16, max_rows=4)


def dice(*parts):
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


class DiceSession:
    """A session of `DiceEngine`: the real state machine, steps that interleave, one row per request."""

    def __init__(self, engine, config):
        self.engine, self.config = engine, config
        self.waiting, self.active, self.next_ticket, self.closed = [], {}, 0, False

    def submit(self, request, config=None, on_token=None):
        config, ticket, engine = config or self.config, self.next_ticket, self.engine
        if len(request.prompt_ids) > 400:
            raise ValueError("the prompt is too long for dice")

        def listen(token, region, forced):
            if on_token:
                on_token(TokenEvent(ticket, token, region, forced))

        branch = Branch(config, engine.tags, engine.stop_ids, engine.variant, len(request.prompt_ids), listen)
        self.waiting.append((ticket, request, branch))
        self.next_ticket += 1
        return ticket

    def step(self):
        if self.engine.broken:
            raise RuntimeError("no memory, say")
        time.sleep(self.engine.pace_s)
        while self.waiting and len(self.active) < self.config.max_rows:
            ticket, *row = self.waiting.pop(0)
            self.active[ticket] = row
        done = []
        for ticket, (request, branch) in list(self.active.items()):
            sampled = [Sampled(self.engine.draw(request, branch, strand), -0.5, -0.4) for strand in branch.strands]
            step = branch.advance(sampled)
            if step.done:
                del self.active[ticket]
                done.append(Finished(ticket, self._rollout(request, branch, step.done)))
        return done

    def cancel(self, ticket):
        for entry in self.waiting:
            if entry[0] == ticket:
                self.waiting.remove(entry)
                return self._rollout(*entry[1:], "cancelled")
        row = self.active.pop(ticket, None)
        return row and self._rollout(*row, "cancelled")

    def _rollout(self, request, branch, reason):
        written, critical = branch.so_far()
        ids, forced, engine, sampling, mass = tuple(zip(*written, strict=True)) or ((),) * 5
        return Rollout(
            "request", tuple(request.prompt_ids), ids, forced, engine, sampling, mass, reason,
            branch.truncated or reason == "cancelled", tuple(request.seed), 0, branch.num_blocks, critical,
        )  # fmt: skip

    busy = property(lambda self: bool(self.active or self.waiting))
    num_active = property(lambda self: len(self.active))
    num_waiting = property(lambda self: len(self.waiting))

    def close(self):
        self.closed = True

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class DiceEngine:
    """An engine whose tokens are dice: as quick as ``pace_s`` says, and without a model."""

    variant, weight_version = "structured", 0

    def __init__(self, tokenizer, tags, pace_s=0.0):
        self.tokenizer, self.tags, self.pace_s, self.broken = tokenizer, tags, pace_s, False
        self.stop_ids = (tokenizer.eos_token_id,)
        self.letters = plain_ids(tokenizer, "abcdefgh 0123456789=+")
        self.sessions = []

    def session(self, config):
        self.sessions.append(DiceSession(self, config))
        return self.sessions[-1]

    def draw(self, request, branch, strand):
        """A letter; now and then the tag that moves the response on, or its end."""
        number = dice(request.prompt_ids, request.seed, branch.counter(strand))
        tag = branch.expected_tag(strand)
        if tag >= 0 and number % 11 == 0:
            return tag
        if branch.rule(strand).name in ("MAIN", "MAY_FORK") and number % 37 == 1:
            return self.stop_ids[0]
        return self.letters[number % len(self.letters)]


@pytest.fixture(scope="session")
def tokenizer():
    from transformers import AddedToken

    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


@pytest.fixture(scope="session")
def tags(tokenizer):
    from parallel_r1.trace.tokens import tag_ids

    return tag_ids(tokenizer)


@pytest.fixture
def dice_model(tokenizer, tags):
    """``dice_model(pace_s=..., **changes)``: a model that needs no torch."""

    def make(pace_s=0.0, **changes):
        engine = DiceEngine(tokenizer, tags, pace_s)
        model = ServedModel("dice", (engine,), tokenizer, tags, engine.stop_ids, CONFIG, "think: {question}\n", 400, 0)
        return replace(model, **changes)

    return make


@contextlib.contextmanager
def running(model, limits=None):
    """Serve on a free port; yields the address."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn_config(model, limits or Limits(), "warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()


@pytest.fixture
def serve(dice_model):
    """``serve(model=None, limits=None) -> address``; several servers may run at once."""
    with contextlib.ExitStack() as stack:

        def start(model=None, limits=None):
            address, server = stack.enter_context(running(model or dice_model(), limits))
            start.worker = server.config.app.state.worker
            return address

        yield start


@pytest.fixture
def run_server():
    """`running`, for tests that stop their server themselves."""
    return running
