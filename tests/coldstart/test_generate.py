"""Cold-start rows: only well-formed, right traces; what is dropped is counted."""

import json

import pytest

from parallel_r1.coldstart.check import fault_of
from parallel_r1.coldstart.generate import IGNORED, build_rows
from parallel_r1.config import DataSource, PromptConfig, SFTStage
from parallel_r1.models.tiny import tiny_tokenizer
from parallel_r1.tasks import load_task
from parallel_r1.trace.tags import TAGS, good_block, linearise, parse_ids, parse_text, render_block
from parallel_r1.trace.tokens import decode_response, tag_ids

PROMPT = PromptConfig()


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AddedToken

    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return tokenizer


@pytest.fixture(scope="module")
def tags(tokenizer):
    return tag_ids(tokenizer)


def stage(*data: DataSource, **settings) -> SFTStage:
    return SFTStage(kind="sft", name="cold", data=list(data), **settings)


def split_row(row, tokenizer):
    """(prompt text, response text) of a row, by its labels."""
    start = next(i for i, label in enumerate(row["labels"]) if label != IGNORED)
    assert row["labels"][start:] == row["input_ids"][start:] and set(row["labels"][:start]) <= {IGNORED}
    assert row["input_ids"][-1] == tokenizer.eos_token_id
    return tokenizer.decode(row["input_ids"][:start]), row["input_ids"][start:]


@pytest.mark.parametrize("size", ["easy", "hard"])
@pytest.mark.parametrize("name", ["countdown", "chain"])
def test_trace_rows_are_well_formed_and_right(name, size, tokenizer, tags):
    source = DataSource(task=name, size=size, num=20, texts=50)
    rows, counts = build_rows(stage(source), tokenizer, tags, PROMPT, seed=1)
    assert len(rows) == counts.kept == 50
    task = load_task(name)
    problems = {p.question: p for p in task.problems("train", size, 20, 1)}
    widths = set()
    for row in rows:
        prompt, response = split_row(row, tokenizer)
        problem = problems[prompt.removeprefix("think in paths: ").removesuffix("\n")]
        text = decode_response(tokenizer, response)
        assert good_block(parse_ids(response, tags)) and parse_text(text).well_formed
        assert task.verify(problem, str(parse_text(text).answer_region)).right
        widths |= {len(block.paths) for block in parse_text(text).blocks}
    assert widths == {2, 3, 4}


def test_traces_may_name_their_width_and_a_source_may_set_it(tokenizer, tags):
    easy = DataSource(task="countdown", size="easy", num=12, widths=[1, 2])
    hard = DataSource(task="countdown", size="hard", num=12, widths=[4])
    rows, _ = build_rows(stage(easy, hard, counted=True), tokenizer, tags, PROMPT, seed=1)
    found = []
    for row in rows:
        _, response = split_row(row, tokenizer)
        for block in parse_ids(response, tags).blocks:
            assert block.well_formed and response[block.start + 1] == tags.counts[len(block.paths) - 1]
            found.append(len(block.paths))
    assert set(found) == {1, 2, 4}


def test_the_same_seed_gives_the_same_rows(tokenizer, tags):
    one = stage(DataSource(task="countdown", num=10))
    assert build_rows(one, tokenizer, tags, PROMPT, 3) == build_rows(one, tokenizer, tags, PROMPT, 3)
    assert build_rows(one, tokenizer, tags, PROMPT, 3)[0] != build_rows(one, tokenizer, tags, PROMPT, 4)[0]


def test_tasks_that_do_not_fork_are_kept_without_blocks(tokenizer, tags):
    rows, counts = build_rows(stage(DataSource(task="serial", num=20)), tokenizer, tags, PROMPT, 0)
    assert counts.kept == 20 and not counts.dropped
    assert all(tags.all.isdisjoint(row["input_ids"]) for row in rows)


def test_linear_rows_are_the_same_traces_in_a_line(tokenizer, tags):
    source = DataSource(task="countdown", num=15)
    traces, _ = build_rows(stage(source), tokenizer, tags, PROMPT, 0)
    lines, _ = build_rows(stage(source, format="linear"), tokenizer, tags, PROMPT, 0)
    for trace, line in zip(traces, lines, strict=True):
        prompt, response = split_row(line, tokenizer)
        assert prompt.startswith("make ")
        assert decode_response(tokenizer, response) == linearise(
            decode_response(tokenizer, split_row(trace, tokenizer)[1])
        )


def test_base_rows_train_every_token_and_need_no_tags():
    plain = tiny_tokenizer()
    source = DataSource(task="chain", num=5, texts=12)
    rows, counts = build_rows(stage(source, format="base"), plain, None, PROMPT, 0)
    assert counts.kept == 12
    assert all(row["labels"] == row["input_ids"] and row["input_ids"][-1] == plain.eos_token_id for row in rows)
    with pytest.raises(ValueError, match="format = 'trace' needs a tokenizer with tags"):
        build_rows(stage(source), plain, None, PROMPT, 0)


def test_long_rows_are_dropped_counted_and_listed(tokenizer, tags):
    source = DataSource(task="countdown", num=30)
    rows, counts = build_rows(stage(source, max_length=100), tokenizer, tags, PROMPT, 0)
    assert all(len(row["input_ids"]) <= 100 for row in rows)
    assert len(rows) + len(counts.too_long) == 30 and counts.dropped["too_long"] == len(counts.too_long) > 0
    assert "too long: make" in str(counts)
    with pytest.raises(ValueError, match=r"no text is left.*too_long 30"):
        build_rows(stage(source, max_length=5), tokenizer, tags, PROMPT, 0)


TWO = ["2+2=4", "2*2=4"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (render_block(TWO, "4") + "\nFinal Answer: 4", ""),
        (render_block(TWO, "4") + "\nFinal Answer: 5", "wrong"),
        (render_block(TWO, "4") + "\nso 4", "no_answer"),
        ("2+2=4\nFinal Answer: 4", "no_block"),
        (render_block(TWO[:1], "4") + "\nFinal Answer: 4", "single_path"),
        (render_block([*TWO, ""], "4") + "\nFinal Answer: 4", "empty_path"),
        (render_block(TWO[:1] * 2, "4") + "\nFinal Answer: 4", "duplicate_path"),
        (render_block(TWO, "") + "\nFinal Answer: 4", "empty_summary"),
        ("Final Answer: 4 <Path>", "stray_path"),
    ],
)
def test_real_traces_are_checked(text, fault, tmp_path, tokenizer, tags):
    file = tmp_path / "traces.jsonl"
    file.write_text(json.dumps({"question": "2 and 2?", "answer": "4", "trace": text}) + "\n")
    source = DataSource(task="gsm8k", path=str(file))
    task = load_task(source)
    assert fault_of(text, task.problems("train", "easy", 1, 0)[0], task, needs_block=True) == fault
    if fault:
        with pytest.raises(ValueError, match=f"no text is left.*{fault} 1"):
            build_rows(stage(source), tokenizer, tags, PROMPT, 0)
    else:
        assert len(build_rows(stage(source), tokenizer, tags, PROMPT, 0)[0]) == 1


def test_a_file_without_traces_is_an_error(tmp_path, tokenizer, tags):
    file = tmp_path / "plain.jsonl"
    file.write_text(json.dumps({"question": "2 and 2?", "answer": "4"}) + "\n")
    with pytest.raises(ValueError, match="column 'trace'"):
        build_rows(stage(DataSource(task="gsm8k", path=str(file))), tokenizer, tags, PROMPT, 0)


def test_real_traces_from_a_teacher(real_data, tokenizer, tags):
    path = str(real_data / "parallel_gsm8k_traces.parquet")
    rows, counts = build_rows(stage(DataSource(task="gsm8k", path=path)), tokenizer, tags, PROMPT, 0)
    assert counts.kept == len(rows) == 335
    assert counts.dropped == {"no_block": 3, "unclosed_summary": 1, "text_before_summary": 1, "text_between_paths": 1}
