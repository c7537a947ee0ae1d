"""Evaluate one model: every set, every decoding mode, the same problems and seeds at every stage.

A part is one (stage, set, mode). It is written beside its final place and renamed, so what is there is
whole, and a run that was interrupted decodes only what is missing. A part is taken over only if
everything that decides its content (weights, problems, prompts, engine settings, seed) is the same.

Written into ``out_dir``: ``<stage>.json`` (the rows of the result table), ``<stage>.rollouts.jsonl``
(every response), ``<stage>.problems.jsonl`` (n and c of every problem), ``parts/`` (for resuming).
Left out: choosing a best step.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallel_r1.config import EngineConfig, EvalConfig, EvalSet, PromptConfig
from parallel_r1.engine.base import Engine, Request
from parallel_r1.evaluate import metrics
from parallel_r1.evaluate.modes import eval_modes, mode_engine
from parallel_r1.evaluate.summary import result_row
from parallel_r1.models.load import Loaded
from parallel_r1.rollout.sample import prompt_template, score
from parallel_r1.rollout.summary import rollout_rows
from parallel_r1.tasks import load_task
from parallel_r1.tasks.base import Task
from parallel_r1.tasks.paths import candidates, right_candidates, right_paths, step_counts
from parallel_r1.trace.tags import parse_text
from parallel_r1.trace.tokens import encode_prompt
from parallel_r1.types import DecodeMode, Group, Problem, Rollout, Variant

EVAL_STREAM = 0x6576616C
"""Part of every seed here, so that evaluation never repeats the random numbers of training."""


@dataclass(frozen=True, slots=True)
class Part:
    """One (stage, set, mode): its responses as they stand in the JSONL, and what it cost."""

    mode: DecodeMode
    rollouts: list[dict[str, Any]]
    dropped: list[str]
    """Ids of problems whose prompt leaves no room for a response."""
    seconds: float


@dataclass(frozen=True, slots=True)
class EvalResult:
    """``rows``: one per set, as in ``summary.json``. ``rollouts``: all responses of all modes."""

    rows: list[dict[str, Any]]
    rollouts: list[dict[str, Any]] = field(default_factory=list)


def evaluate_model(
    loaded: Loaded,
    variant: Variant,
    eval_config: EvalConfig,
    prompt: PromptConfig,
    engine_config: EngineConfig,
    seed: int,
    stage: str,
    out_dir: str | os.PathLike[str] | None = None,
    *,
    step: int = 0,
    template: str | None = None,
    engine: Engine | None = None,
    log: Callable[[str], None] | None = None,
) -> EvalResult:
    """Decode all sets in all modes and sum them up.

    Args:
        engine_config: ``mode`` is replaced by each of ``eval_config.modes``.
        out_dir: the run's ``eval`` folder; None writes nothing.
        step: training steps behind the model, for the record.
        template: which prompt: None takes ``prompt.asked``, or ``prompt.plain`` for a model without
            tags (it was never asked to think in paths).
        engine: a ready backend; None decodes with the tree engine.
        log: told what is being decoded.

    Raises:
        ValueError: mode "linear" for a structured model, an unknown task, or a set in which no prompt fits.
    """
    template = template or prompt_template(prompt, loaded.tags)
    if engine is None:
        from parallel_r1.engine.tree import TreeEngine

        engine = TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, variant)
    folder = Path(out_dir) if out_dir is not None else None
    weights = weights_mark(loaded.model) if folder else ""
    rows: list[dict[str, Any]] = []
    rollouts: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    for where in eval_config.sets:
        task = load_task(where)
        problems = task.problems(where.split, where.size, where.num, seed)
        parts: dict[DecodeMode, Part] = {}
        samples = eval_config.samples_of(where)
        for mode in eval_modes(eval_config.modes, variant, loaded.tags is not None):
            config = mode_engine(engine_config, mode)
            decoder = _Decoder(loaded, engine, task, where, template, config, samples, seed, stage, step)
            key = _fingerprint(weights, template, variant, config, where, samples, seed, step)
            path = folder / "parts" / f"{_file_name(stage, where, mode)}.jsonl" if folder else None
            part = read_part(path, key, mode) if path else None
            if part is None:
                if log is not None:
                    log(f"evaluate {stage}: {where.task}/{where.size} {mode}, {len(problems)} problems")
                part = decoder.decode(problems)
                if path:
                    _write_part(path, key, part)
            parts[mode] = part
            counts += problem_counts(part, where)
            rollouts += part.rollouts
        rows.append(result_row(stage, where, parts, problems, eval_config, seed))
    if folder:
        _write_lines(folder / f"{stage}.rollouts.jsonl", rollouts)
        _write_lines(folder / f"{stage}.problems.jsonl", counts)
        _write_text(folder / f"{stage}.json", json.dumps(rows, indent=2) + "\n")
    return EvalResult(rows, rollouts)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Decodes and judges one part."""

    loaded: Loaded
    engine: Engine
    task: Task
    where: EvalSet
    template: str
    config: EngineConfig
    samples: int
    seed: int
    stage: str
    step: int

    def decode(self, problems: Sequence[Problem]) -> Part:
        started = time.perf_counter()
        limit = getattr(getattr(self.loaded.model, "config", None), "max_position_embeddings", None)
        room = limit - self.config.max_response_tokens if limit else None
        requests: list[Request] = []
        owners: list[Problem] = []
        dropped: list[str] = []
        for index, problem in enumerate(problems):
            ids = tuple(encode_prompt(self.loaded.tokenizer, self.template, problem.question, self.loaded.tags))
            if room is not None and len(ids) > room:
                dropped.append(problem.id)
                continue
            owners.append(problem)
            requests += [Request(problem.id, ids, (self.seed, EVAL_STREAM, index, s)) for s in range(self.samples)]
        if not requests:
            raise ValueError(
                f"evaluate.sets: all {len(dropped)} prompts of {self.where.task}/{self.where.size} are longer than the "
                f"{room} tokens that engine.max_response_tokens = {self.config.max_response_tokens} leaves; lower it"
            )
        done = self.engine.generate(requests, self.config)
        records = [
            record
            for problem, start in zip(owners, range(0, len(done), self.samples), strict=True)
            for record in self._records(problem, done[start : start + self.samples])
        ]
        return Part(self.config.mode, records, dropped, time.perf_counter() - started)

    def _records(self, problem: Problem, rollouts: Sequence[Rollout]) -> Iterator[dict[str, Any]]:
        """The lines of one problem: its responses as training stores them, and the figures that need a trace."""
        tokenizer, tags = self.loaded.tokenizer, self.loaded.tags
        members = tuple(score(rollout, problem, self.task, tokenizer, tags) for rollout in rollouts)
        group = Group(problem, members)
        for row, member in zip(rollout_rows([group], self.stage, self.step, self.config.mode), members, strict=True):
            trace = parse_text(member.text, member.rollout.truncated)
            distinct = [metrics.path_distinctness([str(p.content) for p in block.paths]) for block in trace.blocks]
            tried = candidates(problem, trace)
            length = len(member.text) if tags is None else member.rollout.total_tokens
            yield {
                **row, "split": self.where.split, "seed": list(member.rollout.seed), "reward": None, "reward_parts": {},
                "block_positions": metrics.block_positions(member.trace, length),
                "path_right": right_paths(problem, trace), "distinctness": metrics.mean(distinct),
                "attempts": len(tried), "right_attempts": right_candidates(problem, tried),
                "steps": list(step_counts(problem, tried)),
            }  # fmt: skip


def problem_counts(part: Part, where: EvalSet) -> list[dict[str, Any]]:
    """n samples and c right ones of every problem of a part, in order."""
    found: dict[str, list[bool]] = {}
    for row in part.rollouts:
        found.setdefault(row["problem_id"], []).append(row["verdict"]["outcome"] == "right")
    return [
        {"task": where.task, "size": where.size, "split": where.split, "mode": part.mode,
         "problem_id": problem, "n": len(flags), "c": sum(flags)}
        for problem, flags in found.items()
    ]  # fmt: skip


def weights_mark(model: Any) -> str:
    """A short hash that changes when weights do: sums and first values of every parameter."""
    digest = hashlib.sha256()
    for name, parameter in getattr(model, "named_parameters", lambda: ())():
        flat = parameter.detach().flatten()
        digest.update(f"{name}{tuple(parameter.shape)}{flat.double().sum().item()!r}{flat[:8].tolist()}".encode())
    return digest.hexdigest()[:16]


def _fingerprint(
    weights: str,
    template: str,
    variant: Variant,
    config: EngineConfig,
    where: EvalSet,
    samples: int,
    seed: int,
    step: int,
) -> str:
    settings = [weights, template, variant, config.model_dump(), where.model_dump(), samples, seed, step]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _file_name(stage: str, where: EvalSet, mode: str) -> str:
    """Readable, and distinct for sets that differ in anything."""
    mark = hashlib.sha256(where.model_dump_json().encode()).hexdigest()[:6]
    return f"{stage}.{where.task}-{where.size}-{where.split}-{mark}.{mode}"


def read_part(path: Path, key: str, mode: DecodeMode) -> Part | None:
    """A part that was written before with the same settings, or None."""
    if not path.is_file():
        return None
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    found: Mapping[str, Any] = json.loads(head)
    if found.get("key") != key:
        return None
    return Part(mode, [json.loads(line) for line in lines], list(found["dropped"]), float(found["seconds"]))


def _write_part(path: Path, key: str, part: Part) -> None:
    _write_lines(path, [{"key": key, "dropped": part.dropped, "seconds": part.seconds}, *part.rollouts])


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    _write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _write_text(path: Path, text: str) -> None:
    """Write aside and rename: a file under its own name is always whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    with aside.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    aside.replace(path)
