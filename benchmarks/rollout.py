"""Rollout speed against the ways people roll out: same weights, same prompts, same forced shapes.

    python benchmarks/rollout.py --model tiny-parallel --json runs/rollout_tiny.json     # all cells: long
    python benchmarks/rollout.py --rows 8 --paths 4 --share 0.8 --length 32 --rounds 1   # one cell, seconds

A response is one block (K paths of equal length) and the rest of its tokens after it; no tag and no end of text
is sampled, so that every arm decodes the same number of tokens. Arms: *structured*, *causal* (this
engine), *generate* (transformers, one request per path, then the joined text read again), *generate_batch*
(transformers' continuous batching, the same requests), *vllm* (the same requests; ``--vllm-python`` names an
interpreter that has it) and *sequential* (the same number of tokens in one chain, this engine). Arms run in
turns; figures are medians of rounds. An arm that cannot run says why. Log-probs are returned by this
engine's arms only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.models.load import Loaded, load_model
from parallel_r1.run_dir import write_json
from parallel_r1.trace.tags import TagIds
from parallel_r1.trace.tokens import add_tags
from parallel_r1.types import Variant

PROMPT_TOKENS = 32
ARMS = ("structured", "causal", "generate", "generate_batch", "vllm", "sequential")
VLLM_WORKER = Path(__file__).with_name("rollout_vllm.py")


@dataclass(frozen=True)
class Cell:
    """One shape of workload."""

    rows: int
    paths: int
    length: int
    """Tokens of a path, tags included."""
    share: float
    """Share of a response's tokens that stand in paths."""

    @property
    def total(self) -> int:
        """Tokens of one response."""
        return round(self.paths * self.length / self.share)

    @property
    def critical(self) -> int:
        """Tokens of its longest chain."""
        return self.total - (self.paths - 1) * self.length


@dataclass
class Run:
    """One run of one arm."""

    seconds: float
    latencies: list[float]
    prefilled: int
    peak_mb: float


class Bench:
    """The arms on one model."""

    def __init__(self, name: str, dtype: str, vllm_python: str | None) -> None:
        self.loaded: Loaded = load_model(name, dtype)  # pyright: ignore[reportArgumentType]
        self.model, self.tokenizer = self.loaded.model, self.loaded.tokenizer
        self.tags: TagIds = self.loaded.tags or add_tags(self.model, self.tokenizer)
        self.model.config.max_position_embeddings = 1 << 20  # speed, not sense: longer than the model was made for
        self.vllm = None
        if vllm_python:
            self.vllm = Worker([vllm_python, str(VLLM_WORKER), name, dtype])

    def prompts(self, cell: Cell) -> list[tuple[int, ...]]:
        """Distinct prompts of equal length, of ordinary ids."""
        base = [i for i in range(3, len(self.tokenizer)) if i not in self.tags.all][:1000]
        return [tuple(base[(r * 7 + i * 3) % len(base)] for i in range(PROMPT_TOKENS)) for r in range(cell.rows)]

    def run(self, arm: str, cell: Cell) -> Run:
        """Run one arm once.

        Raises:
            RuntimeError: the arm cannot run here.
        """
        if arm in ("structured", "causal", "sequential"):
            variant: Variant = "causal" if arm == "causal" else "structured"
            return self._ours(cell, variant, sequential=arm == "sequential")
        if arm == "vllm":
            if self.vllm is None:
                raise RuntimeError("no interpreter with vllm was given (--vllm-python)")
            decode: Callable[[list[list[int]], int], list[list[int]]] = self.vllm.decode
        else:
            decode = self._generate if arm == "generate" else self._generate_batch
        return self._apart(cell, decode)

    def _ours(self, cell: Cell, variant: Variant, sequential: bool) -> Run:
        config = EngineConfig(
            mode="sequential" if sequential else "forked", paths=cell.paths, max_blocks=1, force_fork=not sequential,
            path_budget=cell.length, max_response_tokens=cell.total, answer_reserve=1, max_rows=cell.rows,
        )  # fmt: skip
        engine = TreeEngine(self.model, self.tokenizer, self.tags, (), variant)
        latencies: list[float] = []
        with Peak() as peak, engine.session(config) as session:
            session.sampler.forbid_tags()
            start = time.perf_counter()
            for row, prompt in enumerate(self.prompts(cell)):
                session.submit(Request(str(row), prompt, (row,)))
            while session.busy:
                for done in session.step():
                    assert done.rollout.total_tokens == cell.total and done.rollout.num_blocks == (not sequential)
                    latencies.append(time.perf_counter() - start)
            seconds = time.perf_counter() - start
        counters = engine.counters
        return Run(seconds, latencies, counters.prompt_tokens + counters.reread_tokens, peak.megabytes)

    def _apart(self, cell: Cell, decode: Callable[[list[list[int]], int], list[list[int]]]) -> Run:
        """One request per path, then one per response that reads the joined text again."""
        tags, prompts = self.tags, self.prompts(cell)
        closers = [tags.parallel_close, *tags.newline, tags.summary_open]
        tail = cell.total - cell.paths * cell.length - 1 - len(closers)
        with Peak() as peak:
            start = time.perf_counter()
            opened = [[*p, tags.parallel_open, tags.path_open] for p in prompts for _ in range(cell.paths)]
            paths = decode(opened, cell.length - 2)
            joined = []
            for row, prompt in enumerate(prompts):
                mine = paths[row * cell.paths : (row + 1) * cell.paths]
                text = [t for path in mine for t in (tags.path_open, *path, tags.path_close)]
                joined.append([*prompt, tags.parallel_open, *text, *closers])
            if tail > 0:
                decode(joined, tail)
            seconds = time.perf_counter() - start
        prefilled = sum(map(len, opened)) + sum(map(len, joined))
        return Run(seconds, [seconds] * cell.rows, prefilled, peak.megabytes)

    def _generate(self, prompts: list[list[int]], num: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        model: Any = self.model
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), min_new_tokens=num, max_new_tokens=num, do_sample=True, top_k=0,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        return out[:, ids.shape[1] :].tolist()

    def _generate_batch(self, prompts: list[list[int]], num: int) -> list[list[int]]:
        from transformers import GenerationConfig

        config = GenerationConfig(max_new_tokens=num, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
        model: Any = self.model
        out = model.generate_batch(prompts, generation_config=config)
        found = [out[key].generated_tokens for key in sorted(out, key=lambda k: int(k.rsplit("_", 1)[-1]))]
        if len(found) != len(prompts) or {len(tokens) for tokens in found} != {num}:
            raise RuntimeError(f"asked for {len(prompts)} x {num} tokens, got {[len(t) for t in found][:4]} ...")
        return found


class Worker:
    """A process that decodes: one JSON object a line, to and fro."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def decode(self, prompts: list[list[int]], num: int) -> list[list[int]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "num": num}) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)["tokens"]
        raise RuntimeError(f"the vllm worker ended with code {self.process.wait()}")


class Peak:
    """The most memory this process held meanwhile, above what it held before."""

    def __enter__(self) -> Peak:
        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self._most = max(self._most, self._process.memory_info().rss)

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return (self._most - self._before) / 2**20


def roofline(dtype: torch.dtype) -> dict[str, float]:
    """Measured matrix-product rate (GFLOP/s) and read bandwidth (GB/s) of this machine."""
    a, b = torch.randn(2048, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    big = torch.randn(32_000_000)
    matrix = min(_seconds(lambda: a @ b) for _ in range(5))
    read = min(_seconds(big.sum) for _ in range(5))
    return {"gflops": 2 * 2048**3 / matrix / 1e9, "gb_per_s": big.numel() * 4 / read / 1e9}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(bench: Bench, cell: Cell, arms: list[str], rounds: int, limits: dict[str, float]) -> dict[str, Any]:
    """Medians of all arms on one cell, run in turns."""
    runs: dict[str, list[Run]] = {arm: [] for arm in arms}
    missing: dict[str, str] = {}
    for _ in range(rounds):
        for arm in arms:
            if arm not in missing:
                try:
                    runs[arm].append(bench.run(arm, cell))
                except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError, ImportError) as error:
                    missing[arm] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    weights = sum(p.numel() for p in bench.model.parameters())
    found: dict[str, Any] = {"cell": asdict(cell), "missing": missing, "arms": {}}
    for arm in arms:
        if arm in missing:
            continue
        seconds = statistics.median(run.seconds for run in runs[arm])
        latencies = sorted(latency for run in runs[arm] for latency in run.latencies)
        rate = cell.rows * cell.total / seconds
        found["arms"][arm] = {
            "tokens_per_s": rate,
            "p50_s": latencies[len(latencies) // 2],
            "p95_s": latencies[int(0.95 * (len(latencies) - 1))],
            "prefilled": runs[arm][-1].prefilled,
            "peak_mb": statistics.median(run.peak_mb for run in runs[arm]),
            "share_of_matrix_rate": rate * 2 * weights / 1e9 / limits["gflops"],
        }
    rates = {arm: figures["tokens_per_s"] for arm, figures in found["arms"].items()}
    ours = max((rates[arm] for arm in ("structured", "causal") if arm in rates), default=0.0)
    peers = [rates[arm] for arm in ("generate", "generate_batch", "vllm") if arm in rates]
    found["ours_over_generate"] = ours / rates["generate"] if "generate" in rates else None
    found["ours_over_best_peer"] = ours / max(peers) if peers else None
    if cell.rows == 1 and "sequential" in rates:
        ideal = cell.total / cell.critical
        found["latency_gain_over_ideal"] = ours / rates["sequential"] / ideal
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Rollout speed against peers.")
    parser.add_argument("--model", default="tiny-parallel")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--paths", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--share", type=float, nargs="+", default=[0.5, 0.8])
    parser.add_argument("--length", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--vllm-python", help="An interpreter that has vllm.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    bench = Bench(options.model, options.dtype, options.vllm_python)
    limits = roofline(bench.model.dtype)
    result: dict[str, Any] = {
        "model": options.model, "dtype": options.dtype, "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "cpu": platform.processor() or platform.machine(), "torch": torch.__version__, **limits, "cells": [],
    }  # fmt: skip
    print({key: value for key, value in result.items() if key != "cells"})
    for length, share, paths, rows in product(options.length, options.share, options.paths, options.rows):
        found = measure(bench, Cell(rows, paths, length, share), options.arms, options.rounds, limits)
        result["cells"].append(found)
        rates = "  ".join(f"{arm} {figures['tokens_per_s']:.0f}" for arm, figures in found["arms"].items())
        print(f"{rows} rows x {paths} paths x {length}, {share:.0%} in paths: {rates} tokens/s", end="")
        ratio = found["ours_over_best_peer"]
        print(f"; {ratio:.2f}x of the best peer" if ratio else "", flush=True)
        for arm, reason in found["missing"].items():
            print(f"    {arm}: {reason}")
        if options.json:
            write_json(options.json, result)


if __name__ == "__main__":
    main()
