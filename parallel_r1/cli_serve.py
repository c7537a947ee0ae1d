"""``parallel-r1 serve`` and ``parallel-r1 chat``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MISSING = "needs the extra `serve`: pip install 'parallel-r1[serve]'"
KeyFile = Annotated[
    Path | None, typer.Option(help="File that holds the API key; default: the variable PARALLEL_R1_API_KEY.")
]
Paths = Annotated[int | None, typer.Option(min=1, max=8, help="Paths per block; default: as trained.")]


def serve(
    model: Annotated[str, typer.Argument(help="Folder, hub name, .gguf file, 'tiny' or 'tiny-parallel'.")],
    host: Annotated[str, typer.Option(help="Address; anything but this machine alone needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="What clients call the model; default: its last name.")] = None,
    api_key_file: KeyFile = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Answers independent of who else is decoded; slower.")
    ] = False,
    max_rows: Annotated[int, typer.Option(min=1, help="Responses decoded at once.")] = 32,
    max_waiting: Annotated[int, typer.Option(min=0, help="Responses that may wait; more are refused (429).")] = 256,
    max_context: Annotated[
        int | None, typer.Option(min=16, help="Most tokens of prompt and response; default: the model's, up to 4096.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="causal or structured; default: as trained.")] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve a model to OpenAI clients (/v1) and in a playground (/)."""
    if log_level not in ("debug", "info", "warning", "error"):
        raise ValueError(f"--log-level {log_level}: use debug, info, warning or error")
    try:
        from parallel_r1.serve.server import read_key
        from parallel_r1.serve.server import serve as run_server
    except ModuleNotFoundError as error:
        raise ValueError(f"serve {MISSING} ({error})") from error
    run_server(
        model, host, port, read_key(api_key_file), max_waiting, log_level, name=name, variant=variant, dtype=dtype,
        max_rows=max_rows, max_context=max_context, deterministic=deterministic,
    )  # fmt: skip


def chat(
    target: Annotated[str, typer.Argument(help="A server's address, or a model to load.")] = "http://127.0.0.1:8000",
    question: Annotated[str | None, typer.Argument(help="Ask this and leave; default: ask on the terminal.")] = None,
    paths: Paths = None,
    fork: Annotated[str, typer.Option(help="auto, always or never.")] = "auto",
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens, all paths counted.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling; default: drawn.")] = None,
    api_key_file: KeyFile = None,
) -> None:
    """Talk to a server, or to a model: paths stand side by side while they are decoded."""
    try:
        from parallel_r1.serve.chat import chat as talk
        from parallel_r1.serve.server import read_key
    except ModuleNotFoundError as error:
        raise ValueError(f"chat {MISSING} ({error})") from error
    fields = {"paths": paths, "fork": fork, "temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    talk(target, question, {k: v for k, v in fields.items() if v is not None}, read_key(api_key_file))
