"""Tokens as text while they come: pieces that know where they belong, and the order of the finished text.

A forked response is decoded in several places at once. `Scribe` turns each strand's tokens into text as soon
as the text is certain (a character may take several tokens). `Canonical` puts the pieces into the order in
which the finished response has them: path 1 as it comes, the others when it is their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parallel_r1.engine.base import TokenEvent
from parallel_r1.trace.tags import TAGS, TagIds
from parallel_r1.types import Region

Decode = Callable[[list[int]], str]
PATH_END = TAGS[3]
_BROKEN = "\ufffd"
_LONGEST_CHARACTER = 4
"""A character of UTF-8 takes at most four bytes, so at most four tokens."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A bit of text with its place."""

    region: Region
    text: str
    tokens: int
    """Tokens that it took, those that have no text of their own included."""
    tag: bool = False
    forced: bool = False
    """Inserted by the engine."""

    @property
    def kind(self) -> tuple[Region, bool, bool]:
        """What two pieces must share to be told as one."""
        return self.region, self.tag, self.forced

    @property
    def wire(self) -> dict[str, Any]:
        """As JSON: what does not apply is left out."""
        shown: dict[str, Any] = {"region": self.region.kind}
        if self.region.block >= 0:
            shown["block"] = self.region.block
        if self.region.path >= 0:
            shown["path"] = self.region.path
        shown |= {"text": self.text, "tokens": self.tokens}
        return shown | {name: True for name in ("tag", "forced") if getattr(self, name)}


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Consecutive pieces of one strand and kind as one piece; what other strands say in between does not part them."""
    found: list[Piece] = []
    last_of: dict[int, int] = {}
    for piece in pieces:
        place = last_of.get(piece.region.path)
        last = None if place is None else found[place]
        if place is not None and last and last.kind == piece.kind and not piece.tag:
            found[place] = replace(last, text=last.text + piece.text, tokens=last.tokens + piece.tokens)
        else:
            last_of[piece.region.path] = len(found)
            found.append(piece)
    return found


class TextStream:
    """The text of a row of tokens, as far as it is certain.

    Args:
        context: what stands before; some tokenizers write a token in another way at the start of a text.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._context = list(context)
        self._shown = decode(self._context) if context else ""
        self._pending: list[int] = []

    def push(self, token: int) -> str | None:
        """The text that became certain with this token; None while a character is not whole."""
        self._pending.append(token)
        text = self._decode(self._context + self._pending)
        if text.endswith(_BROKEN) and len(self._pending) < _LONGEST_CHARACTER:
            return None
        return self._settle(text)

    def flush(self) -> str:
        """What is left of a character that never became whole."""
        return self._settle(self._decode(self._context + self._pending)) if self._pending else ""

    def _settle(self, text: str) -> str:
        new = text[len(self._shown) :]
        broken = text.endswith(_BROKEN)
        self._context = [] if broken else self._pending
        self._shown = "" if broken else self._decode(self._context)
        self._pending = []
        return new


@dataclass(slots=True)
class _Strand:
    text: TextStream
    region: Region
    held: int = 0
    """Tokens whose text is not certain yet."""


@dataclass(slots=True)
class Scribe:
    """Writes one response down. ``context``: the end of the prompt."""

    decode: Decode
    tags: TagIds | None
    stop_ids: frozenset[int]
    context: Sequence[int] = ()
    _strands: dict[int, _Strand] = field(default_factory=dict)
    _names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = dict(zip(self.tags.in_order, TAGS, strict=True)) if self.tags else {}

    def write(self, event: TokenEvent) -> list[Piece]:
        """The pieces that a token brings: none, itself, or what was held back before it too."""
        region, token = event.region, event.token_id
        if token in self._names:
            pieces = self._rest(region.path)
            self._strands[region.path] = _Strand(TextStream(self.decode, [token]), region)
            return [*pieces, Piece(region, self._names[token], 1, tag=True, forced=event.forced)]
        strand = self._strands.get(region.path)
        if strand is None:
            strand = self._strands[region.path] = _Strand(TextStream(self.decode, self.context), region)
        strand.region = region
        strand.held += 1
        if token in self.stop_ids:  # the end of the text has none
            return self._rest(region.path)
        text = strand.text.push(token)
        if text is None:
            return []
        tokens, strand.held = strand.held, 0
        return [Piece(region, text, tokens, forced=event.forced)]

    def end(self) -> list[Piece]:
        """What a response that was cut still holds back."""
        return [piece for path in sorted(self._strands) for piece in self._rest(path)]

    def _rest(self, path: int) -> list[Piece]:
        strand = self._strands.get(path)
        if strand is None or not strand.held:
            return []
        tokens, strand.held = strand.held, 0
        return [Piece(strand.region, strand.text.flush(), tokens)]


class Canonical:
    """Pieces in the order of the finished text."""

    def __init__(self) -> None:
        self._turn = 0
        self._held: dict[int, list[Piece]] = {}

    def put(self, piece: Piece) -> list[Piece]:
        """Take a piece; returns what may be shown now."""
        path = piece.region.path
        if path < 0:
            self._turn = 0  # paths are joined before anything follows them
            return [piece]
        if path != self._turn:
            self._held.setdefault(path, []).append(piece)
            return []
        ready = [piece]
        while ready[-1].tag and ready[-1].text == PATH_END:
            self._turn += 1
            if not self._held.get(self._turn):
                break
            ready += self._held.pop(self._turn)
        return ready

    def rest(self) -> list[Piece]:
        """What a response that was cut still holds back, path after path."""
        held, self._held = self._held, {}
        return [piece for path in sorted(held) for piece in held[path]]


class StopTexts:
    """Looks for the first of some texts in a text that comes bit by bit."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """What may be shown: nothing of a stop text, nor of what may become one, nor after a hit."""
        if not self._texts:
            return text
        if self.hit:
            return ""
        text = self._held + text
        places = [place for place in (text.find(stop) for stop in self._texts) if place >= 0]
        if places:
            self.hit, self._held = True, ""
            return text[: min(places)]
        keep = max(_overlap(text, stop) for stop in self._texts)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        """What was held back and became no stop text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
