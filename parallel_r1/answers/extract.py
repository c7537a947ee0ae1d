r"""Find the answer in the answer region of a response. Each scan is linear; nothing is evaluated.

Order: the last ``Final Answer:`` line, the last ``\boxed{}`` or ``\fbox{}``, the last ``####`` line.
Without one of these anchors there is no answer: a number somewhere in the text is a thought, and
grading thoughts pays for guesses. A box that never closes is no answer either.
"""

from __future__ import annotations

import re
from collections import deque

FINAL_ANSWER = re.compile(r"final answer\s{0,3}(?:\*\*|__)?\s{0,3}:", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")
HASHES = "####"
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ("__", "__"))


def extract(region: str) -> str | None:
    """The answer as written, without wrappers (``$..$``, ``**..**``); None when there is none.

    >>> extract("6 * 7, so\\n**Final Answer:** $42$.")
    '42'
    >>> extract(r"thus \\fbox{\\frac{1}{2}}") == r"\\frac{1}{2}"
    True
    """
    line = _after_last_marker(region)
    if line:
        return last_box(line) or unwrap(line) or None
    if _BOX.search(region):
        return last_box(region)
    _, found, tail = region.rpartition(HASHES)
    return (unwrap(_first_line(tail)) or None) if found else None


def last_box(text: str) -> str | None:
    r"""The content of the last ``\boxed{}`` or ``\fbox{}``; None when absent, empty or never closed."""
    last = _last(_BOX, text)
    if last is None:
        return None
    depth = 1
    escaped = False
    for index in range(last.end(), len(text)):
        character = text[index]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return unwrap(text[last.end() : index]) or None
    return None


def unwrap(text: str) -> str:
    """Strip white space, full stops at the end, and pairs of mark-up around the whole."""
    text = text.strip()
    while True:
        before = text
        text = text.rstrip(".;!").rstrip() if not text.endswith(("...", r"\!", r"\;")) else text
        for left, right in _WRAPPERS:
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip()
        if text == before:
            return text


def _after_last_marker(text: str) -> str:
    """The line after the last ``Final Answer:``; the empty string when absent or empty."""
    last = _last(FINAL_ANSWER, text)
    if last is None:
        return ""
    line = _first_line(text[last.end() :])
    # "**Final Answer:** 42" and "**Final Answer: 42**" leave one half of a mark-up pair on the line.
    for mark in ("**", "__"):
        if line.count(mark) % 2:
            line = line.removeprefix(mark) if line.startswith(mark) else line.removesuffix(mark)
    return line.strip()


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0].strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
