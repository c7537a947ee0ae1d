"""``parallel-r1 data audit`` as a user gives it."""

import json

from typer.testing import CliRunner

from parallel_r1.cli import app


def give(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="parallel-r1")


def test_files_tasks_and_columns(tmp_path):
    rows = [{"q": f"What is {i}+{i}?", "a": str(2 * i)} for i in (1, 2, 2)]
    held = [{"question": "what is 1+1", "answer": "2"}]
    for name, content in (("own_train", rows), ("held", held)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    columns = ("--question-column", "q", "--answer-column", "a")
    told = ("--against", tmp_path / "held.jsonl", "--out", tmp_path / "out")
    done = give("data", "audit", f"gsm8k={tmp_path / 'own_train.jsonl'}", *columns, *told)
    assert done.exit_code == 0, done.output
    assert done.output.split("\n")[0].split() == ["set", "rows", "kept", "duplicate", "in", "held"]
    assert done.output.split("\n")[1].split() == ["own_train", "3", "1", "1", "1"]
    assert (tmp_path / "out" / "own_train.jsonl").read_text() == json.dumps(rows[1]) + "\n"
    shown = give("data", "show", "file", "--path", tmp_path / "out" / "own_train.jsonl", "--split", "train", *columns)
    assert shown.output == "What is 2+2?\n  gold: 4\n"


def test_what_cannot_be_audited(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"question": "1?", "answer": "1"}\n')
    for arguments, message in [
        (("countdown",), "name one that reads data"),
        ((tmp_path / "none.jsonl",), "no such file"),
        ((tmp_path / "a.jsonl", tmp_path / "a.jsonl"), "two sources have one name"),
    ]:
        done = give("data", "audit", *arguments)
        assert done.exit_code == 2 and message in done.stderr
