r"""What is wrong with a single problem, as far as its text tells: it is cut off, or its gold is no answer.

Made to be silent on sound problems: of GSM8K's 8,792 none is called cut. It cannot see that a drawing is
missing, or that a question makes no sense.
"""

from __future__ import annotations

import re

from parallel_r1.tasks.data import DataTask, RowReading
from parallel_r1.types import Problem

_REQUEST = re.compile(
    r"[?\uff1f]|\b(?:what|how|why|find|determine|compute|calculate|evaluate|give|express|simplify|solve|prove|answer|"
    r"estimate|approximate|minimi[sz]e|maximi[sz]e|identify|factor|expand|rationali[sz]e|provide)\b"
    # Words that a statement uses too ask only where a sentence or a clause begins.
    r"|(?:\A|[.!:;,)$\]}]\s*|\n\s*|\b(?:and|then|please|to)\s+)(?:show|name|list|write|state|order|draw|sketch|graph|add|"
    r"subtract|multiply|divide|match|count|select|choose|report|enter|rank|rewrite|reduce|obtain|tell|decide|complete|"
    r"verify|convert|round|explain|describe|represent|classify|specify|submit|use)\b",
    re.IGNORECASE,
)
"""What a problem asks with. Any of it anywhere is enough."""
_BLANK = re.compile(r"_{2,}|\\_|\\(?:q?quad|underline|blank|dots|ldots|cdots)(?![a-z])|\(\s*\)|\uff08\s*\uff09")
_OPEN_END = re.compile(r"(?:=|\b(?:is|are|equals?|be))\s*[:$.]*\s*$")
"""Ends that wait for the answer: ``f(3) =``, "the area is"."""
_CHINESE = re.compile(r"[\u3400-\u9fff]")
_PAIRS = ((r"\\begin\s?\{", r"\\end\s?\{", "an environment"), (r"\[asy\]", r"\[/asy\]", "a drawing"),
          (r"(?<!\\)\\\[", r"(?<!\\)\\\]", "a formula"))  # fmt: skip


def cut(question: str) -> str:
    r"""How a problem shows that its end is missing; the empty string when it does not.

    >>> cut("Let $f$ be a function such that:"), cut("Tom has 3 hats. How many are left?")
    ('ends in ":"', '')
    """
    text = question.rstrip()
    if text[-1:] in tuple(":,;\uff1a") and not _OPEN_END.search(text):
        return f'ends in "{text[-1]}"'
    for opening, closing, name in _PAIRS:
        if len(re.findall(opening, text)) > len(re.findall(closing, text)):
            return f"{name} never ends"
    asks = _REQUEST.search(text) or _BLANK.search(text) or _OPEN_END.search(text) or _CHINESE.search(text)
    return "" if asks else "asks nothing"


def not_its_own_answer(task: DataTask, reading: RowReading) -> str:
    """What the verifier says when a gold is given as the answer, unless it is right every time."""
    problem = Problem(reading.id, task.name, "easy", reading.question, reading.gold)
    for response in (f"Final Answer: {reading.gold}", rf"Final Answer: $\boxed{{{reading.gold}}}$"):
        verdict = task.verify(problem, response)
        if not verdict.right:
            return f"{verdict.outcome} ({verdict.how})"
    return ""


def about_tokens(text: str) -> int:
    """A rough count of tokens without a tokenizer: digits and signs one each, words one for each six letters."""
    return sum((len(part) + 5) // 6 if part.isalpha() else 1 for part in re.findall(r"[^\W\d_]+|\S", text))
