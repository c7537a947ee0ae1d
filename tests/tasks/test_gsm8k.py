"""gsm8k from files and folders of the same columns as the hub's."""

import json
from pathlib import Path

import pytest

from parallel_r1.config import DataSource
from parallel_r1.tasks import load_task
from parallel_r1.tasks.gsm8k import Gsm8k, count_steps, read_gold

REAL = Path(__file__).parents[2].parent / "shared" / "data"
ROWS = [
    {"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\n#### 4"},
    {"question": "A dear thing?", "answer": "1*70=<<1*70=70>>70\n70*1000=<<70*1000=70000>>70,000\n#### $70,000"},
    {"question": "No gold?", "answer": ""},
    {"question": "Words?", "answer": "#### many"},
    {"question": "Two and two?", "answer": "#### 4"},
    {"question": "", "answer": "#### 4"},
]


def write(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "rows.jsonl", ROWS)


def test_rows_become_problems_and_the_rest_is_counted(path):
    task = Gsm8k(path)
    problems = task.problems("train", "easy", 10, seed=0)
    assert sorted(p.gold for p in problems) == ["4", "70000"]
    assert sorted(reason for _, reason in task.dropped) == [
        "duplicate", "empty question", "unreadable gold ''", "unreadable gold 'many'",
    ]  # fmt: skip
    for problem in problems:
        assert task.verify(problem, f"Final Answer: {problem.gold}").right
        assert not task.verify(problem, f"Final Answer: {problem.gold}1").right
    assert task.problems("train", "easy", 1, seed=0) == problems[:1]


def test_steps_choose_easy_and_hard(path):
    easy, hard = Gsm8k(path, {"max_steps": 1}), Gsm8k(path, {"min_steps": 2})
    assert [p.gold for p in easy.problems("train", "easy", 9, 0)] == ["4"]
    assert [p.gold for p in hard.problems("train", "hard", 9, 0)] == ["70000"]


def test_counting_steps_and_reading_golds():
    assert count_steps("a <<1+1=2>>2\nb <<2+2=4>>4\n#### 4") == 2
    assert count_steps("one\ntwo\n\nthree\n#### 4") == 3
    assert count_steps("42") is None
    assert (read_gold("work\n#### 1,000"), read_gold("42")) == ("1,000", "42")


def test_parquet_and_a_split_column(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"problem": f"{i}?", "answer": str(i), "split": "test" if i % 2 else "train"} for i in range(6)]
    file = tmp_path / "all.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    task = load_task(DataSource(task="gsm8k", path=str(file)))
    assert {p.gold for p in task.problems("test", "easy", 9, 0)} == {"1", "3", "5"}
    assert {p.gold for p in task.problems("train", "easy", 9, 0)} == {"0", "2", "4"}


@pytest.mark.slow
def test_a_folder_is_read_as_the_hub_is(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "train.jsonl", ROWS[:1])
    write(tmp_path / "test.jsonl", ROWS[1:2])
    task = Gsm8k(str(tmp_path))
    assert [p.gold for p in task.problems("train", "easy", 9, 0)] == ["4"]
    assert [p.gold for p in task.problems("test", "easy", 9, 0)] == ["70000"]


def test_errors_name_the_key_and_the_fix(tmp_path, path):
    cases = [
        (tmp_path / "none.parquet", {}, "no such file"),
        (write(tmp_path / "bad.jsonl", []), {}, "no rows for split 'train'"),
        (
            write(tmp_path / "cols.jsonl", [{"q": 1, "answer": "4"}]),
            {},
            "no column 'question' or 'problem'.*options.question",
        ),
        (write(tmp_path / "gold.jsonl", [ROWS[2]]), {}, "none of 1 rows is usable .*unreadable gold"),
        (write(tmp_path / "list.jsonl", [[1]]), {}, "must be a JSON object"),
        (write(tmp_path / "gsm8k_test.jsonl", ROWS), {}, "holds the test split by its name"),
        (path, {"max_steps": 99, "min_steps": 50}, "number of steps"),
    ]
    for file, options, message in cases:
        with pytest.raises(ValueError, match=message):
            Gsm8k(str(file), options).problems("train", "easy", 5, 0)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="not readable"):
        Gsm8k(str(tmp_path / "broken.parquet")).problems("train", "easy", 5, 0)
    with pytest.raises(ValueError, match="unknown option of gsm8k"):
        Gsm8k(path, {"steps": 1})
    with pytest.raises(ValueError, match="whole number"):
        Gsm8k(path, {"max_steps": "few"})


@pytest.mark.skipif(not (REAL / "gsm8k_test.parquet").is_file(), reason="the real data are not here")
def test_real_golds_against_themselves():
    task = Gsm8k(str(REAL / "gsm8k_test.parquet"))
    problems = task.problems("test", "easy", 10_000, 0)
    assert len(problems) == 1319 and not task.dropped
    assert all(task.verify(p, f"Final Answer: {p.gold}").right for p in problems)
    easy = Gsm8k(str(REAL / "gsm8k_test.parquet"), {"max_steps": 2}).problems("test", "easy", 10_000, 0)
    assert 0 < len(easy) < 1319
