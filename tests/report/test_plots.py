"""Charts: what is drawn, and that it is well-formed XML."""

import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_r1.report.plots import Chart, Point, Series, render, ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_cover_the_range_evenly(low, width):
    found = ticks(low, low + width)
    step = found[1] - found[0]
    slack = step * 1e-6 + abs(low) * 1e-9
    assert found[0] <= low + slack and found[-1] >= low + width - slack and 2 <= len(found) <= 8
    assert all(math.isclose(b - a, step, rel_tol=1e-6, abs_tol=slack) for a, b in pairwise(found))


def test_ticks_of_a_point_and_of_nothing():
    assert len(ticks(0.0, 0.0)) >= 2 and len(ticks(5.0, 5.0)) >= 2
    with pytest.raises(ValueError, match="finite"):
        ticks(0.0, math.nan)


def inside(svg):
    for x in re.findall(r' (?:x|x1|x2|cx)="([-\d.]+)"', svg):
        assert 0 <= float(x) <= 420
    for y in re.findall(r' (?:y|y1|y2|cy)="([-\d.]+)"', svg):
        assert 0 <= float(y) <= 240


@pytest.mark.parametrize("num", [1, 2, 300])
def test_a_chart_is_xml_and_within_its_frame(num):
    points = [Point(i, math.sin(i), math.sin(i) - 0.1, math.sin(i) + 0.1) for i in range(num)]
    chart = Chart("<b> & co", [Series("a<b", [points], 1), Series("other", [points[:1]], 2)], marks=[(0, "<i>")])
    svg = render(chart)
    root = ET.fromstring(svg)
    assert root.find("figcaption").text == "<b> & co"
    assert [item.text for item in root.iter("li")] == ["a<b", "other"]
    assert len(list(root.iter("polyline"))) == (num > 1)
    inside(svg)


def test_categories_name_the_axis():
    stages = ["base", "a very long name of a stage indeed", "rl"]
    svg = render(Chart("t", [Series("s", [[Point(i, 0.2 * i) for i in range(3)]])], categories=stages, percent=True))
    root = ET.fromstring(svg)
    titles = [title.text for title in root.iter("title")]
    assert stages[1] in titles and "…" in svg and "%" in svg
    inside(svg)


def test_nothing_to_draw():
    assert render(Chart("t", [])) == render(Chart("t", [Series("s", [])])) == ""
