"""What a teacher is: something that answers asks one by one, in any order, and never loses one.

`parallel_r1.coldstart.teacher_http` asks an OpenAI-compatible endpoint, `teacher_local` a model of ours;
`teacher_run` judges what they write.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from parallel_r1.types import Problem

Finish = Literal["stop", "length", "filter", "error"]
"""stop: the teacher ended. length: a limit cut it. filter: the endpoint withheld it. error: there is no reply."""
_THOUGHT = re.compile(r"\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


class TeacherError(ValueError):
    """The teacher cannot be asked at all: going on would only fail again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: the ``attempt``-th trace of a problem."""

    problem: Problem
    attempt: int
    template: str
    """With ``{question}``."""

    @property
    def prompt(self) -> str:
        return self.template.replace("{question}", self.problem.question)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. ``text`` is the answer without the teacher's thoughts; ``error`` says why there is none."""

    ask: Ask
    text: str
    finish: Finish
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Thoughts included, as they are paid for."""
    error: str = ""


class Teacher(Protocol):
    """A source of replies."""

    name: str
    retries: dict[str, int]
    """Repeated requests by cause."""

    def replies(self, asks: Iterator[Ask]) -> AsyncIterator[Reply]:
        """Exactly one reply for every ask, as they come. ``asks`` is drawn from only when there is room.

        Raises:
            TeacherError: no further ask can succeed.
        """
        ...


def without_thoughts(text: str) -> str:
    """A reply without a leading ``<think>`` part; the empty string when the thoughts never end.

    >>> without_thoughts("<think>hm</think>\\n42"), without_thoughts("<think>hm"), without_thoughts("hm</think> 42")
    ('42', '', '42')
    """
    if "</think>" in text and not text.lstrip().startswith("<think>"):
        text = text.partition("</think>")[2]  # the opening tag was part of the prompt
    return _THOUGHT.sub("", text, count=1).strip() if text.lstrip().startswith("<think>") else text.strip()
