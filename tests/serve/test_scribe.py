"""Text that comes bit by bit is the text of the whole, in the order of the whole."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_r1.engine.base import TokenEvent
from parallel_r1.serve.scribe import Canonical, Piece, Scribe, StopTexts, TextStream, merged
from parallel_r1.trace.tags import TAGS, TagIds, render_block
from parallel_r1.types import Region

BYTES = range(256)
IDS = TagIds(*range(300, 306), newline=(10,))
EOS = 299


def decode(ids):
    """A tokenizer of bytes, where a tag is one token."""
    parts = itertools.groupby(ids, key=lambda i: i < 256)
    return "".join(
        bytes(run).decode(errors="replace") if plain else "".join(TAGS[i - 300] for i in run) for plain, run in parts
    )


@settings(deadline=None, max_examples=60)
@given(st.text(), st.binary(max_size=4))
def test_a_stream_of_bytes_is_the_text(text, before):
    stream = TextStream(decode, list(before))
    shown = [stream.push(byte) for byte in text.encode()]
    assert "".join(filter(None, shown)) + stream.flush() == text
    assert all(part is None or "\ufffd" not in part or "\ufffd" in text for part in shown)


@settings(deadline=None, max_examples=60)
@given(st.binary())
def test_broken_bytes_hold_nothing_back_for_long(noise):
    stream = TextStream(decode)
    held = 0
    for byte in noise:
        held = 0 if stream.push(byte) is not None else held + 1
        assert held < 4


def test_a_leading_space_survives():
    """Tokenizers that write a space before every word drop it at the start of a text."""

    def words(ids):
        return " ".join(f"w{i}" for i in ids)

    assert TextStream(words, [1]).push(2) == " w2"


def events(text, path=-1, kind="main", block=-1):
    return [TokenEvent(0, byte, Region(kind, block, path), False) for byte in text.encode()]


def tag(token, kind="block", path=-1, forced=False):
    return TokenEvent(0, token, Region(kind, 0, path), forced)


@st.composite
def responses(draw):
    """(events in a drawn order of decoding, the finished text)."""
    main, summary, tail = (draw(st.text("aé€😀 ", max_size=6)) for _ in range(3))
    paths = draw(st.lists(st.text("xyé😀", max_size=6), min_size=1, max_size=4))
    close = [tag(IDS.path_close, "path", p, draw(st.booleans())) for p in range(len(paths))]
    strands = [[*events(text, p, "path", 0), close[p]] for p, text in enumerate(paths)]
    found = [*events(main), tag(IDS.parallel_open)]
    found += [tag(IDS.path_open, "path", p, True) for p in range(len(paths))]
    while any(strands):
        place = draw(st.sampled_from([p for p, strand in enumerate(strands) if strand]))
        found.append(strands[place].pop(0))
    found += [tag(IDS.parallel_close, forced=True), tag(10, forced=True), tag(IDS.summary_open, "summary", forced=True)]
    found += [*events(summary, kind="summary", block=0), tag(IDS.summary_close, "summary"), *events(tail)]
    found.append(TokenEvent(0, EOS, Region("main"), False))
    return found, main + render_block(paths, summary) + tail


@settings(deadline=None, max_examples=60)
@given(responses(), st.integers(0, 60))
def test_pieces_in_canonical_order_are_the_text(response, cut):
    found, text = response
    for heard, whole in ((found, True), (found[:cut], cut >= len(found))):
        scribe, canonical = Scribe(decode, IDS, frozenset({EOS})), Canonical()
        live = [piece for event in heard for piece in scribe.write(event)] + scribe.end()
        shown = [piece for part in live for piece in canonical.put(part)] + canonical.rest()
        assert sorted(map(repr, live)) == sorted(map(repr, shown))
        assert sum(piece.tokens for piece in merged(live)) == len(heard)
        if whole:
            assert "".join(piece.text for piece in shown) == text
        by_place = {}
        for piece in merged(live):
            by_place[piece.region] = by_place.get(piece.region, "") + piece.text
        for piece in shown:
            assert by_place[piece.region].startswith(piece.text)
            by_place[piece.region] = by_place[piece.region].removeprefix(piece.text)


def test_path_1_comes_as_it_is_decoded():
    canonical = Canonical()
    first, second, close = (
        Piece(Region("path", 0, 0), "a", 1), Piece(Region("path", 0, 1), "b", 1),
        Piece(Region("path", 0, 0), "</Path>", 1, tag=True),
    )  # fmt: skip
    assert canonical.put(first) == [first]
    assert canonical.put(second) == []
    assert canonical.put(close) == [close, second]


@settings(deadline=None, max_examples=60)
@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3), st.data())
def test_stop_texts(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    filter_ = StopTexts(stops)
    shown = "".join(filter_.push(text[a:b]) for a, b in itertools.pairwise([0, *cuts, len(text)]))
    places = [text.find(stop) for stop in stops if stop in text]
    assert filter_.hit == bool(places)
    if not places:
        assert shown + filter_.rest() == text
    else:
        assert shown == text[: len(shown)] and not any(stop in shown for stop in stops)
        assert filter_.push("more") == "" == filter_.rest()


def test_the_wire_leaves_out_what_does_not_apply():
    assert Piece(Region("main"), "a", 1).wire == {"region": "main", "text": "a", "tokens": 1}
    assert Piece(Region("path", 0, 2), "<Path>", 1, True, True).wire == {
        "region": "path", "block": 0, "path": 2, "text": "<Path>", "tokens": 1, "tag": True, "forced": True,
    }  # fmt: skip


@pytest.mark.parametrize("stops", [["ab"], ["b", "ab"]])
def test_the_first_stop_text_counts(stops):
    filter_ = StopTexts(stops)
    assert [filter_.push(c) for c in "xabc"] == ["x", "", "", ""] and filter_.hit
