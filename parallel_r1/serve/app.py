"""The routes: OpenAI's, the server's own, the playground's."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response

from parallel_r1 import __version__, report
from parallel_r1.serve.answer import Answer, EventStream
from parallel_r1.serve.ask import Ask, read_ask
from parallel_r1.serve.errors import ApiError, from_validation
from parallel_r1.serve.examples import TASK_NAMES, judge, pick
from parallel_r1.serve.guard import Guard, Limits
from parallel_r1.serve.metrics import Metrics
from parallel_r1.serve.schema import ChatBody, ProblemPick, TextBody, VerdictBody
from parallel_r1.serve.served import ServedModel
from parallel_r1.serve.worker import EngineWorker

_PAGE = Path(__file__).parent / "playground"
PAGE_FILES = {
    "/": _PAGE / "index.html",
    "/playground.js": _PAGE / "playground.js",
    "/playground.css": _PAGE / "playground.css",
    "/report.css": Path(report.__file__).parent / "style.css",
}
"""The playground; it looks like the report of a run."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
}  # fmt: skip
_LONG_TEXT = 4096
"""Characters from which on tokenising may not hold up the event loop."""


def build_app(served: ServedModel, limits: Limits | None = None) -> FastAPI:
    """The application around one model. Its engine thread lives as long as the application does."""
    limits = limits or Limits()
    metrics = Metrics(lambda: worker.num_open)
    worker = EngineWorker(served.session, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await worker.stop()

    app = FastAPI(
        title="parallel-r1", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="An OpenAI-compatible server of a model that thinks in parallel paths.",
    )  # fmt: skip
    app.state.worker = worker
    _add_errors(app)
    _add_completions(app, served, worker, limits, metrics)
    _add_status(app, served, worker, metrics)
    _add_playground(app)
    routes = frozenset(path for route in app.routes if (path := getattr(route, "path", None)))
    app.add_middleware(Guard, limits=limits, metrics=metrics, routes=routes, open_to_all={*PAGE_FILES, "/health"})
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def told(request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        what = {404: f"no such address: {request.url.path}", 405: f"{request.method} is not allowed here"}
        return ApiError(
            error.status_code, what.get(error.status_code, str(error.detail)), headers=error.headers
        ).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return from_validation(error.errors(), error.body).response()

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server failed; its log says why", code="internal_error").response()


def _add_completions(
    app: FastAPI, served: ServedModel, worker: EngineWorker, limits: Limits, metrics: Metrics
) -> None:  # fmt: skip
    max_rows = served.config.max_rows * len(served.engines)

    async def reply(body: ChatBody | TextBody, request: Request) -> Response:
        if not worker.alive:
            raise ApiError(503, "the engine is down; the server's log says why", code="engine_down")
        ask = await _read(served, body)
        num_new = len(ask.prompts) * ask.num_choices
        waiting = worker.num_open - max_rows
        if waiting + num_new > limits.max_waiting:
            seconds = max(1, math.ceil(metrics.mean_seconds * (waiting + num_new - limits.max_waiting) / max_rows))
            raise ApiError(
                429, f"{max(0, waiting)} responses are waiting, at most {limits.max_waiting} may; try again later",
                code="overloaded", headers={"Retry-After": str(seconds)},
            )  # fmt: skip
        answer = Answer(served, worker, ask)
        answer.submit()
        return EventStream(answer) if ask.stream else await answer.whole(request.receive)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        """A conversation, answered. Extra fields: fork, paths, max_blocks, path_budget, show_trace, top_k."""
        return await reply(body, request)

    @app.post("/v1/completions")
    async def completion(body: TextBody, request: Request) -> Response:
        """A text, continued. No template is put around the prompt."""
        return await reply(body, request)


async def _read(served: ServedModel, body: ChatBody | TextBody) -> Ask:
    prompt = body.messages if isinstance(body, ChatBody) else body.prompt
    if len(str(prompt)) > _LONG_TEXT:
        return await asyncio.to_thread(read_ask, served, body)
    return read_ask(served, body)


def _add_status(app: FastAPI, served: ServedModel, worker: EngineWorker, metrics: Metrics) -> None:
    config = served.config
    model = {
        "id": served.name, "object": "model", "created": served.created, "owned_by": "parallel-r1",
        "max_model_len": served.context,
        "parallel": {
            "forks": served.tags is not None, "variant": served.engines[0].variant, "paths": config.paths,
            "max_blocks": config.max_blocks, "path_budget": config.path_budget, "temperature": config.temperature,
            "max_tokens": config.max_response_tokens, "deterministic": served.deterministic, "tasks": TASK_NAMES,
        },
    }  # fmt: skip

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model, with its defaults."""
        return {"object": "list", "data": [model]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """The model under its name."""
        if name != served.name:
            raise ApiError(404, f"no model {name!r} here; this server has {served.name!r}", code="model_not_found")
        return model

    @app.get("/health")
    async def health() -> Response:
        """200 while the engine lives."""
        return JSONResponse({"status": "ok" if worker.alive else "down"}, 200 if worker.alive else 503)

    @app.get("/metrics")
    async def figures() -> Response:
        """Figures for Prometheus."""
        return Response(metrics.page(), headers={"Content-Type": metrics.content_type})


def _add_playground(app: FastAPI) -> None:
    for path, file in PAGE_FILES.items():
        app.add_api_route(path, _sender(file), include_in_schema=False)

    @app.post("/playground/problem")
    def problem(body: ProblemPick) -> dict[str, Any]:
        """A generated problem."""
        found = pick(body)
        return {"question": found.question, "gold": found.gold, **body.model_dump()}

    @app.post("/playground/verdict")
    def verdict(body: VerdictBody) -> dict[str, Any]:
        """Is a response right, and which of its paths are?"""
        return judge(pick(body.problem), body.trace)


def _sender(path: Path) -> Callable[[], Response]:
    def send() -> Response:
        return FileResponse(path, headers=_HEADERS)

    return send
