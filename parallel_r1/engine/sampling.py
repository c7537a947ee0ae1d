"""Draw tokens for many strands at once, each with its own counted random numbers.

A draw's uniform number is a hash of (request seed, block, path, index), so it does not depend on
which other rows are decoded beside it. A token is found by inverting the cumulative distribution,
which is stable: rounding noise in the logits changes a token only if the uniform number falls within
that noise of a boundary.

Legend: N strands, V vocabulary, S special ids (tags and stop ids), C size of a chunk of V.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.rules import Rule, forbidden_ids

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from parallel_r1.trace.tags import TagIds

_CHUNK = 256
_MASK = (1 << 64) - 1


class Draws(NamedTuple):
    """Results of one draw per strand, each of shape (N,); see `parallel_r1.types.Rollout`."""

    tokens: torch.Tensor
    engine_logps: torch.Tensor
    sampling_logps: torch.Tensor
    allowed_mass: torch.Tensor


def seed_key(seed: Sequence[int]) -> int:
    """One 64-bit key of a request's seed; different tuples give unrelated keys."""
    key = len(seed)
    for part in seed:
        key = _mix_int(key ^ (part & _MASK))
    return key


def uniforms(keys: ArrayLike, counters: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1) of shape (N,), each a hash of its key (N,) and its (block, path, index), (N, 3)."""
    state = np.asarray(keys, dtype=np.uint64)
    for column in np.asarray(counters, dtype=np.uint64).reshape(-1, 3).T:
        state = _mix(state ^ column)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser (Steele et al. 2014); uint64 arrays wrap around silently."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_int(x: int) -> int:
    return int(_mix(np.array([x], dtype=np.uint64))[0])


class Sampler:
    """Samples under the table of `parallel_r1.engine.branch.FORBIDDEN`.

    Args:
        vocab_size: ids at or above it do not exist and are cut off before anything is normalised.
        tag_rate: with this probability a strand's expected tag is drawn whatever the model says. The
            numbers stay honest: ``sampling_logps`` is of the mixture, ``engine_logps`` the model's own.
    """

    def __init__(
        self,
        vocab_size: int,
        tags: TagIds | None,
        stop_ids: Sequence[int],
        device: torch.device,
        tag_rate: float = 0.0,
    ) -> None:
        self.vocab_size, self.tag_rate, self.device = vocab_size, tag_rate, device
        special = sorted(set(stop_ids) | (set(tags.all) if tags else set()))
        self._special = torch.tensor(special, dtype=torch.long, device=device)
        table = torch.zeros(len(Rule), len(special), dtype=torch.bool, device=device)
        if tags is not None:
            for rule in Rule:
                banned = forbidden_ids(rule, tags, stop_ids)
                table[rule] = torch.tensor([i in banned for i in special], dtype=torch.bool, device=device)
        self._banned = table
        self._counts = torch.tensor(tags.counts if tags else (), dtype=torch.long, device=device)

    def forbid_tags(self) -> None:
        """For benchmarks: no tag and no end of text is ever drawn, so that budgets alone shape a response."""
        self._banned[:] = True

    def draw(
        self,
        logits: torch.Tensor,
        rules: ArrayLike,
        uniform: NDArray[np.float64],
        expected: ArrayLike,
        config: EngineConfig,
    ) -> Draws:
        """Sample one token per row of ``logits`` (N, V), at the temperature and the cuts of ``config``.

        Args:
            rules: `Rule` of each row, (N,). Under ``Rule.COUNT`` only a number up to ``config.most_paths`` is drawn.
            uniform: one number in [0, 1) per row.
            expected: tag ids for ``tag_rate``, -1 for none, (N,).
        """
        rule = torch.from_numpy(np.asarray(rules, dtype=np.int64)).to(self.device)
        scores = logits[:, : self.vocab_size].float()
        temperature = config.temperature
        if temperature not in (0.0, 1.0):
            scores = scores / temperature
        allowed, total, kept = self._constrain(scores, rule, config.most_paths)
        target = torch.from_numpy(uniform).to(self.device)
        if temperature == 0:
            tokens = allowed.argmax(-1)
            sampling = torch.zeros_like(total)
        else:
            cut = _truncate(allowed, config.top_k, config.top_p)
            norm = kept if cut is allowed else torch.logsumexp(cut, -1)
            probabilities = (cut - norm[:, None]).exp_()
            if self.tag_rate:
                drawn, target, wanted = self._drawn_tags(expected, target)
                tokens = torch.where(drawn, wanted, _invert(probabilities, target))
                share = torch.where(wanted >= 0, self.tag_rate, 0.0)
                mixed = probabilities.gather(1, tokens[:, None])[:, 0] * (1 - share) + share * (tokens == wanted)
                sampling = mixed.log()
            else:
                tokens = _invert(probabilities, target)
                sampling = cut.gather(1, tokens[:, None])[:, 0] - norm
        engine = scores.gather(1, tokens[:, None])[:, 0] - total
        return Draws(tokens, engine, sampling, (kept - total).exp())

    def _constrain(
        self, scores: torch.Tensor, rule: torch.Tensor, most_paths: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Scores with forbidden ids at -inf, and the log of the mass of all and of the allowed tokens."""
        if not len(self._special):
            total = torch.logsumexp(scores, -1)
            return scores, total, total
        special = scores[:, self._special]
        banned = self._banned[rule]
        allowed = scores.index_copy(1, self._special, special.masked_fill(banned, -torch.inf))
        # The forbidden mass is added, not subtracted, so a tiny allowed mass keeps its digits.
        lost = torch.logsumexp(special.masked_fill(~banned, -torch.inf), -1)
        counting = (rule == Rule.COUNT).nonzero()[:, 0]
        if len(counting):
            numbers = self._counts[:most_paths]
            only = torch.full_like(scores[counting], -torch.inf)
            allowed[counting] = only.index_copy(1, numbers, scores[counting][:, numbers])
            lost[counting] = torch.logsumexp(scores[counting].index_fill(1, numbers, -torch.inf), -1)
        kept = torch.logsumexp(allowed, -1)
        return allowed, torch.logaddexp(kept, lost), kept

    def _drawn_tags(self, expected: ArrayLike, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Which strands draw their expected tag; the left-over of their uniform number serves the others."""
        wanted = torch.from_numpy(np.asarray(expected, dtype=np.int64)).to(self.device)
        possible = wanted >= 0
        drawn = possible & (target < self.tag_rate)
        rest = (target - self.tag_rate) / (1 - self.tag_rate) if self.tag_rate < 1 else target
        return drawn, torch.where(possible, rest.clamp(0, 1), target), wanted


def _truncate(scores: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Keep the ``top_k`` best and then the smallest set that holds ``top_p``; -inf elsewhere."""
    if top_k and top_k < scores.shape[1]:
        least = scores.topk(top_k, -1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p < 1:
        ranked, order = scores.softmax(-1).sort(-1, descending=True)
        outside = ranked.cumsum(-1) - ranked >= top_p
        scores = scores.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)
    return scores


def _invert(probabilities: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds ``target`` (N,), as fractions of the row's sum.

    Two levels, chunk and token: a plain running sum over a large vocabulary is slow and loses digits.
    """
    num_rows, size = probabilities.shape
    padded = torch.nn.functional.pad(probabilities, (0, -size % _CHUNK)).view(num_rows, -1, _CHUNK)
    chunk_sums = padded.sum(-1, dtype=torch.float64)
    running = chunk_sums.cumsum(-1)
    point = target * running[:, -1]
    chunk = _first_above(running, point, chunk_sums)
    before = (running - chunk_sums).gather(1, chunk[:, None])[:, 0]
    inside = padded[torch.arange(num_rows, device=padded.device), chunk].double()
    token = _first_above(inside.cumsum(-1), point - before, inside)
    return chunk * _CHUNK + token


def _first_above(running: torch.Tensor, point: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """First place where ``running`` exceeds ``point``; rounding may never pick a weight of zero."""
    found = (running <= point.clamp_min(0)[:, None]).sum(-1)
    places = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, places, -1).amax(-1)
    return torch.minimum(found, last).clamp_min(0)
