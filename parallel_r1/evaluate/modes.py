"""Decoding one checkpoint in several ways on the same problems and seeds.

- `forked`: the engine forks. `sequential`: the same prompt, ``<Parallel>`` is forbidden. `linear`: a
  plain decoder, the model writes its own tags (causal variant only).
- `well_formedness` with constraints on and off: with them on a trace can hardly fail.
- What paths are worth: `parallel_r1.evaluate.intervene`.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Engine, Request
from parallel_r1.evaluate import metrics
from parallel_r1.trace.tags import TagIds, parse_ids
from parallel_r1.types import DecodeMode, Rollout, Variant


def eval_modes(modes: Sequence[DecodeMode], variant: Variant, has_tags: bool) -> list[DecodeMode]:
    """The modes that a model can be decoded in. A model without tags is decoded sequentially.

    Raises:
        ValueError: "linear" for a structured model (a plain decoder hides no paths), or no mode at all.
    """
    if not modes:
        raise ValueError("evaluate.modes = []: name at least one of forked, sequential, linear")
    if "linear" in modes and variant == "structured":
        raise ValueError(
            "evaluate.modes holds 'linear', which needs variant = 'causal': a plain decoder hides no paths; remove it"
        )
    return list(dict.fromkeys(modes)) if has_tags else ["sequential"]


def mode_engine(config: EngineConfig, mode: DecodeMode, **changes: object) -> EngineConfig:
    """The engine settings of one mode."""
    return EngineConfig.model_validate({**config.model_dump(), "mode": mode, **changes})


def decode_modes(
    engine: Engine, requests: Sequence[Request], config: EngineConfig, modes: Sequence[DecodeMode]
) -> dict[DecodeMode, list[Rollout]]:
    """The same requests, seeds included, decoded once per mode.

    Raises:
        ValueError: as `eval_modes`.
    """
    wanted = eval_modes(modes, engine.variant, has_tags=True)
    return {mode: engine.generate(requests, mode_engine(config, mode)) for mode in wanted}


def well_formedness(
    engine: Engine, requests: Sequence[Request], config: EngineConfig, tags: TagIds
) -> dict[str, float | None]:
    """Share of fault-free traces among forked responses with a block: ``{"on": .., "off": ..}``.

    "on" and "off" are the constraints of the sampler. None where no response had a block. Traces that
    a limit cut count as faulty.
    """
    found: dict[str, float | None] = {}
    for name, constraints in (("on", True), ("off", False)):
        rollouts = engine.generate(requests, mode_engine(config, "forked", constraints=constraints))
        found[name] = metrics.well_formed_share([parse_ids(r.response_ids, tags, r.truncated) for r in rollouts])
    return found
