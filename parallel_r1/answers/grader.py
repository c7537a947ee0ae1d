r"""Verdicts that may take for ever, in processes that can be killed.

How it is called: not at all. `parallel_r1.answers.verify.verify` and ``compare`` decide what they can by
themselves (exact, normalised, numbers, forms of numbers: microseconds) and hand only what needs algebra
to `shared`, one grader per process that starts its workers when they are first needed. So a data task
calls ``verify(gold, response, question)`` from any thread and gets a verdict within a bounded time; a
generated task, which has an exact checker of its own, never starts a worker. Many at once:
`parallel_r1.answers.verify.verify_all`, which keeps all workers busy and returns verdicts in order.

Bounds: CPU time per answer (`SECONDS`, less while many answers in a row run out of it, see `patience`),
memory per worker (`MEMORY_MB`), length of what is asked (`parallel_r1.answers.verify`). Workers need
POSIX. Verdicts are remembered, since samples of one problem repeat each other.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
from collections import OrderedDict, deque

from parallel_r1.answers.forms import Asked
from parallel_r1.types import Outcome

SECONDS = 1.0
"""CPU time for one answer. Ordinary ones take 0.01 to 0.1 s."""
LEAST_SECONDS = 0.15
MEMORY_MB = 512
"""Address space of one worker; sympy itself takes about 70 MB."""
WORKERS = 2
REMEMBERED = 4096
RECENT = 64
"""Answers that `Grader.patience` looks back on."""
CLOCK_SECONDS = 300
"""Time on the clock for a reply, with the loading of sympy (about 3 s of CPU time) before the first one."""

Decision = tuple[Outcome, str]
"""(outcome, how)"""


class Grader:
    """``workers`` processes that judge normalised answers; safe to call from any thread, not across forks."""

    def __init__(self, workers: int = WORKERS, seconds: float = SECONDS, memory_mb: int = MEMORY_MB) -> None:
        self.workers, self.seconds, self.memory_mb = workers, seconds, memory_mb
        self._owner = os.getpid()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._known: OrderedDict[tuple[str, str, Asked], Decision] = OrderedDict()
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._lock = threading.Lock()

    def judge(self, gold: str, answer: str, asked: Asked) -> Decision:
        """Whether two normalised answers are the same: right, wrong, error or timeout, and why."""
        key = (gold, answer, asked)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
            seconds = self.patience
        worker = self._idle.get()
        try:
            worker, decision = self._ask(worker, gold, answer, asked, seconds)
        finally:
            self._idle.put(worker if worker and worker.alive else None)
        with self._lock:
            self._recent.append(decision[0] == "timeout")
            if decision[0] != "error" and not (decision[0] == "timeout" and seconds < self.seconds):
                self._known[key] = decision
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return decision

    def _ask(
        self, worker: _Worker | None, gold: str, answer: str, asked: Asked, seconds: float
    ) -> tuple[_Worker | None, Decision]:
        """The worker to keep and the decision; a worker that somebody killed is replaced once."""
        failure = ""
        for _ in range(2):
            try:
                worker = worker or _Worker(self.memory_mb)
                decision = worker.ask(gold, answer, asked, seconds)
            except OSError as error:
                failure = str(error)
            else:
                return worker, decision
            if worker:
                worker.close()
            worker = None
        return None, ("error", f"the grader's worker failed: {failure}; run python -m parallel_r1.answers.worker")

    @property
    def patience(self) -> float:
        """Seconds for the next answer: shared among the answers that lately ran out of time.

        A model that writes one expensive answer writes many. 64 in a row cost about 11 s of CPU time
        this way instead of 64, and an ordinary one after them still has more than it needs.
        """
        return max(min(LEAST_SECONDS, self.seconds), self.seconds / (1 + sum(self._recent)))

    def close(self) -> None:
        """End all workers that are idle; the next answer starts one again. A fork leaves them to their owner."""
        if os.getpid() != self._owner:
            return
        for _ in range(self.workers):
            try:
                worker = self._idle.get_nowait()
            except queue.Empty:
                return
            if worker:
                worker.close()
            self._idle.put(None)


class _Worker:
    """A worker process (`parallel_r1.answers.worker`) and the pipes to it."""

    def __init__(self, memory_mb: int) -> None:
        command = [sys.executable, "-m", "parallel_r1.answers.worker", str(memory_mb)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        # A session of its own: an interrupt at the keyboard is not meant for it, and its group can be killed.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True, env=environment,
        )  # fmt: skip
        self.alive = True

    def ask(self, gold: str, answer: str, asked: Asked, seconds: float) -> Decision:
        """One question, one reply; a worker that gives none is killed."""
        question = {"gold": gold, "answer": answer, **asked._asdict(), "seconds": seconds}
        questions, replies = self._process.stdin, self._process.stdout
        assert questions is not None and replies is not None
        questions.write(json.dumps(question) + "\n")
        questions.flush()
        if not select.select([replies], [], [], CLOCK_SECONDS)[0]:
            self.close()
            return "timeout", f"no word from the worker in {CLOCK_SECONDS} s"
        line = replies.readline()
        if not line:
            raise OSError(f"it ended with code {self._process.wait()}")
        reply = json.loads(line)
        return reply["outcome"], reply["how"]

    def close(self) -> None:
        """Kill the worker and its child."""
        self.alive = False
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert stream is not None
                stream.close()


_SHARED: dict[int, Grader] = {}
_STARTING = threading.Lock()


def shared() -> Grader:
    """This process's own grader. A fork of the process gets another: two could not share one pipe."""
    with _STARTING:
        if os.getpid() not in _SHARED:
            _SHARED.clear()
            _SHARED[os.getpid()] = Grader()
            atexit.register(_SHARED[os.getpid()].close)
        return _SHARED[os.getpid()]
