"""Sessions of the tree engine: settings per request, cancelling, what an open session forbids."""

import pytest
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.trace.tags import parse_ids

CONFIG = EngineConfig(paths=3, max_blocks=3, max_response_tokens=110, path_budget=12, answer_reserve=12)


def request(i, sample=0):
    return Request(f"p{i}", tuple(range(20 + i, 32 + 2 * i)), (0, 0, i, sample))


def change(**changes):
    return EngineConfig.model_validate({**CONFIG.model_dump(), **changes})


@pytest.fixture(scope="module")
def parts(make_model):
    return make_model()


@pytest.fixture(params=["structured", "causal"])
def engine(request, parts):
    model, tokenizer, tags = parts
    return TreeEngine(model, tokenizer, tags, (tokenizer.eos_token_id,), request.param, tag_rate=0.2)


def drain(session):
    found = {}
    while session.busy:
        found.update((done.ticket, done.rollout) for done in session.step())
    return found


def test_every_request_has_its_own_settings(engine):
    settings = [
        None,
        change(paths=2, temperature=0.7),
        change(mode="sequential"),
        change(force_fork=True, max_blocks=1),
        change(temperature=0.0, top_k=5),
        change(max_response_tokens=60, path_budget=5, top_p=0.8),
    ]
    alone = [engine.generate([request(i)], config or CONFIG)[0] for i, config in enumerate(settings)]
    with engine.session(CONFIG) as session:
        tickets = [session.submit(request(i), config) for i, config in enumerate(settings)]
        found = drain(session)
    assert [found[t].response_ids for t in tickets] == [r.response_ids for r in alone]
    assert not any(found[tickets[2]].forced)
    forced = found[tickets[3]]
    assert forced.response_ids[0] == engine.tags.parallel_open and forced.forced[0] and forced.num_blocks == 1


def test_late_requests_change_nobody(engine):
    expected = engine.generate([request(i) for i in range(6)], CONFIG)
    found = {}
    with engine.session(change(max_rows=3)) as session:
        for i in range(6):
            session.submit(request(i))
            for _ in range(9):
                found.update((done.ticket, done.rollout) for done in session.step())
        found |= drain(session)
    assert [found[i].response_ids for i in range(6)] == [r.response_ids for r in expected]


def test_cancelling_frees_the_row_at_once(engine):
    with engine.session(change(max_rows=2)) as session:
        for i in range(3):
            session.submit(request(i))
        for _ in range(8):
            session.step()
        assert (session.num_active, session.num_waiting) == (2, 1)
        left = session.cancel(0)
        assert left.total_tokens >= 8 and left.truncated
        assert (session.num_active, session.num_waiting) == (1, 1)
        session.step()
        assert (session.num_active, session.num_waiting) == (2, 0)
        found = drain(session)
    expected = engine.generate([request(1), request(2)], CONFIG)
    assert [found[i].response_ids for i in (1, 2)] == [r.response_ids for r in expected]


def test_a_cancelled_block_keeps_its_open_paths_side_by_side(engine):
    config = change(force_fork=True)
    whole = engine.generate([request(0)], config)[0]
    with engine.session(config) as session:
        session.submit(request(0))
        for _ in range(4):
            session.step()
        left = session.cancel(0)
    (block,) = parse_ids(left.response_ids, engine.tags, truncated=True).blocks
    for part, path in zip(block.paths, parse_ids(whole.response_ids, engine.tags).blocks[0].paths, strict=True):
        assert part.content == path.content[: len(part.content)]
    assert left.critical_tokens < left.total_tokens


def test_a_listener_may_cancel_and_submit(engine):
    expected = engine.generate([request(1), request(2)], CONFIG)
    heard = []
    with engine.session(CONFIG) as session:

        def hear(event):
            heard.append(event)
            if len(heard) == 5:
                assert session.cancel(event.request).stop_reason == "cancelled"
                session.submit(request(2))

        session.submit(request(0), on_token=hear)
        session.submit(request(1))
        found = drain(session)
    assert [found[i].response_ids for i in (1, 2)] == [r.response_ids for r in expected] and set(found) == {1, 2}
    assert 5 <= len(heard) < 20


def test_an_open_session_holds_the_model(engine):
    model = engine.model
    with engine.session(CONFIG) as session:
        with pytest.raises(ValueError, match="open session"):
            engine.session(CONFIG)
        session.submit(request(0))
        with pytest.raises(ValueError, match="in flight"):
            engine.load_weights()
        assert model.config._attn_implementation != "sdpa"
    assert model.config._attn_implementation == "sdpa"
    session.close()
    for call in (session.step, lambda: session.submit(request(0))):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_steps_track_no_gradients(engine):
    with torch.enable_grad(), engine.session(CONFIG) as session:
        session.submit(request(0))
        session.step()
        assert not any(side.requires_grad for side in session.passes.cache._sides())
