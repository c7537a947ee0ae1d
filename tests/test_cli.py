"""The command line as a user meets it: messages, exit codes, speed of the light commands."""

import json
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from parallel_r1 import __version__
from parallel_r1.cli import app


@pytest.fixture
def cli():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, list(arguments), prog_name="parallel-r1")


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_version_and_help(cli):
    assert cli("--version").output.strip() == __version__
    text = cli("--help").output
    names = ("run", "sft", "rl", "eval", "report", "generate", "serve", "chat", "check", "data")
    assert all(name in text for name in names)


def test_help_imports_nothing_heavy():
    """Time depends on the machine, imports do not."""
    done = run_python(
        "import sys; sys.argv = ['parallel-r1', '--help']\n"
        "from parallel_r1.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'datasets', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert done.returncode == 0, done.stderr


def test_a_wrong_recipe_fails_fast_without_torch():
    started = time.monotonic()
    done = run_python(
        "import sys; sys.argv = ['parallel-r1', 'run', '--set', 'stages.rl-easy.leraning_rate=1e-6']\n"
        "from parallel_r1.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    assert done.returncode == 2
    assert "leraning_rate = 1e-06" in done.stderr and "did you mean 'learning_rate'" in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 10


def test_check_reward_prints_what_is_paid_and_exits_with_its_verdict(cli, tmp_path):
    done = cli("check", "reward", "tiny", "--json", str(tmp_path / "paid.json"))
    assert done.exit_code == 0 and "fifty hollow blocks" in done.output and "passed" in done.output
    assert json.loads((tmp_path / "paid.json").read_text())["passed"]
    bad = cli("check", "reward", "tiny", "--set", "stages.rl-easy.reward.bonuses=[{part='diversity', weight=1.0}]")
    assert bad.exit_code == 2 and "cap is missing" in bad.output


def test_dry_run_prints_the_resolved_recipe_and_writes_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("run", "tiny", "--dry-run", "--seed", "7", "--set", "engine.paths=3")
    recipe = json.loads(done.stdout)
    assert (recipe["seed"], recipe["engine"]["paths"]) == (7, 3)
    assert "rl-easy (rl): 10 updates, 1,920 rollouts" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope"], "recipe nope: cannot be read"),
        (["run", "--set", "model=/no/such"], "no such folder"),
        (["sft", "--stage", "rl-easy"], "no sft stage of this name in tiny; it has cold-start (sft)"),
        (["report", "/no/such"], "no such directory"),
        (["data", "show", "countdow"], "did you mean 'countdown'"),
        (["data", "show", "countdown", "--size", "medium"], "size = 'medium'"),
        (["check", "engine", "tiny", "--variant", "x"], "--variant x"),
        (["generate", "tiny", "q", "--prompt", "no slot"], "must contain {question}"),
        (["serve", "tiny", "--host", "0.0.0.0"], "needs a key"),
        (["serve", "tiny", "--log-level", "loud"], "--log-level loud"),
        (["chat", "http://127.0.0.1:9", "q"], "no server answers there"),
    ],
)
def test_errors_are_one_message_and_exit_code_2(cli, arguments, message):
    done = cli(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.startswith("error: ") and "Traceback" not in done.stderr


def test_debug_shows_the_traceback():
    code = "import sys; sys.argv = ['parallel-r1', 'run', 'nope', '--debug']\nfrom parallel_r1.cli import main\nmain()"
    done = run_python(code)
    assert done.returncode == 1 and "Traceback" in done.stderr and "RecipeError" in done.stderr


def test_an_interrupt_says_how_to_go_on(cli, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("parallel_r1.cli._read", interrupted)
    done = cli("run")
    assert done.exit_code == 130 and "goes on from the last whole checkpoint" in done.stderr


def test_data_show_prints_problems_with_gold(cli):
    lines = cli("data", "show", "serial", "--num", "2").output.splitlines()
    assert len(lines) == 4 and lines[0].startswith("run ") and lines[1].startswith("  gold: ")


def test_data_coldstart_counts_and_shows_texts(cli, tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        'name = "r"\nmodel = "tiny-scratch"\n[[stages]]\nkind = "sft"\nname = "s"\nbatch_size = 4\nmicro_batch = 4\n'
        'data = [{ task = "countdown", num = 4 }]\n'
    )
    done = cli("data", "texts", str(path), "--num", "1")
    assert done.exit_code == 0, done.output
    assert "kept 4" in done.output and done.output.count("<Parallel>") >= 1
