"""Replies: a stream of chunks, or one object when everything is there.

Chunks of a stream are written as soon as there is something, but for each stream at most every `GAP_S`: where
decoding is faster than that, several tokens share a chunk.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from parallel_r1.serve.ask import Ask
from parallel_r1.serve.choice import Choice
from parallel_r1.serve.errors import ApiError
from parallel_r1.serve.scribe import Scribe
from parallel_r1.serve.served import ServedModel
from parallel_r1.serve.worker import EngineWorker, Job, Mailbox

GAP_S = 0.02
KEEP_ALIVE_S = 15.0
"""A stream that has nothing to say says so: proxies close silent connections."""
_CONTEXT_TOKENS = 4
"""Of the prompt; enough for a tokenizer to know that a text goes on."""


class Answer:
    """All choices of one HTTP request."""

    def __init__(self, served: ServedModel, worker: EngineWorker, ask: Ask) -> None:
        self.served, self.worker, self.ask = served, worker, ask
        self.mailbox = Mailbox()
        self.id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.choices: list[Choice] = []
        for index, (request, config) in enumerate(ask.requests()):
            job = Job(request, config, self.mailbox, index)
            context = request.prompt_ids[-_CONTEXT_TOKENS:]
            scribe = Scribe(served.decode, served.tags, frozenset(served.stop_ids), context)
            self.choices.append(Choice(job, scribe, ask.stops, ask.show_trace))

    def submit(self) -> None:
        """Begin to decode."""
        for choice in self.choices:
            self.worker.submit(choice.job)

    def release(self) -> None:
        """Stop what is not over; its rows are free before the next step."""
        for choice in self.choices:
            self.worker.cancel(choice.job)

    async def read(self, wait_s: float | None = None) -> list[Choice]:
        """Wait for news; returns the choices that have some.

        Raises:
            ApiError: the engine failed.
        """
        touched: dict[int, Choice] = {}
        for index, item in await self.mailbox.take(wait_s):
            choice = touched[index] = self.choices[index]
            choice.hear(item)
            if choice.wants_no_more:
                self.worker.cancel(choice.job)
        return list(touched.values())

    @property
    def over(self) -> bool:
        """Have all choices ended?"""
        return all(choice.over for choice in self.choices)

    # --- one object ---

    async def whole(self, receive: Receive) -> Response:
        """The reply that is not a stream. Stops decoding when the client goes away."""
        gone = asyncio.create_task(until_disconnect(receive))
        reading = asyncio.create_task(self._read_all())
        try:
            await asyncio.wait({gone, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return Response(status_code=499)  # nobody reads it
            reading.result()
        finally:
            gone.cancel()
            reading.cancel()
            self.release()
        choices = []
        for index, choice in enumerate(self.choices):
            said = {"content": choice.content, "reasoning_content": choice.reasoning or None}
            body = {"message": {"role": "assistant", **said, "refusal": None}} if self.ask.chat else _as_text(said)
            choices.append({
                "index": index, **body, "finish_reason": choice.finish_reason, "logprobs": self._logprobs(choice),
                "pieces": [piece.wire for piece in choice.pieces], "parallel": choice.figures,
            })  # fmt: skip
        return JSONResponse({**self._head(chunk=False), "choices": choices, "usage": self._usage()})

    async def _read_all(self) -> None:
        while not self.over:
            await self.read()

    # --- a stream ---

    async def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events; an error that comes late is an event too.

        Raises:
            ApiError: an error that comes before anything else.
        """
        head = self._head(chunk=True)
        begun: set[int] = set()
        silent = True
        try:
            while not self.over:
                touched = await self.read(KEEP_ALIVE_S)
                silent = False
                if touched:
                    yield b"".join(_event({**head, "choices": [self._delta(c, begun)]}) for c in touched)
                else:
                    yield b": waiting\n\n"
                if not self.over:
                    await asyncio.sleep(GAP_S)
        except ApiError as error:
            if silent:
                raise
            yield _event(error.body)
            return
        if self.ask.include_usage:
            yield _event({**head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _delta(self, choice: Choice, begun: set[int]) -> dict[str, Any]:
        content, reasoning, pieces = choice.news()
        index = choice.job.index
        said = {name: text for name, text in (("content", content), ("reasoning_content", reasoning)) if text}
        if index not in begun:
            begun.add(index)
            said = {"role": "assistant", "content": "", **said} if self.ask.chat else said
        body = {"delta": said} if self.ask.chat else _as_text({"content": "", **said})
        delta = {"index": index, **body, "finish_reason": choice.finish_reason if choice.over else None,
                 "logprobs": self._logprobs(choice) if choice.over else None,
                 "pieces": [piece.wire for piece in pieces]}  # fmt: skip
        return {**delta, "parallel": choice.figures} if choice.over else delta

    # --- both ---

    def _head(self, chunk: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.ask.chat else "text_completion"
        version = self.served.engines[0].weight_version
        return {
            "id": self.id, "object": kind, "created": self.created, "model": self.served.name,
            "system_fingerprint": f"{self.served.name}-{version}",
        }  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        rollouts = [choice.rollout for choice in self.choices if choice.rollout]
        prompt = sum(map(len, self.ask.prompts))
        response = sum(rollout.total_tokens for rollout in rollouts)
        return {
            "prompt_tokens": prompt, "completion_tokens": response, "total_tokens": prompt + response,
            "critical_path_tokens": sum(rollout.critical_tokens for rollout in rollouts),
            "completion_tokens_details": {"reasoning_tokens": sum(c.reasoning_tokens for c in self.choices)},
        }  # fmt: skip

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        """In OpenAI's form; for a chat the tokens inside of blocks stand apart, as their text does."""
        if not self.ask.logprobs:
            return None
        tokens = choice.logprobs(self.served.decode, self.served.tags)
        shown = [(text, logp) for text, logp, inside in tokens if self.ask.show_trace or not inside]
        if not self.ask.chat:
            offsets = [0]
            for text, _ in shown[:-1]:
                offsets.append(offsets[-1] + len(text))
            return {"tokens": [text for text, _ in shown], "token_logprobs": [logp for _, logp in shown],
                    "top_logprobs": None, "text_offset": offsets[: len(shown)]}  # fmt: skip
        thought = [(text, logp) for text, logp, inside in tokens if inside and not self.ask.show_trace]
        return {"content": list(map(_as_logprob, shown)), "reasoning_content": list(map(_as_logprob, thought)),
                "refusal": None}  # fmt: skip


class EventStream(Response):
    """Sends the chunks of an answer until it ends or the client goes away, and then releases its rows."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(scope, receive, send))
        gone = asyncio.create_task(until_disconnect(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            gone.cancel()
            self._answer.release()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks = self._answer.chunks()
        try:
            chunk = await anext(chunks)
        except ApiError as error:  # nothing has been said yet, so it can be said by its status
            await error.response()(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _as_text(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a chat's message as those of a plain completion."""
    return {"text": said["content"]} | {k: v for k, v in said.items() if k == "reasoning_content"}


def _as_logprob(token: tuple[str, float]) -> dict[str, Any]:
    text, logp = token
    whole = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logp, "bytes": whole, "top_logprobs": []}


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
