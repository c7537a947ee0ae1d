r"""The process that does algebra for the grader: ``python -m parallel_r1.answers.worker``.

It loads sympy once and then forks a child that answers one question after the other. A child that runs
out of CPU time is ended by the kernel, whatever it is doing; one that runs out of memory or recursion
says so; and the next child is there at once, since forking takes milliseconds where loading takes
seconds. CPU time, not time on the clock: a verdict does not depend on how busy the machine is.

Speaks JSON lines on standard input and output (see `Question` and `Reply`); ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
from typing import IO, TypedDict

from parallel_r1.answers import symbolic
from parallel_r1.answers.forms import Asked, same

RECYCLE = 300
"""Questions per child: sympy's caches only grow."""
CLOCK_SECONDS = 120
"""Time on the clock for an answer: only a child that sleeps, or a machine that is stuck, gets there."""


class Question(TypedDict):
    gold: str
    answer: str
    percent: bool
    approximate: bool
    seconds: float
    """CPU time."""


class Reply(TypedDict):
    outcome: str
    """right, wrong, error or timeout."""
    how: str


class Child:
    """A fork of this process that answers questions until it dies."""

    def __init__(self, memory_mb: int) -> None:
        question_read, question_write = os.pipe()
        answer_read, answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(question_write)
            os.close(answer_read)
            with contextlib.suppress(ValueError, OSError):  # macOS refuses
                resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20, memory_mb * 2**20))
            _answer_all(os.fdopen(question_read), os.fdopen(answer_write, "w"))
            os._exit(0)
        os.close(question_read)
        os.close(answer_write)
        self.questions, self.answers = os.fdopen(question_write, "w"), os.fdopen(answer_read)
        self.answered = 0

    def ask(self, line: str) -> Reply | None:
        """The reply; None when the clock ran out. A dead child's reply is what it died of."""
        self.answered += 1
        self.questions.write(line)
        self.questions.flush()
        if not select.select([self.answers], [], [], CLOCK_SECONDS)[0]:
            return None
        reply = self.answers.readline()
        return json.loads(reply) if reply else None

    def end(self) -> str:
        """End the child; the name of the signal that it had died of by itself, time limits apart."""
        os.kill(self.pid, signal.SIGKILL)  # does nothing to one that has died: it waits to be asked for
        _, status = os.waitpid(self.pid, 0)
        self.answers.close()
        with contextlib.suppress(BrokenPipeError):
            self.questions.close()
        died_of = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return "" if died_of in (0, signal.SIGPROF, signal.SIGKILL) else signal.Signals(died_of).name


def main() -> None:
    """Answer questions until standard input ends."""
    memory_mb = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    lines, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    # Whatever a library prints must not come between the replies.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    symbolic.warm_up()
    child: Child | None = None
    for line in lines:
        if child is None:
            child = Child(memory_mb)
        reply = child.ask(line)
        lost = reply is None
        if reply is None:
            died_of = child.end()
            reply = Reply(
                outcome="timeout", how=f"died of {died_of}" if died_of else "no verdict within the time limit"
            )
        elif reply["outcome"] == "timeout" or child.answered >= RECYCLE:
            child.end()
            lost = True
        if lost:
            child = None
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    if child is not None:
        child.end()


def _answer_all(questions: IO[str], replies: IO[str]) -> None:
    for line in questions:
        question: Question = json.loads(line)
        # Not caught: the kernel ends this process when its CPU time is up.
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])
        reply = answer(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def answer(question: Question) -> Reply:
    """Judge two normalised answers, with algebra where it is needed."""
    asked = Asked(question["percent"], question["approximate"])
    used: list[str] = []

    def judge(kind: symbolic.Kind, left: str, right: str) -> bool:
        used.append(kind)
        return symbolic.judge(kind, left, right)

    try:
        right = same(question["gold"], question["answer"], asked, judge)
    except (MemoryError, RecursionError) as error:
        return Reply(outcome="timeout", how=f"{type(error).__name__} within the limits of a worker")
    except Exception as error:  # a third-party parser on a model's output: anything may come
        return Reply(outcome="error", how=f"{type(error).__name__}: {error}"[:200])
    return Reply(outcome="right" if right else "wrong", how="symbolic" if used else "form")


if __name__ == "__main__":
    main()
