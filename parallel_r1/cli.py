"""``parallel-r1``: the command line. Starts without torch; every command imports what it needs.

Errors a user can mend end in one message on stderr and exit code 2; ``--debug`` shows where they arose.
An interrupted command says how to go on, and exits with 130.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from parallel_r1 import cli_serve
from parallel_r1.cli_data import data_app

if TYPE_CHECKING:
    from parallel_r1.config import Recipe

USER_ERROR, INTERRUPTED = 2, 130


class _Group(TyperGroup):
    """Turns errors into messages, for all commands in one place."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, FloatingPointError) as error:
            if ctx.params.get("debug"):
                raise
            message = error.strerror if isinstance(error, OSError) and error.errno == errno.ENOSPC else error
            typer.echo(f"error: {message}", err=True)
            sys.exit(USER_ERROR)
        except KeyboardInterrupt:
            resumes = ctx.invoked_subcommand in ("run", "sft", "rl", "eval")
            hint = " Nothing is lost: the same command goes on from the last whole checkpoint." if resumes else ""
            typer.echo(f"\ninterrupted.{hint}", err=True)
            sys.exit(INTERRUPTED)


app = typer.Typer(
    cls=_Group, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="Train language models to think in parallel: cold start, reinforcement learning, evaluation.",
)  # fmt: skip
check_app = typer.Typer(no_args_is_help=True, help="Checks of the machinery on a model of yours.")
app.add_typer(check_app, name="check")
app.add_typer(data_app, name="data")

RecipeArgument = Annotated[str, typer.Argument(help="A .toml file, or the name of one that comes with the package.")]
OutOption = Annotated[Path | None, typer.Option(help="Run directory; default runs/NAME, runs/NAME-seedN with --seed.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override a key: stages.rl-easy.steps=5, seed=1.")]
SeedOption = Annotated[int | None, typer.Option(help="Override the recipe's seed.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start over: delete what a run left in this directory.")]
StageOption = Annotated[str | None, typer.Option(help="Which stage; default: all of this kind.")]
ModelOption = Annotated[str | None, typer.Option(help="Start from this model instead of the stage before.")]


def main() -> None:
    """Entry point; ``--debug`` may stand anywhere."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    app(["--debug", *arguments] if len(arguments) < len(sys.argv) - 1 else arguments, prog_name="parallel-r1")


def _show_version(asked: bool) -> None:
    if asked:
        from parallel_r1 import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    recipe: RecipeArgument = "tiny",
    out: OutOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe, print it resolved and what it will cost; do nothing.")
    ] = False,
    fresh: FreshOption = False,
) -> None:
    """Run a recipe: train its stages in order, evaluate after each, write a report.

    Without RECIPE: the demo, a tiny built-in model on generated problems. Given again, it goes on where it stopped.
    """
    resolved = _read(recipe, set_, seed)
    if dry_run:
        from parallel_r1.estimate import estimate

        typer.echo(resolved.model_dump_json(indent=2))
        typer.echo("\n".join(estimate(resolved).lines()), err=True)
        return
    from parallel_r1.curriculum import run_recipe

    run_recipe(resolved, _out(out, resolved, seed), resume=not fresh)


@app.command()
def sft(
    recipe: RecipeArgument = "tiny",
    stage: StageOption = None,
    model: ModelOption = None,
    out: OutOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    fresh: FreshOption = False,
) -> None:
    """Only the supervised stages of a recipe (cold start), without evaluation."""
    _train("sft", recipe, stage, model, out, set_, seed, fresh)


@app.command()
def rl(
    recipe: RecipeArgument = "tiny",
    stage: StageOption = None,
    model: ModelOption = None,
    out: OutOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    fresh: FreshOption = False,
) -> None:
    """Only the reinforcement-learning stages of a recipe, without evaluation."""
    _train("rl", recipe, stage, model, out, set_, seed, fresh)


@app.command("eval")
def evaluate(
    recipe: RecipeArgument = "tiny",
    model: Annotated[str | None, typer.Option(help="Evaluate this model instead of the stages of a run.")] = None,
    out: OutOption = None,
    set_: SetOption = None,
    seed: SeedOption = None,
) -> None:
    """Evaluate on a recipe's held-out sets: the finished stages of its run directory, or one --model.

    A model that was trained here is prompted and decoded as it was trained, whatever the recipe says.
    """
    resolved = _read(recipe, set_, seed)
    if model is not None:
        from parallel_r1.commands import evaluate_one

        evaluate_one(resolved, model, out)
    else:
        from parallel_r1.curriculum import evaluate_stages

        evaluate_stages(resolved, _out(out, resolved, seed))


@app.command()
def report(run_dir: Annotated[Path, typer.Argument(help="The directory of a run, finished or not.")]) -> None:
    """Write report.html for a run: results, plots, traces."""
    from parallel_r1.report import build_report

    typer.echo(build_report(run_dir))


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="Folder, hub name, .gguf file, 'tiny' or 'tiny-parallel'.")],
    question: Annotated[str, typer.Argument(help="What to ask; for the tiny models: 'make 21 from 8 3 3'.")],
    paths: Annotated[int, typer.Option(min=1, max=8, help="Paths per block.")] = 4,
    max_blocks: Annotated[
        int | None, typer.Option(min=0, help="Most blocks; default: as the model was trained.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens, all paths counted.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Template with {question}; default: the model's own.")] = None,
    variant: Annotated[str | None, typer.Option(help="causal or structured; default: as trained.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
) -> None:
    """Answer one question, with the paths side by side while they are decoded."""
    from parallel_r1.live import answer

    changes = {
        "paths": paths, "max_blocks": max_blocks, "max_response_tokens": max_tokens, "temperature": temperature
    }  # fmt: skip
    answer(model, question, {k: v for k, v in changes.items() if v is not None}, prompt, variant, seed)


app.command()(cli_serve.serve)
app.command()(cli_serve.chat)


@check_app.command("engine")
def check_engine(
    model: Annotated[str, typer.Argument(help="Folder, hub name, .gguf file, 'tiny' or 'tiny-parallel'.")] = "tiny",
    variant: Annotated[str | None, typer.Option(help="causal or structured; default: both.")] = None,
    rollouts: Annotated[int, typer.Option(min=1, help="Responses to compare, per variant.")] = 64,
    seed: Annotated[int, typer.Option()] = 0,
    dtype: Annotated[str, typer.Option(help="float32, or bfloat16 (judged by the mean gap).")] = "float32",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Does the engine sample from the model that the trainer scores? Compares log-probs, region by region."""
    if variant not in (None, "causal", "structured"):
        raise ValueError(f"--variant {variant}: use causal or structured")
    import json

    from parallel_r1.check.engine import check_engine as compare

    result = compare(model, variant, rollouts, seed, json_file, dtype)  # pyright: ignore[reportArgumentType]
    typer.echo(json.dumps(result, indent=2))
    if not result["passed"]:
        raise typer.Exit(1)


@check_app.command("faithfulness")
def check_faithfulness(
    model: Annotated[str, typer.Argument(help="Folder, hub name or 'tiny-parallel'.")] = "tiny-parallel",
    task: Annotated[str, typer.Option(help="A task whose paths can be judged: countdown or chain.")] = "countdown",
    size: Annotated[str, typer.Option(help="easy or hard.")] = "easy",
    num: Annotated[int, typer.Option(min=1, help="Held-out problems, one response each.")] = 200,
    seed: Annotated[int, typer.Option()] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here too.")] = None,
) -> None:
    """Does the answer follow the path that holds it? Corrupts, drops and swaps paths before the summary."""
    if size not in ("easy", "hard"):
        raise ValueError(f"--size {size}: use easy or hard")
    import json

    from parallel_r1.check.faithfulness import check_faithfulness as knock_out_paths
    from parallel_r1.run_dir import write_json

    result = knock_out_paths(model, task, size, num, seed)  # pyright: ignore[reportArgumentType]
    if json_file is not None:
        write_json(json_file, result)
    typer.echo(json.dumps(result, indent=2))
    if not result["passed"]:
        raise typer.Exit(1)


@check_app.command("reward")
def check_reward(
    recipe: RecipeArgument = "tiny",
    set_: SetOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the payments here too.")] = None,
) -> None:
    """Does a recipe's reward pay for form alone? Hostile responses through every phase."""
    from parallel_r1.commands import show_rewards

    if not show_rewards(_read(recipe, set_, None), json_file):
        raise typer.Exit(1)


@data_app.command("texts")
def data_texts(
    recipe: RecipeArgument = "tiny",
    stage: StageOption = None,
    num: Annotated[int, typer.Option(min=0, help="Texts to print.")] = 3,
    set_: SetOption = None,
    seed: SeedOption = None,
) -> None:
    """Build the texts of a supervised stage: how many are kept, what is dropped and why, and a few of them."""
    resolved = _read(recipe, set_, seed)
    from parallel_r1.commands import show_texts

    show_texts(resolved, _stages_of(resolved, "sft", stage)[0], num)


def _read(recipe: str, overrides: list[str] | None, seed: int | None) -> Recipe:
    """The recipe, checked as far as that goes without loading anything heavy."""
    from parallel_r1.preflight import preflight
    from parallel_r1.recipe import load_recipe

    resolved = load_recipe(recipe, [*(overrides or []), *([] if seed is None else [f"seed={seed}"])])
    preflight(resolved)
    return resolved


def _out(out: Path | None, recipe: Recipe, seed: int | None) -> Path:
    return out or Path("runs") / (recipe.name if seed is None else f"{recipe.name}-seed{seed}")


def _stages_of(recipe: Recipe, kind: str, name: str | None) -> list[str]:
    found = [stage.name for stage in recipe.stages if stage.kind == kind and name in (None, stage.name)]
    if not found:
        known = ", ".join(f"{stage.name} ({stage.kind})" for stage in recipe.stages)
        raise ValueError(f"--stage {name}: no {kind} stage of this name in {recipe.name}; it has {known}")
    return found


def _train(
    kind: str,
    recipe: str,
    stage: str | None,
    model: str | None,
    out: Path | None,
    set_: list[str] | None,
    seed: int | None,
    fresh: bool,
) -> None:
    resolved = _read(recipe, set_, seed)
    only = _stages_of(resolved, kind, stage)
    if model is not None:
        from parallel_r1.preflight import preflight

        stages = [stage for stage in resolved.stages if stage.name in only]
        resolved = resolved.model_copy(update={"model": model, "stages": stages})
        preflight(resolved)
    from parallel_r1.curriculum import run_recipe

    run_recipe(resolved, _out(out, resolved, seed), resume=not fresh, only=only)
