"""What a recipe may say, as strict pydantic models. Imports no torch, so a wrong recipe fails in a second.

One recipe describes one run: a model, a variant, prompt templates, the decoding engine, the stages
in order and how each checkpoint is evaluated. An unknown key is an error that names the nearest
right one; cross-field sums (batch sizes that must divide, budgets that must fit) are checked here
and nowhere else. Sizes of training batches are in prompts, as the paper counts (SPEC section 4);
`parallel_r1.train.grpo` maps them to TRL's, which count completions.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from parallel_r1.types import DecodeMode, Size, Split, Variant

PositiveInt = Annotated[int, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
MAX_PATHS = 8
"""Paths of one block; the numbers up to here can be written after ``<Parallel>``."""
RESERVED = ("base", "eval", "rollouts")
"""Names in a run directory that no stage may take."""
_FILE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


class Strict(BaseModel):
    """Base of every section: frozen; an unknown key, a wrong type and NaN are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataSource(Strict):
    """Problems of one task."""

    task: str
    """countdown | chain | serial | gsm8k | math | dapo ... (see parallel_r1.tasks)"""
    size: Size = "easy"
    split: Split = "train"
    num: PositiveInt = 1000
    """Number of distinct problems; at most this many for tasks that read data."""
    texts: PositiveInt | None = None
    """SFT on generated tasks: number of texts written, cycling over the problems (default: one each)."""
    widths: list[Annotated[int, Field(ge=1, le=MAX_PATHS)]] | None = Field(default=None, min_length=1)
    """SFT on generated tasks: numbers of paths to draw from (default: the stage's min_paths to max_paths)."""
    path: str | None = None
    """Parquet or JSONL file, or hub name, for tasks that read data."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Extra settings of a task that reads data: ``question`` and ``answer`` name columns, ``max_steps`` of gsm8k."""


class PromptConfig(Strict):
    """Templates around a question; ``{question}`` is replaced. Saved with every checkpoint."""

    parallel: str = "think in paths: {question}\n"
    """Asks for parallel thinking: cold start, RL and evaluation use this one."""
    plain: str = "{question}\n"
    """Without the request: pre-training and the sequential baseline."""
    ask: Literal["parallel", "plain"] = "parallel"
    """Which of the two a model with tags is asked with; "plain": it has to fork without being asked to."""

    @model_validator(mode="after")
    def _has_slot(self) -> PromptConfig:
        for key in ("parallel", "plain"):
            if getattr(self, key).count("{question}") != 1:
                raise ValueError(f"prompt.{key} must contain {{question}} exactly once; got {getattr(self, key)!r}")
        return self

    @property
    def asked(self) -> str:
        """The template of a model with tags: in cold start, RL and evaluation."""
        return self.parallel if self.ask == "parallel" else self.plain


def _paths(value: Any) -> Any:
    if value != "auto" and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PATHS):
        raise ValueError(f"use a number from 1 to {MAX_PATHS}, or 'auto' to let the model decide")
    return value


class EngineConfig(Strict):
    """How responses are decoded. Saved with every checkpoint and read back by eval and generate."""

    backend: Literal["tree"] = "tree"
    mode: DecodeMode = "forked"
    paths: Annotated[int | Literal["auto"], BeforeValidator(_paths)] = 4
    """Paths per block; "auto": the model says how many, up to ``max_paths``, right after ``<Parallel>``."""
    max_paths: Annotated[int, Field(ge=1, le=MAX_PATHS)] = 4
    """Most paths of a block with paths = "auto"; more is forbidden when the number is sampled."""
    counted: bool = False
    """A block names the number of its paths right after ``<Parallel>``: sampled with paths = "auto", else inserted."""
    max_blocks: Annotated[int, Field(ge=0)] = 2
    max_response_tokens: PositiveInt = 320
    """All tokens of a response, paths and tags included."""
    path_budget: PositiveInt = 64
    """Tokens of one path, its tags included; a longer path is closed by force."""
    early_join: Share = 1.0
    """Share of a block's paths after which the open ones are closed by force; 1 waits for all."""
    answer_reserve: PositiveInt = 64
    """Tokens kept free for summary and answer: no block opens when it could not be finished."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """0 is greedy (evaluation only)."""
    top_p: Share = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 keeps every token."""
    constraints: bool = True
    """Forbid tags where the grammar does not allow them; off is a measuring mode."""
    force_fork: bool = False
    """Begin every response with a block: the first ``<Parallel>`` is inserted, not sampled."""
    max_rows: PositiveInt = 256
    """Rollouts decoded at once; more wait their turn."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """Memory for keys and values in GiB (default: half of what is free); fewer rollouts at once if they need more."""

    @model_validator(mode="after")
    def _fits(self) -> EngineConfig:
        if self.paths == "auto" and not self.counted:
            raise ValueError("engine.paths = 'auto' needs counted = true: the model writes the number of paths")
        least = 2 + self.counted + 3 * self.most_paths + self.answer_reserve
        if self.mode == "forked" and self.max_blocks and self.max_response_tokens < least:
            raise ValueError(
                f"engine.max_response_tokens = {self.max_response_tokens} leaves no room for one block of "
                f"{self.most_paths} paths and answer_reserve = {self.answer_reserve}; use at least {least}"
            )
        if self.force_fork and (self.mode != "forked" or not self.max_blocks):
            raise ValueError("engine.force_fork = true needs mode = 'forked' and max_blocks >= 1: nothing else forks")
        return self

    @property
    def most_paths(self) -> int:
        """The most paths that a block may have."""
        return self.max_paths if self.paths == "auto" else self.paths


class BonusConfig(Strict):
    """What a right answer with a good block earns on top: ``min(weight * value, cap)``, value in [0, 1]."""

    part: Literal["critical_path", "diversity"]
    """critical_path: 1 - critical tokens / all tokens. diversity: 1 - mean pairwise BLEU between paths of a block."""
    weight: Annotated[float, Field(gt=0)] = 0.5
    cap: Annotated[float, Field(gt=0)] | None = None
    when: Literal["right", "always"] = "right"

    @model_validator(mode="after")
    def _bounded_and_gated(self) -> BonusConfig:
        if self.cap is None:
            raise ValueError(
                f"bonus {self.part}: cap is missing; without a bound a model earns more by form than by answers; "
                "use cap = 0.2"
            )
        if self.when != "right":
            raise ValueError(
                f"bonus {self.part}: when = {self.when!r} also pays wrong answers, and a short or varied wrong answer "
                "is easier to learn than a right one (runs shrank to answers of five tokens); use when = 'right'"
            )
        return self


class RewardConfig(Strict):
    """Paper section on rewards; `parallel_r1.rewards`. Totals keep best wrong < worst right."""

    schedule: Literal["accuracy", "parallel_and_accuracy", "alternating"] = "accuracy"
    window: PositiveInt = 10
    """alternating: length of one period in steps."""
    parallel_share: Annotated[float, Field(ge=0, le=1)] = 0.2
    """alternating: share of the window that pays the tiered reward."""
    bonus: Annotated[float, Field(ge=0)] = 0.2
    """alternating: what a right answer with a good block earns on top."""
    order: Literal["accuracy_first", "parallel_first"] = "accuracy_first"
    release_compat: bool = False
    """A right answer with a malformed block earns -1 in tiered steps, as the paper's release does."""
    bonuses: list[BonusConfig] = Field(default_factory=list)
    """Paid in every phase, on right answers alone."""

    @model_validator(mode="after")
    def _one_of_each(self) -> RewardConfig:
        names = [bonus.part for bonus in self.bonuses]
        if len(set(names)) < len(names):
            raise ValueError(f"reward.bonuses names {names}: give each part once")
        return self


class SFTStage(Strict):
    """Supervised stage: cold start, or pre-training from a random model (``format = "base"``)."""

    kind: Literal["sft"]
    name: str
    data: list[DataSource] = Field(min_length=1)
    format: Literal["base", "trace", "linear"] = "trace"
    """base: tag-free worked text. trace: with tags. linear: the same traces, paths one after the other."""
    min_paths: Annotated[int, Field(ge=1, le=8)] = 2
    max_paths: Annotated[int, Field(ge=1, le=8)] = 4
    counted: bool = False
    """Traces name the number of paths right after ``<Parallel>``, as engine.counted and paths = "auto" need it."""
    max_blocks: PositiveInt = 2
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 64
    micro_batch: PositiveInt = 16
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.1
    weight_decay: NonNegative = 0.01
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = 0.999
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    max_length: PositiveInt = 4096
    """Longer rows are dropped, counted and listed, never cut."""
    save_every: PositiveInt = 100

    @model_validator(mode="after")
    def _sums(self) -> SFTStage:
        _divides(f"{self.name}.batch_size", self.batch_size, f"{self.name}.micro_batch", self.micro_batch)
        if self.min_paths > self.max_paths:
            raise ValueError(f"{self.name}.min_paths = {self.min_paths} exceeds max_paths = {self.max_paths}")
        return self


class RLStage(Strict):
    """GRPO on verifiable problems (SPEC sections 4 and 5)."""

    kind: Literal["rl"]
    name: str
    data: list[DataSource] = Field(min_length=1)
    steps: PositiveInt = 30
    """Rollout steps; the reward schedule counts these."""
    prompts_per_step: PositiveInt = 24
    samples: Annotated[int, Field(ge=2)] = 8
    """Rollouts per prompt: the group size G."""
    updates_per_step: PositiveInt = 1
    """Optimiser updates per rollout step; divides prompts_per_step * samples."""
    micro_batch: PositiveInt = 48
    """Completions in one forward and backward pass; divides the completions of one update."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    lr_schedule: Literal["constant", "constant_with_warmup", "cosine", "linear"] = "constant"
    weight_decay: NonNegative = 0.01
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    kl: NonNegative = 0.0
    advantage: Literal["mean_std", "mean"] = "mean_std"
    credit: Literal["response", "path"] = "response"
    """path: tokens of a path are credited with what that path found (`parallel_r1.rewards.credit`)."""
    replace_rounds: Annotated[int, Field(ge=0, le=10)] = 0
    """Dynamic sampling: how often a group without signal is drawn again with another problem, per step."""
    importance: Literal["none", "token", "sequence"] = "none"
    """Weigh by trainer over engine probability, of each token or of the whole response."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Weights above it are cut (truncated importance sampling)."""
    reward: RewardConfig = RewardConfig()
    save_every: PositiveInt = 10
    engine: dict[str, Any] = Field(default_factory=dict)
    """Overrides of ``engine`` for this stage, e.g. ``{mode = "sequential"}`` for the baseline."""

    @model_validator(mode="after")
    def _sums(self) -> RLStage:
        completions = self.prompts_per_step * self.samples
        _divides(f"{self.name}: prompts_per_step * samples", completions, "updates_per_step", self.updates_per_step)
        per_update = completions // self.updates_per_step
        _divides(f"{self.name}: completions per update", per_update, "micro_batch", self.micro_batch)
        if self.engine.get("temperature") == 0:
            raise ValueError(f"{self.name}.engine.temperature = 0 samples no variety; use 1.0")
        return self


Stage = Annotated[SFTStage | RLStage, Field(discriminator="kind")]


class EvalSet(DataSource):
    """One held-out set."""

    split: Split = "test"
    num: PositiveInt = 500
    samples: PositiveInt | None = None
    """Samples per problem of this set alone; pass@k is left out where k is larger."""


class EvalConfig(Strict):
    """How every checkpoint is evaluated (same problems, same seeds)."""

    sets: list[EvalSet] = Field(default_factory=list)
    samples: PositiveInt = 4
    """Samples per problem n; pass@k needs k <= n."""
    pass_k: list[PositiveInt] = Field(default_factory=lambda: [4])
    modes: list[DecodeMode] = Field(default_factory=lambda: ["forked", "sequential"])
    """linear is added for causal checkpoints when listed; asking it of a structured one is an error."""
    base: bool = True
    """Also evaluate the model the run starts from."""

    @model_validator(mode="after")
    def _k_fits(self) -> EvalConfig:
        for k in self.pass_k:
            if k > self.samples:
                raise ValueError(f"evaluate.pass_k = {k} needs samples >= {k}; samples = {self.samples}")
        return self

    def samples_of(self, where: EvalSet) -> int:
        """Samples per problem of one set."""
        return where.samples or self.samples


class Recipe(Strict):
    """One run from a base model to an evaluated one."""

    name: str
    model: str = "tiny"
    """Folder, hub name, GGUF file, a built-in name (tiny, tiny-parallel) or ``tiny-scratch`` (random weights)."""
    variant: Variant = "structured"
    seed: int = 0
    dtype: Literal["float32", "bfloat16"] = "float32"
    prompt: PromptConfig = PromptConfig()
    engine: EngineConfig = EngineConfig()
    stages: list[Stage] = Field(min_length=1)
    evaluate: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def _cross(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"stages need distinct names; got {names}")
        for key, name in [("name", self.name), *((f"stages.{i}.name", name) for i, name in enumerate(names))]:
            if not _FILE_NAME.fullmatch(name) or (key != "name" and name in RESERVED):
                raise ValueError(
                    f"{key} = {name!r} becomes a folder of the run: use letters, digits, '-', '_' and '.', "
                    f"and none of {', '.join(RESERVED)}"
                )
        modes = {self.engine.mode, *self.evaluate.modes, *(self.stage_engine(s).mode for s in self.stages)}
        if "linear" in modes and self.variant == "structured":
            raise ValueError("mode 'linear' needs variant = 'causal': a plain decoder cannot hide sibling paths")
        return self

    def stage_engine(self, stage: SFTStage | RLStage) -> EngineConfig:
        """The engine of one stage: the recipe's, with the stage's overrides."""
        overrides = stage.engine if isinstance(stage, RLStage) else {}
        try:
            return EngineConfig.model_validate({**self.engine.model_dump(), **overrides})
        except ValidationError as error:
            lines = [explain(problem, ("engine",)) for problem in error.errors()]
            raise ValueError(f"stages.{stage.name}: " + "; ".join(lines)) from error


def _divides(whole_key: str, whole: int, part_key: str, part: int) -> None:
    if whole % part:
        near = next(n for n in range(part, 0, -1) if whole % n == 0)
        raise ValueError(f"{part_key} = {part} does not divide {whole_key} = {whole}; try {part_key} = {near}")


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """Field names allowed at a place of a recipe, for "did you mean"."""
    section: type[BaseModel] = Recipe
    for part in location:
        if part in ("sft", "rl"):
            section = SFTStage if part == "sft" else RLStage
            continue
        nested = {
            "prompt": PromptConfig, "engine": EngineConfig, "evaluate": EvalConfig,
            "reward": RewardConfig, "bonuses": BonusConfig, "data": DataSource, "sets": EvalSet,
        }  # fmt: skip
        section = nested.get(str(part), section)
    return list(section.model_fields)


def explain(problem: Any, where: tuple[str, ...] = ()) -> str:
    """One error of pydantic as one line: key, value, fix. ``where`` is put before its place."""
    location = (*where, *problem["loc"])
    key = ".".join(str(part) for part in location if part not in ("sft", "rl")) or "recipe"
    if problem["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        inner = problem["input"] if not near and len(location) == 1 else None
        stage_keys = [*SFTStage.model_fields, *RLStage.model_fields]
        for part in inner if isinstance(inner, dict) else ():
            if close := difflib.get_close_matches(str(part), stage_keys, n=1, cutoff=0.7):
                hint = f"did you mean {close[0]!r} of a stage (stages.NAME.{close[0]})?"
        return f"{key} = {problem['input']!r}: unknown key; {hint}"
    if problem["type"] == "missing":
        return f"{key}: missing; add it"
    message = problem["msg"].removeprefix("Value error, ")
    if not location:
        return message
    shown = problem["input"] if not isinstance(problem["input"], dict | list) else None
    return f"{key} = {shown!r}: {message}" if shown is not None else f"{key}: {message}"
