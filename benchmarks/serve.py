"""The server under load: equality of answers, leaks, malformed requests, overhead over the engine.

    python benchmarks/serve.py --json runs/serve.json                     # at full size: half an hour on two cores
    python benchmarks/serve.py --clients 20 --requests 100 --malformed 300 --streams 8 --only load overhead

Parts (``--only``): *load* (many streaming clients, a third of the requests cancelled midway; the others must equal
what their seed gives alone), *malformed* (no 5xx, a good answer after each hundred), *overhead* (tokens a second and
time to the first token through HTTP against the engine alone, in turns), *deterministic* (its price). The
server runs in a process of its own, as it would for users; the engine's part runs in this one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil

from parallel_r1.engine.base import Request
from parallel_r1.run_dir import write_json
from parallel_r1.tasks import load_task

MODEL = "tiny-parallel"
MAX_TOKENS = 160
ROWS = 32
CANCELLED_SHARE = 1 / 3
ROUNDING = 1e-3
"""Two answers that part after log-probs no further apart than this part by rounding: a draw fell between two tokens."""
PARTS = ("load", "malformed", "overhead", "deterministic")


def main() -> None:
    parser = argparse.ArgumentParser(description="The server under load.")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"cores": os.cpu_count(), "model": options.model}
    if "load" in options.only:
        for deterministic in (True, False):
            with server(options.model, deterministic) as (address, process):
                name = "load_deterministic" if deterministic else "load"
                found[name] = asyncio.run(load(address, process, options.model, options.clients, options.requests))
                print(name, found[name], flush=True)
    if "malformed" in options.only:
        with server(options.model, False) as (address, process):
            found["malformed"] = malformed(address, options.model, options.malformed)
            print("malformed", found["malformed"], flush=True)
    if {"overhead", "deterministic"} & set(options.only):
        kinds = [kind for kind in ("overhead", "deterministic") if kind in options.only]
        found |= throughput(options.model, options.streams, options.rounds, kinds)
    if options.json:
        write_json(options.json, found)


@contextlib.contextmanager
def server(model: str, deterministic: bool) -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own; its address and process."""
    command = [sys.executable, "-m", "parallel_r1", "serve", model, "--port", "0", "--max-rows", str(ROWS)]
    command += ["--max-waiting", "10000", "--log-level", "warning", *(["--deterministic"] if deterministic else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            address = re.search(r"http://\S+", line)
            if address is None:
                raise RuntimeError(f"the server did not start: {line!r}")
            wait_until_up(address[0])
            yield address[0], psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def wait_until_up(address: str) -> None:
    """Return when the server answers."""
    for _ in range(600):
        with contextlib.suppress(httpx2.HTTPError):
            if httpx2.get(f"{address}/health").status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("the server does not answer")


def body(model: str, number: int, question: str, **fields: Any) -> dict[str, Any]:
    """The request with this number."""
    return {"model": model, "messages": [{"role": "user", "content": question}], "seed": number,
            "max_tokens": MAX_TOKENS, **fields}  # fmt: skip


def questions(num: int) -> list[str]:
    """Distinct questions, repeated where there are too few."""
    known = [problem.question for problem in load_task("countdown").problems("test", "easy", min(num, 200), 0)]
    return list(itertools.islice(itertools.cycle(known), num))


# --- load ---


async def load(address: str, process: psutil.Process, model: str, clients: int, requests: int) -> dict[str, Any]:
    """Streams from many clients, a third cut off midway; then the others again, one at a time."""
    asked = questions(requests)
    rng = random.Random(0)
    cut = set(rng.sample(range(requests), round(requests * CANCELLED_SHARE)))
    limits = httpx2.Limits(max_connections=clients)
    memory: list[float] = []
    found: dict[int, tuple[Any, ...]] = {}
    started = time.monotonic()
    async with httpx2.AsyncClient(base_url=address, timeout=None, limits=limits) as client:
        queue = iter(range(requests))

        async def work() -> None:
            for number in queue:
                chunks = rng.randrange(1, 12) if number in cut else None
                answer = await stream(client, body(model, number, asked[number], logprobs=True), chunks)
                if answer is not None:
                    found[number] = answer
                if number % max(1, requests // 20) == 0:
                    memory.append(process.memory_info().rss / 2**20)

        await asyncio.gather(*(work() for _ in range(clients)))
        seconds = time.monotonic() - started
        rows = await idle_rows(client)
        differing = []
        for number in sorted(found):
            alone = await stream(client, body(model, number, asked[number], logprobs=True), None)
            assert alone is not None
            if alone[0] != found[number][0]:
                differing.append({"request": number, "gap": gap_before(alone[1], found[number][1])})
    half = len(memory) // 2
    return {
        "clients": clients, "requests": requests, "cancelled": len(cut), "answered": len(found),
        "seconds": round(seconds, 1), "equal_share": 1 - len(differing) / max(1, len(found)),
        "differing": differing[:20], "differing_by_more_than_rounding": sum(d["gap"] > ROUNDING for d in differing),
        "rows_left": rows, "memory_mib": [round(m) for m in memory],
        "memory_growth_mib": round(max(memory[half:]) - max(memory[:half] or memory), 1),
    }  # fmt: skip


async def stream(
    client: httpx2.AsyncClient, sent: dict[str, Any], chunks: int | None
) -> tuple[str, list[tuple[str, float]]] | None:
    """(text by place, tokens with log-probs) of one answer; None where it is cut off after ``chunks``."""
    places: dict[tuple[Any, ...], str] = {}
    tokens: list[tuple[str, float]] = []
    async with client.stream("POST", "/v1/chat/completions", json={**sent, "stream": True}) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                for piece in choice["pieces"]:
                    place = (piece.get("block", -1), piece.get("path", -1), piece["region"])
                    places[place] = places.get(place, "") + piece["text"]
                if choice["logprobs"]:
                    both = choice["logprobs"]["reasoning_content"] + choice["logprobs"]["content"]
                    tokens = [(token["token"], token["logprob"]) for token in both]
            if chunks is not None:
                chunks -= 1
                if chunks <= 0:
                    return None
    return json.dumps(sorted((list(map(str, place)), text) for place, text in places.items())), tokens


def gap_before(alone: list[tuple[str, float]], crowd: list[tuple[str, float]]) -> float:
    """The largest difference of log-probs over the tokens that two answers share before they part."""
    shared = itertools.takewhile(lambda pair: pair[0][0] == pair[1][0], zip(alone, crowd, strict=False))
    return max((abs(a[1] - b[1]) for a, b in shared), default=0.0)


async def idle_rows(client: httpx2.AsyncClient) -> int:
    """Rows that are still held once nothing is asked any more."""
    held = -1
    for _ in range(100):
        page = (await client.get("/metrics")).text
        held = sum(int(float(n)) for n in re.findall(r"^parallel_r1_(?:rows_active|responses_open) (\S+)", page, re.M))
        if held == 0:
            break
        await asyncio.sleep(0.1)
    return held


# --- malformed ---


def malformed(address: str, model: str, num: int) -> dict[str, Any]:
    """Requests that are near to good ones; a good one after each hundred."""
    rng = random.Random(0)
    good = body(model, 1, "make 21 from 8 3 3", max_tokens=8)
    statuses: Counter[int] = Counter()
    tracebacks = good_answers = 0
    paths = (
        "/v1/chat/completions",
        "/v1/completions",
        "/playground/verdict",
        "/playground/problem",
        "/v1/models/x",
        "/nowhere",
    )
    with httpx2.Client(base_url=address, timeout=600) as client:
        for number in range(1, num + 1):
            content = broken(rng, good)
            kind = rng.choice(["application/json", "application/json", "text/plain", ""])
            reply = client.post(rng.choice(paths), content=content, headers={"Content-Type": kind})
            statuses[reply.status_code] += 1
            tracebacks += "Traceback" in reply.text
            if number % 100 == 0:
                good_answers += client.post(paths[0], json=good).status_code == 200
    return {"sent": num, "statuses": dict(sorted(statuses.items())), "tracebacks": tracebacks,
            "server_errors": sum(n for status, n in statuses.items() if status >= 500),
            "good_answers": f"{good_answers}/{num // 100}"}  # fmt: skip


def broken(rng: random.Random, good: dict[str, Any]) -> bytes:
    """A body with something wrong in it, most of the time."""
    fields = [*good, "prompt", "temperature", "top_p", "top_k", "n", "stop", "stream", "paths", "fork", "max_blocks",
              "path_budget", "logprobs", "tools", "logit_bias", "problem", "trace", "task", "size", "zz"]  # fmt: skip
    values = [None, True, -1, 0, 3, 1e308, 10**30, 0.5, "", "auto", "x" * 3000, "\ud800", "\x00", [], [1], [[1]], [""],
              {}, {"task": "chain"}, {"a": [{}]}, float("nan"), float("inf")]  # fmt: skip
    changed = dict(good) | {rng.choice(fields): rng.choice(values) for _ in range(rng.randint(1, 3))}
    for key in rng.sample(sorted(changed), k=rng.randint(0, 1)):
        del changed[key]
    content = json.dumps(changed).encode()
    match rng.randrange(8):
        case 0:
            place = rng.randrange(len(content))
            content = content[:place] + rng.randbytes(3) + content[place + rng.randrange(5) :]
        case 1:
            content = rng.randbytes(rng.randrange(200))
        case 2:
            content = b'{"messages":' * rng.choice([5, 3000]) + content
    return content


# --- throughput ---


def throughput(model: str, streams: int, rounds: int, kinds: list[str]) -> dict[str, Any]:
    """Tokens a second and first tokens: the engine alone, through HTTP, and with passes of their own; in turns."""
    asked = questions(streams)
    ways: dict[str, list[tuple[float, float]]] = {"engine": [], "http": []}
    if "deterministic" in kinds:
        ways["http_deterministic"] = []
    with contextlib.ExitStack() as stack:
        addresses = {
            way: stack.enter_context(server(model, way == "http_deterministic"))[0] for way in ways if way != "engine"
        }
        for _ in range(rounds):
            ways["engine"].append(engine_alone(model, asked))
            for way, address in addresses.items():
                ways[way].append(asyncio.run(through_http(address, model, asked)))
    middle = {way: tuple(statistics.median(column) for column in zip(*runs, strict=True)) for way, runs in ways.items()}
    found: dict[str, Any] = {
        way: {"tokens_per_s": round(rate, 1), "first_token_s": round(first, 3)} for way, (rate, first) in middle.items()
    }
    found["overhead"] = {
        "streams": streams, "throughput_lost": round(1 - middle["http"][0] / middle["engine"][0], 3),
        "first_token_ratio": round(middle["http"][1] / middle["engine"][1], 2),
    }  # fmt: skip
    if "deterministic" in kinds:
        found["deterministic"] = {"slower_by": round(middle["http"][0] / middle["http_deterministic"][0], 2)}
    print(json.dumps(found, indent=1), flush=True)
    return {"throughput": found}


def engine_alone(model: str, asked: list[str]) -> tuple[float, float]:
    """(tokens a second, seconds to the first token) of the engine in this process, with nobody listening."""
    from parallel_r1.serve.ask import chat_ids
    from parallel_r1.serve.schema import Message
    from parallel_r1.serve.served import load_served

    served = load_served(model, max_rows=ROWS)
    config = served.config.model_copy(update={"max_response_tokens": MAX_TOKENS})
    tokens = 0
    first: float | None = None
    with served.session() as session:
        prompts = [chat_ids(served, [Message(role="user", content=question)]) for question in asked]
        started = time.monotonic()
        for number, prompt in enumerate(prompts):
            session.submit(Request("request", prompt, (number, 0, 0, 0)), config)
        while session.busy:
            tokens += sum(done.rollout.total_tokens for done in session.step())
            first = first or time.monotonic() - started  # the first step reads the prompts and draws a token for each
        seconds = time.monotonic() - started
    return tokens / seconds, first or seconds


async def through_http(address: str, model: str, asked: list[str]) -> tuple[float, float]:
    """The same through the server: all streams begin at once."""
    first: list[float] = []
    tokens = 0
    async with httpx2.AsyncClient(base_url=address, timeout=None) as client:
        await client.get("/health")
        started = time.monotonic()

        async def one(number: int) -> None:
            nonlocal tokens
            sent = body(model, number, asked[number], stream=True)
            async with client.stream("POST", "/v1/chat/completions", json=sent) as reply:
                begun = False
                async for line in reply.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    if not begun:
                        begun = True
                        first.append(time.monotonic() - started)
                    if '"parallel":' in line:
                        tokens += json.loads(line[6:])["choices"][0]["parallel"]["tokens"]

        await asyncio.gather(*(one(number) for number in range(len(asked))))
    return tokens / (time.monotonic() - started), statistics.median(first)


if __name__ == "__main__":
    main()
