"""What every backend owes its callers."""

import pytest

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.scripted import ScriptedEngine
from parallel_r1.engine.tree import TreeEngine

CONFIG = EngineConfig(paths=2, max_blocks=1, max_response_tokens=60, path_budget=10, answer_reserve=10)


@pytest.fixture(scope="module")
def parts(make_model):
    return make_model()


@pytest.fixture(params=["tree", "scripted"])
def engine(request, parts):
    model, tokenizer, tags = parts
    stop = (tokenizer.eos_token_id,)
    if request.param == "tree":
        return TreeEngine(model, tokenizer, tags, stop, "structured", tag_rate=0.3)

    def script(call):
        block = [tags.parallel_open, tags.path_open, 20, tags.path_close, tags.path_open, 21, 22, tags.path_close,
                 tags.parallel_close, *tags.newline, tags.summary_open, 23, tags.summary_close]  # fmt: skip
        return [30 + call.seed[-1], *block, *[40] * (60 if call.seed[-1] == 2 else 1), *stop]

    return ScriptedEngine(script, tags, stop, "structured")


def requests():
    return [Request(f"p{i}", (50, 51, 52), (0, 0, i, i)) for i in range(3)]


def test_one_rollout_per_request_in_order_with_its_identity(engine):
    rollouts = engine.generate(requests(), CONFIG)
    assert [(r.problem_id, r.prompt_ids, r.seed) for r in rollouts] == [
        (q.problem_id, q.prompt_ids, q.seed) for q in requests()
    ]
    assert engine.generate([], CONFIG) == []


def test_columns_have_one_entry_per_token_and_forced_tokens_no_numbers(engine):
    for r in engine.generate(requests(), CONFIG):
        columns = (r.forced, r.engine_logps, r.sampling_logps, r.allowed_mass)
        assert {len(column) for column in columns} == {r.total_tokens} and 0 < r.total_tokens <= 60
        for forced, engine_logp, sampling_logp, mass in zip(*columns, strict=True):
            assert (engine_logp, sampling_logp, mass) == (0.0, 0.0, 1.0) if forced else engine_logp < 0
        assert r.critical_tokens <= r.total_tokens and (r.critical_tokens < r.total_tokens) == (r.num_blocks > 0)


def test_stop_reason_says_how_it_ended(engine):
    rollouts = engine.generate(requests(), CONFIG)
    for r in rollouts:
        stopped = r.response_ids[-1] in engine.stop_ids
        assert r.stop_reason == ("stop" if stopped else "length")
        assert stopped or r.truncated


def test_the_same_call_gives_the_same_rollouts(engine):
    assert engine.generate(requests(), CONFIG) == engine.generate(requests(), CONFIG)


def test_prompts_hold_no_tags(engine):
    bad = Request("bad", (50, engine.tags.path_open), (0,))
    with pytest.raises(ValueError, match="'bad': the prompt holds a tag id"):
        engine.generate([bad], CONFIG)


def test_versions_are_bumped_and_stamped(engine):
    before = engine.weight_version
    engine.load_weights()
    assert {r.weight_version for r in engine.generate(requests(), CONFIG)} == {before + 1}


def test_listeners_hear_each_token_of_each_request(engine):
    events = []
    rollouts = engine.generate(requests(), CONFIG, events.append)
    for index, r in enumerate(rollouts):
        heard = [(e.token_id, e.forced) for e in events if e.request == index]
        assert sorted(heard) == sorted(zip(r.response_ids, r.forced, strict=True))


def test_scripted_marks_up_a_block(parts):
    tags, stop = parts[2], (parts[1].eos_token_id,)
    ids = [7, tags.parallel_open, tags.path_open, 20, 21, tags.path_close, tags.path_open, 22, tags.path_close,
           tags.parallel_close, *tags.newline, tags.summary_open, 23, tags.summary_close, 24, *stop]  # fmt: skip
    regions = []
    engine = ScriptedEngine(lambda call: ids, tags, stop, "causal", logp=-2.0)
    (r,) = engine.generate(requests()[:1], CONFIG, lambda e: regions.append(e.region.kind))
    inserted = {i for i, forced in enumerate(r.forced) if forced}
    assert inserted == {2, 6, 9, 10, 11}
    assert regions == ["main", "block", *["path"] * 7, "block", "block", *["summary"] * 3, "main", "main"]
    assert r.critical_tokens == len(ids) - 3 and r.num_blocks == 1 and r.engine_logps[0] == -2.0


# --- sessions ---


def drain(session):
    found = {}
    while session.busy:
        found.update((done.ticket, done.rollout) for done in session.step())
    return found


def test_a_session_gives_the_rollouts_of_generate_whenever_they_are_submitted(engine):
    expected = engine.generate(requests(), CONFIG)
    with engine.session(CONFIG) as session:
        assert session.step() == [] and not session.busy
        tickets = [session.submit(requests()[0])]
        found = {done.ticket: done.rollout for _ in range(7) for done in session.step()}
        tickets += [session.submit(request) for request in requests()[1:]]
        assert session.busy and session.num_active + session.num_waiting >= 2
        found |= drain(session)
        assert not session.busy and session.num_active == session.num_waiting == 0
    assert tickets == [0, 1, 2]
    assert [found[t].response_ids for t in tickets] == [r.response_ids for r in expected]


def test_a_listener_hears_its_own_request(engine):
    heard = {0: [], 1: []}
    with engine.session(CONFIG) as session:
        for ticket, request in enumerate(requests()[:2]):
            assert session.submit(request, on_token=heard[ticket].append) == ticket
        session.submit(requests()[2])
        found = drain(session)
    for ticket, events in heard.items():
        assert {e.request for e in events} == {ticket}
        assert sorted(e.token_id for e in events) == sorted(found[ticket].response_ids)


def test_a_bad_request_leaves_the_session_alone(engine):
    expected = engine.generate(requests()[:1], CONFIG)
    with engine.session(CONFIG) as session:
        session.submit(requests()[0])
        with pytest.raises(ValueError, match="tag id"):
            session.submit(Request("bad", (50, engine.tags.path_open), (0,)))
        assert list(drain(session).values()) == expected


def test_cancelled_requests_are_not_reported(engine):
    with engine.session(CONFIG) as session:
        tickets = [session.submit(request) for request in requests()]
        left = session.cancel(tickets[1])
        assert left is not None and left.stop_reason == "cancelled" and left.problem_id == "p1"
        assert session.cancel(tickets[1]) is None and session.cancel(99) is None
        found = drain(session)
        assert set(found) == {tickets[0], tickets[2]}
        assert session.cancel(tickets[0]) is None
