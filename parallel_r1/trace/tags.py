"""The grammar of a trace: six tags, one lexer per input, one parser, faults by name. Free of torch.

    trace  = { text | block }
    block  = <Parallel> [ count ] path { path } </Parallel> <Summary> text </Summary>
    path   = <Path> text </Path>
    count  = "1" | ... | "8"                   how many paths follow

White space may stand between the tags of a block. Both lexers are here; the one parser they feed is
`parallel_r1.trace.parser`.

Faults (the reference checker of the paper passes most of these, SPEC section 3):

    empty_path, empty_summary      nothing but white space between the tags
    duplicate_path                 two or more paths, and all of them say the same
    no_path                        a block without a path
    wrong_count                    the number after ``<Parallel>`` is not the number of paths
    text_between_paths             text in a block that belongs to no path
    text_before_summary            text between ``</Parallel>`` and ``<Summary>``
    missing_summary                a block that another block, or the end, follows directly
    unclosed_parallel, unclosed_path, unclosed_summary
    nested_block                   ``<Parallel>`` inside a block
    stray_path, stray_summary      an opening tag outside its place
    stray_close                    a closing tag that closes nothing
    truncated                      in place of unclosed_* and missing_*, when the caller says that a
                                   limit cut the response

Not faults: a single path (the engine may be asked for one), and a repeated path beside at least two
distinct ones; `good_block` and ``Block.num_distinct_paths`` tell those apart. What is left out:
near-tags such as ``<parallel>`` are plain text, and only counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from parallel_r1.config import MAX_PATHS
from parallel_r1.trace.parser import PARALLEL, PARALLEL_END, PATH, PATH_END, SUMMARY, Content, Parser, Source, Tag
from parallel_r1.types import Trace

TAGS = ("<Parallel>", "</Parallel>", "<Path>", "</Path>", "<Summary>", "</Summary>")

_TAG = re.compile("|".join(map(re.escape, TAGS)))
# Every repetition is bounded, so that hostile text cannot make the search slow.
_LOOKALIKE = re.compile(
    r"(?:<|&lt;|\uff1c|\u2039)\s{0,4}[/\\\uff0f]?\s{0,4}(?:parallel|path|summary)[^<>&\uff1e\u203a]{0,20}"
    r"(?:>|&gt;|\uff1e|\u203a)",
    re.IGNORECASE,
)
_COUNTS = frozenset(str(number) for number in range(1, MAX_PATHS + 1))
_NO_GAP = {(PARALLEL, PATH), (PATH_END, PATH), (PATH_END, PARALLEL_END)}


@dataclass(frozen=True, slots=True)
class TagIds:
    """The token ids of the six tags in one tokenizer (`parallel_r1.trace.tokens.tag_ids`)."""

    parallel_open: int
    parallel_close: int
    path_open: int
    path_close: int
    summary_open: int
    summary_close: int
    newline: tuple[int, ...]
    """The ids of the newline that the engine inserts after ``</Parallel>``."""
    blank: frozenset[int] = field(default=frozenset(), repr=False)
    """All ids that decode to white space alone; they may stand between the tags of a block."""
    counts: tuple[int, ...] = field(default=(), repr=False)
    """The ids of "1" .. "8", an ordinary token each; empty where the tokenizer has no such tokens."""

    @property
    def in_order(self) -> tuple[int, ...]:
        """The six ids in the order of `TAGS`."""
        return (
            self.parallel_open, self.parallel_close, self.path_open,
            self.path_close, self.summary_open, self.summary_close,
        )  # fmt: skip

    @property
    def all(self) -> frozenset[int]:
        """The six ids as a set."""
        return frozenset(self.in_order)


def parse_text(text: str, truncated: bool = False) -> Trace:
    """Parse a response as text; offsets count characters. ``truncated``: a limit cut the response."""
    source = Source(len(text), lambda start, end: text[start:end], lambda part: " ".join(str(part).split()), _count_of)
    lookalikes = sum(match.group() not in TAGS for match in _LOOKALIKE.finditer(text))
    return Parser(source, list(_lex_text(text)), truncated).trace("".join, lookalikes)


def parse_ids(ids: Sequence[int], tags: TagIds, truncated: bool = False) -> Trace:
    """Parse a response as token ids; offsets count tokens. White space is what ``tags`` calls blank.

    Agrees with `parse_text` on everything but offsets and look-alikes (not counted), as far as the
    tokenizer keeps white space in tokens of its own.
    """
    row = tuple(ids)
    kinds = {token: kind for kind, token in enumerate(tags.in_order)}
    blank = tags.blank | frozenset(tags.newline)
    numbers: dict[tuple[int, ...], int] = {(token,): number for number, token in enumerate(tags.counts, start=1)}

    def fold(part: Content) -> tuple[int, ...]:
        return _fold_ids(part, blank)

    source = Source(len(row), lambda start, end: row[start:end], fold, lambda part: numbers.get(fold(part)))
    found = [Tag(kinds[token], i, i + 1) for i, token in enumerate(row) if token in kinds]
    return Parser(source, found, truncated).trace(lambda parts: tuple(i for part in parts for i in part), 0)


def render_block(paths: Sequence[str], summary: str) -> str:
    """The canonical text of one block."""
    inner = "".join(f"<Path>{path}</Path>" for path in paths)
    return f"<Parallel>{inner}</Parallel>\n<Summary>{summary}</Summary>"


def with_counts(text: str) -> str:
    """A trace whose blocks name the number of their paths right after ``<Parallel>``; faulty blocks are left alone."""
    pieces, done = [], 0
    for block in parse_text(text).blocks:
        head = block.start + len(TAGS[PARALLEL])
        if block.well_formed and 1 <= len(block.paths) <= MAX_PATHS:
            pieces += [text[done:head], str(len(block.paths))]
            done = block.paths[0].start
    return "".join([*pieces, text[done:]])


def canonical(text: str) -> str:
    """Text with the white space between the tags of a block as the engine writes it; no other change."""
    parts, done, last = [], 0, None
    for tag in _lex_text(text):
        gap = text[done : tag.start]
        if last is not None and not gap.strip():
            if (last, tag.kind) in _NO_GAP:
                gap = ""
            elif (last, tag.kind) == (PARALLEL_END, SUMMARY):
                gap = "\n"
        elif (last, tag.kind) == (PARALLEL, PATH) and _count_of(gap) is not None:
            gap = gap.strip()
        parts += [gap, TAGS[tag.kind]]
        done, last = tag.end, tag.kind
    return "".join([*parts, text[done:]])


def linearise(text: str) -> str:
    """The same reasoning without tags: paths one after the other, each on its lines, then the summary."""
    pieces: list[str] = []
    done = 0
    for block in parse_text(text).blocks:
        pieces.append(_TAG.sub("", text[done : block.start]))
        inside = [*(path.content for path in block.paths), block.summary or ""]
        pieces.append("\n".join(part for part in (_TAG.sub("", str(p)).strip() for p in inside) if part))
        done = block.end
    pieces.append(_TAG.sub("", text[done:]))
    joined = ""
    out: list[str] = []
    for piece in pieces:
        if joined and piece and not joined.endswith("\n") and not piece.startswith("\n"):
            out.append("\n")
        out.append(piece)
        joined = piece or joined
    return "".join(out)


def good_block(trace: Trace) -> bool:
    """The ``b`` of the rewards: a fault-free block with at least two distinct, non-empty paths."""
    return any(block.well_formed and block.num_distinct_paths >= 2 for block in trace.blocks)


def _lex_text(text: str) -> Iterator[Tag]:
    for match in _TAG.finditer(text):
        yield Tag(TAGS.index(match.group()), match.start(), match.end())


def _count_of(part: Content) -> int | None:
    number = str(part).strip()
    return int(number) if number in _COUNTS else None


def _fold_ids(ids: Content, blank: frozenset[int]) -> tuple[int, ...]:
    """Ids with blank runs folded to one ``-1`` between words and none at the ends."""
    folded: list[int] = []
    gap = False
    for token in ids:
        if token in blank:
            gap = True
            continue
        if gap and folded:
            folded.append(-1)
        folded.append(int(token))
        gap = False
    return tuple(folded)
