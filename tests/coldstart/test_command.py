"""``parallel-r1 data coldstart`` as a user gives it."""

import json

import pytest
from typer.testing import CliRunner

from parallel_r1.cli import app
from parallel_r1.trace.tags import render_block


def trace_for(question, nth):
    number = int(question.split("+")[0])
    paths = [f"add {number} to itself", f"double {number} at once"]
    return f"{render_block(paths, 'the same')}\nFinal Answer: {2 * number}"


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"stem": f"{i}+{i}?", "key": 2 * i}) + "\n" for i in range(1, 5)))
    return path


def give(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="parallel-r1")


def test_a_run_from_the_command_line(serve, questions, tmp_path, monkeypatch):
    monkeypatch.setenv("OWN_KEY", "secret-key")
    server = serve(lambda question, nth: "Final Answer: 2" if question == "1+1?" else trace_for(question, nth))
    columns = ("--question-column", "stem", "--answer-column", "key")
    address = server.url.replace("http://", "http://user:password@")
    command = ("data", "coldstart", questions, "--teacher", "t", "--url", address, "--out", tmp_path / "out", *columns,
               "--price-out", "10", "--key-env", "OWN_KEY")  # fmt: skip
    done = give(*command)
    assert done.exit_code == 0, done.output
    shown = " ".join(done.output.split())
    assert "3 of 4 problems have a trace: yield 75.0 % (by the paper's check of the tags alone 75.0 %)" in shown
    assert "no_block 1" in shown and "kept 3" in shown and "tokens/s, cost" in shown
    assert json.loads((tmp_path / "out" / "report.json").read_text())["problems_with_trace"] == 3
    assert server.bodies[0]["messages"][0]["content"].startswith("Work out the problem")
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert b"secret-key" not in written and b"password" not in written
    asked = len(server.bodies)
    assert give(*command).exit_code == 0 and len(server.bodies) == asked
    other = give(*command, "--temperature", "1")
    assert other.exit_code == 2 and "made with other settings (temperature = '0.6')" in other.stderr


def test_wrong_words_end_in_one_message(questions, tmp_path):
    base = ("data", "coldstart", questions, "--teacher", "t", "--out", tmp_path / "out")
    for more, message in [
        (("--url", "localhost"), "give the base of the endpoint"),
        (("--url", "http://localhost:1", "--split", "dev"), "use train or test"),
        (("--url", "http://localhost:1", "--prompt", "no slot"), "{question} exactly once"),
        (("--url", "http://localhost:1"), "no column"),
    ]:
        done = give(*base, *more)
        assert done.exit_code == 2 and message in done.stderr, done.stderr
