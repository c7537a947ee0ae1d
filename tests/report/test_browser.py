"""The page in a real browser: stepping, filters, keys, hostile text, both themes, a phone."""

import pytest

from parallel_r1.report import build_report

pytestmark = pytest.mark.browser


@pytest.fixture
def open_page(browser, run_dir):
    contexts, complaints = [], []

    def open_page(path=None, **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if "report.html" not in request.url else None)
        page.goto((path or build_report(run_dir)).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def place(page):
    return page.inner_text("#count")


def test_stepping_through_traces(open_page):
    page = open_page()
    assert page.input_value("#f-stage") == "rl-hard"
    page.select_option("#f-stage", "")
    total = int(place(page).split(" / ")[1])
    assert total > 100 and place(page).startswith("1 /") and page.is_disabled("#prev")
    page.click("#next")
    page.click("#viewer h2")
    page.keyboard.press("ArrowRight")
    assert place(page) == f"3 / {total}"
    page.keyboard.press("ArrowLeft")
    assert place(page) == f"2 / {total}"
    page.keyboard.press("End")
    assert place(page) == f"{total} / {total}" and page.is_disabled("#next")


def test_choosing_traces(open_page):
    page = open_page()
    page.select_option("#f-task", "chain hard")
    page.select_option("#f-outcome", "wrong")
    page.select_option("#f-blocks", "1")
    assert page.inner_text(".verdict b").lower().endswith("wrong")
    assert page.inner_text(".question .text").startswith("compute")
    lanes = page.locator(".lane")
    boxes = [lanes.nth(i).bounding_box() for i in range(lanes.count())]
    assert len(boxes) >= 2 and len({round(box["y"]) for box in boxes}) == 1  # side by side
    assert page.locator(".lane .forced").first.inner_text() == "<Path>"
    page.select_option("#f-stage", "base")
    page.select_option("#f-blocks", "1")
    assert place(page) == "none" and "No trace fits" in page.inner_text("#trace")


def test_hostile_text_runs_nothing(open_page):
    page = open_page()
    page.select_option("#f-outcome", "error")
    assert "<img src=x" in page.inner_text(".question .text") and "</script>" in page.inner_text(".chain")
    assert "<img src=x" in page.inner_text(".verdict")
    assert page.evaluate("window.pwned") is None and page.locator("img").count() == 0


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_overflows(open_page, width):
    page = open_page(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_both_themes(open_page):
    def colours(scheme):
        page = open_page(color_scheme=scheme)
        return page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")

    light, dark = colours("light"), colours("dark")
    assert light != dark and light[1] == "rgb(11, 11, 11)" and dark[1] == "rgb(255, 255, 255)"


def test_an_empty_run_opens(open_page, tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    page = open_page(build_report(folder))
    assert "No rollouts have been stored yet." in page.inner_text("#trace")
    assert not page.is_visible(".controls")
