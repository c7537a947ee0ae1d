"""The playground in a real browser: lanes that fill side by side, compare, files, keys, hostile text, a phone."""

import json
import time

import httpx2
import pytest

from parallel_r1.serve.guard import Limits
from parallel_r1.trace.tags import render_block

HOSTILE = "<img src=x onerror='window.pwned=1'></script><script>window.pwned=1</script>"
browser_test = pytest.mark.browser


@pytest.fixture
def open_page(browser, serve, dice_model):
    """``open_page(pace_s=..., limits=..., **context)``: the page of a new server. Nothing may complain or leave."""
    contexts, complaints = [], []

    def open_page(pace_s=0.01, limits=None, ready="#form", **settings):
        address = serve(dice_model(pace_s=pace_s), limits)
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: complaints.append(message.text) if "401" not in message.text else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        own = (address, "data:", "blob:")
        page.on("request", lambda sent: None if sent.url.startswith(own) else complaints.append(sent.url))
        page.goto(address + "/")
        page.wait_for_selector(ready)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def until(page, condition, seconds=60):
    """Wait for a condition; the page's own policy forbids what `wait_for_function` does."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(30)


def ask(page, question="make 6 from 1 2 3", fork="always", seed="1"):
    page.fill("#question", question)
    page.select_option("#fork", fork)
    page.fill("#seed", seed)
    page.keyboard.press("Control+Enter")


def finished(page):
    until(page, "document.querySelector('#stop').disabled && document.querySelector('#runs .run')")
    return page.inner_text("#status")


@browser_test
def test_lanes_fill_at_the_same_time_and_join(open_page):
    page = open_page(pace_s=0.15)
    ask(page)
    until(page, "[...document.querySelectorAll('.lane.live .text')].filter(t => t.textContent).length >= 3")
    assert page.locator(".summary").count() == 0
    boxes = [page.locator(".lane").nth(i).bounding_box() for i in range(3)]
    assert len({round(box["y"]) for box in boxes}) == 1 and boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    page.wait_for_selector(".summary")
    assert finished(page) == "done" and page.locator(".live").count() == 0
    assert "on the critical path" in page.inner_text(".numbers")


@browser_test
def test_escape_stops_and_frees_the_row(open_page, serve):
    page = open_page(pace_s=0.2)
    ask(page)
    page.wait_for_selector(".lane")
    page.keyboard.press("Escape")
    assert finished(page) == "ended early" and "stopped" in page.inner_text("#runs .bad")
    page.wait_for_timeout(1000)
    assert serve.worker.num_open == 0


@browser_test
def test_side_by_side_with_one_chain_and_a_verdict(open_page):
    page = open_page(viewport={"width": 1300, "height": 900})
    page.select_option("#task", "countdown easy")
    until(page, "document.querySelector('#question').value.startsWith('make')")
    assert "known answer" in page.inner_text("#gold")
    page.check("#compare")
    ask(page, page.input_value("#question"))
    assert finished(page) == "done"
    runs = page.locator(".run")
    boxes = [runs.nth(i).bounding_box() for i in range(2)]
    assert runs.count() == 2 and boxes[0]["y"] == boxes[1]["y"]
    assert runs.nth(0).locator(".lane").count() >= 3 and runs.nth(1).locator(".lane").count() == 0
    until(page, "document.querySelectorAll('.run .verdict:not([hidden]) b').length === 2")
    page.fill("#question", "something else")
    assert page.is_hidden("#gold")


@browser_test
def test_a_trace_is_saved_and_opened_again(open_page, tmp_path):
    page = open_page()
    ask(page)
    finished(page)
    shown = page.inner_text(".chain")
    with page.expect_download() as saved:
        page.click("#save")
    file = tmp_path / "trace.json"
    saved.value.save_as(file)
    trace = json.loads(file.read_text())
    assert trace["runs"][0]["text"].count("</Path>") >= 3 and trace["runs"][0]["request"]["seed"] == 1
    page.set_input_files("#file", file)
    until(page, "document.querySelector('#status').textContent.startsWith('a saved trace')")
    lanes = "[...document.querySelectorAll('.lane .text, .summary .text')].map(n => n.textContent)"
    reopened = page.evaluate(lanes)
    assert all(text in shown for text in map(str.strip, reopened)) and len(reopened) >= 4


@browser_test
def test_a_file_of_rollouts(open_page, tmp_path):
    rows = [
        {"text": "a" + render_block([HOSTILE, "two"], "s") + "b", "question": HOSTILE, "gold": "1", "stage": "rl",
         "verdict": {"outcome": "right", "answer": HOSTILE}, "total_tokens": 9, "critical_tokens": 7},
        {"text": "<Parallel>2<Path>cut", "question": "q", "verdict": {"outcome": "no_answer"}},
        {"text": "plain </Path> text", "question": "q"},
    ]  # fmt: skip
    file = tmp_path / "rollouts.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\nnot json\n")
    page = open_page()
    page.set_input_files("#file", file)
    page.wait_for_selector(".lane")
    assert page.inner_text("#count") == "1 / 3" and "1 lines unreadable" in page.inner_text("#status")
    assert HOSTILE in page.inner_text(".lane") and HOSTILE in page.inner_text("#asked")
    assert page.evaluate("window.pwned") is None and page.locator("img").count() == 0
    assert page.inner_text(".verdict b").lower() == "✓ right"
    assert "9 tokens · 7 on the critical path" in page.inner_text(".numbers")
    page.click("h1")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#count") == "2 / 3" and page.locator(".lane").count() == 1
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".chain") == "plain </Path> text" and page.is_disabled("#next")
    (tmp_path / "bad.json").write_text("[]")
    page.set_input_files("#file", tmp_path / "bad.json")
    until(page, "document.querySelector('#status').classList.contains('bad')")


@browser_test
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_in_both_themes(open_page, scheme):
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme, has_touch=True)
    ask(page)
    finished(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert ink == ("rgb(11, 11, 11)" if scheme == "light" else "rgb(255, 255, 255)")


@browser_test
def test_all_of_it_by_keyboard(open_page):
    page = open_page()
    until(page, "document.activeElement.id === 'question'")
    page.keyboard.type("make 6 from 1 2 3")
    seen = []
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
    wanted = ["task", "problem", "fork", "paths", "temperature", "max-tokens", "seed", "compare", "ask", "open"]
    assert [name for name in seen if name in wanted][: len(wanted)] == wanted
    page.focus("#ask")
    page.keyboard.press("Enter")
    assert finished(page) == "done"


@browser_test
def test_a_server_with_a_key(open_page):
    page = open_page(limits=Limits(api_key="a-key-of-sufficient-length"), ready="#key-form")
    page.fill("#key", "wrong")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#key-note').textContent.includes('API key')")
    page.fill("#key", "a-key-of-sufficient-length")
    page.keyboard.press("Enter")
    page.wait_for_selector("#form")
    ask(page)
    assert finished(page) == "done"


def test_problems_and_verdicts(serve):
    address = serve()
    asked = {"task": "chain", "size": "easy", "seed": 3}
    with httpx2.Client(base_url=address, timeout=60) as client:
        problem = client.post("/playground/problem", json=asked).json()
        assert problem == client.post("/playground/problem", json=asked).json()
        trace = render_block(["1", "2"], "x") + f"Final Answer: {problem['gold']}"
        verdict = client.post("/playground/verdict", json={"problem": asked, "trace": trace}).json()
        assert verdict["outcome"] == "right" and verdict["faults"] == []
        wrong = client.post("/playground/verdict", json={"problem": asked, "trace": "Final Answer: 1x"}).json()
        assert wrong["outcome"] != "right"
        unknown = client.post("/playground/problem", json={"task": "poetry"})
        assert unknown.status_code == 400 and "countdown" in unknown.json()["error"]["message"]
