"""Small line charts as inline SVG. Colours come from the page's style sheet, so both themes stay crisp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 12, 34
MOST_MARKERS = 60
"""Above this many points a line has no markers, only places to point at."""
MOST_HITS = 200


@dataclass(frozen=True, slots=True)
class Point:
    """``low`` and ``high`` are the ends of an interval, where there is one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One line; ``lines`` are its unconnected pieces. ``style`` (1, 2, 3) picks colour and marker."""

    name: str
    lines: Sequence[Sequence[Point]]
    style: int = 1

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines for point in line]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn. ``categories`` replaces the numbers of the x axis by names at 0, 1, 2, ...

    ``marks``: (x, text) of vertical rules, where a stage begins. ``bounds``: the y axis covers at least
    these; the data may widen it.
    """

    title: str
    series: Sequence[Series]
    x_label: str = "step"
    note: str = ""
    categories: Sequence[str] = ()
    marks: Sequence[tuple[float, str]] = ()
    bounds: tuple[float, float] | None = None
    percent: bool = False


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers that cover ``[low, high]``, about ``wanted`` of them."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"ticks of [{low}, {high}]: drop points that are not finite first")
    if high <= low:
        low, high = low - abs(low) * 0.1 - 1e-9, high + abs(high) * 0.1 + 1e-9
    rough = (high - low) / max(1, wanted - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def render(chart: Chart) -> str:
    """A ``<figure>`` with title, legend and SVG; empty when there is no point to draw."""
    points = [point for series in chart.series for point in series.points]
    if not points:
        return ""
    y_values = [v for p in points for v in (p.y, p.low, p.high) if v is not None] + list(chart.bounds or ())
    y_ticks = ticks(min(y_values), max(y_values))
    if chart.categories:
        x_low, x_high = -0.5, len(chart.categories) - 0.5
    else:
        x_low, x_high = min(p.x for p in points), max(p.x for p in points)
    x_of = _scale(x_low, x_high, LEFT + 4, WIDTH - RIGHT - 4)
    y_of = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    body = [_y_axis(y_ticks, y_of, chart.percent), _x_axis(chart, x_low, x_high, x_of)]
    body += [
        f'<line class="mark" x1="{x_of(x):.1f}" x2="{x_of(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="mark-text" x="{x_of(x) + 4:.1f}" y="{TOP + 9}">{escape(text)}</text>'
        for x, text in chart.marks
    ]
    spread = 0.09 if chart.categories else 0.0
    for number, series in enumerate(chart.series):
        shift = (number - (len(chart.series) - 1) / 2) * spread
        body.append(_series(series, lambda x, shift=shift: x_of(x + shift), y_of, chart))
    legend = ""
    if len(chart.series) > 1:
        keys = "".join(f'<li class="key s{s.style}">{escape(s.name)}</li>' for s in chart.series)
        legend = f'<ul class="legend">{keys}</ul>'
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    title = escape(chart.title)
    return (
        f'<figure class="chart"><figcaption>{title}</figcaption>{note}{legend}'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(body)}</svg></figure>'
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    width = (high - low) or 1.0
    middle = (start + end) / 2
    return lambda value: start + (value - low) / width * (end - start) if high > low else middle


def _y_axis(values: Sequence[float], y_of: Callable[[float], float], percent: bool) -> str:
    step = values[1] - values[0]
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y_of(v):.1f}" y2="{y_of(v):.1f}"/>'
        f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y_of(v) + 4:.1f}">{_number(v, step, percent)}</text>'
        for v in values
    )


def _x_axis(chart: Chart, low: float, high: float, x_of: Callable[[float], float]) -> str:
    base = HEIGHT - BOTTOM
    if chart.categories:
        room = max(4, int((WIDTH - LEFT - RIGHT) / len(chart.categories) / 6.5))
        found = [(float(i), _short(name, room), name) for i, name in enumerate(chart.categories)]
    else:
        inside = [v for v in ticks(low, high) if low <= v <= high and float(v).is_integer()]
        found = [(v, f"{v:.0f}", f"{v:.0f}") for v in inside or [low]]
    labels = "".join(
        f'<text class="tick" text-anchor="middle" x="{x_of(x):.1f}" y="{base + 15}">'
        f"<title>{escape(full)}</title>{escape(text)}</text>"
        for x, text, full in found
    )
    label = f'<text class="axis" text-anchor="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}">{escape(chart.x_label)}</text>'
    return f'<line class="base" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>{labels}{label}'


def _series(series: Series, x_of: Callable[[float], float], y_of: Callable[[float], float], chart: Chart) -> str:
    out: list[str] = []
    points = series.points
    for line in series.lines:
        path = " ".join(f"{x_of(p.x):.1f},{y_of(p.y):.1f}" for p in line)
        if len(line) > 1:
            out.append(f'<polyline class="line" points="{path}"/>')
    for p in points:
        if p.low is not None and p.high is not None:
            x = f"{x_of(p.x):.1f}"
            out.append(f'<line class="whisker" x1="{x}" x2="{x}" y1="{y_of(p.low):.1f}" y2="{y_of(p.high):.1f}"/>')
    lonely = {line[0] for line in series.lines if len(line) == 1}
    every = max(1, len(points) // MOST_HITS)
    for i, p in enumerate(points):
        x, y = x_of(p.x), y_of(p.y)
        if len(points) <= MOST_MARKERS or p in lonely:
            out.append(_marker(series.style, x, y))
        if i % every == 0:
            value = f"{100 * p.y:.1f} %" if chart.percent else f"{p.y:.4g}"
            where = p.label or f"{chart.x_label} {p.x:.0f}"
            text = escape(f"{series.name}, {where}: {value}")
            out.append(f'<circle class="hit" cx="{x:.1f}" cy="{y:.1f}" r="7"><title>{text}</title></circle>')
    return f'<g class="s{series.style}">{"".join(out)}</g>'


def _marker(style: int, x: float, y: float) -> str:
    """A shape of its own per series, so that colour is not the only difference."""
    if style == 2:
        return f'<rect class="dot" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    if style == 3:
        return f'<path class="dot" d="M{x:.1f} {y - 4:.1f}l4 4-4 4-4-4z"/>'
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _number(value: float, step: float, percent: bool) -> str:
    scale = 100 if percent else 1
    digits = max(0, -math.floor(math.log10(step * scale) + 1e-9)) if step > 0 else 0
    if step * scale * 10**digits % 1 > 1e-6:
        digits += 1
    return f"{value * scale:.{digits}f}{'%' if percent else ''}"


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
