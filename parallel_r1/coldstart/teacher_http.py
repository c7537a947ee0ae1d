"""A teacher behind an OpenAI-compatible endpoint (``POST .../chat/completions``).

Requests run side by side up to ``concurrency``. What may pass (429, 5xx, a broken or silent connection, a
stream that is cut, an answer that is no JSON) is asked again after a growing, jittered pause; ``Retry-After``
is obeyed, and a 429 holds back all workers, not only the one that met it. What will not pass (no access, no
such model) ends the run. A request that the endpoint calls wrong costs its problem only.

Replies are streamed where the endpoint can do so, so that silence is told from slow work. Left out: tools,
images, endpoints that are not OpenAI's.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from parallel_r1.coldstart.teacher import Ask, Finish, Reply, TeacherError, without_thoughts

if TYPE_CHECKING:
    import httpx2

NO_ACCESS = (401, 402, 403, 404)
PASSING = (408, 409, 425, 429)
LONGEST_PAUSE = 300.0
"""Seconds; also the most that ``Retry-After`` may ask for."""
MOST_CHARACTERS_PER_TOKEN = 40
"""A reply longer than this is garbage."""
_FINISH: dict[str, Finish] = {"length": "length", "max_tokens": "length", "content_filter": "filter"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to ask. ``url`` is the base (``https://host/v1``); ``key`` is sent and never shown."""

    url: str
    model: str
    key: str | None = None
    concurrency: int = 8
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    temperature: float = 0.6
    top_p: float = 0.95
    max_tokens: int = 4096
    silence: float = 120.0
    """Seconds without a byte after which a request has failed."""
    deadline: float = 1200.0
    """Seconds that a reply may take in all."""
    tries: int = 6
    first_pause: float = 1.0
    """Seconds; doubled with every further try, with jitter."""

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, {self.model!r})"


class _Passing(Exception):
    """A failure worth another try."""

    def __init__(self, cause: str, after: float | None = None) -> None:
        super().__init__(cause)
        self.cause, self.after = cause, after


class _Refused(Exception):
    """The endpoint calls this one request wrong."""


class Pace:
    """One gate for all workers: when the next request may start. Times are seconds of ``time.monotonic``."""

    def __init__(self, requests_per_minute: float | None = None, tokens_per_minute: float | None = None) -> None:
        self._gap = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._per_token = 60.0 / tokens_per_minute if tokens_per_minute else 0.0
        self._next = self._next_tokens = self._held_until = 0.0

    async def wait(self) -> None:
        """Wait for a turn."""
        now = time.monotonic()
        turn = max(now, self._next)
        self._next = turn + self._gap
        while (start := max(turn, self._next_tokens, self._held_until)) > time.monotonic():
            await asyncio.sleep(start - time.monotonic())

    def spent(self, tokens: int) -> None:
        """Tokens of a finished reply push later requests back."""
        self._next_tokens = max(self._next_tokens, time.monotonic()) + tokens * self._per_token

    def hold(self, seconds: float) -> None:
        """Let nobody start for a while."""
        self._held_until = max(self._held_until, time.monotonic() + seconds)


class HttpTeacher:
    """Asks an endpoint; see the module."""

    def __init__(self, endpoint: Endpoint) -> None:
        if not endpoint.url.startswith(("http://", "https://")):
            raise TeacherError(f"--url {endpoint.url}: give the base of the endpoint, e.g. http://localhost:8000/v1")
        self.endpoint, self.name = endpoint, endpoint.model
        self.retries: dict[str, int] = Counter()
        self._pace = Pace(endpoint.requests_per_minute, endpoint.tokens_per_minute)

    async def replies(self, asks: Iterator[Ask]) -> AsyncIterator[Reply]:
        """See `parallel_r1.coldstart.teacher.Teacher`."""
        import httpx2

        limits = httpx2.Limits(max_connections=self.endpoint.concurrency)
        headers = {"Authorization": f"Bearer {self.endpoint.key}"} if self.endpoint.key else {}
        ready: asyncio.Queue[Reply | BaseException | None] = asyncio.Queue(maxsize=self.endpoint.concurrency)
        async with httpx2.AsyncClient(headers=headers, timeout=self.endpoint.silence, limits=limits) as client:

            async def work() -> None:
                try:
                    for ask in asks:
                        await ready.put(await self._reply(client, ask))
                    await ready.put(None)
                except Exception as error:  # handed to the reader, who raises it
                    await ready.put(error)

            workers = [asyncio.create_task(work()) for _ in range(self.endpoint.concurrency)]
            try:
                running = len(workers)
                while running:
                    item = await ready.get()
                    if isinstance(item, BaseException):
                        raise item
                    if item is None:
                        running -= 1
                    else:
                        yield item
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _reply(self, client: httpx2.AsyncClient, ask: Ask) -> Reply:
        cause = ""
        for attempt in range(self.endpoint.tries):
            await self._pace.wait()
            try:
                reply = await self._once(client, ask)
            except _Refused as refused:
                return Reply(ask, "", "error", error=f"refused: {refused}")
            except _Passing as failure:
                cause = failure.cause
                if attempt + 1 == self.endpoint.tries:
                    break
                self.retries[cause] += 1
                pause = min(LONGEST_PAUSE, self.endpoint.first_pause * 2**attempt) * random.uniform(0.5, 1.0)
                pause = pause if failure.after is None else min(LONGEST_PAUSE, failure.after) + pause / 4
                if cause == "429":
                    self._pace.hold(pause)
                await asyncio.sleep(pause)
            else:
                self._pace.spent(reply.prompt_tokens + reply.completion_tokens)
                return reply
        return Reply(ask, "", "error", error=f"{cause}, {self.endpoint.tries} times")

    async def _once(self, client: httpx2.AsyncClient, ask: Ask) -> Reply:
        import httpx2

        body = {
            "model": self.endpoint.model, "messages": [{"role": "user", "content": ask.prompt}],
            "temperature": self.endpoint.temperature, "top_p": self.endpoint.top_p,
            "max_tokens": self.endpoint.max_tokens, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        address = f"{self.endpoint.url.rstrip('/')}/chat/completions"
        try:
            async with (
                asyncio.timeout(self.endpoint.deadline),
                client.stream("POST", address, json=body) as response,
            ):
                if response.status_code != 200:
                    self._refuse(response.status_code, response.headers, await response.aread())
                if "event-stream" in response.headers.get("content-type", ""):
                    return await self._read_stream(ask, response)
                return self._read_whole(ask, json.loads(await response.aread()))
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise _Passing("timeout") from error
        except httpx2.InvalidURL as error:
            raise TeacherError(f"--url {self.endpoint.url}: {error}") from error
        except httpx2.HTTPError as error:
            raise _Passing("connection") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if isinstance(error, TeacherError):
                raise
            raise _Passing("garbage") from error

    def _refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        said = " ".join(body[:300].decode(errors="replace").split())
        if status in NO_ACCESS:
            raise TeacherError(
                f"{self.endpoint.url} answers {status} for the model {self.endpoint.model!r} "
                f"({said or 'no reason given'}); check the address, the model's name and the key"
            )
        if status in PASSING or status >= 500:
            raise _Passing(str(status), _retry_after(headers.get("retry-after")))
        raise _Refused(f"{status} {said}")

    async def _read_stream(self, ask: Ask, response: httpx2.Response) -> Reply:
        """Server-sent events. A stream without an end has been cut, however much of it came."""
        text, size, finish, usage, ended = [], 0, None, {}, False
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            if (data := line[5:].strip()) == "[DONE]":
                ended = True
                break
            event = json.loads(data)
            if event.get("error"):
                raise _Passing("error in stream")
            usage = event.get("usage") or usage
            for choice in event.get("choices") or ():
                text.append((choice.get("delta") or {}).get("content") or "")
                finish = choice.get("finish_reason") or finish
                size += len(text[-1])
            if size > MOST_CHARACTERS_PER_TOKEN * self.endpoint.max_tokens:
                raise _Passing("garbage")
        if not (ended or finish):
            raise _Passing("cut stream")
        return self._made(ask, "".join(text), finish, usage)

    def _read_whole(self, ask: Ask, event: Mapping[str, Any]) -> Reply:
        choice = event["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise _Passing("garbage")
        return self._made(ask, text, choice.get("finish_reason"), event.get("usage") or {})

    def _made(self, ask: Ask, text: str, finish: str | None, usage: Mapping[str, Any]) -> Reply:
        """A reply; tokens that the endpoint does not count are taken as four characters each."""
        asked, written = (usage.get(key) for key in ("prompt_tokens", "completion_tokens"))
        asked = asked if isinstance(asked, int) else len(ask.prompt) // 4
        written = written if isinstance(written, int) else len(text) // 4
        return Reply(ask, without_thoughts(text), _FINISH.get(finish or "stop", "stop"), asked, written)


def _retry_after(value: str | None) -> float | None:
    """Seconds from a ``Retry-After`` header: a number or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
