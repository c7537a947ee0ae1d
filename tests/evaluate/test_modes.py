"""Decoding modes and the intervention on paths."""

import pytest
import torch

from parallel_r1.config import EngineConfig
from parallel_r1.engine.base import Request
from parallel_r1.engine.tree import TreeEngine
from parallel_r1.evaluate import intervene, modes
from parallel_r1.evaluate.intervene import continue_responses, corrupt_paths, find_edit, knock_out
from parallel_r1.models.attention import install_layout_hook
from parallel_r1.tasks.countdown import Countdown
from parallel_r1.trace.tags import parse_ids, parse_text
from parallel_r1.trace.tokens import decode_response, encode_prompt, encode_trace

SMALL = EngineConfig(paths=2, max_blocks=2, max_response_tokens=60, path_budget=8, answer_reserve=12)
PROBLEM = Countdown().problem((8, 3, 3), 21, "easy")
RIGHT, WRONG, OTHER = "8*3=24,24-3=21 ok", "8+3=11,11+3=14 no", "8*3=24,24+3=27 no"
TEXT = (
    f"<Parallel><Path>{WRONG}</Path><Path>{RIGHT}</Path><Path>{OTHER}</Path></Parallel>\n"
    "<Summary>8*3=24,24-3=21</Summary>\nFinal Answer: 8*3=24,24-3=21"
)


def requests(num=6):
    return [Request(f"p{i}", tuple(range(20 + i, 32 + i)), (0, i)) for i in range(num)]


def tree(loaded, variant="structured", tag_rate=0.3):
    return TreeEngine(loaded.model, loaded.tokenizer, loaded.tags, loaded.stop_ids, variant, tag_rate)


def test_modes_share_requests(loaded):
    done = modes.decode_modes(tree(loaded, "causal"), requests(), SMALL, ["forked", "sequential", "linear"])
    assert any(r.num_blocks for r in done["forked"])
    assert loaded.tags.all.isdisjoint(i for r in done["sequential"] for i in r.response_ids)
    assert [r.seed for r in done["linear"]] == [r.seed for r in done["forked"]]
    with pytest.raises(ValueError, match="linear"):
        modes.decode_modes(tree(loaded), requests(), SMALL, ["linear"])
    with pytest.raises(ValueError, match="name at least one"):
        modes.eval_modes([], "causal", True)


def test_well_formedness_falls_without_constraints(loaded):
    found = modes.well_formedness(tree(loaded), requests(12), SMALL, loaded.tags)
    assert found["on"] is not None and found["off"] is not None and found["off"] <= found["on"]


def scripted(loaded, solver, text=TEXT):
    engine = solver()
    ids = [*encode_trace(loaded.tokenizer, text, loaded.tags), *loaded.stop_ids]
    engine.script = lambda request: ids
    return engine


def problem_request(loaded, index=0):
    ids = encode_prompt(loaded.tokenizer, "think in paths: {question}\n", PROBLEM.question, loaded.tags)
    return Request(PROBLEM.id, tuple(ids), (0, index))


def test_the_edit_overwrites_right_paths_only(loaded, solver):
    (rollout,) = scripted(loaded, solver).generate([problem_request(loaded)], EngineConfig())
    edit = find_edit(loaded, PROBLEM, rollout, 0)
    kept, corrupted = (decode_response(loaded.tokenizer, ids) for ids in (edit.kept, edit.corrupted))
    assert kept == TEXT[: TEXT.index("<Summary>") + len("<Summary>")]
    assert corrupted == kept.replace(RIGHT, WRONG)
    dropped, swapped = (decode_response(loaded.tokenizer, ids) for ids in (edit.dropped, edit.swapped))
    assert dropped == kept.replace(f"<Path>{RIGHT}</Path>", "")
    paths = [str(path.content) for path in parse_text(kept).blocks[0].paths]
    moved = [str(path.content) for path in parse_text(swapped).blocks[0].paths]
    first, other = paths.index(RIGHT), next(i for i, path in enumerate(paths) if path != RIGHT)
    assert (moved[first], moved[other]) == (paths[other], paths[first]) and sorted(moved) == sorted(paths)


@pytest.mark.parametrize("text", ["Final Answer: 1", TEXT.replace(RIGHT, WRONG), TEXT.split("</Parallel>")[0]])
def test_nothing_to_edit(loaded, solver, text):
    (rollout,) = scripted(loaded, solver, text).generate([problem_request(loaded)], EngineConfig())
    assert find_edit(loaded, PROBLEM, rollout, 0) is None


@pytest.mark.parametrize("variant", ["structured", "causal"])
def test_continuing_is_plain_decoding_under_the_layout(loaded, solver, variant):
    """Greedy continuation in a padded batch against one full forward pass per token."""
    config = EngineConfig(temperature=0, max_response_tokens=150)
    tags, model = loaded.tags, loaded.model
    (rollout,) = scripted(loaded, solver).generate([problem_request(loaded)], EngineConfig())
    edit = find_edit(loaded, PROBLEM, rollout, 0)
    short = (*edit.kept[:4], tags.path_close, tags.parallel_close, *tags.newline, tags.summary_open)
    rows = [(problem_request(loaded, i), ids) for i, ids in enumerate([edit.kept, short, edit.corrupted])]
    for (request, prefix), (ids, cut) in zip(rows, continue_responses(loaded, variant, rows, config), strict=True):
        assert ids[: len(prefix)] == prefix and cut == (ids[-1] not in loaded.stop_ids)
        with install_layout_hook(model, tags, variant), torch.no_grad():
            row = torch.tensor([request.prompt_ids + ids])
            logits = model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False).logits[0]
        start = len(request.prompt_ids) + len(prefix)
        in_summary = True
        for i, token in enumerate(ids[len(prefix) :]):
            banned = (tags.all - {tags.summary_close}) | set(loaded.stop_ids) if in_summary else tags.all
            scores = logits[start + i - 1].clone()
            scores[sorted(banned)] = -torch.inf
            assert scores.max() - scores[token] < 1e-3
            in_summary &= token != tags.summary_close
        assert parse_ids(ids, tags, cut).blocks[0].start == 0


def copies(loaded, variant, rows, config):
    """A model that answers with the path marked ok, and with none where there is no such path."""
    done = []
    for _, prefix in rows:
        text = decode_response(loaded.tokenizer, prefix)
        found = RIGHT.removesuffix(" ok") if RIGHT in text else "none"
        text += f"{found}</Summary>\nFinal Answer: {found}"
        done.append(((*encode_trace(loaded.tokenizer, text, loaded.tags), *loaded.stop_ids), False))
    return done


def test_a_model_that_reads_its_paths_loses_what_they_gave(loaded, solver, monkeypatch):
    """With one path the engine finds nothing."""

    class Engine(type(scripted(loaded, solver))):
        def generate(self, requests, config, on_token=None):
            text = TEXT if config.paths > 1 else "Final Answer: none"
            ids = [*encode_trace(loaded.tokenizer, text, loaded.tags), *loaded.stop_ids]
            self.script = lambda request: ids
            return super().generate(requests, config, on_token)

    monkeypatch.setattr(intervene, "continue_responses", copies)
    asked = [problem_request(loaded, i) for i in range(5)]
    found = corrupt_paths(loaded, Engine(loaded), Countdown(), [PROBLEM] * 5, asked, EngineConfig(), batch_size=2)
    assert (found["one_path"], found["control"], found["corrupted"]) == (0.0, 1.0, 0.0)
    assert (found["gain"], found["removed"], found["num_edited"]) == (1.0, 1.0, 5)
    assert (found["edited_control"], found["edited_corrupted"]) == (1.0, 0.0)


def test_knock_out_tells_reading_from_making_up(loaded, solver, monkeypatch):
    asked = [problem_request(loaded, i) for i in range(4)]

    def run(continuation):
        monkeypatch.setattr(intervene, "continue_responses", continuation)
        return knock_out(loaded, scripted(loaded, solver), Countdown(), [PROBLEM] * 4, asked, EngineConfig())

    def invents(loaded, variant, rows, config):
        ids = (*encode_trace(loaded.tokenizer, TEXT, loaded.tags), *loaded.stop_ids)
        return [(ids, False)] * len(rows)

    reads, knows = run(copies), run(invents)
    assert [reads[which]["right"] for which in intervene.EDITS] == [1.0, 0.0, 0.0, 1.0]
    assert [reads[which]["from_a_path"] for which in intervene.EDITS] == [1.0, 0.0, 0.0, 1.0]
    assert [knows[which]["right"] for which in intervene.EDITS] == [1.0] * 4
    with pytest.raises(ValueError, match="none of 4 responses"):
        knock_out(
            loaded, scripted(loaded, solver, "Final Answer: 1"), Countdown(), [PROBLEM] * 4, asked, EngineConfig()
        )


def test_the_intervention_runs_end_to_end_and_repeats(loaded):
    asked = [problem_request(loaded, i) for i in range(4)]
    first, again = (corrupt_paths(loaded, tree(loaded), Countdown(), [PROBLEM] * 4, asked, SMALL) for _ in range(2))
    assert first == again and first["num_responses"] == 4
    with pytest.raises(ValueError, match="serial"):
        from parallel_r1.tasks.serial import Serial

        corrupt_paths(loaded, tree(loaded), Serial(), [], [], SMALL)
