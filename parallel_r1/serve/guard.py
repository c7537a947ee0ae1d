"""What stands before every route: who may ask, how much may be sent, how long that may take."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallel_r1.serve.errors import ApiError
from parallel_r1.serve.metrics import Metrics

MOST_BODY_BYTES = 2**20
BODY_SECONDS = 30.0
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server allows."""

    api_key: str | None = None
    local_only: bool = True
    """Refuse requests under a host name that is not this machine's own: a web page that makes its name point
    here could read the answers otherwise."""
    max_waiting: int = 256
    """Responses that may wait for a row; more are told to come back later."""
    max_body_bytes: int = MOST_BODY_BYTES
    body_seconds: float = BODY_SECONDS


def check_binding(host: str, api_key: str | None) -> bool:
    """Is ``host`` this machine alone?

    Raises:
        ValueError: it is not, and there is no key; or a key that cannot be sent or guessed too easily.
    """
    if api_key is not None and (len(api_key) < 16 or not api_key.isascii() or not api_key.isprintable()):
        raise ValueError("the API key needs at least 16 characters, ASCII without line breaks; make one with "
                         "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`")  # fmt: skip
    local = host == "localhost" or _is_loopback(host)
    if not local and api_key is None:
        raise ValueError(f"--host {host} can be reached by others, so it needs a key: set PARALLEL_R1_API_KEY or "
                         "--api-key-file, or stay on 127.0.0.1")  # fmt: skip
    return local


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An ASGI layer around the application. Paths ``open_to_all`` need no key: they hold nothing."""

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, routes: frozenset[str], open_to_all: set[str]
    ) -> None:
        self.app, self.limits, self.metrics, self.routes = app, limits, metrics, routes
        self.open_to_all = open_to_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.reply(path if path in self.routes else "other", message["status"])
            await send(message)

        try:
            self._check_caller(path, Headers(scope=scope))
            receive = await self._read_body(scope, receive)
        except ApiError as error:
            await error.response()(scope, receive, counted)
        else:
            await self.app(scope, receive, counted)

    def _check_caller(self, path: str, headers: Headers) -> None:
        host = headers.get("host", "")
        host = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self.limits.local_only and host.lower() not in _LOCAL_NAMES:
            raise ApiError(403, "this server answers as localhost or 127.0.0.1 only", code="wrong_host")
        if self.limits.api_key is None or path in self.open_to_all:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self.limits.api_key.encode())
        if scheme.lower() != "bearer" or not same:
            raise ApiError(
                401, "a missing or wrong API key; send `Authorization: Bearer KEY`", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    async def _read_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the whole body within the limits; returns a ``receive`` that hands it on."""
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return receive
        most = self.limits.max_body_bytes
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > most:
            raise ApiError(413, f"a body of {announced[:20]} bytes; at most {most} are read", code="body_too_large")
        body = b""
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the client went away")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > most:
                        raise ApiError(413, f"the body has more than {most} bytes", code="body_too_large")
        except TimeoutError as error:
            raise ApiError(408, f"the body took longer than {self.limits.body_seconds:g} s", code="timeout") from error
        first: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal first
            message, first = first, None
            return message or await receive()

        return replay
