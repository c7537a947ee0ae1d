"""The grammar: named faults, an independent oracle, text against ids, and hostile input."""

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.trace.tags import (
    TAGS,
    TagIds,
    canonical,
    good_block,
    linearise,
    parse_ids,
    parse_text,
    render_block,
    with_counts,
)

BLOCK = render_block(["a", "b"], "s")
TOY = TagIds(
    0, 1, 2, 3, 4, 5, newline=(110,), blank=frozenset({109, 132}), counts=tuple(ord(c) + 100 for c in "12345678")
)
"""A toy tokenizer: the tags are 0..5, every other character is its code + 100."""

pieces = st.lists(st.sampled_from([*TAGS, "a", "1", "2", "b c", " ", "\n", "\t x=1 "]), max_size=24).map("".join)
plain = st.text(alphabet=st.characters(exclude_characters="<"), max_size=20)
words = plain.filter(str.strip)


def toy_ids(text: str) -> list[int]:
    parts = re.split("(" + "|".join(TAGS) + ")", text)
    return [i for part in parts for i in ([TAGS.index(part)] if part in TAGS else [ord(c) + 100 for c in part])]


def toy_text(content) -> str | None:
    return None if content is None else "".join(TAGS[i] if i < 6 else chr(i - 100) for i in content)


def names(text: str, truncated: bool = False) -> list[str]:
    return [fault.name for fault in parse_text(text, truncated).faults]


def block(inside: str, summary: str = "\n<Summary>s</Summary>") -> str:
    return f"<Parallel>{inside}</Parallel>{summary}"


TWO = "<Path>a</Path><Path>b</Path>"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (block("<Path></Path><Path> \n</Path>", "<Summary></Summary>"), ["empty_path", "empty_path", "empty_summary"]),
        (block("<Path>x=1</Path><Path> x=1\n</Path>"), ["duplicate_path"]),
        (block("<Path>x=1</Path><Path>x=1</Path><Path>y</Path>"), []),
        (block("<Path>one path</Path>"), []),
        (block(TWO, "<Summary>s"), ["unclosed_summary"]),
        (block(TWO, ""), ["missing_summary"]),
        (block(TWO, " then 42"), ["missing_summary"]),
        (block(TWO, "") + BLOCK, ["missing_summary"]),
        (block(TWO, "<Summary>s") + BLOCK, ["unclosed_summary"]),
        (block(TWO, "\nso\n<Summary>s</Summary>"), ["text_before_summary"]),
        (block(f"blah{TWO}"), ["text_between_paths"]),
        (block("blah<Path>a</Path>hidden work<Path>b</Path>"), ["text_between_paths"] * 2),
        (block(f"{TWO}more"), ["text_between_paths"]),
        (block(f"2{TWO}"), []),
        (block(f"\n 2 {TWO}"), []),
        (block(f"3{TWO}"), ["wrong_count"]),
        (block(f"9{TWO}"), ["text_between_paths"]),
        (block(f"2 ways{TWO}"), ["text_between_paths"]),
        (block("<Path>a</Path>2<Path>b</Path>"), ["text_between_paths"]),
        (block("2"), ["no_path", "wrong_count"]),
        (f"<Parallel>2{TWO}", ["unclosed_parallel"]),
        (block(""), ["no_path"]),
        (f"<Parallel>{TWO}", ["unclosed_parallel"]),
        (f"<Parallel>{TWO}<Summary>s</Summary>", ["unclosed_parallel"]),
        ("<Parallel><Path>a", ["unclosed_path", "unclosed_parallel"]),
        (block("<Path>a</Path><Path>b"), ["unclosed_path"]),
        (block("<Path>a<Path>b</Path>"), ["unclosed_path"]),
        ("<Path>a</Path>", ["stray_path"]),
        (f"<Path>a</Path>{BLOCK}", ["stray_path"]),
        ("<Summary>s</Summary>", ["stray_summary"]),
        (f"{BLOCK}<Summary>again</Summary>", ["stray_summary"]),
        (block("<Path>a<Summary>s</Summary></Path><Path>b</Path>"), ["stray_summary"]),
        (block(TWO, "<Summary>s<Path>p</Path></Summary>"), ["stray_path"]),
        ("a</Path>b</Parallel>c</Summary>", ["stray_close"] * 3),
        (block(f"{TWO}</Path>"), ["stray_close"]),
        (f"<Parallel>{block(TWO)}", ["nested_block"]),
        (block(f"<Path>a<Parallel>{TWO}"), ["nested_block", "unclosed_path"]),
        (BLOCK * 50, []),
        (block("\n\n<Path>a</Path> \n<Path>b</Path>\n", "\n\n\n<Summary>s</Summary>"), []),
    ],
)
def test_faults_by_name(text, faults):
    assert names(text) == faults
    trace = parse_text(text)
    assert trace.state == ("malformed" if faults else "well_formed")
    assert trace.faults == tuple(sorted(trace.faults, key=lambda fault: fault.start))


def test_no_block_is_a_state_of_its_own():
    trace = parse_text("6*7=42\nFinal Answer: 42")
    assert (trace.state, trace.well_formed, good_block(trace)) == ("no_block", False, False)
    assert trace.answer_region == "6*7=42\nFinal Answer: 42"


@pytest.mark.parametrize(
    ("inside", "good"),
    [
        (TWO, True),
        ("<Path>x=1</Path><Path>x=1</Path>", False),
        ("<Path>x=1</Path><Path>x=1</Path><Path>y</Path>", True),
        ("<Path>a</Path>", False),
        ("<Path>a</Path><Path>b</Path><Path></Path>", False),
        (f"{TWO}loose", False),
    ],
)
def test_good_block_wants_two_distinct_paths_and_no_fault(inside, good):
    assert good_block(parse_text(block(inside))) is good


def test_one_good_block_beside_a_broken_one():
    trace = parse_text(f"<Path>x</Path>{BLOCK}")
    assert good_block(trace) and trace.state == "malformed"


def test_twin_paths_count_as_one():
    (only,) = parse_text(block("<Path>x=1</Path><Path>x=1</Path>")).blocks
    assert only.num_distinct_paths / len(only.paths) == 0.5


WHOLE = re.findall("</?[A-Z][a-z]+>|.", BLOCK, re.DOTALL)


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_truncated_is_told_apart_from_unclosed(cut):
    text = "so " + "".join(WHOLE[:cut])
    cut_names, open_names = names(text, truncated=True), names(text)
    assert parse_text(text, truncated=True).state == "truncated"
    assert cut_names == ["truncated"]
    assert open_names and set(open_names) <= {
        "unclosed_path",
        "unclosed_parallel",
        "unclosed_summary",
        "missing_summary",
    }
    assert parse_text(text, truncated=True).answer_region == ""


@pytest.mark.parametrize(
    ("text", "region"),
    [
        (f"{BLOCK}\nFinal Answer: 42", "\nFinal Answer: 42"),
        (f"Final Answer: 1{BLOCK}\nFinal Answer: 2{BLOCK}x", "x"),
        ("<Path>Final</Path> Answer", "Final Answer"),
        (f"{block(TWO, '')} Final Answer: 42", " Final Answer: 42"),
        (f"{block(TWO, '<Summary>s')} Final Answer: 42", "s Final Answer: 42"),
        ("<Parallel><Path>Final Answer: 42", ""),
        (f"{BLOCK}x<Parallel><Path>y", "x"),
    ],
)
def test_answer_region(text, region):
    trace = parse_text(text)
    assert trace.answer_region == region
    assert text[trace.answer_start :].startswith(region[:1]) or not trace.blocks[-1:] or not trace.blocks[-1].closed


def test_lookalikes_are_plain_text_and_counted():
    trace = parse_text(
        "<parallel>a</PATH> < Path >b &lt;Parallel&gt; <Path 1> <Summary/> \uff1cPath\uff1e a<b, paths >"
    )
    assert trace.state == "no_block"
    assert trace.lookalike_tags == 7
    assert parse_text(BLOCK).lookalike_tags == 0


@settings(deadline=None)
@given(st.lists(words, min_size=1, max_size=5), words, plain, plain)
def test_a_rendered_block_parses_back(paths, summary, before, after):
    trace = parse_text(before + render_block(paths, summary) + after)
    (found,) = trace.blocks
    assert tuple(path.content for path in found.paths) == tuple(paths)
    assert found.summary == summary and trace.answer_region == after and trace.stack_check
    assert trace.well_formed == (len(paths) == 1 or len({" ".join(p.split()) for p in paths}) > 1)


@settings(max_examples=300, deadline=None)
@given(pieces)
def test_well_formed_is_what_the_grammar_says(text):
    path = r"<Path>[^<]*[^<\s][^<]*</Path>"
    one = rf"<Parallel>\s*(?:[1-8]\s*)?(?:{path}\s*)+</Parallel>\s*<Summary>[^<]*[^<\s][^<]*</Summary>"
    fits = re.fullmatch(rf"(?:[^<]|{one})*", text) is not None
    for found in re.findall(one, text):
        said = [" ".join(p.split()) for p in re.findall("<Path>([^<]*)</Path>", found)]
        fits = fits and (len(said) == 1 or len(set(said)) > 1)
        named = re.match(r"<Parallel>\s*([1-8])", found)
        fits = fits and (named is None or int(named[1]) == len(said))
    assert (parse_text(text).faults == ()) == fits


@settings(max_examples=300, deadline=None)
@given(pieces, st.booleans())
def test_text_and_ids_agree(text, truncated):
    by_text, by_ids = parse_text(text, truncated), parse_ids(toy_ids(text), TOY, truncated)
    assert [(f.name, f.block, f.path) for f in by_text.faults] == [(f.name, f.block, f.path) for f in by_ids.faults]
    assert (by_text.state, by_text.stack_check) == (by_ids.state, by_ids.stack_check)
    assert by_text.answer_region == toy_text(by_ids.answer_region)
    for left, right in zip(by_text.blocks, by_ids.blocks, strict=True):
        assert [p.content for p in left.paths] == [toy_text(p.content) for p in right.paths]
        assert (left.summary, left.closed) == (toy_text(right.summary), right.closed)
        assert left.num_distinct_paths == right.num_distinct_paths


@settings(deadline=None)
@given(pieces)
def test_spans_hold_what_they_say(text):
    trace = parse_text(text)
    assert all(left.end <= right.start for left, right in pairwise(trace.blocks))
    for found in trace.blocks:
        assert text[found.start :].startswith("<Parallel>")
        assert all(text[p.inner_start : p.inner_end] == p.content for p in found.paths)
        assert all(text[p.start : p.end].endswith("</Path>") == p.closed for p in found.paths if p.closed)
        assert not found.closed or text[: found.end].endswith("</Summary>")


@settings(deadline=None)
@given(pieces)
def test_stack_check_is_algorithm_1(text):
    stack, fine = [], True
    for closing, name in re.findall("<(/?)(Parallel|Path|Summary)>", text):
        if not closing:
            stack.append(name)
        elif not stack or stack.pop() != name:
            fine = False
            break
    trace = parse_text(text)
    assert trace.stack_check == (fine and not stack)
    assert trace.faults or trace.stack_check


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_any_text_is_taken(text):
    parse_text(text)
    assert canonical(text) == text or "<" in text
    linearise(text)


@settings(deadline=None)
@given(pieces)
def test_canonical_is_idempotent_and_changes_only_white_space(text):
    once = canonical(text)
    assert canonical(once) == once
    assert "".join(once.split()) == "".join(text.split())
    assert names(once) == names(text)


def test_canonical_writes_what_the_engine_writes():
    loose = "x \n<Parallel>\n<Path> a</Path>\n\n<Path>b\n</Path>\n</Parallel>\n\n\n<Summary>s</Summary>\n\ny"
    assert canonical(loose) == "x \n" + render_block([" a", "b\n"], "s") + "\n\ny"
    assert canonical(loose.replace("<Parallel>\n", "<Parallel>\n2 \n")) == with_counts(canonical(loose))


@settings(deadline=None)
@given(pieces)
def test_counts_are_written_into_sound_blocks_and_change_nothing_else(text):
    counted = with_counts(text)
    assert with_counts(counted) == counted and names(counted) == names(text)
    before, after = parse_text(text), parse_text(counted)
    for old, new in zip(before.blocks, after.blocks, strict=True):
        assert [p.content for p in old.paths] == [p.content for p in new.paths]
        assert not new.well_formed or counted[new.start :].startswith(f"<Parallel>{len(new.paths)}<Path>")
    assert linearise(counted) == linearise(text) and before.answer_region == after.answer_region


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{BLOCK}\nFinal Answer: 1", "a\nb\ns\nFinal Answer: 1"),
        (f"So {BLOCK}then{BLOCK}", "So \na\nb\ns\nthen\na\nb\ns"),
        ("no tags", "no tags"),
        ("", ""),
    ],
)
def test_linearise(text, line):
    assert linearise(text) == line


@settings(deadline=None)
@given(pieces)
def test_linear_text_has_no_tags(text):
    assert not any(tag in linearise(text) for tag in TAGS)


@pytest.mark.parametrize(
    "text",
    [*(tag * 50_000 for tag in TAGS[1:4]), BLOCK * 10_000, "<Parallel>" + "<Path>x</Path>y" * 25_000, "<" * 300_000,
     "< " * 100_000, "<parallel" * 50_000, "<Parallel></Parallel>x" * 25_000],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_hostile_input_takes_linear_time(text):
    started = time.process_time()
    parse_text(text)
    assert time.process_time() - started < 2


def test_long_hostile_text_can_be_rewritten_too():
    text = "<Parallel><Path>x" * 20_000
    assert canonical(text) == text
    assert "<" not in linearise(text)
