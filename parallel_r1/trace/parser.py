"""The one parser behind `parallel_r1.trace.tags`: it reads tags, whatever they were found in.

It follows the layout rule (`parallel_r1.trace.layout`): a tag that does not belong where it stands
is a fault and otherwise plain content, the first ``</Parallel>`` closes the open block, and paths do
not nest. It reads each tag once, takes any input and never raises. The names of the faults are
listed in `parallel_r1.trace.tags`.

The answer region is the text that no block owns after the last closed block. A block that was never
closed keeps its paths out of it, but what follows its ``</Parallel>`` counts; a response that a
limit cut inside a block has no answer region.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parallel_r1.types import Block, Fault, PathSpan, Trace

PARALLEL, PARALLEL_END, PATH, PATH_END, SUMMARY, SUMMARY_END = range(6)
"""The kinds of tags, in the order of `parallel_r1.trace.tags.TAGS`: a closing tag follows its opening tag."""

Content = str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tag:
    kind: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """What the parser knows of its input, text or ids: a length, slices, and what counts as blank."""

    length: int
    content: Callable[[int, int], Content]
    fold: Callable[[Content], Content]
    """White space folded; empty (falsy) when there is nothing else."""
    count: Callable[[Content], int | None]
    """The number of paths that a piece of content names, and nothing else; None where it does not."""

    def is_blank(self, start: int, end: int) -> bool:
        return start >= end or not self.fold(self.content(start, end))


@dataclass(slots=True)
class _Open:
    """A block while it is being read. Its ``stage`` says what may come next."""

    index: int
    start: int
    head: int
    """Where ``<Parallel>`` ends; the number of paths may stand here."""
    end: int
    stage: str = "paths"  # paths -> path -> paths ... -> after -> summary
    paths: list[PathSpan] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    path: Tag | None = None
    summary: Content | None = None
    summary_start: int | None = None
    text_seen: bool = False
    count: int | None = None
    closed: bool = False


class Parser:
    """One pass over the tags of one input; the same for text and ids."""

    def __init__(self, source: Source, tags: list[Tag], truncated: bool) -> None:
        self.source, self.tags, self.truncated = source, tags, truncated
        self.blocks: list[Block] = []
        self.stray_faults: list[Fault] = []
        self.open: _Open | None = None
        # Opening tags already reported as faults: their closing tags are not a second fault.
        self.pending = {PARALLEL_END: 0, PATH_END: 0, SUMMARY_END: 0}
        self.answer_start = 0
        self.main: list[tuple[int, int]] = []
        """Spans of text that no block owns, since the last closed block."""

    def trace(self, join: Callable[[list], Content], lookalikes: int) -> Trace:
        """Read everything; ``join`` puts slices of the input back together."""
        done = 0
        for tag in self.tags:
            self._text(done, tag.start)
            self._tag(tag)
            done = tag.end
        self._text(done, self.source.length)
        self._end()
        faults = [*self.stray_faults, *(fault for block in self.blocks for fault in block.faults)]
        return Trace(
            blocks=tuple(self.blocks),
            faults=tuple(sorted(faults, key=lambda fault: fault.start)),
            truncated=self.truncated,
            answer_region=join([self.source.content(start, end) for start, end in self.main]),
            answer_start=self.answer_start,
            lookalike_tags=lookalikes,
            stack_check=_stack_check(self.tags),
        )

    def _fault(self, name: str, start: int, path: int | None = None) -> None:
        block = self.open
        if block is None:
            self.stray_faults.append(Fault(name, start))
        else:
            block.faults.append(Fault(name, start, block.index, path))

    def _text(self, start: int, end: int) -> None:
        block = self.open
        if start >= end:
            return
        if block is None or block.stage in ("after", "summary"):
            self.main.append((start, end))  # dropped again if the summary closes
        if block is not None and block.stage in ("paths", "after") and not self.source.is_blank(start, end):
            if block.stage == "paths" and start == block.head:
                block.count = self.source.count(self.source.content(start, end))
                if block.count is not None:
                    return
            if block.stage == "paths":
                self._fault("text_between_paths", start)
            block.text_seen = True

    def _tag(self, tag: Tag) -> None:
        stage = self.open.stage if self.open else "main"
        if tag.kind == PARALLEL:
            self._open_block(tag, stage)
        elif tag.kind == PATH and stage in ("paths", "path"):
            self._open_path(tag)
        elif tag.kind == PATH_END and stage == "path":
            self._close_path(tag.start, tag.end, closed=True)
        elif tag.kind == PARALLEL_END and stage in ("paths", "path"):
            self._close_paths(tag)
        elif tag.kind == SUMMARY and stage in ("paths", "after"):
            self._open_summary(tag)
        elif tag.kind == SUMMARY_END and stage == "summary":
            self._close_summary(tag)
        elif tag.kind in (PATH, SUMMARY):
            self._fault("stray_path" if tag.kind == PATH else "stray_summary", tag.start)
            self.pending[tag.kind + 1] += 1
        elif self.pending[tag.kind]:
            self.pending[tag.kind] -= 1
        else:
            self._fault("stray_close", tag.start)

    def _open_block(self, tag: Tag, stage: str) -> None:
        if stage in ("paths", "path"):
            self._fault("nested_block", tag.start, len(self._current.paths) if stage == "path" else None)
            self.pending[PARALLEL_END] += 1
            return
        if stage != "main":
            self._fault("unclosed_summary" if stage == "summary" else "missing_summary", tag.start)
            self._finish()
        self.open = _Open(len(self.blocks), tag.start, tag.end, tag.end)

    @property
    def _current(self) -> _Open:
        assert self.open is not None
        return self.open

    def _open_path(self, tag: Tag) -> None:
        block = self._current
        if block.stage == "path":
            self._fault("unclosed_path", tag.start, len(block.paths))
            self._close_path(tag.start, tag.start, closed=False)
        block.path, block.stage = tag, "path"

    def _close_path(self, inner_end: int, end: int, closed: bool) -> None:
        block = self._current
        opened = block.path
        assert opened is not None
        content = self.source.content(opened.end, inner_end)
        if closed and not self.source.fold(content):
            self._fault("empty_path", opened.start, len(block.paths))
        block.paths.append(PathSpan(opened.start, end, opened.end, inner_end, content, closed))
        block.path, block.stage, block.end = None, "paths", end

    def _close_paths(self, tag: Tag) -> None:
        block = self._current
        if block.stage == "path":
            self._fault("unclosed_path", tag.start, len(block.paths))
            self._close_path(tag.start, tag.start, closed=False)
        if not block.paths:
            self._fault("no_path", block.start)
        if block.count not in (None, len(block.paths)):
            self._fault("wrong_count", block.head)
        block.stage, block.end, block.text_seen = "after", tag.end, False

    def _open_summary(self, tag: Tag) -> None:
        block = self._current
        if block.stage == "paths":
            self._fault("unclosed_parallel", tag.start)
        elif block.text_seen:
            self._fault("text_before_summary", tag.start)
        block.stage, block.summary_start = "summary", tag.start
        block.end = tag.end

    def _close_summary(self, tag: Tag) -> None:
        block = self._current
        assert block.summary_start is not None
        block.summary = self.source.content(block.end, tag.start)
        if not self.source.fold(block.summary):
            self._fault("empty_summary", block.summary_start)
        block.closed, block.end = True, tag.end
        self._finish()
        self.answer_start = tag.end
        self.main.clear()

    def _end(self) -> None:
        """End of input: name what is still open."""
        block = self.open
        if block is None:
            return
        end, stage = self.source.length, block.stage
        if self.truncated:
            self._fault("truncated", end, len(block.paths) if stage == "path" else None)
            self.main.clear()
            self.answer_start = end
        elif stage == "after":
            self._fault("missing_summary", block.end)
        elif stage == "summary":
            self._fault("unclosed_summary", end)
        else:
            if stage == "path":
                self._fault("unclosed_path", end, len(block.paths))
            self._fault("unclosed_parallel", end)
        if stage == "path":
            self._close_path(end, end, closed=False)
        elif stage == "summary":
            block.summary = self.source.content(block.end, end)
            block.end = end
        self._finish()

    def _finish(self) -> None:
        """Put the open block among the finished ones."""
        block = self._current
        folded = [part for part in (self.source.fold(path.content) for path in block.paths) if part]
        distinct = len(set(folded))
        if len(folded) >= 2 and distinct == 1:
            self._fault("duplicate_path", block.paths[-1].start, len(block.paths) - 1)
        self.blocks.append(
            Block(
                start=block.start,
                end=block.end,
                paths=tuple(block.paths),
                summary=block.summary,
                summary_start=block.summary_start,
                closed=block.closed,
                faults=tuple(block.faults),
                num_distinct_paths=distinct,
            )
        )
        self.open = None


def _stack_check(tags: list[Tag]) -> bool:
    """The paper's Algorithm 1: every closing tag matches the top of a stack, and nothing stays open."""
    stack: list[int] = []
    for tag in tags:
        if tag.kind in (PARALLEL, PATH, SUMMARY):
            stack.append(tag.kind)
        elif not stack or stack.pop() != tag.kind - 1:
            return False
    return not stack
