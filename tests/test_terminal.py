"""Progress and tables, on a terminal and off it."""

import io

import pytest
from rich.console import Console

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request, TokenEvent
from parallel_r1.terminal import WatchedEngine, clock, narrow_table, per_second, print_table, progress_bar
from parallel_r1.types import Region

ROW = {
    "stage": "cold-start", "task": "countdown", "size": "easy", "split": "test", "mean": 0.25, "mean_ci": [0.2, 0.3],
    "sequential_mean": 0.2, "parallel_ratio": 1.0, "total_tokens": 120.0, "critical_tokens": 60.0,
}  # fmt: skip


def console(terminal, width=100):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_tells_name_count_rate_and_figures(terminal):
    where = console(terminal)
    with progress_bar(where, "rl-easy", 2) as bar:
        bar.update(1, "reward 0.1")
        bar.update(2, "reward 0.5")
    text = where.file.getvalue()
    assert "rl-easy" in text and "2/2" in text and "reward 0.5" in text


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "no step yet"), (0.25, "4.0 s/step"), (1, "1.0 steps/s"), (20, "20.0 steps/s")]
)
def test_rates(rate, text):
    assert per_second(rate, "step") == text


def test_clock():
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_fits_the_terminal(width):
    where = console(False, width)
    assert print_table(where, {"name": "r", "results": [ROW]})
    text = where.file.getvalue()
    assert "25.0 [20.0, 30.0]" in text and "…" not in text
    assert not print_table(where, {"name": "r", "results": []})


def test_the_narrow_table_has_a_line_per_row():
    assert narrow_table([ROW, ROW]).row_count == 2


class Fake:
    variant, weight_version = "structured", 4

    def generate(self, requests, config, on_token=None):
        for index in range(len(requests)):
            for token in (5, 9):
                on_token(TokenEvent(index, token, Region("main"), False))
        return ["rollout"] * len(requests)

    def load_weights(self, state_dict=None):
        self.weight_version += 1


def test_the_watched_engine_counts_responses_and_hands_everything_on():
    where, heard = console(False), []
    engine = WatchedEngine(Fake(), [9], where)
    engine.name_next("evaluate base")
    engine.load_weights()
    done = engine.generate([Request("a", (1,), (0,))] * 3, EngineConfig(), heard.append)
    assert done == ["rollout"] * 3 and len(heard) == 6 and (engine.variant, engine.weight_version) == ("structured", 5)
    assert "evaluate base 3/3" in where.file.getvalue()
