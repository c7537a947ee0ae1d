"""Run the server: load, bind, serve, shut down."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import uvicorn

from parallel_r1.serve.app import build_app
from parallel_r1.serve.guard import Limits, check_binding
from parallel_r1.serve.served import load_served

KEY_VARIABLE = "PARALLEL_R1_API_KEY"
GRACE_S = 10
"""A shutdown lets answers in flight go on this long."""


def read_key(file: Path | None) -> str | None:
    """The API key: from a file, else from the environment, else none."""
    key = file.read_text(encoding="utf-8").strip() if file else os.environ.get(KEY_VARIABLE, "").strip()
    if file and not key:
        raise ValueError(f"--api-key-file {file}: the file is empty")
    return key or None


def serve(
    model: str, host: str = "127.0.0.1", port: int = 8000, api_key: str | None = None, max_waiting: int = 256,
    log_level: str = "info", **settings: Any,
) -> None:  # fmt: skip
    """Serve a model until interrupted. ``settings``: those of `load_served`.

    Raises:
        ValueError: a host that others can reach without a key, or a model that cannot be loaded.
        OSError: the address is taken.
    """
    local = check_binding(host, api_key)
    listener = bind(host, port)  # first: loading a model for an address that is taken wastes minutes
    try:
        served = load_served(model, **settings)
        limits = Limits(api_key=api_key, local_only=local and api_key is None, max_waiting=max_waiting)
        server = uvicorn.Server(uvicorn_config(served, limits, log_level))
        shown = f"[{host}]" if ":" in host else host
        print(f"{served.name} on http://{shown}:{listener.getsockname()[1]} (playground: /, API: /v1)", flush=True)
        server.run(sockets=[listener])
    finally:
        listener.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds the address, not yet listening; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"--host {host} --port {port}: {error.strerror}; use another port") from error
    return listener


def uvicorn_config(served: Any, limits: Limits, log_level: str = "info") -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        build_app(served, limits), log_level=log_level, access_log=False, server_header=False, proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S, ws="none", lifespan="on",
    )  # fmt: skip
