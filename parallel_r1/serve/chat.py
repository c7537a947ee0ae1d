"""The terminal client: questions to a server, paths side by side while they come.

A model in place of an address is served to this client alone, on a free port of this machine.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import uvicorn
from rich.console import Console
from rich.live import Live

from parallel_r1.live import REFRESH_SECONDS, Transcript
from parallel_r1.serve.guard import Limits
from parallel_r1.serve.served import load_served
from parallel_r1.serve.server import bind, uvicorn_config
from parallel_r1.types import Region

CONNECT_S = 10.0


def chat(
    target: str, question: str | None, fields: Mapping[str, Any], api_key: str | None, console: Console | None = None
) -> None:
    """Ask one question, or whatever is typed until the end of the input.

    Args:
        target: ``http://...`` of a server, or a model to load.
        fields: what goes into every request (fork, paths, temperature ...).

    Raises:
        ValueError: no server there, or it refuses; no such model.
    """
    console = console or Console()
    with contextlib.ExitStack() as stack:
        if not target.startswith(("http://", "https://")):
            target, api_key = stack.enter_context(_own_server(target, console))
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx2.Timeout(CONNECT_S, read=None)
        client = stack.enter_context(httpx2.Client(base_url=target.rstrip("/"), headers=headers, timeout=timeout))
        model = _checked(client.get, "/v1/models")["data"][0]["id"]
        body = {**fields, "model": model, "stream": True}
        if question is not None:
            _ask(client, body, question, console)
            return
        console.print(f"{model}: one question a line; an empty one leaves", style="dim", highlight=False)
        while line := _line(console):
            try:
                _ask(client, body, line, console)
            except ValueError as error:  # a question that is refused is no reason to leave
                console.print(f"error: {error}", style="red", markup=False, highlight=False)
            except KeyboardInterrupt:
                console.print("stopped", style="dim")


def _line(console: Console) -> str:
    try:
        return console.input("> ").strip()
    except EOFError:
        return ""


@contextlib.contextmanager
def _own_server(model: str, console: Console) -> Iterator[tuple[str, str]]:
    """Serve a model on a free port, with a key that only this client knows."""
    with console.status(f"loading {model}"):
        served = load_served(model, max_rows=1)
    key = secrets.token_urlsafe(32)
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn_config(served, Limits(api_key=key, local_only=True), "error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", key
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _checked(call: Any, path: str) -> Any:
    try:
        reply = call(path)
    except httpx2.HTTPError as error:
        raise ValueError(f"no server answers there ({error}); start one with `parallel-r1 serve MODEL`") from error
    if reply.status_code != 200:
        raise ValueError(_message(reply.text, reply.status_code))
    try:
        return reply.json()
    except ValueError as error:
        raise ValueError("what answers there is no parallel-r1 server") from error


def _message(text: str, status: int) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"


def _ask(client: httpx2.Client, body: dict[str, Any], question: str, console: Console) -> None:
    """One question; the answer is shown while it comes, or at its end where the output is no terminal."""
    body = {**body, "messages": [{"role": "user", "content": question}]}
    started = time.monotonic()
    transcript: Transcript[str] = Transcript()
    figures: dict[str, Any] = {}
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
    with live or contextlib.nullcontext():
        shown = 0.0
        for choice in _choices(client, body):
            for piece in choice.get("pieces", ()):
                region = Region(piece["region"], piece.get("block", -1), piece.get("path", -1))
                hidden = piece.get("tag") or region.kind == "block"
                transcript.put(region, None if hidden else piece["text"])
            figures = choice.get("parallel", figures)
            if live and time.monotonic() - shown >= REFRESH_SECONDS:
                shown = time.monotonic()
                live.update(transcript.panels("".join), refresh=True)
    if console.is_terminal:
        console.print(transcript.panels("".join))
    else:
        for line in transcript.lines("".join):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    cut = ", cut by a limit" if figures.get("truncated") else ""
    seconds = time.monotonic() - started
    console.print(
        f"{figures.get('tokens', '?')} tokens, {figures.get('critical_path_tokens', '?')} on the critical path, "
        f"{figures.get('blocks', '?')} blocks, {seconds:.1f} s, seed {figures.get('seed', '?')}{cut}",
        style="dim", highlight=False,
    )  # fmt: skip


def _choices(client: httpx2.Client, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The choices of the chunks of a stream."""
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                raise ValueError(_message(reply.read().decode(), reply.status_code))
            for line in reply.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"]["message"])
                yield from chunk["choices"]
    except httpx2.HTTPError as error:
        raise ValueError(f"the connection broke ({error or type(error).__name__})") from error
