"""Sessions apart on a real model: the session's contract, and answers that are equal to the last bit."""

import pytest

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.serve.apart import ApartSessions

CONFIG = EngineConfig(paths=3, max_blocks=2, max_response_tokens=70, path_budget=10, answer_reserve=12)


def request(i):
    return Request(f"p{i}", tuple(range(20 + i, 30 + 2 * i)), (0, 0, i, 0))


@pytest.fixture(scope="module")
def engines(make_model):
    model, tokenizer, tags = make_model()
    return [TreeEngine(model, tokenizer, tags, (tokenizer.eos_token_id,), "structured", 0.2) for _ in range(3)]


def drain(session):
    found = {}
    while session.busy:
        found.update((done.ticket, done.rollout) for done in session.step())
    return found


def test_answers_are_equal_bit_by_bit_to_those_alone(engines):
    alone = []
    for i in range(5):
        with ApartSessions(engines, CONFIG) as session:
            session.submit(request(i))
            alone.append(drain(session)[0])
    heard = []
    with ApartSessions(engines, CONFIG) as session:
        for i in range(5):
            session.submit(request(i), on_token=heard.append)
        session.step()
        assert (session.num_active, session.num_waiting) == (3, 2)
        found = drain(session)
    assert [found[i] for i in range(5)] == alone  # log-probs too
    assert {event.request for event in heard} == set(range(5))
    assert len(heard) == sum(rollout.total_tokens for rollout in alone)
    assert engines[0].model.config._attn_implementation == "sdpa"


def test_cancelling(engines):
    with ApartSessions(engines, CONFIG) as session:
        for i in range(5):
            session.submit(request(i))
        session.step()
        session.step()
        assert session.cancel(1).total_tokens >= 2 and session.cancel(4).total_tokens == 0
        assert session.cancel(1) is None and session.cancel(9) is None
        assert (session.num_active, session.num_waiting) == (2, 1)
        assert set(drain(session)) == {0, 2, 3}


def test_a_listener_may_cancel(engines):
    with ApartSessions(engines, CONFIG) as session:

        def hear(event):
            if not left:
                left.append(session.cancel(event.request))

        left = []
        session.submit(request(0), on_token=hear)
        assert drain(session) == {} and left[0].stop_reason == "cancelled"
        session.submit(request(1))
        assert set(drain(session)) == {1}


def test_a_bad_request_is_refused_at_once_even_when_it_has_to_wait(engines):
    with ApartSessions(engines, CONFIG) as session:
        for i in range(3):
            session.submit(request(i))
        with pytest.raises(ValueError, match="empty"):
            session.submit(Request("bad", (), (0,)))
        assert set(drain(session)) == {0, 1, 2}
