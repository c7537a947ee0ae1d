"""One answer on a terminal, its paths side by side while they are decoded.

Elsewhere the answer is printed once, when it is whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from parallel_r1.config import EngineConfig, PromptConfig
from parallel_r1.engine.base import Request, TokenEvent
from parallel_r1.recipe import checked
from parallel_r1.types import Region

if TYPE_CHECKING:
    from parallel_r1.models.load import Loaded
    from parallel_r1.types import Rollout

REFRESH_SECONDS = 0.05
Item = TypeVar("Item", int, str)


@dataclass
class Part(Generic[Item]):
    """A stretch of the main chain, or a block with its paths and its summary; ids or texts as they come."""

    is_block: bool
    main: list[Item] = field(default_factory=list)
    paths: dict[int, list[Item]] = field(default_factory=dict)
    summary: list[Item] = field(default_factory=list)


class Transcript(Generic[Item]):
    """Sorts a response into parts: token ids, or bits of text."""

    def __init__(self, hidden: frozenset[int] = frozenset()) -> None:
        self.parts: list[Part[Item]] = []
        self._hidden = hidden

    def add(self: Transcript[int], event: TokenEvent) -> None:
        """Take the next token, wherever it stands. Tags and ends of text are structure, not text."""
        self.put(event.region, None if event.token_id in self._hidden else event.token_id)

    def put(self, region: Region, item: Item | None) -> None:
        """Take what comes next; None stands for structure without text."""
        if not self.parts or self.parts[-1].is_block != (region.kind != "main"):
            self.parts.append(Part(is_block=region.kind != "main"))
        part = self.parts[-1]
        if item is None or region.kind == "block":
            if region.kind == "path":
                part.paths.setdefault(region.path, [])
            return
        if region.kind == "path":
            part.paths.setdefault(region.path, []).append(item)
        else:
            (part.summary if region.kind == "summary" else part.main).append(item)

    def panels(self, decode: Callable[[Sequence[Item]], str]) -> RenderableType:
        """The response as panels: paths side by side."""
        shown: list[RenderableType] = []
        for part in self.parts:
            if not part.is_block and (text := decode(part.main).strip()):
                shown.append(Text(text))
            if part.paths:
                table = Table.grid(expand=True, padding=(0, 1))
                for _ in part.paths:
                    table.add_column(ratio=1)
                table.add_row(
                    *(
                        Panel(Text(decode(ids).strip()), title=f"path {path + 1}", border_style="cyan")
                        for path, ids in sorted(part.paths.items())
                    )
                )
                shown.append(table)
            if part.summary:
                shown.append(Panel(Text(decode(part.summary).strip()), title="summary", border_style="green"))
        return Group(*shown)

    def lines(self, decode: Callable[[Sequence[Item]], str]) -> list[str]:
        """The same as plain lines."""
        found: list[str] = []
        for part in self.parts:
            if not part.is_block and (text := decode(part.main).strip()):
                found.append(text)
            found += [f"  path {path + 1}: {decode(ids).strip()}" for path, ids in sorted(part.paths.items())]
            if part.summary:
                found.append(f"  summary: {decode(part.summary).strip()}")
        return found


def answer(
    model: str,
    question: str,
    changes: Mapping[str, Any],
    template: str | None = None,
    variant: str | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> None:
    """Load a model, ask it one question and show the response.

    ``changes`` override the engine settings saved with the model; ``template`` its prompt.

    Raises:
        ValueError: no such model, or settings that do not fit it.
    """
    from parallel_r1.models.load import load_model
    from parallel_r1.train.callbacks import few_messages

    if variant not in (None, "causal", "structured"):
        raise ValueError(f"--variant {variant}: use causal or structured")
    if template is not None and template.count("{question}") != 1:
        raise ValueError(f"--prompt {template!r}: must contain {{question}} exactly once")
    console = console or Console()
    with console.status(f"loading {model}"), few_messages():
        loaded = load_model(model)
    saved = loaded.settings
    config = engine_for(loaded, changes)
    if loaded.tags is None:
        console.print(f"{model} has no tags and never forks; decoding one chain", highlight=False)
    started = time.monotonic()
    rollout = _decode(loaded, config, question, template, variant or (saved.variant if saved else "structured"), seed,
                      console)  # fmt: skip
    seconds = time.monotonic() - started
    cut = ", cut by a limit" if rollout.truncated else ""
    console.print(
        f"{rollout.total_tokens} tokens, {rollout.critical_tokens} on the critical path, {rollout.num_blocks} blocks, "
        f"{seconds:.1f} s{cut}",
        style="dim", highlight=False,
    )  # fmt: skip


def engine_for(loaded: Loaded, changes: Mapping[str, Any]) -> EngineConfig:
    """The engine settings of one answer: as trained, with changes; a longer response when paths need it."""
    base = (loaded.settings.engine if loaded.settings else EngineConfig()).model_dump()
    if loaded.tags is None:
        base["mode"] = "sequential"
    merged = {**base, **changes}
    if "max_response_tokens" not in changes and merged["paths"] > base["paths"]:
        merged["max_response_tokens"] = base["max_response_tokens"] * merged["paths"] // base["paths"]
    return checked(EngineConfig, merged, "engine")


def _decode(
    loaded: Loaded, config: EngineConfig, question: str, template: str | None, variant: Any, seed: int, console: Console
) -> Rollout:
    from parallel_r1.engine.tree import TreeEngine
    from parallel_r1.rollout.sample import prompt_template
    from parallel_r1.trace.tokens import encode_prompt

    prompt = loaded.settings.prompt if loaded.settings else PromptConfig()
    ids = encode_prompt(loaded.tokenizer, template or prompt_template(prompt, loaded.tags), question, loaded.tags)
    request = Request("question", tuple(ids), (seed, 0, 0, 0))
    engine = TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, variant)
    tags = loaded.tags.all if loaded.tags else frozenset()
    transcript: Transcript[int] = Transcript(tags | frozenset(loaded.stop_ids))

    def decode(some: Sequence[int]) -> str:
        return str(loaded.tokenizer.decode(list(some), skip_special_tokens=False))

    if not console.is_terminal:
        (rollout,) = engine.generate([request], config, transcript.add)
        for line in transcript.lines(decode):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return rollout
    with Live(console=console, auto_refresh=False, transient=True) as live:
        shown = 0.0

        def watch(event: TokenEvent) -> None:
            nonlocal shown
            transcript.add(event)
            if time.monotonic() - shown >= REFRESH_SECONDS:
                shown = time.monotonic()
                live.update(transcript.panels(decode), refresh=True)

        (rollout,) = engine.generate([request], config, watch)
    console.print(transcript.panels(decode))
    return rollout
