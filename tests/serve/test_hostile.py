"""Malformed requests: never a 5xx, never a traceback, and good requests are answered in between."""

import json
import random

import httpx2
import pytest

GOOD = {"model": "dice", "messages": [{"role": "user", "content": "1"}], "max_tokens": 4, "seed": 1}
FIELDS = ["temperature", "n", "stop", "seed", "stream", "paths", "fork", "prompt", "tools", "zz"]
JSON = {"Content-Type": "application/json"}


def mutants(rng):
    """Bodies that are near to good ones, and bodies that are near to nothing."""
    values = [None, True, -1, 0, 1e308, 10**25, "", "x" * 5000, "\ud800", "\x00", [], [[]], {}, {"a": {}}, float("nan")]
    while True:
        body = json.loads(json.dumps(GOOD))
        for _ in range(rng.randint(1, 3)):
            body[rng.choice([*body, *FIELDS])] = rng.choice(values)
        text = json.dumps(body).encode()
        kind = rng.randrange(6)
        if kind == 0:
            place = rng.randrange(len(text))
            text = text[:place] + bytes(rng.randrange(256) for _ in range(3)) + text[place + rng.randrange(4) :]
        elif kind == 1:
            text = b'{"messages":' + b"[" * rng.choice([10, 900, 20000]) + b"1"
        yield text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_hand_made_ones(serve, path):
    address = serve()
    with httpx2.Client(base_url=address, timeout=60) as client:
        for number, body in zip(range(60), mutants(random.Random(0)), strict=False):
            reply = client.post(path, content=body, headers=JSON)
            assert reply.status_code < 500, body[:300]
            if reply.status_code != 200:
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
                assert "Traceback" not in reply.text and 'File "' not in reply.text
            if number % 20 == 19:
                assert client.post("/v1/chat/completions", json=GOOD).status_code == 200


@pytest.mark.slow
def test_generated_from_the_description(serve):
    """Schemathesis writes requests from the OpenAPI description, valid and invalid ones."""
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    address = serve()
    schema = schemathesis.openapi.from_url(address + "/openapi.json")
    counts = []
    for operation in schema.get_all_operations():

        @hypothesis.given(case=operation.ok().as_strategy())
        @hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
        def probe(case):
            reply = case.call(timeout=60)
            counts.append(reply.status_code)
            assert reply.status_code < 500, (case.method, case.path, reply.text[:300])

        probe()
    assert len(counts) > 60 and httpx2.post(address + "/v1/chat/completions", json=GOOD).status_code == 200
