"""The ``data`` commands that read and write data sets; the one that prints a recipe's texts stands in `cli`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data_app = typer.Typer(no_args_is_help=True, help="Problems and cold-start traces: look, audit, generate.")

SOURCE_HELP = "A task (its hub data), TASK=PATH, or a file of your own."
QuestionColumn = Annotated[str | None, typer.Option("--question-column", help="Column of the question; nested: a.b.0.")]
AnswerColumn = Annotated[str | None, typer.Option("--answer-column", help="Column of the answer.")]


@data_app.command("show")
def data_show(
    task: Annotated[str, typer.Argument(help="countdown, chain, serial, gsm8k, math, dapo ... or file.")],
    size: Annotated[str, typer.Option(help="easy or hard.")] = "easy",
    split: Annotated[str | None, typer.Option(help="train or test; default: test where there is one.")] = None,
    num: Annotated[int, typer.Option(min=1)] = 5,
    path: Annotated[str | None, typer.Option(help="File, folder or hub name, for tasks that read data.")] = None,
    question_column: QuestionColumn = None,
    answer_column: AnswerColumn = None,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Print problems of a task with their gold answers."""
    from parallel_r1.commands import show_problems

    columns = {"question": question_column, "answer": answer_column}
    options = {key: value for key, value in columns.items() if value is not None}
    show_problems({"task": task, "size": size, "num": num, "path": path, "options": options}, split, seed)


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


@data_app.command("coldstart")
def data_coldstart(
    source: Annotated[str, typer.Argument(help=SOURCE_HELP)],
    teacher: Annotated[str, typer.Option(help="Name of the model at --url; without --url a folder or built-in model.")],
    url: Annotated[str | None, typer.Option(help="Base of an OpenAI-compatible endpoint, http://HOST/v1.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of journal, traces and report; default runs/coldstart-NAME.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train or test; default: train where there is one.")] = None,
    num: Annotated[int, typer.Option(min=1, help="Most problems.")] = 10_000,
    tries: Annotated[int, typer.Option(min=1, help="Asks per problem until one trace is kept.")] = 1,
    prompt: Annotated[
        str | None, typer.Option(help="A template's name, a file, or text with {question}; default: the task's.")
    ] = None,
    question_column: QuestionColumn = None,
    answer_column: AnswerColumn = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once; for a local model: its batch.")] = 16,
    rpm: Annotated[float | None, typer.Option(min=0.01, help="Most requests a minute.")] = None,
    tpm: Annotated[float | None, typer.Option(min=1, help="Most tokens a minute.")] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 0.6,
    top_p: Annotated[float, typer.Option(min=0.01, max=1)] = 0.95,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply, thoughts included.")] = 4096,
    max_similarity: Annotated[
        float, typer.Option(min=0, max=1, help="Drop traces whose paths share more of their word pairs.")
    ] = 0.8,
    price_in: Annotated[float, typer.Option(min=0, help="Per million tokens of prompt.")] = 0.0,
    price_out: Annotated[float, typer.Option(min=0, help="Per million tokens of reply.")] = 0.0,
    max_cost: Annotated[float | None, typer.Option(min=0, help="Ask no more once this is spent.")] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with the key.")] = "OPENAI_API_KEY",
    seed: Annotated[int, typer.Option(help="Order of the problems; sampling of a local model.")] = 0,
) -> None:
    """Ask a teacher for traces of a task, keep the well-formed, distinct and right ones. Given again, it goes on."""
    from parallel_r1.commands_data import run_coldstart

    run_coldstart(
        source, teacher, url, out, split=split, num=num, template=prompt, columns=(question_column, answer_column),
        limits={"concurrency": concurrency, "requests_per_minute": rpm, "tokens_per_minute": tpm},
        sampling={"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens},
        plan={"tries": tries, "max_similarity": max_similarity, "price_in": price_in, "price_out": price_out,
              "max_cost": max_cost},
        key_env=key_env, seed=seed,
    )  # fmt: skip
