"""The terminal client against a real server."""

import io

import pytest
from rich.console import Console

from parallel_r1.serve.chat import chat
from parallel_r1.serve.guard import Limits

KEY = "a-key-of-sufficient-length"


def run(address, question, terminal=False, key=None, typed="", monkeypatch=None, **fields):
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    if typed:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        console.input = lambda prompt: input()
    chat(address, question, fields, key, console)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_one_question(serve, terminal):
    shown = run(serve(), "make 6", terminal, fork="always", seed=1)
    assert all(f"path {i}" in shown for i in (1, 2, 3)) and "summary" in shown
    assert "on the critical path" in shown and "seed 1" in shown and "<Path>" not in shown


def test_questions_until_an_empty_line(serve, monkeypatch):
    shown = run(serve(), None, typed="make 6\n" + "1 " * 400 + "\nmake 7\n\n", monkeypatch=monkeypatch, seed=1)
    assert shown.count("on the critical path") == 2 and "error: messages" in shown


def test_errors_are_messages(serve):
    address = serve(limits=Limits(api_key=KEY))
    with pytest.raises(ValueError, match="API key"):
        run(address, "make 6")
    assert "critical path" in run(address, "make 6", key=KEY)
    with pytest.raises(ValueError, match="max_tokens = -1"):
        run(address, "make 6", key=KEY, max_tokens=-1)
    with pytest.raises(ValueError, match="no server answers there"):
        run("http://127.0.0.1:9", "make 6")


def test_a_model_in_place_of_an_address(make_model, tmp_path):
    from parallel_r1.config import EngineConfig
    from parallel_r1.models.load import SavedSettings, save_model

    model, tokenizer, _ = make_model()
    settings = SavedSettings(
        variant="structured",
        engine=EngineConfig(paths=2, max_blocks=1, max_response_tokens=50, path_budget=8, answer_reserve=10),
    )
    folder = str(save_model(model, tokenizer, tmp_path / "model", settings))
    shown = run(folder, "make 6 from 1 2 3", fork="always", seed=1)
    assert "path 2" in shown and "on the critical path" in shown
