"""What a recipe will cost, before anything is loaded: updates, tokens, memory.

Tokens are upper bounds (a response may end early). Memory is of one process that holds everything: weights
and gradients in the recipe's dtype, AdamW's two moments in the same, and the largest single tensor of an
update, which is the logits of a micro-batch. Activations are left out; they depend on the shape of the
model and on gradient checkpointing. Free of torch: parameters are counted from the headers of safetensors
files, or read off a name such as ``Qwen3-4B``.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from parallel_r1.config import Recipe, RLStage, SFTStage
from parallel_r1.preflight import model_folder

_SIZE_IN_NAME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z])", re.IGNORECASE)
_BYTES = {"float32": 4, "bfloat16": 2}
_COPIES = 4
"""Weights, gradients, two moments."""
_USUAL_VOCABULARY = 151_936


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage. ``tokens``: at most so many are trained on (SFT) or sampled and trained on (RL)."""

    stage: str
    kind: str
    updates: int
    rollouts: int
    tokens: int
    logits_gib: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A whole recipe. ``parameters`` and ``model_gib`` are None where the model cannot be sized from here."""

    parameters: int | None
    model_gib: float | None
    stages: tuple[StageCost, ...]
    eval_responses: int
    """Per evaluated checkpoint, over all modes."""

    def lines(self) -> Iterator[str]:
        """What to tell a user."""
        if self.parameters is None:
            yield "model: of unknown size from here (not on this machine, and none in its name)"
        else:
            size = f"{self.parameters / 1e6:,.1f} M parameters"
            yield f"model: {size}; weights, gradients and AdamW {self.model_gib:.2f} GiB"
        for stage in self.stages:
            rollouts = f", {stage.rollouts:,} rollouts" if stage.rollouts else ""
            yield (
                f"{stage.stage} ({stage.kind}): {stage.updates:,} updates{rollouts}, at most {stage.tokens:,} tokens; "
                f"logits of a micro-batch at most {stage.logits_gib:.2f} GiB"
            )
        yield f"evaluation: {self.eval_responses:,} responses per checkpoint"


def estimate(recipe: Recipe) -> Cost:
    """The cost of a recipe.

    Raises:
        RecipeError: a model path with nothing usable behind it.
    """
    parameters, vocabulary = model_size(recipe.model)
    width = _BYTES[recipe.dtype]
    stages = tuple(_stage_cost(recipe, stage, vocabulary, width) for stage in recipe.stages)
    sets = recipe.evaluate.sets
    responses = sum(where.num * recipe.evaluate.samples_of(where) for where in sets) * len(recipe.evaluate.modes)
    gib = None if parameters is None else _COPIES * width * parameters / 2**30
    return Cost(parameters, gib, stages, responses)


def _stage_cost(recipe: Recipe, stage: SFTStage | RLStage, vocabulary: int, width: int) -> StageCost:
    if isinstance(stage, SFTStage):
        rows = stage.epochs * sum(source.texts or source.num for source in stage.data)
        updates, rollouts, longest = -(-rows // stage.batch_size), 0, stage.max_length
        tokens = rows * longest
    else:
        longest = recipe.stage_engine(stage).max_response_tokens
        updates, rollouts = stage.steps * stage.updates_per_step, stage.steps * stage.prompts_per_step * stage.samples
        tokens = rollouts * longest
    logits = stage.micro_batch * longest * vocabulary * width / 2**30
    return StageCost(stage.name, stage.kind, updates, rollouts, tokens, logits)


def model_size(name: str) -> tuple[int | None, int]:
    """(parameters, vocabulary) of a model; the usual vocabulary where it is unknown."""
    folder = model_folder(name)
    if folder is not None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        files = sorted(folder.glob("*.safetensors"))
        vocabulary = int(config.get("vocab_size", _USUAL_VOCABULARY))
        return (sum(map(_parameters_of, files)) if files else None), vocabulary
    found = _SIZE_IN_NAME.findall(name.replace("-", " ").replace("_", " "))
    if not found:
        return None, _USUAL_VOCABULARY
    number, unit = found[-1]
    return round(float(number) * (1e9 if unit.upper() == "B" else 1e6)), _USUAL_VOCABULARY


def _parameters_of(path: Path) -> int:
    """Elements of all tensors of a safetensors file, from its header."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
