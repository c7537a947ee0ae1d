"""The audit finds what is wrong, and is silent on what is sound."""

import json
from dataclasses import replace

import pytest

from parallel_r1.audit.faults import about_tokens, cut
from parallel_r1.audit.overlap import overlaps, words
from parallel_r1.audit.report import markdown, table, write
from parallel_r1.audit.run import audit, read_set
from parallel_r1.config import DataSource
from parallel_r1.tasks import load_task

LONG = (
    "Four painters need 6 days for the 24 rooms of a hotel, and every painter works at the same steady pace, from "
    "the first room in the cellar to the last one under the roof, without a rest and without help from anybody else. "
    "How many days do 8 painters need for a hotel with 40 rooms?"
)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def looked_at(path, against=(), task="file", split="train", **settings):
    reader = load_task(DataSource(task=task, path=str(path)))
    others = [read_set(load_task(DataSource(task="file", path=str(other))), "test", other.stem) for other in against]
    return audit(reader, read_set(reader, split, path.stem), others, **settings)


@pytest.mark.parametrize(
    "question",
    [
        "How many are left?",
        "Find $x$.",
        "Evaluate\n\\[\\sum_{k=1}^3 k.\\]",
        "$f(x) = x + 1$, so $f(3) =$",
        "The area of a square with side 3 is",
        "The sum of the roots of $x^2 - 5x + 6$ is: ",
        "A set has __ elements.",
        "Let $a$ be a root of it.\\[x^2 = 2\\]Enter all values, separated by commas.",
        "\u6c42 $x$ \u7684\u503c.",
        "Tom has $4 and Ann has $5 more, so how much have both?",
        "Split into \\begin{cases} 1 \\\\[2ex] 2 \\end{cases} and add, then list the sums.",
    ],
)
def test_sound_problems_are_not_called_cut(question):
    assert cut(question) == ""


@pytest.mark.parametrize(
    ("question", "how"),
    [
        ("A sequence of integers has the following properties:", 'ends in ":"'),
        ("What is the largest number such that $a < b$,", 'ends in ","'),
        ("What is the area shown? [asy]\nsize(3cm)", "a drawing never ends"),
        ("What is it? \\[ x = 3", "a formula never ends"),
        ("What? \\begin{array} 1", "an environment never ends"),
        ("Ten boxes stand in a row, and each holds a coin.", "asks nothing"),
        ("The lamp is switched off when every guest, which takes 3 minutes, has left.", "asks nothing"),
    ],
)
def test_cut_problems_are_found(question, how):
    assert cut(question) == how


def test_each_kind_of_fault_is_found_on_its_row(tmp_path):
    rows = [
        {"question": "2+3?", "answer": "5"},
        {"question": "No gold?", "answer": " "},
        {"question": "", "answer": "5"},
        {"question": "Ten boxes stand here.", "answer": "5"},
        {"question": "2 + 3 ?", "answer": "5"},
        {"question": "Which?", "answer": "5"},
        {"question": "Which ?", "answer": "6"},
        {"question": "Why " + "so " * 3000 + "?", "answer": "5"},
        {"question": "$\\frac{1}{2}$ or what?", "answer": "0.5"},
        {"question": "$\\dfrac{1}{2}$ or what?", "answer": "\\frac12"},
    ]
    found = looked_at(write_rows(tmp_path / "rows.jsonl", rows))
    assert [(f.id.rpartition("/")[2], f.kind) for f in found.findings] == [
        ("1", "unreadable"), ("2", "unreadable"), ("3", "cut"), ("7", "too long"), ("4", "duplicate"),
        ("5", "conflicting answers"), ("6", "conflicting answers"), ("9", "duplicate"),
    ]  # fmt: skip
    assert [reading.question for reading in found.kept] == ["2+3?", "$\\frac{1}{2}$ or what?"]


def test_a_gold_that_is_not_its_own_answer_is_found(tmp_path, monkeypatch):
    path = write_rows(tmp_path / "rows.jsonl", [{"question": f"{i}?", "answer": str(i)} for i in (3, 4)])
    reader = load_task(DataSource(task="file", path=str(path)))
    honest = reader.verify
    monkeypatch.setattr(
        reader, "verify", lambda p, r: replace(honest(p, r), outcome="wrong") if "boxed{4}" in r else honest(p, r)
    )
    found = audit(reader, read_set(reader, "train"))
    assert [(f.kind, f.detail[:10]) for f in found.findings] == [("gold is not its own answer", "'4': wrong")]


def test_overlap_sees_through_layout_wording_and_additions():
    pairs = overlaps(
        [
            LONG.replace("24", "$24$").replace("hotel", "\\text{hotel}").upper(),
            "Provide an integer. " + LONG.replace("How many days do", "Find the number of days that"),
            LONG[: LONG.index("How many")] + "What does each of them earn in a week if every room brings a few coins?",
            LONG.replace("Four painters", "Nine painters").replace("24", "54").replace("40", "60"),
            "A problem about something else: how many days has a year?",
        ],
        ["How many days has a week?", LONG],
    )
    assert [(pair.index, pair.other, pair.copy) for pair in pairs] == [(0, 1, True), (1, 1, False), (2, 1, False)]


def test_short_problems_overlap_only_when_they_are_equal():
    assert [p.index for p in overlaps(["What is 2+3?", "What is $2 + 3$?", "What is 2+4?"], ["what is 2+3"])] == [0, 1]
    assert overlaps(["[asy]draw(a);[/asy]", ""], ["[asy]draw(a);[/asy]", ""]) == []


def test_other_drawings_make_other_problems():
    text = "What is the area of the shaded part? [asy]draw({});[/asy]"
    others = [text.format("circle"), text.format("square")]
    assert [(p.index, p.other) for p in overlaps([text.format("square"), text.format("line")], others)] == [(0, 1)]
    assert overlaps(["What is the area of the shaded part? [asy]draw("], others)  # cut: it may be any of them


def test_words_keep_numbers_and_signs():
    assert words("It costs $1,250.50, or -3%") == ["it", "costs", "1250.50", "or", "-", "3"]


def test_report_and_cleaned_copy(tmp_path):
    held_out = write_rows(tmp_path / "held.jsonl", [{"question": LONG, "answer": "5", "split": "test"}])
    rows = [{"question": LONG, "answer": "5", "note": 1}, {"question": "2+3?", "answer": "5", "note": 2}]
    found = looked_at(write_rows(tmp_path / "rows.jsonl", rows), [held_out])
    assert table([found]) == (["set", "rows", "kept", "in held"], [["rows", "2", "1", "1"]])
    page, figures, copy = write([found], tmp_path / "out")
    assert page.read_text() == markdown([found]) and "copy (1.00) of file/test/0, same answer" in page.read_text()
    (said,) = json.loads(figures.read_text())
    assert (said["kept"], said["findings"][0]["id"]) == (1, "file/train/0")
    assert [json.loads(line) for line in copy.read_text().splitlines()] == rows[1:]
    assert not list(tmp_path.glob("out/*.tmp"))


def test_a_parquet_copy_is_read_like_the_original(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": f"{i}?", "answer": str(i), "index": i + 7, "tags": ["x"]} for i in (1, 2, 2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    found = looked_at(tmp_path / "r.parquet")
    copy = write([found], tmp_path / "out")[2]
    again = looked_at(copy)
    assert [r.row for r in again.readings] == rows[:2] and again.readings[0].id == "file/train/8"
    assert not again.findings


def test_estimated_tokens_are_of_the_right_size():
    """By hand: short words are one token; long ones, digits and signs are counted apart."""
    assert about_tokens("Let us see: 125 rooms, $x^2$") == 14
    assert about_tokens("extraordinarily") == 3


def test_nothing_false_in_gsm8k(real_data):
    tests = read_set(load_task(DataSource(task="gsm8k", path=str(real_data / "gsm8k_test.parquet"))), "test")
    reader = load_task(DataSource(task="gsm8k", path=str(real_data / "gsm8k_train.parquet")))
    found = audit(reader, read_set(reader, "train"), [tests])
    assert len(found.kept) == 7473 and not found.findings


@pytest.mark.slow
def test_known_faults_of_dapo(real_data):
    """Against its own notes: conflicts, repeats, cut problems (marked by another hand), overlap with AMC23 and MATH."""
    reader = load_task(DataSource(task="dapo", path=str(real_data / "dapo.parquet")))
    others = [
        read_set(load_task(DataSource(task=task, path=str(real_data / f"{name}.parquet"))), "test", name)
        for task, name in (("amc23", "amc23"), ("math", "math_test"))
    ]
    found = audit(reader, read_set(reader, "train"), others)
    rows = {reading.id: reading.row for reading in found.readings}
    assert (
        sum(row["same_text_conflicting_answers"] for row in rows.values()) <= found.counts["conflicting answers"] < 80
    )
    cut_off = found.of("cut")
    assert len(cut_off) > 700 and sum(rows[f.id]["suspect_truncated"] for f in cut_off) / len(cut_off) > 0.8
    assert found.counts["duplicate"] > 1200 and not found.counts["unreadable"]
    reached = {name: {f.detail.split(" of ")[1] for f in found.of(f"in {name}")} for name in ("amc23", "math_test")}
    assert len(reached["amc23"]) >= 17 and len(reached["math_test"]) >= 824
