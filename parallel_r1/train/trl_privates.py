"""Every private of TRL's GRPO trainer that this project touches, in one place (TRL 1.16).

    _generate_and_score_completions   extended: advantages of shape (B, T), more columns per token
    _prepare_inputs, _buffered_inputs, _step   extended: micro-batches without waste
    _compute_loss                     extended: measures, and shows each micro-batch to the guard
    _get_per_token_logps_and_entropies  listened to: the trainer's log-probs; importance weights enter here,
                                      before _compute_loss reads the advantages
    _get_output_dir, _save_checkpoint, _send_telemetry   replaced, in `parallel_r1.train.checkpoint`
    add_fused_lm_head (trl.trainer.utils), trainer.ref_model, trainer.beta   for the KL reference

``tests/train/test_trl_privates.py`` says what each is expected to do, so that a new TRL fails there
and not in a training run.

Legend: B completions of a rollout on this process, G samples of a group, T padded response tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import PreTrainedModel
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from parallel_r1.config import RLStage
from parallel_r1.rewards.credit import Credit, Scale, token_advantages
from parallel_r1.rollout.sample import RowRollouts, later_paths, reach
from parallel_r1.trace.tags import TagIds
from parallel_r1.train.checkpoint import WholeCheckpoints
from parallel_r1.train.guards import GradientGuard
from parallel_r1.types import Group, Variant


@dataclass(slots=True)
class Gap:
    """Running |trainer - engine| of log-probs."""

    total: float = 0.0
    largest: float = 0.0
    num: int = 0

    def add(self, gaps: torch.Tensor) -> None:
        if gaps.numel():
            self.total += float(gaps.sum())
            self.largest = max(self.largest, float(gaps.max()))
            self.num += gaps.numel()

    def merge(self, other: Gap) -> None:
        self.total, self.num = self.total + other.total, self.num + other.num
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float | None:
        return self.total / self.num if self.num else None


@dataclass(slots=True)
class Measured:
    """What one rollout step's updates showed on this process, over the responses that they trained on."""

    exact: Gap = field(default_factory=Gap)
    """Over sampled tokens that engine and trainer must score alike."""
    by_path: dict[int, Gap] = field(default_factory=dict)
    """The other sampled tokens (causal: later paths), by path number from 2."""
    log_ratios: list[torch.Tensor] = field(default_factory=list)
    """Trainer minus engine log-prob of the tokens in ``exact``."""

    def merge(self, other: Measured) -> None:
        self.exact.merge(other.exact)
        for number, gap in other.by_path.items():
            self.by_path.setdefault(number, Gap()).merge(gap)
        self.log_ratios += other.log_ratios

    def ratio_quantiles(self) -> dict[str, float]:
        """Quantiles of trainer over engine probability, token by token; empty before anything was measured."""
        if not any(part.numel() for part in self.log_ratios):
            return {}
        ratios = torch.cat(self.log_ratios).double().exp().sort().values
        last = len(ratios) - 1
        return {str(q): float(ratios[round(q * last)]) for q in (0.0, 0.01, 0.5, 0.99, 1.0)}


def fold_advantages(
    groups: Sequence[Group], num_tokens: int, tags: TagIds | None, credit: Credit, scale: Scale
) -> torch.Tensor:
    """The advantages of all responses, (B, T): `token_advantages` times `reach`, 0 on padding.

    With the weight the policy that is trained is the unconstrained model, for which a forbidden choice
    ends the response with advantage 0. Without it forbidden tags would gain mass from negative
    advantages; and what a model writes once it was kept from what it wanted, which it would never have
    written by itself, would drown everything else in noise.
    """
    folded = torch.zeros(sum(len(group.members) for group in groups), num_tokens)
    row = 0
    for group in groups:
        for member, advantages in zip(group.members, token_advantages(group, credit, scale), strict=True):
            folded[row, : len(advantages)] = torch.from_numpy(advantages * reach(member.rollout, tags))
            row += 1
    return folded


def without_padding_columns(inputs: dict[str, Any]) -> dict[str, Any]:
    """A micro-batch without the columns that are padding in all its rows.

    TRL pads a whole rollout to its longest prompt and response; a micro-batch seldom needs that much.
    """
    prompt_columns = inputs["prompt_mask"].any(0)
    columns = inputs["completion_mask"].any(0)
    start = int(prompt_columns.int().argmax())  # prompts are padded on the left, responses on the right
    end = int(columns.sum())
    cut = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and value.ndim == 2:
            cut[name] = value[:, start:] if name in ("prompt_ids", "prompt_mask") else value[:, :end]
    return cut


def repack(batches: Sequence[dict[str, Any]], at_least: int) -> list[dict[str, Any]]:
    """The micro-batches of one update, as many as before, with less to compute and the same gradient.

    Rows of like length come together, and rows whose advantages are all zero are left out: they have
    no gradient, and their tokens are already counted in ``num_items_in_batch``. ``at_least`` so many
    rows are kept.
    """
    rows = {
        name: torch.cat([batch[name] for batch in batches])
        for name, value in batches[0].items()
        if isinstance(value, torch.Tensor) and value.ndim
    }
    order = rows["completion_mask"].sum(1).argsort(stable=True)
    kept = _has_gradient(rows["advantages"])[order]
    spare = max(at_least - int(kept.sum()), 0)
    kept[(~kept).nonzero()[:spare]] = True
    order = order[kept]
    return [
        {**batches[0], **{name: value[piece] for name, value in rows.items()}}
        for piece in order.tensor_split(len(batches))
    ]


def _has_gradient(advantages: torch.Tensor) -> torch.Tensor:
    return (advantages != 0).any(1)


class FoldingGRPOTrainer(WholeCheckpoints, GRPOTrainer):
    """`GRPOTrainer` over `RowRollouts`: per-token advantages, measurements, whole checkpoints."""

    rollout_func: RowRollouts
    guard: GradientGuard
    _variant: Variant
    _tags: TagIds | None
    _stage: RLStage

    def set_up(self, stage: RLStage, variant: Variant, tags: TagIds | None, reference: PreTrainedModel | None) -> None:
        """Called once after the trainer is made. ``reference``: the model as the stage found it, if stage.kl > 0."""
        self._stage, self._variant, self._tags = stage, variant, tags
        self.measured = Measured()
        self._seen: torch.Tensor | None = None
        self._current: dict[str, Any] | None = None
        if reference is not None:
            # TRL would load the reference from the model's name; the policy may have no folder of its own.
            add_fused_lm_head(reference, temperature=self.temperature)
            self.ref_model = self.accelerator.prepare_model(reference, evaluation_mode=True)
            self.beta = stage.kl

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches: Any = self._buffered_inputs
        if batches is before:
            return inputs
        per_update = self.args.gradient_accumulation_steps
        updates = [batches[i : i + per_update] for i in range(0, len(batches), per_update)]
        self._buffered_inputs = [batch for update in updates for batch in repack(update, self._rows_kept(update))]
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _rows_kept(self, update: Sequence[dict[str, Any]]) -> int:
        """How many rows of an update are computed on: as many on every process, and one per micro-batch."""
        if self.beta != 0.0:  # every response has a gradient
            return sum(len(batch["advantages"]) for batch in update)
        useful = sum(_has_gradient(batch["advantages"]).sum() for batch in update)
        return max(int(self.accelerator.gather(useful).max()), len(update))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        groups = self.rollout_func.groups
        num_tokens = output["completion_ids"].shape[1]
        folded = fold_advantages(groups, num_tokens, self._tags, self._stage.credit, self._stage.advantage)
        output["advantages"] = folded.to(output["advantages"].device)
        later = torch.zeros(output["completion_ids"].shape, dtype=torch.long)
        for row, member in enumerate(member for group in groups for member in group.members):
            marks = later_paths(member, self._variant)
            later[row, : len(marks)] = torch.tensor(marks)
        output["later_path"] = later.to(output["completion_ids"].device)
        return output

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        self._seen = found[0].detach()
        if self._current is not None and self._stage.importance != "none":
            log_ratio = self._log_ratio(self._current).where(_exact(self._current), 0.0)
            weights = importance_weights(log_ratio, self._stage.importance, self._stage.importance_cap)
            self._current["advantages"] = self._current["advantages"] * weights
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        self._current = inputs = without_padding_columns(inputs)
        self.guard.see(inputs)
        loss = super()._compute_loss(model, inputs)
        self._current = None
        self._measure(inputs)
        return loss

    def _log_ratio(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Trainer minus engine log-prob at sampling time, (B, T)."""
        assert self._seen is not None
        # After the first update of a step the weights have moved; TRL kept what they said before.
        return inputs.get("old_per_token_logps", self._seen) - inputs["sampling_per_token_logps"]

    def _measure(self, inputs: dict[str, Any]) -> None:
        """Add the gaps of a micro-batch, by region, to ``measured``."""
        log_ratio, sampled, later = self._log_ratio(inputs), _sampled(inputs), inputs["later_path"]
        exact = log_ratio[_exact(inputs)]
        self.measured.exact.add(exact.abs())
        self.measured.log_ratios.append(exact.cpu())
        for number in later[sampled].unique().tolist():
            if number:
                gaps = log_ratio[sampled & (later == number)].abs()
                self.measured.by_path.setdefault(number, Gap()).add(gaps)


def _exact(inputs: dict[str, Any]) -> torch.Tensor:
    """The sampled tokens that engine and trainer must score alike, (B, T)."""
    return _sampled(inputs) & (inputs["later_path"] == 0)


def _sampled(inputs: dict[str, Any]) -> torch.Tensor:
    return (inputs["completion_mask"] * inputs["tool_mask"]).bool()


def importance_weights(log_ratio: torch.Tensor, level: Literal["token", "sequence"], cap: float) -> torch.Tensor:
    """Truncated importance weights from log ratios (B, T): (B, T) per token, (B, 1) per response.

    TRL corrects for another sampler only where it owns it (``use_vllm``); this is the same correction
    (truncated importance sampling, Yao et al. 2025) for the engine here.
    """
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True)
    return log_ratio.exp().clamp(max=cap)


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """The model as it is now, for a KL reference. Made before a trainer patches ``forward``."""
    reference = copy.deepcopy(model)
    return reference.requires_grad_(False).eval()
