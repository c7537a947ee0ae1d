"""The result table in its three forms."""

import io

from parallel_r1.report.table import COLUMNS, markdown_table, percent, result_cells, rich_table

ROW = {
    "stage": "rl|hard", "task": "countdown", "size": "hard", "split": "test", "mode": "forked", "mean": 0.3712,
    "mean_ci": [0.33, 0.41], "sequential_mean": 0.22, "difference": 0.15, "difference_ci": [0.1, 0.2],
    "pass_at_k": {"4": 0.57}, "total_tokens": 107.25, "block_position": 0.3,
}  # fmt: skip


def test_empty_columns_are_left_out():
    headers, (line,) = result_cells([ROW])
    cells = dict(zip([header for header, _ in headers], line, strict=True))
    assert cells["accuracy %"] == "37.1 [33.0, 41.0]" and cells["gain"] == "+15.0 [10.0, 20.0]"
    assert cells["sequential %"] == "22.0" and cells["pass@k %"] == "57.0 (k=4)" and cells["set"] == "countdown hard"
    assert "critical" not in cells and len(headers) < len(COLUMNS)
    assert result_cells([]) == ([], [])


def test_a_sequential_row_is_not_compared_with_itself():
    headers, _ = result_cells([{**ROW, "mode": "sequential"}])
    assert not {"sequential %", "gain"} & {header for header, _ in headers}


def test_no_minus_zero_and_no_zero_for_nothing():
    assert percent(-0.0001) == "0.0" and percent(-0.001) == "-0.1" and percent(None) == ""


def test_markdown():
    lines = markdown_table({"results": [ROW]}).splitlines()
    assert lines[0].startswith("| stage | set | accuracy %") and "rl\\|hard" in lines[2]
    assert lines[0].count("|") == lines[1].count("|") == lines[2].replace("\\|", "").count("|")
    assert markdown_table({}) == "No results yet.\n"


def test_rich_shows_markup_as_text():
    from rich.console import Console

    stream = io.StringIO()
    Console(file=stream, width=200).print(rich_table({"name": "[red]run", "results": [{**ROW, "stage": "[b]x"}]}))
    assert "[red]run" in stream.getvalue() and "[b]x" in stream.getvalue() and "37.1" in stream.getvalue()
