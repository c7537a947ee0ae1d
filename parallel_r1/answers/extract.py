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
MAX_LINES = 12
"""Of one answer, a matrix for instance."""
_DISPLAYS = ((r"\[", r"\]"), ("$$", "$$"))
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ("__", "__"))


def extract(region: str) -> str | None:
    """The answer as written, without wrappers (``$..$``, ``**..**``); None when there is none.

    >>> extract("6 * 7, so\\n**Final Answer:** $42$.")
    '42'
    >>> extract(r"thus \\fbox{\\frac{1}{2}}") == r"\\frac{1}{2}"
    True
    """
    answer = _after_last_marker(region)
    if answer:
        return answer
    if _BOX.search(region):
        return last_box(region)
    _, found, tail = region.rpartition(HASHES)
    return (unwrap(_first_line(tail)) or None) if found else None


def last_box(text: str) -> str | None:
    r"""The content of the last ``\boxed{}`` or ``\fbox{}``; None when absent, empty or never closed."""
    last = next(iter(deque(_BOX.finditer(text), maxlen=1)), None)
    end = None if last is None else _closing_brace(text, last.end())
    return None if last is None or end is None else unwrap(text[last.end() : end]) or None


def unwrap(text: str) -> str:
    """Strip white space, full stops at the end, and pairs of mark-up around the whole."""
    text = text.strip()
    while True:
        before = text
        text = text.rstrip(".;!").rstrip() if not text.endswith(("...", r"\!", r"\;")) and _ends(text) else text
        for left, right in _WRAPPERS:
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                inner = text[len(left) : -len(right)]
                if left not in (bare := inner.replace(r"\$", "")) and right not in bare:
                    text = inner.strip()
        if text == before:
            return text


def _ends(text: str) -> bool:
    """Whether the marks at the end are punctuation; ``5!`` is a factorial."""
    return text.endswith((".", ";")) or (text.endswith("!") and not re.search(r"[\dA-Za-z)}]!+$", text[-20:]))


def _after_last_marker(text: str) -> str | None:
    """What the last ``Final Answer:`` line says; None when absent or empty.

    A line with boxes says what is in them and between them, so that two boxes are two answers. A box or
    a display (``\\[``, ``$$``) may go on over the end of its line.
    """
    last = next(iter(deque(FINAL_ANSWER.finditer(text), maxlen=1)), None)
    if last is None:
        return None
    tail = text[last.end() :].strip()
    bare = tail.removeprefix("**").lstrip()
    for left, right in _DISPLAYS:
        if bare.startswith(left) and right in bare[len(left) :]:
            tail = " ".join(bare[len(left) : bare.index(right, len(left))].split("\n"))
    line, position = _first_line(tail), 0
    pieces: list[str] = []
    for box in _BOX.finditer(line):
        if box.start() < position:
            continue  # a box within a box
        end = _closing_brace(tail, box.end())
        if end is None:
            return None
        pieces += [tail[position : box.start()], _inner(tail[box.end() : end])]
        position = end + 1
    if len(pieces) > 2:
        after = line[position:]
        return unwrap(" ".join(re.sub(r"\$|\\[()]", "", piece).strip() for piece in [*pieces, after])) or None
    if pieces:
        return unwrap(pieces[1]) or None
    # "**Final Answer:** 42" and "**Final Answer: 42**" leave one half of a mark-up pair on the line.
    for mark in ("**", "__"):
        if line.count(mark) % 2:
            line = line.removeprefix(mark) if line.startswith(mark) else line.removesuffix(mark)
    return unwrap(line) or None


def _inner(content: str) -> str:
    r"""Of a box within a box, the inner one: ``\boxed{\boxed{42}}``."""
    return last_box(content) or content


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one before ``start``; None when it never closes."""
    depth, escaped = 1, False
    for index in range(start, len(text)):
        character = text[index]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return index
    return None


def _first_line(text: str) -> str:
    """The first line; with the ones after it while a brace is open, up to `MAX_LINES`."""
    lines = text.strip().split("\n", MAX_LINES)
    depth = 0
    for index, line in enumerate(lines[:MAX_LINES]):
        depth += line.count("{") - line.count("}")
        if depth <= 0:
            return " ".join(lines[: index + 1]).strip()
    return lines[0].strip()
