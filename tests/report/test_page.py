"""The page from whole, partial and hostile run directories, without a browser."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from parallel_r1.report import build_report
from parallel_r1.report.page import embed
from parallel_r1.report.read import read_run
from parallel_r1.report.traces import FORCED, TAG, find_decoder, sample_traces, view


class Page(HTMLParser):
    """Elements, text, and the embedded data."""

    def __init__(self, path):
        super().__init__()
        self.elements, self.texts, self.stack, self.data = [], [], [], None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.stack.append((tag, dict(attrs)))

    def handle_data(self, data):
        if (
            self.stack
            and self.stack[-1] == ("script", {"type": "application/json", "id": "data"})
            and self.data is None
        ):
            self.data = json.loads(data)
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


def test_everything_is_there(run_dir):
    path = build_report(run_dir)
    assert path == run_dir / "report.html"
    page = Page(path)
    for title in ("Accuracy by stage: countdown easy", "Reward by step", "Parallel ratio by step",
                  "Block position by step", "Tokens by step", "SFT loss: cold-start"):  # fmt: skip
        assert title in page.text
    assert "rl-hard" in page.text and "45.0 [41.0, 49.5]" in page.text and "parallel_r1 0.1.0" in page.text
    traces = page.data["traces"]
    assert 100 < len(traces) <= 200
    assert {t["stage"] for t in traces} == {"base", "cold-start", "rl-easy", "rl-hard"}
    assert {t["source"] for t in traces} == {"training", "evaluation"}
    assert {t["mode"] for t in traces} == {"forked", "sequential"} and len({t["outcome"] for t in traces}) >= 2
    assert "could not be read" not in page.text  # half-written last lines are normal


def test_nothing_is_fetched(run_dir):
    page = Page(build_report(run_dir))
    for tag, attributes in page.elements:
        assert not {"src", "href", "onclick", "onerror", "style"} & set(attributes), (tag, attributes)
    assert "default-src 'none'" in str(page.elements)
    assert not re.search(r"https?://|@import|url\(", (run_dir / "report.html").read_text())


def test_model_text_stays_text(run_dir):
    recipe = json.loads((run_dir / "recipe.json").read_text())
    (run_dir / "summary.json").unlink()
    (run_dir / "recipe.json").write_text(json.dumps({**recipe, "name": "<script>alert(1)</script>"}))
    page = Page(build_report(run_dir))
    assert [tag for tag, _ in page.elements].count("script") == 2 and "img" not in [tag for tag, _ in page.elements]
    assert any("window.pwned" in t["question"] for t in page.data["traces"])
    for text in ("</script>", "<!--", "\u2028", "\ud800"):
        assert json.loads(embed([text])) == [text] and "<" not in embed([text]) and embed([text]).isascii()


@pytest.mark.parametrize("missing", ["summary.json", "metrics.jsonl", "recipe.json", "rollouts", "eval", "rl-hard"])
def test_parts_may_be_missing(run_dir, missing):
    target = run_dir / missing
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    assert Page(build_report(run_dir)).data is not None


def test_a_run_that_has_just_begun(tmp_path):
    page = Page(build_report(tmp_path))
    assert "not finished" in page.text and "Nothing has been logged yet." in page.text
    assert page.data == {"stages": [], "traces": []}
    with pytest.raises(ValueError, match="no such directory"):
        build_report(tmp_path / "none")


def test_rubbish_is_counted_not_fatal(run_dir):
    with (run_dir / "metrics.jsonl").open("a") as stream:
        stream.write('\n[1, 2]\n{"stage": 3, "kind": "rl", "step": "x"}\n{"kind": "rl", "step": 2, "reward": NaN}\n')
    (run_dir / "eval" / "base.json").write_text("{")
    (run_dir / "rollouts" / "rl-easy.jsonl").write_text(
        '{"text": 5}\n{"text": "a"}\nnot json\n{"text": "a", "verdict": {}}\n'
    )
    (run_dir / "summary.json").write_text('{"results": "no"')
    page = Page(build_report(run_dir))
    assert "could not be read" in page.text and page.data["traces"]


def test_results_while_a_run_goes_on(run_dir):
    rows = json.loads((run_dir / "summary.json").read_text())["results"]
    (run_dir / "summary.json").unlink()
    (run_dir / "eval" / "base.json").write_text(json.dumps(rows[:3]))
    run = read_run(run_dir)
    assert len(run.results) == 3 and not run.finished and run.stages[0] == "base"


def test_a_step_that_was_logged_twice_counts_once(run_dir):
    again = {"stage": "rl-hard", "kind": "rl", "step": 60, "reward": 0.75}
    with (run_dir / "metrics.jsonl").open("a") as stream:
        stream.write("\n" + json.dumps(again) + "\n")
    found = [row for row in read_run(run_dir).rl if row["stage"] == "rl-hard"]
    assert [row["step"] for row in found] == list(range(1, 61)) and found[-1] == again


def test_views_keep_every_character_and_know_what_was_inserted(run_dir):
    run = read_run(run_dir)
    decode = find_decoder(run)
    rows = sample_traces(run)
    assert decode is not None and rows == sample_traces(run)
    for row in rows:
        for with_tokens in (decode, None):
            shown = view(row, with_tokens)
            runs = []
            for part in shown["parts"]:
                lanes = [r for lane in part.get("lanes", []) for r in lane["r"] + lane["gap"]]
                block = [*part.get("open", []), *lanes, *part.get("close", []), *part.get("summary", [])]
                runs += part["r"] if part["k"] == "main" else block
            assert "".join(text for text, _ in runs) == row["text"]
            if not row["forced"]:
                continue
            kinds = {text: flags for text, flags in runs if flags & TAG}
            for tag in ("<Path>", "</Parallel>", "<Summary>"):
                assert kinds.get(tag, TAG | FORCED) == TAG | FORCED
            for tag in ("<Parallel>", "</Path>", "</Summary>"):
                assert kinds.get(tag, TAG) == TAG
            if with_tokens is not None and row["num_blocks"]:
                inside = sum(lane["n"] for part in shown["parts"] for lane in part.get("lanes", []))
                assert 0 < inside < len(row["response_ids"])


def test_a_right_path_is_marked(run_dir):
    rows = [row for row in sample_traces(read_run(run_dir)) if row["task"] == "countdown" and row["num_blocks"]]
    marks = [[lane["right"] for part in view(row, None)["parts"] for lane in part.get("lanes", [])] for row in rows]
    assert any(True in m for m in marks) and all(None not in m for m in marks)
