"""The ``data`` commands that read and write data sets; those that print a recipe's texts stand in `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(no_args_is_help=True, help="Problems and cold-start traces: look, audit, generate.")

SOURCE_HELP = "A task (its hub data), TASK=PATH, or a file of your own."
QuestionColumn = Annotated[str | None, typer.Option("--question-column", help="Column of the question; nested: a.b.0.")]
AnswerColumn = Annotated[str | None, typer.Option("--answer-column", help="Column of the answer.")]


@data_app.command("audit")
def data_audit(
    sources: Annotated[list[str], typer.Argument(help=SOURCE_HELP)],
    against: Annotated[
        list[str] | None, typer.Option(help="Sets whose problems must not occur: " + SOURCE_HELP)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the report and the cleaned copies.")] = None,
    question_column: QuestionColumn = None,
    answer_column: AnswerColumn = None,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longest prompt, the parallel template included.")
    ] = 2000,
    tokenizer: Annotated[str | None, typer.Option(help="Count with this model's tokenizer; default: estimate.")] = None,
    overlap: Annotated[
        float, typer.Option(min=0.1, max=1, help="Share of common 8-word runs that is an overlap.")
    ] = 0.6,
) -> None:
    """What is wrong with data sets: unreadable golds, cut and repeated problems, conflicts, overlap with other sets."""
    from parallel_r1.commands_data import run_audit

    run_audit(sources, against or [], out, question_column, answer_column, max_prompt_tokens, tokenizer, overlap)
