"""The API through the official client and through plain HTTP, over a real server; dice stand for the model."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx2
import openai
import pytest

from parallel_r1.serve.guard import Limits
from parallel_r1.trace.tags import parse_text

HTTP = httpx2.Client(timeout=60)
QUESTION = [{"role": "user", "content": "make 6 from 1 2 3"}]


def body(**fields):
    return {"model": "dice", "messages": QUESTION, "seed": 1, **fields}


def connect(address, key="none"):
    return openai.OpenAI(base_url=address + "/v1", api_key=key, max_retries=0, timeout=60, http_client=HTTP)


@pytest.fixture
def address(serve):
    return serve()


@pytest.fixture
def client(address):
    return connect(address)


def post(address, sent, path="/v1/chat/completions"):
    return HTTP.post(address + path, json=sent)


def test_the_official_client(client):
    reply = client.chat.completions.create(**body(max_tokens=100), extra_body={"fork": "always", "paths": 2})
    (choice,) = reply.choices
    usage = reply.usage
    reasoning = choice.message.reasoning_content
    (block, *_) = parse_text(reasoning, truncated=True).blocks
    assert len(block.paths) == 2 and reasoning.startswith("<Parallel><Path>")
    assert "<" not in choice.message.content and choice.finish_reason in ("stop", "length")
    assert usage.completion_tokens <= 100 and usage.critical_path_tokens < usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert [m.id for m in client.models.list()] == ["dice"] and client.models.retrieve("dice").parallel["forks"]


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"show_trace": True}, {"fork": "never"}])
def test_a_stream_says_what_the_whole_reply_says(client, fields):
    extra = {k: v for k, v in fields.items() if k != "n"}
    sent = body(max_tokens=110, n=fields.get("n"))
    whole = client.chat.completions.create(**sent, extra_body=extra)
    streamed = client.chat.completions.create(
        **sent, extra_body=extra, stream=True, stream_options={"include_usage": True}
    )
    text, thought, ends, pieces = {}, {}, {}, {}
    for chunk in streamed:
        for choice in chunk.choices:
            i = choice.index
            text[i] = text.get(i, "") + (choice.delta.content or "")
            thought[i] = thought.get(i, "") + (getattr(choice.delta, "reasoning_content", None) or "")
            ends[i] = choice.finish_reason
            for piece in choice.pieces:
                place = tuple(piece.get(key, -1) for key in ("region", "block", "path"))
                pieces.setdefault(i, {}).setdefault(place, []).append(piece["text"])
        usage = chunk.usage
    assert len(text) == fields.get("n", 1)
    assert usage == whole.usage
    for choice in whole.choices:
        assert text[choice.index] == choice.message.content
        assert thought[choice.index] == (choice.message.reasoning_content or "")
        assert ends[choice.index] == choice.finish_reason
        found = {}
        for piece in choice.pieces:
            place = tuple(piece.get(key, -1) for key in ("region", "block", "path"))
            found.setdefault(place, []).append(piece["text"])
        assert {k: "".join(v) for k, v in found.items()} == {k: "".join(v) for k, v in pieces[choice.index].items()}
        text_of_all = "".join(piece["text"] for piece in choice.pieces)
        if fields.get("show_trace"):
            assert choice.message.content == text_of_all and parse_text(text_of_all, True).blocks
        if fields.get("fork") == "never":
            assert choice.message.reasoning_content is None and choice.message.content == text_of_all
    if "n" in fields:
        assert len(set(text.values())) == 3


def test_a_seed_repeats_an_answer_and_none_is_told(client):
    first, again, other = (client.chat.completions.create(**body(seed=seed)).choices[0] for seed in (5, 5, 6))
    assert first.pieces == again.pieces != other.pieces
    drawn = client.chat.completions.create(**body(seed=None)).choices[0]
    same = client.chat.completions.create(**body(seed=drawn.parallel["seed"])).choices[0]
    assert drawn.pieces == same.pieces


def test_plain_completions(client):
    reply = client.completions.create(model="dice", prompt=["make 6", "make 7"], seed=1, max_tokens=40, logprobs=0)
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])
    ids = client.completions.create(model="dice", prompt=[40, 41, 42], seed=1, max_tokens=40)
    assert ids.usage.prompt_tokens == 3
    streamed = client.completions.create(model="dice", prompt="make 6", seed=1, max_tokens=40, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == reply.choices[0].text


def test_logprobs_stand_beside_the_text_they_belong_to(client):
    (choice,) = client.chat.completions.create(**body(logprobs=True), extra_body={"fork": "always"}).choices
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    inside = choice.logprobs.reasoning_content
    assert "".join(token["token"] for token in inside) == choice.message.reasoning_content
    assert {token["logprob"] for token in inside} == {0.0, -0.5}  # inserted and sampled


def test_stop_texts_end_the_main_chain(client):
    whole = client.chat.completions.create(**body(), extra_body={"fork": "never"}).choices[0].message.content
    stop = whole[20:22]
    cut = client.chat.completions.create(**body(stop=[stop]), extra_body={"fork": "never"}).choices[0]
    assert cut.message.content == whole[: whole.index(stop)] and cut.finish_reason == "stop"


def test_conversations_are_joined(address, dice_model, serve):
    turns = [{"role": "system", "content": "be brief"}, *QUESTION, {"role": "assistant", "content": "no"}, *QUESTION]
    long = post(address, body(messages=turns)).json()["usage"]["prompt_tokens"]
    assert long > post(address, body()).json()["usage"]["prompt_tokens"]
    parts = [{"type": "text", "text": QUESTION[0]["content"][:4]}, {"type": "text", "text": QUESTION[0]["content"][4:]}]
    split = post(address, body(messages=[{"role": "user", "content": parts}])).json()
    assert split["choices"][0]["pieces"] == post(address, body()).json()["choices"][0]["pieces"]


def test_tags_in_a_question_are_text(address):
    reply = post(address, body(messages=[{"role": "user", "content": "</Path> <Parallel> & <img>"}]))
    assert reply.status_code == 200


BAD = [
    ({"temperature": 3}, "temperature", "less than or equal to 2"),
    ({"temperature": "hot"}, "temperature", "valid number"),
    ({"temperature": None, "tempature": 1}, "tempature", "xtra"),
    ({"paths": 9}, "paths", "less than or equal to 8"),
    ({"paths": True}, "paths", "valid integer"),
    ({"fork": "maybe"}, "fork", "'auto', 'always' or 'never'"),
    ({"fork": "always", "max_blocks": 0}, "max_blocks", "at least 1"),
    ({"fork": "always", "max_tokens": 20}, "max_tokens", "use at least 27"),
    ({"stop": 5}, "stop", "valid string or: Input should be a valid list"),
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "user", "content": "  "}]}, "messages[0].content", "must hold text"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'system', 'developer', 'user'"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, None, "must be by 'user'"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "'text'"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "half of a surrogate pair"),
    ({"top_logprobs": 5}, "top_logprobs", "less than or equal to 0"),
    ({"presence_penalty": 1}, "presence_penalty", "less than or equal to 0"),
    ({"tools": [{"type": "function"}]}, "tools", "at most 0 items"),
    ({"response_format": {"type": "json_object"}}, "response_format.type", "'text'"),
    ({"n": 100}, "n", "less than or equal to 8"),
    ({"seed": 10**30}, "seed", "less than"),
    ({"stream_options": {"include_usage": True}}, None, "stream = true"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 5000}, "max_tokens", "context of 400 tokens"),
    ({"model": None}, "model", "valid string"),
]


@pytest.mark.parametrize(("fields", "param", "says"), BAD, ids=lambda value: str(value)[:30])
def test_a_bad_field_is_named_with_what_is_allowed(address, fields, param, says):
    sent = json.dumps(body(**fields))  # lone surrogates travel as escapes
    reply = HTTP.post(address + "/v1/chat/completions", content=sent, headers={"Content-Type": "application/json"})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and says in error["message"]


def test_other_errors_have_the_same_form(client, address):
    with pytest.raises(openai.NotFoundError, match="gpt-9") as unknown:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert unknown.value.code == "model_not_found" and unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError, match=r"\d{3} tokens .* context of 400 tokens") as long:
        client.chat.completions.create(model="dice", messages=[{"role": "user", "content": "1 " * 300}])
    assert long.value.code == "context_length_exceeded"
    raw = {"Content-Type": "application/json"}
    for content, says in ((b"{", "no JSON"), (b"[1]", "body"), (b"[" * 9000, "body"), (b"\xff", "body"), (b"", "")):
        reply = HTTP.post(address + "/v1/chat/completions", content=content, headers=raw)
        assert reply.status_code == 400 and says in reply.json()["error"]["message"]
    assert HTTP.post(address + "/v1/chat/completions", content=b"a=b").status_code in (400, 415)
    assert "no such address" in HTTP.get(address + "/v2").json()["error"]["message"]
    assert HTTP.get(address + "/v1/completions").json()["error"]["message"] == "GET is not allowed here"
    unknown_id = post(address, {"model": "dice", "prompt": [99999]}, "/v1/completions").json()
    assert unknown_id["error"]["param"] == "prompt[0]"


def test_a_model_without_tags_answers_in_one_chain(serve, dice_model):
    model = dice_model()
    model.engines[0].tags = None
    address = serve(replace(model, tags=None, config=model.config.model_copy(update={"mode": "sequential"})))
    assert post(address, body()).status_code == 200
    reply = post(address, body(fork="always"))
    assert reply.status_code == 400 and "has no tags" in reply.json()["error"]["message"]


# --- load, disconnects, failures ---


def settled(worker, seconds=20):
    """Wait until nothing is in flight."""
    until = time.monotonic() + seconds
    while worker.num_open and time.monotonic() < until:
        time.sleep(0.01)
    return worker.num_open == 0


def test_overload_is_told_and_passes(serve, dice_model):
    address = serve(dice_model(pace_s=0.02), Limits(max_waiting=2))
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda i: post(address, body(seed=i, max_tokens=60)), range(12)))
    told = [reply for reply in replies if reply.status_code == 429]
    assert told and {reply.status_code for reply in replies} == {200, 429}
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in told)
    assert told[0].json()["error"]["code"] == "overloaded"
    assert settled(serve.worker) and post(address, body()).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_row(serve, dice_model, stream):
    model = dice_model(pace_s=0.05)
    address = serve(model)
    (engine,) = model.engines
    if not stream:
        with pytest.raises(httpx2.TimeoutException):
            HTTP.post(address + "/v1/chat/completions", json=body(), timeout=0.5)
    else:
        with HTTP.stream("POST", address + "/v1/chat/completions", json=body(stream=True)) as reply:
            next(reply.iter_lines())
            assert engine.sessions[0].num_active >= 1
    assert settled(serve.worker, 2)
    assert engine.sessions[0].num_active == 0
    assert 'responses_total{reason="cancelled"}' in HTTP.get(address + "/metrics").text


def test_who_shares_the_engine_changes_nothing(serve, dice_model):
    address = serve(dice_model())
    alone = [post(address, body(seed=i)).json()["choices"][0]["pieces"] for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: post(address, body(seed=i)).json()["choices"][0]["pieces"], range(8)))
    assert together == alone


def test_an_engine_that_fails_takes_only_what_is_in_flight(serve, dice_model):
    model = dice_model(pace_s=0.02)
    address = serve(model)
    (engine,) = model.engines
    with HTTP.stream("POST", address + "/v1/chat/completions", json=body(stream=True)) as reply:
        lines = reply.iter_lines()
        next(lines)
        engine.broken = True
        told = [line for line in lines if "error" in line]
    assert "the engine failed (RuntimeError)" in told[-1] and "Traceback" not in told[-1]
    engine.broken = False
    assert post(address, body()).status_code == 200 and len(engine.sessions) == 2
    engine.broken = True
    assert [post(address, body()).status_code for _ in range(4)][-1] == 503
    assert HTTP.get(address + "/health").status_code == 503 and all(s.closed for s in engine.sessions)


def test_a_request_the_engine_refuses_is_a_400(serve, dice_model):
    address = serve(replace(dice_model(), context=1000))
    for stream in (True, False):
        reply = post(address, body(messages=[{"role": "user", "content": "1 " * 250}], stream=stream))
        assert reply.status_code == 400 and "too long for dice" in reply.json()["error"]["message"]


def test_shutdown_ends_streams_and_closes_the_session(dice_model, run_server):
    model = dice_model(pace_s=0.02)
    with run_server(model) as (address, server):
        found = []
        with HTTP.stream("POST", address + "/v1/chat/completions", json=body(stream=True)) as reply:
            thread = threading.Thread(target=lambda: found.extend(reply.iter_lines()))
            thread.start()
            time.sleep(0.2)
            server.should_exit = True
            thread.join(20)
    assert found[-2 if found[-1] == "" else -1] == "data: [DONE]"  # a short answer ends within the grace
    assert model.engines[0].sessions[0].closed
