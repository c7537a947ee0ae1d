"""The thread that owns model and session. The rest of the server talks to it through a queue.

Handlers live on the event loop: they submit a `Job` and read its tokens from a `Mailbox`. The thread decodes,
and after each step hands everything new over to the loop in one call. A step that fails (no memory, say) ends
the requests in flight with an error, and a new session is opened; after `MOST_FAILURES` in a row the worker is
dead and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request, Session, TokenEvent
from parallel_r1.serve.metrics import Metrics
from parallel_r1.types import Rollout

logger = logging.getLogger(__name__)
MOST_FAILURES = 3
OpenSession = Callable[[], AbstractContextManager[Session]]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a job: its rollout, or what went wrong and with which HTTP status."""

    rollout: Rollout | None
    error: str = ""
    status: int = 500


class Mailbox:
    """What has been decoded for one HTTP request, waiting to be read. Lives on the event loop."""

    def __init__(self) -> None:
        self._items: list[tuple[int, TokenEvent | Ended]] = []
        self._arrived = asyncio.Event()

    def put(self, items: list[tuple[int, TokenEvent | Ended]]) -> None:
        """Add items, each with the index of its choice."""
        self._items += items
        self._arrived.set()

    async def take(self, wait_s: float | None = None) -> list[tuple[int, TokenEvent | Ended]]:
        """Everything new, as soon as there is something; an empty list after ``wait_s`` seconds without."""
        try:
            async with asyncio.timeout(wait_s):
                await self._arrived.wait()
        except TimeoutError:
            return []
        self._arrived.clear()
        items, self._items = self._items, []
        return items


@dataclass(eq=False, slots=True)
class Job:
    """One response to be decoded."""

    request: Request
    config: EngineConfig
    mailbox: Mailbox
    index: int
    """Which choice of its HTTP request it is."""
    submitted: float = field(default_factory=time.monotonic)
    ticket: int | None = None
    cancelled: bool = False
    over: bool = False
    heard: list[TokenEvent] = field(default_factory=list)
    started: bool = False

    def hear(self, event: TokenEvent) -> None:
        """The engine's listener."""
        self.heard.append(event)


Command = tuple[str, Job | None]
Batch = list[tuple[Job, list[TokenEvent], Ended | None]]


class EngineWorker:
    """Owns a session from `start` to `stop`. `submit` and `cancel` are called on the event loop.

    Args:
        open_session: opens a session; called on the thread, again after a failure.
    """

    def __init__(self, open_session: OpenSession, metrics: Metrics) -> None:
        self._open_session, self._metrics = open_session, metrics
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self.num_open = 0
        """Jobs that have not ended. Counted on the event loop."""
        self.alive = False

    def start(self) -> None:
        """Begin to decode; to be called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self.alive = True
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Hand a job over. Its mailbox gets tokens and, in the end, an `Ended`."""
        self.num_open += 1
        self._commands.put(("submit", job))
        if not self.alive:  # the thread has ended, perhaps just now: nobody else will answer
            self._fail_all("the engine is down", 503)

    def cancel(self, job: Job) -> None:
        """Free what a job holds before the next step. Nothing more comes to its mailbox that matters."""
        if not job.over and not job.cancelled:
            job.cancelled = True
            self._commands.put(("cancel", job))

    async def stop(self) -> None:
        """Cancel everything, close the session and end the thread."""
        if self._thread.is_alive():
            self._commands.put(("stop", None))
            await asyncio.to_thread(self._thread.join)

    # --- on the thread ---

    def _run(self) -> None:
        failures = 0
        while not self._stopping and failures < MOST_FAILURES:
            try:
                with self._open_session() as session:
                    while self._obey(session):
                        self._step(session)
                        failures = 0
            except Exception as error:  # whatever a step raises, the server goes on and tells
                failures += 1
                logger.exception("the engine failed; %d of %d times in a row", failures, MOST_FAILURES)
                self._fail_all(f"the engine failed ({type(error).__name__}); the log of the server says why")
        self.alive = False
        self._fail_all("the server is shutting down" if self._stopping else "the engine is down", 503)

    def _obey(self, session: Session) -> bool:
        """Do what is asked for; wait for it where there is nothing else to do. False: stop."""
        while True:
            try:
                what, job = self._commands.get(block=not session.busy)
            except queue.Empty:
                return True
            if job is None:
                self._stopping = True
                return False
            if what == "submit":
                self._submit(session, job)
            else:
                self._cancel(session, job)
            self._metrics.rows(session.num_active, session.num_waiting)

    def _submit(self, session: Session, job: Job) -> None:
        if job.cancelled:
            self._deliver([(job, [], Ended(None, "cancelled"))])
            return
        try:
            job.ticket = session.submit(job.request, job.config, job.hear)
        except ValueError as error:
            self._deliver([(job, [], Ended(None, str(error), 400))])
        else:
            self._jobs[job.ticket] = job

    def _cancel(self, session: Session, job: Job) -> None:
        if job.ticket is None or self._jobs.pop(job.ticket, None) is None:
            return
        rollout = session.cancel(job.ticket)
        self._deliver([(job, job.heard, Ended(rollout, "cancelled"))])
        job.heard = []

    def _step(self, session: Session) -> None:
        if not session.busy:
            return
        started = time.monotonic()
        done = {finished.ticket: finished.rollout for finished in session.step()}
        now = time.monotonic()
        self._metrics.steps.observe(now - started)
        self._metrics.rows(session.num_active, session.num_waiting)
        batch: Batch = []
        for ticket, job in list(self._jobs.items()):
            rollout = done.get(ticket)
            if not job.heard and rollout is None:
                continue
            if not job.started:
                job.started = True
                self._metrics.first_token.observe(now - job.submitted)
            ended = None
            if rollout is not None:
                del self._jobs[ticket]
                ended = Ended(rollout, rollout.error) if rollout.stop_reason == "error" else Ended(rollout)
            batch.append((job, job.heard, ended))
            job.heard = []
        self._deliver(batch)

    def _fail_all(self, message: str, status: int = 500) -> None:
        jobs, self._jobs = list(self._jobs.values()), {}
        with contextlib.suppress(queue.Empty):
            while True:
                what, job = self._commands.get_nowait()
                self._stopping |= what == "stop"
                if what == "submit" and job is not None:
                    jobs.append(job)
        self._metrics.rows(0, 0)
        self._deliver([(job, [], Ended(None, message, status)) for job in jobs])

    def _deliver(self, batch: Batch) -> None:
        if batch and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrive, batch)

    # --- on the loop again ---

    def _arrive(self, batch: Batch) -> None:
        for job, events, ended in batch:
            items: list[tuple[int, TokenEvent | Ended]] = [(job.index, event) for event in events]
            if ended is not None:
                job.over = True
                self.num_open -= 1
                items.append((job.index, ended))
                self._metrics.ended(job.submitted, job.request, ended.rollout, job.cancelled)
            job.mailbox.put(items)
