"""The nouns every stage shares. Frozen, documented, free of torch.

What lives here: values that travel between packages (a problem, a parsed trace, a verdict, a
rollout, a group). What may not: anything that does something. Behaviour belongs to the package
that owns the verb (``trace`` parses, ``answers`` verifies, ``engine`` decodes, ``rewards`` scores).

Legend: T response tokens, P prompt tokens, G samples of one problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Variant = Literal["causal", "structured"]
"""How sibling paths see each other when a trace is scored (paper section 3.3; "Seen" / "Unseen")."""

Phase = Literal["decoding", "scoring"]
Size = Literal["easy", "hard"]
Split = Literal["train", "test"]
DecodeMode = Literal["forked", "sequential", "linear"]
"""forked: the engine forks. sequential: ``<Parallel>`` is forbidden. linear: the model writes tags itself."""

Outcome = Literal["right", "wrong", "no_answer", "error", "timeout"]
StopReason = Literal["stop", "length", "cancelled", "error"]
"""stop: an end of text was sampled. length: a budget ran out. error: see ``Rollout.error``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its readable gold answer. ``id`` is unique within (task, split, size)."""

    id: str
    task: str
    size: Size
    question: str
    gold: str
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the task's own checker needs beside ``gold`` (JSON-able), e.g. Countdown's numbers."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker said of one response, and how it got there."""

    outcome: Outcome
    answer: str | None = None
    """The extracted answer, as written; None when there was none."""
    how: str = ""
    """How it was compared: "exact", "numeric", "symbolic", "steps", ... or the reason of a failure."""

    @property
    def right(self) -> bool:
        return self.outcome == "right"


@dataclass(frozen=True, slots=True)
class Fault:
    """A named defect of a trace. ``start`` is an offset in the parsed units (tokens or characters)."""

    name: str
    start: int
    block: int | None = None
    path: int | None = None


@dataclass(frozen=True, slots=True)
class PathSpan:
    """One ``<Path>``: ``[start, end)`` includes its tags, ``[inner_start, inner_end)`` does not.

    ``content`` is the inner text (text parse) or the tuple of inner ids (id parse).
    """

    start: int
    end: int
    inner_start: int
    inner_end: int
    content: str | tuple[int, ...]
    closed: bool


@dataclass(frozen=True, slots=True)
class Block:
    """From ``<Parallel>`` to the end of its ``</Summary>``; ``summary`` is None when absent."""

    start: int
    end: int
    paths: tuple[PathSpan, ...]
    summary: str | tuple[int, ...] | None
    summary_start: int | None
    closed: bool
    """True when the block ran to its ``</Summary>``."""
    faults: tuple[Fault, ...]
    """The faults of this block alone."""
    num_distinct_paths: int
    """Distinct non-empty paths after white-space folding (ids: after stripping nothing)."""

    @property
    def well_formed(self) -> bool:
        return self.closed and not self.faults


@dataclass(frozen=True, slots=True)
class Trace:
    """A parsed response. See ``parallel_r1.trace.tags`` for the grammar and the names of faults."""

    blocks: tuple[Block, ...]
    faults: tuple[Fault, ...]
    truncated: bool
    """The response was cut by a limit while a block was open (or the caller said it was cut)."""
    answer_region: str | tuple[int, ...]
    """What follows the last closed block, tags removed; the whole response when there is no block."""
    answer_start: int
    lookalike_tags: int
    """Near-tags such as ``<parallel>`` or ``&lt;Path&gt;`` that are plain text (text parse only)."""
    stack_check: bool
    """Verdict of the paper's Algorithm 1: every closing tag matches the top of a stack, left empty."""

    @property
    def state(self) -> Literal["no_block", "well_formed", "malformed", "truncated"]:
        """One word for the whole trace; "no block" is a state of its own, not "well-formed"."""
        if self.truncated:
            return "truncated"
        if self.faults:
            return "malformed"
        return "well_formed" if self.blocks else "no_block"

    @property
    def well_formed(self) -> bool:
        """At least one block, and no fault anywhere."""
        return self.state == "well_formed"


@dataclass(frozen=True, slots=True)
class Region:
    """Where a response token stands: the main chain, path ``path`` of block ``block``, its summary.

    ``kind`` "block" is for the tags between paths (``<Parallel>``, ``</Parallel>``, newline).
    """

    kind: Literal["main", "path", "summary", "block"]
    block: int = -1
    path: int = -1


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response, token by token. All tuples over T have equal length.

    ``response_ids`` are in canonical order: main chain, ``<Parallel>``, path 1 .. path K,
    ``</Parallel>``, newline, ``<Summary>`` ..., whatever order the tokens were decoded in.
    """

    problem_id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    forced: tuple[bool, ...]
    """True where the engine inserted the token instead of sampling it (kept out of the RL loss)."""
    engine_logps: tuple[float, ...]
    """Model log-prob at the sampling temperature, unconstrained; 0.0 where forced."""
    sampling_logps: tuple[float, ...]
    """Log-prob under the distribution drawn from (temperature, constraints, truncation); 0.0 where forced."""
    allowed_mass: tuple[float, ...]
    """Z: the model's probability of all allowed tokens at this step; 1.0 where forced."""
    stop_reason: StopReason
    truncated: bool
    """A path, a block or the response was cut by a budget."""
    seed: tuple[int, ...]
    weight_version: int
    num_blocks: int
    critical_tokens: int
    """Tokens outside blocks plus, per block, its longest path, the block's tags and its summary."""
    cut_paths: tuple[tuple[int, int], ...] = ()
    """(block, path) of every path closed by force: its budget was spent, or enough siblings had closed."""
    error: str = ""
    """Why decoding stopped with ``stop_reason = "error"``: the row, the value and the fix."""

    @property
    def total_tokens(self) -> int:
        return len(self.response_ids)


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its parsed trace, verdict and reward."""

    rollout: Rollout
    text: str
    """Decoded response, tags kept, padding and end of text removed."""
    trace: Trace
    verdict: Verdict
    reward: float
    reward_parts: Mapping[str, float]
    path_right: tuple[tuple[bool, ...], ...] | None = None
    """Per block and path of ``trace``, whether its candidate is right; None where the task cannot judge a path."""


@dataclass(frozen=True, slots=True)
class Group:
    """All G samples of one occurrence of one problem. Built at sampling time, never regrouped by text."""

    problem: Problem
    members: tuple[ScoredRollout, ...]

    @property
    def dead(self) -> bool:
        """True when all rewards are exactly equal, so the group carries no signal."""
        return len({m.reward for m in self.members}) <= 1
