"""Tasks that read data: any file, any columns, one reader; and the real data where they are."""

import json

import pytest

from parallel_r1.config import DataSource
from parallel_r1.recipe import RecipeError, load_recipe
from parallel_r1.tasks import TASKS, load_task
from parallel_r1.tasks.data import Dataset, question_key, read_gold
from parallel_r1.tasks.maths import DATASETS, count_steps
from parallel_r1.tasks.prompts import MATHS, TEMPLATES, own_part
from parallel_r1.tasks.rows import text_at, value_at

ROWS = [
    {"question": "Two and two?", "answer": "2+2=<<2+2=4>>4\n#### 4"},
    {"question": "A dear thing?", "answer": "1*70=<<1*70=70>>70\n70*1000=<<70*1000=70000>>70,000\n#### $70,000"},
    {"question": "No gold?", "answer": ""},
    {"question": "Words?", "answer": "#### many"},
    {"question": "Two and\ntwo?", "answer": "#### 4"},
    {"question": "", "answer": "#### 4"},
    {"question": "Which?", "answer": "3"},
    {"question": "Which?", "answer": "5"},
]


def write(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def task_of(name, path, **options):
    return load_task(DataSource(task=name, path=str(path), options=options))


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "rows.jsonl", ROWS)


def test_rows_become_problems_and_the_rest_is_counted(path):
    task = task_of("gsm8k", path)
    problems = task.problems("train", "easy", 10, seed=0)
    assert sorted(p.gold for p in problems) == ["4", "70000"]
    assert sorted(reason for _, reason in task.dropped) == [
        "conflicting answers", "conflicting answers", "duplicate", "empty question", "unreadable gold ''",
        "unreadable gold 'many'",
    ]  # fmt: skip
    for problem in problems:
        assert task.verify(problem, f"Final Answer: {problem.gold}").right
        assert not task.verify(problem, f"Final Answer: {problem.gold}1").right
    assert task.problems("train", "easy", 1, seed=0) == problems[:1]


def test_ids_are_unique_whatever_the_index_column_says(tmp_path):
    rows = [{"question": f"{i}?", "answer": "1", "index": i % 2} for i in range(6)]
    problems = task_of("file", write(tmp_path / "a.jsonl", rows)).problems("train", "easy", 9, 0)
    assert len({p.id for p in problems}) == 6 and {"file/train/0", "file/train/1"} <= {p.id for p in problems}


def test_measures_choose_easy_and_hard(tmp_path, path):
    assert [p.gold for p in task_of("gsm8k", path, max_steps=1).problems("train", "easy", 9, 0)] == ["4"]
    assert [p.gold for p in task_of("gsm8k", path, min_steps=2).problems("train", "hard", 9, 0)] == ["70000"]
    rows = [{"problem": f"{i}?", "answer": str(i), "level": f"Level {i}"} for i in range(1, 6)]
    rows += [{"problem": "?", "answer": "9", "level": "Level ?"}]
    levels = task_of("math", write(tmp_path / "m.jsonl", rows), min_level=2, max_level=3)
    assert {p.gold for p in levels.problems("train", "easy", 9, 0)} == {"2", "3"}
    assert ("math/train/5", "no level to be read") in levels.dropped


def test_counting_steps_and_reading_golds():
    assert count_steps({}, "a <<1+1=2>>2\nb <<2+2=4>>4\n#### 4") == 2
    assert count_steps({"solution": "one\ntwo\n\nthree\n#### 4"}, "4") == 3
    assert count_steps({}, "42") is None
    assert read_gold("work\n#### 1,000") == "1,000"
    assert read_gold(r"so \(x\) is $\boxed{\frac{1}{2}}$ or rather \boxed{3}.") == "3"
    assert read_gold("90\\text{ square\nunits}") == "90\\text{ square units}"
    assert read_gold("\\begin{pmatrix}1\\\\\n2\\end{pmatrix}").startswith("\\begin")


def test_columns_have_any_name_and_may_be_nested(tmp_path):
    row = {"q": "2+2?", "meta": {"gold": [4, 5]}, "chat": [{"role": "user", "content": "3+3?"}]}
    file = write(tmp_path / "own.jsonl", [row])
    (problem,) = task_of("file", file, question="q", answer="meta.gold.0").problems("train", "easy", 9, 0)
    assert (problem.question, problem.gold) == ("2+2?", "4")
    (problem,) = task_of("file", file, question="chat", answer="meta.gold.1").problems("train", "easy", 9, 0)
    assert (problem.question, problem.gold) == ("3+3?", "5")
    assert value_at(row, "meta.none.x") is None and value_at(row, "chat.7.content") is None
    turns = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}]
    assert text_at({"prompt": turns}, "prompt") == "a"


def test_rows_as_the_hub_has_them(tmp_path):
    """The column layouts of the public mirrors, without the hub."""
    around = (
        "Solve the following math problem step by step. The last line is the answer.\n\nWhat is\n\n6*7?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    layouts = {
        "dapo": {"prompt": [{"role": "user", "content": around}], "reward_model": {"ground_truth": "42", "style": "x"}},
        "aime24": {"id": 1, "problem": "6*7?", "solution": r"\boxed{42}", "url": "u"},
        "aime25": {"problem": "6*7?", "answer": "42", "id": "0"},
        "amc23": {"id": 0, "question": "6*7?", "answer": "42.0", "url": "u"},
        "math": {"problem": "6*7?", "level": "Level 1", "type": "Algebra", "solution": "It is\n$\\boxed{42}$."},
        "math500": {"problem": "6*7?", "solution": "long\ntext", "answer": "42", "level": 1, "unique_id": "x"},
        "gsm8k": {"question": "6*7?", "answer": "6*7=<<6*7=42>>42\n#### 42"},
    }  # fmt: skip
    assert layouts.keys() | {"file"} == {dataset.name for dataset in DATASETS}
    for name, row in layouts.items():
        split = TASKS[name].splits[-1]
        task = task_of(name, write(tmp_path / f"{name}.jsonl", [row]))
        (problem,) = task.problems(split, "easy", 9, 0)
        assert problem.question == ("What is\n\n6*7?" if name == "dapo" else "6*7?")
        assert task.verify(problem, "Final Answer: 42").right and not task.verify(problem, "Final Answer: 43").right


def test_parquet_json_lists_and_a_split_column(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"problem": f"{i}?", "answer": str(i), "split": "test" if i % 2 else "train"} for i in range(6)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    (tmp_path / "all.json").write_text(json.dumps(rows, indent=1))
    for name in ("all.parquet", "all.json"):
        task = task_of("gsm8k", tmp_path / name)
        assert {p.gold for p in task.problems("test", "easy", 9, 0)} == {"1", "3", "5"}
        assert {p.gold for p in task.problems("train", "easy", 9, 0)} == {"0", "2", "4"}


@pytest.mark.slow
def test_a_folder_is_read_as_the_hub_is(tmp_path):
    pytest.importorskip("datasets")
    write(tmp_path / "train.jsonl", ROWS[:1])
    write(tmp_path / "test.jsonl", ROWS[1:2])
    task = task_of("gsm8k", tmp_path)
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
            task_of("gsm8k", file, **options).problems("train", "easy", 5, 0)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="not readable"):
        task_of("gsm8k", tmp_path / "broken.parquet").problems("train", "easy", 5, 0)
    for name, options, message in [
        ("gsm8k", {"steps": 1}, "unknown option of gsm8k"),
        ("gsm8k", {"max_steps": "few"}, "whole number"),
        ("dapo", {"max_steps": 3}, "unknown option of dapo"),
        ("math", {"question": 3}, "give a name"),
    ]:
        with pytest.raises(ValueError, match=message):
            task_of(name, path, **options)
    with pytest.raises(ValueError, match="'file' reads a Parquet or JSONL file of yours"):
        load_task("file")


def test_evaluation_sets_are_not_trained_on(path):
    with pytest.raises(ValueError, match="aime24 has only test: it is for evaluation"):
        task_of("aime24", path).problems("train", "easy", 5, 0)
    with pytest.raises(ValueError, match="dapo has only train"):
        load_task("dapo").problems("test", "easy", 5, 0)
    assert task_of("dapo", path).problems("test", "easy", 5, 0)  # a held-out file of one's own


def test_layout_is_not_content():
    assert question_key(r"What is  $\dfrac{1}{2}$?") == question_key("What is\n\\(\\left\\frac{1}{2}\\right\\)?")
    assert question_key("What is $-1$?") != question_key("What is $1$?")
    assert question_key(r"$f(x)$ is \leftarrow") != question_key(r"$fx$ is \leftarrow")


def test_templates_ask_for_one_question_and_a_recipe_names_them(tmp_path):
    for name, template in TEMPLATES.items():
        assert template.count("{question}") == 1, name
        if "few_shot" not in name:
            assert template.count("Final Answer:") == 1
    assert all(tag in MATHS.parallel for tag in ("<Parallel>", "</Path>", "<Summary>"))
    assert "<" not in MATHS.plain + MATHS.few_shot
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'name = "r"\nprompt.parallel = "<|im_start|>user\\n${maths_parallel}<|im_end|>\\n"\n'
        '[[stages]]\nkind = "sft"\nname = "cold"\ndata = [{task = "gsm8k"}]\n'
    )
    assert load_recipe(recipe).prompt.parallel == f"<|im_start|>user\n{MATHS.parallel}<|im_end|>\n"
    recipe.write_text(recipe.read_text().replace("maths_parallel", "maths_paralel"))
    with pytest.raises(RecipeError, match=r"maths_paralel.*not set"):
        load_recipe(recipe)


def test_examples_of_the_few_shot_prompt_hold():
    """They are graded as responses are: the text before each example's end is a right response to it."""
    task = load_task("gsm8k")
    for part in MATHS.few_shot.split("Problem:")[1:-1]:
        assert task.verify(_problem(part.rpartition(":")[2].strip()), part).right


def test_a_base_model_that_poses_itself_more_problems_is_graded_on_its_own():
    response = "6*7 = 42\nFinal Answer: 42\n\nProblem: 1+1?\nSolution: two\nFinal Answer: 2"
    task = load_task("gsm8k")
    assert own_part(response) == "6*7 = 42\nFinal Answer: 42"
    assert task.verify(_problem("42"), response).right and not task.verify(_problem("2"), response).right
    restated = "Problem: 6*7?\nFinal Answer: 41, no\nFinal Answer: 42"
    assert own_part(restated) == restated


def _problem(gold):
    from parallel_r1.types import Problem

    return Problem("x", "gsm8k", "easy", "?", gold)


def test_a_new_data_set_is_a_declaration(tmp_path):
    file = write(tmp_path / "x.jsonl", [{"stem": "2+2?", "key": "4"}])
    own = Dataset("own", None, question=("stem",), answer=("key",))
    (problem,) = own.from_source(DataSource(task="own", path=file)).problems("train", "easy", 1, 0)
    assert (problem.task, problem.gold) == ("own", "4")


@pytest.mark.parametrize(
    ("name", "file", "split", "usable", "rows"),
    [
        ("gsm8k", "gsm8k_train", "train", 7473, 7473),
        ("gsm8k", "gsm8k_test", "test", 1319, 1319),
        ("math", "math_test", "test", 5000, 5000),
        ("math", "math_train", "train", 7496, 7500),
        ("math", "math300", "test", 316, 316),
        ("dapo", "dapo", "train", 16_585, 17_917),
        ("aime24", "aime24", "test", 30, 30),
        ("aime25", "aime25", "test", 30, 30),
        ("amc23", "amc23", "test", 40, 40),
    ],
)
def test_real_golds_against_themselves(name, file, split, usable, rows, real_data):
    task = task_of(name, real_data / f"{file}.parquet")
    problems = task.problems(split, "easy", 100_000, 0)
    assert (len(problems), len(problems) + len(task.dropped)) == (usable, rows), task.dropped
    assert all(task.verify(p, rf"Final Answer: \boxed{{{p.gold}}}").right for p in problems)
