"""The rollout state machine: main chain -> paths -> summary -> main chain. Pure, free of torch.

One `Branch` follows one response (paper section 3.1). It is told which tokens were sampled and says
what to do next: which tokens the model must read, at which positions, and where the next samples come
from. The backend owns keys, masks and random numbers; this file owns the grammar, the budgets and
every token that is inserted.

Budgets are spent before they are exceeded. A block opens only where each path can have at least its
two tags and one token, and where ``</Parallel>`` and the reserve for summary and answer still fit; so
an opened block is always closed. A path that reaches its budget is closed by force. Only the summary
or the main chain can meet the response budget, and the response ends there. Whatever was cut marks
the rollout ``truncated``. With ``early_join`` a block also closes its last paths once enough of them
have closed by themselves.

With ``counted`` a block names the number of its paths right after ``<Parallel>``, in an ordinary token:
sampled among the possible numbers where ``paths = "auto"``, inserted otherwise.

A backend may take tokens that decide nothing in bulk: `Branch.quiet` says how many of them a strand
can take, `Branch.extend` hands them over.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from parallel_r1.config import EngineConfig
from parallel_r1.engine.rules import Rule
from parallel_r1.engine.steps import MAIN, Feed, Kind, Listener, Sampled, Step, Written
from parallel_r1.trace.layout import close_position, path_start
from parallel_r1.trace.tags import TagIds
from parallel_r1.types import Region, StopReason, Variant

LEAST_PATH = 3
"""``<Path>``, one token, ``</Path>``."""


class Branch:
    """The state of one response. Sample once per entry of `strands`, hand the results to `advance`, repeat.

    Args:
        config: mode, number of paths, budgets and whether constraints are on.
        tags: None where the tokenizer has none; the mode is then "sequential" or "linear".
        stop_ids: ids that end the text.
        variant: decides positions at the join and whether paths are read again there.
        num_prompt_tokens: length of the prompt, which stands at positions 0, 1, ...
        listener: hears of every token.
    """

    def __init__(
        self,
        config: EngineConfig,
        tags: TagIds | None,
        stop_ids: Sequence[int],
        variant: Variant,
        num_prompt_tokens: int,
        listener: Listener | None = None,
    ) -> None:
        if config.mode == "forked":
            if tags is None:
                raise ValueError(
                    "engine.mode = 'forked' needs a tokenizer with tags; use add_tags, or mode = 'sequential'"
                )
            if config.counted and not tags.counts:
                raise ValueError(
                    "engine.counted = true: this tokenizer has no single tokens for the numbers 1 to 8; use counted = "
                    "false and a fixed number of paths"
                )
        self.config, self.tags, self.stop_ids, self.variant = config, tags, frozenset(stop_ids), variant
        self.strands: list[int] = [MAIN]
        """Where the next tokens are sampled: `MAIN`, or the open paths."""
        self.written: list[Written] = []
        """The response so far; the tokens of open paths are missing until the join."""
        self.num_blocks = 0
        self.critical_tokens = 0
        """Tokens outside blocks plus, per block, its longest path, its tags and its summary."""
        self.truncated = False
        self.cut_paths: list[tuple[int, int]] = []
        """(block, path) of every path that was closed by force."""
        self.watched = listener is not None
        self._listener = listener
        self._position = num_prompt_tokens
        self._used = 0
        self._main_samples = 0
        self._in_summary = False
        self._counting = False
        self._paths: list[list[Written]] = []
        self._fed = 0
        self._fork_position = 0
        self._path_limit = 0
        newline = tags.newline if tags else ()
        self._reserve = max(config.answer_reserve, len(newline) + 2)

    def rule(self, strand: int) -> Rule:
        """What may be sampled next on ``strand``."""
        if self.config.mode == "linear":
            return Rule.FREE
        if self._counting:
            return Rule.COUNT
        if strand != MAIN:
            return Rule.PATH if self.config.constraints else Rule.FREE
        if not self.config.constraints and self.config.mode == "forked":
            return Rule.FREE if not self._in_summary and self._fits() else Rule.NO_FORK
        if self._in_summary:
            return Rule.SUMMARY
        return Rule.MAY_FORK if self._fits() else Rule.MAIN

    def quiet(self, strand: int) -> int:
        """How many tokens that are neither tags nor ends of text ``strand`` takes before anything is decided."""
        if strand != MAIN:
            return self._path_limit - 2 - len(self._paths[strand])
        if self._counting or (self.config.force_fork and not self._main_samples):
            return 0
        left = self.config.max_response_tokens - 1 - self._used
        if self._in_summary or not self._fits():
            return left
        # A block fits while `_room(used + 1) >= LEAST_PATH`; the rule changes when it no longer does.
        return min(left, self._left_for_paths(self._used + 1) - LEAST_PATH * self.config.most_paths)

    def extend(self, strand: int, tokens: Sequence[int], *numbers: Sequence[float]) -> None:
        """Take at most `quiet` tokens of one strand that were sampled and read, and decided nothing.

        ``numbers``: their columns of engine log-probs, sampling log-probs and allowed mass.
        """
        path = self.written if strand == MAIN else self._paths[strand]
        path.extend(map(Written, tokens, repeat(False), *numbers))
        self._used += len(tokens)
        self.critical_tokens += len(tokens)
        if strand == MAIN:
            self._main_samples += len(tokens)
            self._position += len(tokens)
        elif strand == 0:
            self._fed = len(path)

    def expected_tag(self, strand: int) -> int:
        """The tag that would move the response on from here: open a block, close a path or summary; -1: none."""
        if self.tags is None or self.config.mode == "linear" or self._counting:
            return -1
        if strand != MAIN:
            return self.tags.path_close
        if self._in_summary:
            return self.tags.summary_close
        return self.tags.parallel_open if self._fits() else -1

    def counter(self, strand: int) -> tuple[int, int, int]:
        """(block, path + 1, index): names the next draw, whatever else is decoded beside it."""
        if strand == MAIN:
            return 0, 0, self._main_samples
        return self.num_blocks, strand + 1, len(self._paths[strand])

    def so_far(self) -> tuple[list[Written], int]:
        """The response with the open paths one after the other, as far as they are, and its critical tokens."""
        joined, excess = self._side_by_side()
        return self.written + joined, self.critical_tokens - excess

    def advance(self, sampled: Sequence[Sampled]) -> Step:
        """Take one sampled token per entry of `strands`, in that order."""
        if self._paths:
            return self._advance_paths(sampled)
        return self._advance_main(sampled[0])

    # --- main chain and summary ---

    def _advance_main(self, sampled: Sampled) -> Step:
        if self._counting:
            return self._take_count(sampled)
        if self.config.force_fork and self._main_samples == 0 and self.tags is not None:
            choice, token = self.tags.parallel_open, self.tags.parallel_open
        else:
            choice, token = sampled, sampled.token
        self._main_samples += 1
        opens = self._opens(token)
        if opens or (self.config.mode == "linear" and self.tags and token == self.tags.parallel_open):
            self.num_blocks += 1
        self._write(choice, "summary" if self._in_summary else "block" if opens else "main")
        if token in self.stop_ids:
            return self._done("stop")
        if self._in_summary and self.tags is not None and token == self.tags.summary_close:
            self._in_summary = False
        if opens:
            return self._open_block()
        if self._used >= self.config.max_response_tokens:
            self.truncated = True
            return self._done("length")
        self._position += 1
        return Step((Feed(token, self._position - 1, MAIN, True),))

    def _opens(self, token: int) -> bool:
        """Does this token of the main strand open a block? (A linear decoder only writes the tag.)"""
        forks = self.config.mode == "forked" and not self._in_summary
        return forks and self.tags is not None and token == self.tags.parallel_open

    def _done(self, reason: StopReason) -> Step:
        self.strands = []
        return Step((), done=reason)

    def _fits(self) -> bool:
        """May a block open with the next token?"""
        if self.config.mode != "forked" or self.num_blocks >= self.config.max_blocks:
            return False
        return self._room(self._used + 1) >= LEAST_PATH

    def _room(self, used: int) -> int:
        """Tokens that each path may have once ``used`` tokens are spent, ``<Parallel>`` included."""
        return min(self.config.path_budget, self._left_for_paths(used) // self.config.most_paths)

    def _left_for_paths(self, used: int) -> int:
        """Tokens for all paths together once ``used`` are spent; their number and ``</Parallel>`` come on top."""
        return self.config.max_response_tokens - used - self.config.counted - 1 - self._reserve

    # --- paths ---

    def _open_block(self) -> Step:
        """``<Parallel>`` is written: ask for the number of paths, or fork."""
        assert self.tags is not None
        self._path_limit = self._room(self._used)
        opened = Feed(self.tags.parallel_open, self._position, MAIN, False)
        self._position += 1
        if self.config.paths == "auto":
            self._counting = True
            return Step((opened._replace(sample=True),))
        if not self.config.counted:
            return self._fork([opened], self.config.paths)
        count = self.tags.counts[self.config.paths - 1]
        self._write(count, "block")
        self._position += 1
        return self._fork([opened, Feed(count, self._position - 1, MAIN, False)], self.config.paths)

    def _take_count(self, sampled: Sampled) -> Step:
        """The model has said how many paths there are."""
        assert self.tags is not None
        self._counting = False
        self._main_samples += 1
        self._write(sampled, "block")
        self._position += 1
        feed = [Feed(sampled.token, self._position - 1, MAIN, False)]
        return self._fork(feed, self.tags.counts.index(sampled.token) + 1)

    def _fork(self, feed: list[Feed], num_paths: int) -> Step:
        assert self.tags is not None
        self._fork_position = self._position - 1
        self._paths = [[] for _ in range(num_paths)]
        self.strands = list(range(num_paths))
        start = path_start(self._fork_position)
        for path in self.strands:
            self._write(self.tags.path_open, "path", path)
            feed.append(Feed(self.tags.path_open, start, path, True))
        self._fed = 1
        return Step(tuple(feed))

    def _advance_paths(self, sampled: Sequence[Sampled]) -> Step:
        assert self.tags is not None
        close = self.tags.path_close
        before = {strand: len(self._paths[strand]) for strand in self.strands}
        for strand, choice in zip(self.strands, sampled, strict=True):
            path = self._paths[strand]
            if choice.token in self.stop_ids:  # only with constraints off: the end of the text is dropped
                self._write(close, "path", strand)
            else:
                self._write(choice, "path", strand)
                if choice.token != close and len(path) + 1 >= self._path_limit:
                    self._cut(strand)
                    self.truncated = True
        self.strands = [strand for strand in before if self._paths[strand][-1].token != close]
        if len(self._paths) - len(self.strands) >= self.config.early_join * len(self._paths):
            for strand in self.strands:
                self._cut(strand)
            self.strands = []
        start = path_start(self._fork_position)
        feed = [
            Feed(self._paths[strand][i].token, start + i, strand, strand in self.strands)
            for strand, first_new in before.items()
            for i in range(first_new, len(self._paths[strand]))
        ]
        if not self.strands:
            return self._join(feed)
        self._fed = len(self._paths[0])
        return Step(tuple(feed))

    def _cut(self, strand: int) -> None:
        """Close a path by force."""
        assert self.tags is not None
        self._write(self.tags.path_close, "path", strand)
        self.cut_paths.append((self.num_blocks - 1, strand))

    def _join(self, feed: list[Feed]) -> Step:
        """All paths are closed: insert ``</Parallel>``, newline, ``<Summary>`` and sample the summary."""
        assert self.tags is not None
        longest = max(map(len, self._paths))
        joined, excess = self._side_by_side()
        self.written.extend(joined)
        self.critical_tokens -= excess
        if self.variant == "causal":
            # Path 1 saw what a plain causal reader sees, so its keys stay; the others are read again.
            first = path_start(self._fork_position)
            feed = [Feed(w.token, first + i, MAIN, False) for i, w in enumerate(joined) if i >= self._fed]
            position = first + len(joined)
        else:
            position = close_position(self._fork_position, longest)
        self._paths, self.strands, self._in_summary = [], [MAIN], True
        closers = [self.tags.parallel_close, *self.tags.newline, self.tags.summary_open]
        for offset, token in enumerate(closers):
            last = offset == len(closers) - 1
            self._write(token, "summary" if last else "block")
            feed.append(Feed(token, position + offset, MAIN, last))
        self._position = position + len(closers)
        return Step(tuple(feed), rewind=self.variant == "causal")

    def _side_by_side(self) -> tuple[list[Written], int]:
        """The tokens of the open paths in canonical order, and how many of them are not on the critical path."""
        joined = [token for path in self._paths for token in path]
        return joined, len(joined) - max(map(len, self._paths), default=0)  # `_write` counted every path

    def _write(self, token: int | Sampled, kind: Kind, path: int = MAIN) -> None:
        """Append a sampled token, or insert a forced one (given as a bare id)."""
        entry = Written(token, True, 0.0, 0.0, 1.0) if isinstance(token, int) else Written(token[0], False, *token[1:])
        (self.written if path == MAIN else self._paths[path]).append(entry)
        self._used += 1
        self.critical_tokens += 1
        if self._listener is not None:
            block = -1 if kind == "main" else self.num_blocks - 1
            self._listener(entry.token, Region(kind, block, path), entry.forced)
