"""An answer on the terminal: tokens sorted into main chain, paths and summary as they come."""

import io

import pytest
from rich.console import Console

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import TokenEvent
from parallel_r1.live import Transcript, answer, engine_for
from parallel_r1.models.load import Loaded, SavedSettings, save_model
from parallel_r1.types import Region

OPEN, PATH, PATH_END, CLOSE, SUMMARY, SUMMARY_END, EOS = range(7)
HIDDEN = frozenset(range(7))


def decode(ids):
    return "".join(map(chr, ids))


@pytest.fixture
def transcript():
    """``a <Parallel> <Path>bc</Path> <Path>d</Path> </Parallel> <Summary>s</Summary> e``, paths decoded in turns."""
    events = [
        (97, Region("main")), (OPEN, Region("block", 0)),
        (PATH, Region("path", 0, 0)), (PATH, Region("path", 0, 1)), (98, Region("path", 0, 0)),
        (100, Region("path", 0, 1)), (99, Region("path", 0, 0)), (PATH_END, Region("path", 0, 1)),
        (PATH_END, Region("path", 0, 0)), (CLOSE, Region("block", 0)), (10, Region("block", 0)),
        (SUMMARY, Region("summary", 0)), (115, Region("summary", 0)), (SUMMARY_END, Region("summary", 0)),
        (101, Region("main")), (EOS, Region("main")),
    ]  # fmt: skip
    transcript = Transcript(HIDDEN)
    for token, region in events:
        transcript.add(TokenEvent(0, token, region, False))
    return transcript


def test_plain_lines(transcript):
    assert transcript.lines(decode) == ["a", "  path 1: bc", "  path 2: d", "  summary: s", "e"]


def test_paths_stand_side_by_side(transcript):
    console = Console(file=io.StringIO(), width=80)
    console.print(transcript.panels(decode))
    lines = console.file.getvalue().splitlines()
    assert any("path 1" in line and "path 2" in line for line in lines)
    assert any("bc" in line and "d" in line for line in lines)


@pytest.fixture
def saved(make_model, tmp_path):
    model, tokenizer, _ = make_model()
    settings = SavedSettings(
        variant="structured",
        engine=EngineConfig(paths=2, max_blocks=1, max_response_tokens=60, path_budget=10, answer_reserve=10),
    )
    return str(save_model(model, tokenizer, tmp_path / "model", settings))


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_ends_with_its_numbers(saved, terminal):
    console = Console(file=io.StringIO(), width=100, force_terminal=terminal)
    answer(saved, "make 6 from 1 2 3", {"paths": 3}, console=console)
    assert "on the critical path" in console.file.getvalue()


def test_more_paths_get_a_longer_response(make_model):
    model, tokenizer, tags = make_model()
    settings = SavedSettings(variant="causal", engine=EngineConfig(paths=2, max_response_tokens=200))
    loaded = Loaded(model, tokenizer, tags, (1,), settings)
    assert engine_for(loaded, {"paths": 4}).max_response_tokens == 400
    assert engine_for(loaded, {"paths": 4, "max_response_tokens": 120}).max_response_tokens == 120


def test_a_model_without_tags_is_decoded_as_one_chain(make_model):
    model, tokenizer, _ = make_model()
    assert engine_for(Loaded(model, tokenizer, None, (1,), None), {"paths": 4}).mode == "sequential"
