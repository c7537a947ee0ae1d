"""Requests in flight on the tree engine: admission, one pass for all rows, sampling, cancelling."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Counters, Finished, Request, TokenEvent, TokenListener
from parallel_r1.engine.branch import LEAST_PATH, Branch
from parallel_r1.engine.memory import plan_memory
from parallel_r1.engine.passes import Passes, Row, Sampling
from parallel_r1.engine.sampling import Sampler, seed_key, uniforms
from parallel_r1.engine.steps import MAIN, Feed, Listener, Sampled
from parallel_r1.types import Region, Rollout, StopReason

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from parallel_r1.engine.tree import TreeEngine


class TreeSession:
    """See `parallel_r1.engine.base.Session`. It owns the rows in flight.

    ``plan`` is the memory that they may use (see `parallel_r1.engine.memory`), ``counters`` what was done.
    """

    def __init__(self, engine: TreeEngine, config: EngineConfig) -> None:
        self.engine, self.config = engine, config
        self.device = engine.model.device
        self.plan = plan_memory(engine.model, config)
        self.passes = Passes(engine.model)
        self.table = self.passes.table
        self.waiting: deque[Row] = deque()
        self.rows: list[Row] = []
        self.done: list[Finished] = []
        self.sampler = Sampler(len(engine.tokenizer), engine.tags, engine.stop_ids, self.device, engine.tag_rate)
        self._decisive = np.zeros(len(engine.tokenizer), dtype=np.bool_)
        """Ids that a branch must hear of at once: tags and ends of text."""
        self._decisive[[*engine.stop_ids, *(engine.tags.all if engine.tags else ())]] = True
        self._settings: dict[tuple, int] = {}
        self._configs: list[EngineConfig] = []
        self.closed = False
        self._next_ticket = 0
        self._stepping = False
        self._unwanted: set[int] = set()
        self._decoding = engine.decoding()
        self._decoding.__enter__()

    @property
    def counters(self) -> Counters:
        """What the model was made to do so far."""
        return self.passes.counters

    # --- the door ---

    def submit(
        self, request: Request, config: EngineConfig | None = None, on_token: TokenListener | None = None
    ) -> int:
        """See `parallel_r1.engine.base.Session.submit`."""
        self._refuse_closed()
        settings = config or self.config
        check_settings(self.engine, settings)
        check_request(self.engine, request, settings)
        ticket = self._next_ticket
        prompt = request.prompt_ids
        branch = Branch(
            settings, self.engine.tags, self.engine.stop_ids, self.engine.variant, len(prompt),
            _listener(ticket, on_token),
        )  # fmt: skip
        feed = tuple(Feed(token, i, MAIN, i == len(prompt) - 1) for i, token in enumerate(prompt))
        row = Row(ticket, request, settings, branch, feed)
        if not self.plan.num_rows(row.need):
            raise ValueError(
                f"problem {request.problem_id!r}: {self.plan.describe(row.need, self.config.max_rows)}; raise "
                f"engine.memory_gb or lower engine.max_response_tokens = {settings.max_response_tokens}"
            )
        self.waiting.append(row)
        self._next_ticket += 1
        return ticket

    def step(self) -> list[Finished]:
        """See `parallel_r1.engine.base.Session.step`."""
        self._refuse_closed()
        self._admit()
        if not self.rows:
            return []
        self._stepping = True
        with torch.no_grad():
            self._sample(self.passes.forward(self.rows))
        self._stepping = False
        for ticket in self._unwanted:
            self._drop(ticket)
        done = [finished for finished in self.done if finished.ticket not in self._unwanted]
        self.done, self._unwanted = [], set()
        if not self.rows:
            self.passes.drop_keys()
        return done

    def cancel(self, ticket: int) -> Rollout | None:
        """See `parallel_r1.engine.base.Session.cancel`."""
        if ticket in self._unwanted:
            return None
        place = next((place for place, row in enumerate(self.rows) if row.ticket == ticket), None)
        row = self.rows[place] if place is not None else next((r for r in self.waiting if r.ticket == ticket), None)
        if row is None:
            return None
        if place is not None:
            self.table.hand_over(place, row.branch)
        if self._stepping:  # called by a listener: the row leaves when the step is over
            self._unwanted.add(ticket)
        else:
            self._drop(ticket)
        return self._rollout(row, "cancelled")

    @property
    def busy(self) -> bool:
        """Is anything queued or in flight?"""
        return bool(self.rows or self.waiting)

    @property
    def num_active(self) -> int:
        """Requests that hold memory."""
        return len(self.rows)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self.waiting)

    def close(self) -> None:
        """Drop everything and put the model back as it was."""
        if not self.closed:
            self.closed = True
            self.rows, self.waiting = [], deque()
            self.passes.drop_keys()
            self._decoding.__exit__(None, None, None)

    def __enter__(self) -> TreeSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ValueError("the engine's session is closed; open another with engine.session(config)")

    # --- rows come and go ---

    def _admit(self) -> None:
        """Let requests in; a few at a time, so that their prompts share passes."""
        if not self.waiting:
            return
        longest = max([row.need for row in self.rows], default=0)
        limit = min(self.config.max_rows, self.plan.num_rows(max(longest, 1)))
        if self.rows and limit - len(self.rows) < max(1, limit // 8):
            return
        while self.waiting and len(self.rows) < self.config.max_rows:
            longest = max(longest, self.waiting[0].need)
            limit = self.plan.num_rows(max(longest, self.passes.cache.num_slots))
            if len(self.rows) >= limit:
                break
            if self.passes.cache.num_rows > limit:  # longer rows, so fewer of them
                self.passes.cache.trim(len(self.rows))
            self._open(self.waiting.popleft())

    def _open(self, row: Row) -> None:
        place, config = len(self.rows), row.config
        self.rows.append(row)
        kind = (config.temperature, config.top_k, config.top_p, config.most_paths)
        setting = self._settings.setdefault(kind, len(self._settings))
        if setting == len(self._configs):
            self._configs.append(config)
        self.table.reserve(len(self.rows))
        self.table.open(place, seed_key(row.request.seed), row.branch.watched, setting)
        self.table.follow(place, row.branch, row.feed)
        self.table.special[place] = True

    def _drop(self, ticket: int) -> None:
        self.waiting = deque(row for row in self.waiting if row.ticket != ticket)
        for place, row in enumerate(self.rows):
            if row.ticket == ticket:
                self._free(place)
                return

    def _free(self, place: int) -> None:
        """The last row takes the place, so that the rows in flight stay together."""
        last = len(self.rows) - 1
        if place != last:
            self.passes.cache.copy_row(last, place, int(self.table.length[last]))
            self.table.move(last, place)
            self.rows[place] = self.rows[last]
        self.rows.pop()

    # --- sample and go on ---

    def _sample(self, where: Sampling) -> None:
        """Draw a token on every strand; rows in which one of them decides something ask their branch."""
        place, column = where.place, where.column
        tokens, numbers = self._draw(where)
        sound = np.isfinite(numbers.sum(axis=1))
        loud = self._decisive[tokens] | (self.table.quiet[place, column] <= 0) | ~sound
        asking = np.zeros(len(self.rows), dtype=np.bool_)
        asking[place[loud]] = True
        asks: NDArray[np.bool_] = asking[place]
        calm = ~asks
        self.table.record(place[calm], column[calm], tokens[calm], numbers[calm])
        chosen: dict[int, list[int]] = {}
        for i in np.flatnonzero(asks).tolist():
            chosen.setdefault(int(place[i]), []).append(i)
        self.counters.sampled_tokens += len(tokens)
        # From the last row on, because the last row takes the place of one that ends.
        for at in sorted(chosen, reverse=True):
            self.table.hand_over(at, self.rows[at].branch)
            drawn = chosen[at]
            if sound[drawn].all():
                values = zip(tokens[drawn].tolist(), numbers[drawn].tolist(), strict=True)
                self._go_on(at, [Sampled(token, *parts) for token, parts in values])
            else:
                self._fail(at)

    def _draw(self, where: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens (N,) and their numbers (N, 3); requests with equal settings are drawn together."""
        place, column, table = where.place, where.column, self.table
        uniform = uniforms(table.key[place], table.counters(place, column))
        rules, expected = table.rule[place, column], table.expected[place, column]
        setting = table.setting[place]
        kinds = np.unique(setting)
        tokens = np.zeros(len(place), dtype=np.int64)
        numbers = np.zeros((len(place), 3), dtype=np.float32)
        for kind in kinds.tolist():
            some = np.flatnonzero(setting == kind)
            logits = where.logits if len(kinds) == 1 else where.logits[torch.from_numpy(some).to(self.device)]
            draws = self.sampler.draw(logits, rules[some], uniform[some], expected[some], self._configs[kind])
            tokens[some] = draws.tokens.cpu().numpy()
            numbers[some] = torch.stack(draws[1:], dim=1).float().cpu().numpy()
        return tokens, numbers

    def _go_on(self, place: int, sampled: list[Sampled]) -> None:
        row = self.rows[place]
        step = row.branch.advance(sampled)
        if step.done:
            self._finish(place, step.done)
            return
        if step.rewind:
            self._rewind(place)
        row.feed = step.feed
        self.table.follow(place, row.branch, step.feed)

    def _rewind(self, place: int) -> None:
        """Causal join: keep path 1, bring its keys together, forget the other paths."""
        table, end = self.table, int(self.table.length[place])
        table.length[place] = self.passes.cache.keep_first_path(place, int(table.fork[place]), end)
        self.counters.reread_tokens += end - int(table.length[place])

    def _fail(self, place: int) -> None:
        """Not a number: end this row alone, and leave nothing of it in its place."""
        row = self.rows[place]
        problem = (
            f"problem {row.request.problem_id!r} (request {row.ticket}): the model's logits are not finite (NaN or "
            f"infinite) after {len(row.branch.so_far()[0])} tokens; its weights have diverged or overflow in "
            f"{self.engine.model.dtype}: load an earlier checkpoint, or decode in float32"
        )
        self.passes.cache.wipe(place)
        self._finish(place, "error", problem)

    def _finish(self, place: int, reason: StopReason, problem: str = "") -> None:
        """Hand out the rollout and free its row."""
        row = self.rows[place]
        self.done.append(Finished(row.ticket, self._rollout(row, reason, problem)))
        self._free(place)

    def _rollout(self, row: Row, reason: StopReason, problem: str = "") -> Rollout:
        branch = row.branch
        written, critical = branch.so_far()
        columns = tuple(zip(*written, strict=True)) or ((),) * 5
        ids, forced, engine, sampling, mass = columns
        return Rollout(
            problem_id=row.request.problem_id, prompt_ids=tuple(row.request.prompt_ids), response_ids=ids,
            forced=forced, engine_logps=engine, sampling_logps=sampling, allowed_mass=mass, stop_reason=reason,
            truncated=branch.truncated or reason in ("cancelled", "error"), seed=tuple(row.request.seed),
            weight_version=self.engine.weight_version, num_blocks=branch.num_blocks, critical_tokens=critical,
            cut_paths=tuple(branch.cut_paths), error=problem,
        )  # fmt: skip


def _listener(ticket: int, report: TokenListener | None) -> Listener | None:
    if report is None:
        return None

    def listen(token: int, region: Region, forced: bool) -> None:
        report(TokenEvent(ticket, token, region, forced))

    return listen


def check_settings(engine: TreeEngine, config: EngineConfig) -> None:
    """Refuse what no request of this engine may ask for."""
    if config.mode == "linear" and engine.variant == "structured":
        raise ValueError("engine.mode = 'linear' needs variant = 'causal': a plain decoder hides no paths")
    if config.mode == "forked" and config.path_budget < LEAST_PATH:
        raise ValueError(f"engine.path_budget = {config.path_budget}: two tags and a token need at least {LEAST_PATH}")
    if engine.model.training and _dropout(engine.model):
        raise ValueError("dropout > 0 in training: rollout and trainer would score different models; set it to 0")


def check_request(engine: TreeEngine, request: Request, config: EngineConfig) -> None:
    """Refuse a prompt that cannot be decoded."""
    known = engine.tags.all if engine.tags else frozenset()
    if not request.prompt_ids:
        raise ValueError(f"problem {request.problem_id!r}: the prompt is empty; give at least one token")
    if not known.isdisjoint(request.prompt_ids):
        raise ValueError(
            f"problem {request.problem_id!r}: the prompt holds a tag id; tokenise user text with encode_prompt"
        )
    longest = getattr(engine.model.config, "max_position_embeddings", None)
    if longest and len(request.prompt_ids) + config.max_response_tokens > longest:
        raise ValueError(
            f"problem {request.problem_id!r}: prompt of {len(request.prompt_ids)} tokens and "
            f"engine.max_response_tokens = {config.max_response_tokens} exceed the model's {longest} positions"
        )


def _dropout(model: PreTrainedModel) -> bool:
    return any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules()) or any(
        (getattr(model.config, key, 0) or 0) > 0 for key in ("attention_dropout", "hidden_dropout", "resid_pdrop")
    )
