"""Plots as data, for reports and for training runs: drawn as SVG inside a page (no dependency), or as PNG with matplotlib.

A `Figure` holds series of points and says how to draw them. Nothing here knows what is plotted. Names beside the points of a
scatter plot are put where they cover neither each other nor a point nor the edge; one that finds no such place is left to the
tooltip.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parallelsearch.errors import require

COLOURS = ("#2563a8", "#d9622b", "#2e8b57", "#8e44ad", "#b8860b", "#c0392b", "#16808a", "#6b6b6b")
WIDTH, HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 18, 42, 58
_LETTER, _LINE = 5.8, 12.0
"""About how wide a letter and how high a line of the small text is."""
_RADIUS = 4.5
_MAX_BAR_VALUES = 24
_MAX_MARKS = 60
"""A line of fewer points has a mark on each: one point alone is no line."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points under one name. `labels` stand beside the points of a scatter plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()

    def label(self, number: int) -> str:
        return self.labels[number] if number < len(self.labels) else ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One plot. For bars, x is the number of the category."""

    name: str
    title: str
    kind: Literal["scatter", "bars", "lines", "steps"]
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()
    y_max: float | None = None
    x_min: float | None = None

    @property
    def is_empty(self) -> bool:
        return not any(series.points for series in self.series)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, about five."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * number, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


class _Axes:
    """From values to places on the drawing."""

    def __init__(self, figure: Figure) -> None:
        points = [point for series in figure.series for point in series.points]
        self.is_bars = figure.kind == "bars"
        xs, ys = [x for x, _ in points], [y for _, y in points]
        if self.is_bars:
            self.x_low, self.x_high = 0.0, float(max(1, len(figure.categories)))
        else:
            self.x_low = min(xs) if figure.x_min is None else figure.x_min
            self.x_high = max(xs)
            if figure.kind == "scatter":
                margin = 0.15 * (self.x_high - self.x_low) or 0.5
                self.x_low, self.x_high = max(0.0, self.x_low - margin), self.x_high + margin
            if self.x_high <= self.x_low:
                self.x_high = self.x_low + 1.0
        self.y_low = min(0.0, min(ys) * 1.15)  # bars and shares begin at 0; a reward may lie below it
        self.y_high = figure.y_max or max(0.0, max(ys) * 1.15)
        if self.y_high <= self.y_low:
            self.y_high = self.y_low + 1.0

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - _TOP - _BOTTOM)


# ---- names beside points ---------------------------------------------------------------------------------------------

Box = tuple[float, float, float, float]
Anchor = Literal["start", "middle", "end"]
# Best first: right of the point, left, above, below, and the corners. y is that of the text's foot.
_PLACES: tuple[tuple[float, float, Anchor], ...] = (
    (8, 4, "start"),
    (-8, 4, "end"),
    (0, -9, "middle"),
    (0, 17, "middle"),
    (6, -7, "start"),
    (6, 15, "start"),
    (-6, -7, "end"),
    (-6, 15, "end"),
)


@dataclass(frozen=True, slots=True)
class Label:
    """A name and where it goes: as an offset from its point, on which side it begins."""

    text: str
    point: tuple[float, float]
    dx: float
    dy: float
    anchor: Anchor

    def box(self, axes: _Axes) -> Box:
        width = _LETTER * len(self.text)
        x, foot = axes.x(self.point[0]) + self.dx, axes.y(self.point[1]) + self.dy
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[self.anchor]
        return left, foot - _LINE + 2, left + width, foot + 2


def place_labels(figure: Figure) -> list[Label]:
    """The names of a scatter plot, each where nothing else stands; those without such a place are left out."""
    if figure.is_empty:
        return []
    axes = _Axes(figure)
    taken = [_circle(axes, point) for series in figure.series for point in series.points]
    placed: list[Label] = []
    for series in figure.series:
        for number, point in enumerate(series.points):
            own = _circle(axes, point)
            for dx, dy, anchor in _PLACES if series.label(number) else ():
                label = Label(series.label(number), point, dx, dy, anchor)
                box = label.box(axes)
                if _is_inside(box) and not any(_overlap(box, other) for other in taken if other != own):
                    placed.append(label)
                    taken.append(box)
                    break
    return placed


def _circle(axes: _Axes, point: tuple[float, float]) -> Box:
    x, y = axes.x(point[0]), axes.y(point[1])
    return x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS


def _is_inside(box: Box) -> bool:
    return box[0] >= _LEFT + 2 and box[1] >= _TOP - 8 and box[2] <= WIDTH - 4 and box[3] <= HEIGHT - _BOTTOM - 1


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# ---- SVG -------------------------------------------------------------------------------------------------------------


def svg(figure: Figure) -> str:
    """The figure as an SVG element; every text in it is escaped."""
    num_legend_lines = math.ceil(len(figure.series) / 3) if len(figure.series) > 1 else 0
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 20 * num_legend_lines}" role="img" '
        f'aria-label="{html.escape(figure.title)}" class="plot">'
        f'<text x="{_LEFT}" y="22" class="title">{html.escape(figure.title)}</text>'
    )
    if figure.is_empty:
        return f'{head}<text x="{WIDTH / 2}" y="{HEIGHT / 2}" class="tick" text-anchor="middle">nothing to show</text></svg>'
    axes = _Axes(figure)
    parts = [head, *_grid(figure, axes)]
    for number, series in enumerate(figure.series):
        parts += _marks(figure, axes, series, number)
    for label in place_labels(figure) if figure.kind == "scatter" else ():
        x, y = axes.x(label.point[0]) + label.dx, axes.y(label.point[1]) + label.dy
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="name" text-anchor="{label.anchor}">{html.escape(label.text)}</text>'
        )
    if num_legend_lines:
        parts += _legend(figure.series)
    return "".join(parts) + "</svg>"


def _grid(figure: Figure, axes: _Axes) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts: list[str] = []
    for value in ticks(axes.y_low, axes.y_high):
        y = axes.y(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" class="tick" text-anchor="end">{value:g}</text>')
    if axes.is_bars:
        names = [(number + 0.5, category) for number, category in enumerate(figure.categories)]
        room = (right - _LEFT) / max(1, len(names))
    else:
        names = [(value, f"{value:g}") for value in ticks(axes.x_low, axes.x_high)]
        room = math.inf
    for place, name in names:
        for line, words in enumerate(_wrapped(name, room)):
            parts.append(
                f'<text x="{axes.x(place):.1f}" y="{bottom + 16 + _LINE * line}" class="tick" text-anchor="middle">'
                f"{html.escape(words)}</text>"
            )
    parts.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" class="axis"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 12}" class="label" text-anchor="middle">{html.escape(figure.x_label)}</text>'
    )
    up = (_TOP + bottom) / 2
    parts.append(
        f'<text x="16" y="{up}" class="label" text-anchor="middle" transform="rotate(-90 16 {up})">'
        f"{html.escape(figure.y_label)}</text>"
    )
    return parts


def _wrapped(name: str, room: float) -> list[str]:
    """The name on one line, or, where that is wider than its room, on two; what still does not fit is cut."""
    lines = [name]
    if _LETTER * len(name) > room and " " in name:
        words = name.split(" ")
        half = min(range(1, len(words)), key=lambda n: max(len(" ".join(words[:n])), len(" ".join(words[n:]))))
        lines = [" ".join(words[:half]), " ".join(words[half:])]
    most = int(room / _LETTER) if room < math.inf else len(name)
    return [line if len(line) <= most + 1 else line[: max(1, most - 1)] + "…" for line in lines]


def _marks(figure: Figure, axes: _Axes, series: Series, number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    if figure.kind == "scatter":
        return [
            f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="{_RADIUS}" fill="{colour}"><title>'
            f"{html.escape(f'{series.name} {series.label(at)}'.strip())}: {x:.3g}, {y:.3g}</title></circle>"
            for at, (x, y) in enumerate(series.points)
        ]
    if figure.kind == "bars":
        return _bars(figure, axes, series, number, colour)
    places = [(axes.x(x), axes.y(y)) for x, y in (_stepped(series) if figure.kind == "steps" else series.points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']


def _bars(figure: Figure, axes: _Axes, series: Series, number: int, colour: str) -> list[str]:
    width = 0.8 / len(figure.series)
    has_values = len(figure.series) * len(figure.categories) <= _MAX_BAR_VALUES
    parts: list[str] = []
    for x, y in series.points:
        left, top = axes.x(x + 0.1 + number * width), axes.y(y)
        wide = axes.x(width) - axes.x(0)
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(1.0, wide - 1):.1f}" height="{axes.y(0) - top:.1f}" '
            f'fill="{colour}"><title>{html.escape(series.name)}: {y:.3g}</title></rect>'
        )
        text = f"{y:.2f}" if y < 10 else f"{y:.0f}"
        if has_values and wide >= _LETTER * len(text):
            parts.append(
                f'<text x="{left + wide / 2:.1f}" y="{top - 4:.1f}" class="name" text-anchor="middle">{text}</text>'
            )
    return parts


def _stepped(series: Series) -> list[tuple[float, float]]:
    """A stair: each value holds until the next x."""
    stair: list[tuple[float, float]] = []
    for x, y in series.points:
        if stair:
            stair.append((x, stair[-1][1]))
        stair.append((x, y))
    return stair


def _legend(all_series: Sequence[Series]) -> list[str]:
    parts: list[str] = []
    for number, series in enumerate(all_series):
        x, y = _LEFT + (number % 3) * 165, HEIGHT + 10 + 20 * (number // 3)
        name = series.name if len(series.name) <= 24 else series.name[:23] + "…"
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}" class="tick">{html.escape(name)}</text>')
    return parts


# ---- PNG -------------------------------------------------------------------------------------------------------------

_POINTS_PER_UNIT = 7.0 * 72 / WIDTH
_SIDES = {"start": "left", "middle": "center", "end": "right"}


def save_png(figure: Figure, path: Path) -> None:
    """Draw the figure with matplotlib, without a display: the same limits and places as in the page."""
    save_grid([figure], path, num_columns=1)


def save_grid(figures: Sequence[Figure], path: Path, num_columns: int, extra: str = "report") -> None:
    """Several figures in one picture, row by row. `extra` is the one that a caller's user would install for it."""
    require("matplotlib", extra)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    num_rows = math.ceil(len(figures) / num_columns)
    canvas = Canvas(figsize=(7.0 * num_columns, 4.2 * num_rows), dpi=150 if len(figures) == 1 else 100)
    FigureCanvasAgg(canvas)
    for number, figure in enumerate(figures, start=1):
        _draw(figure, canvas.add_subplot(num_rows, num_columns, number))
    canvas.tight_layout()
    canvas.savefig(path)


def _draw(figure: Figure, plot: Any) -> None:
    plot.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    plot.grid(True, axis="both" if figure.kind != "bars" else "y", alpha=0.3)
    for number, series in enumerate(figure.series):
        colour, xs, ys = COLOURS[number % len(COLOURS)], [x for x, _ in series.points], [y for _, y in series.points]
        if figure.kind == "bars":
            width = 0.8 / len(figure.series)
            plot.bar([x + 0.1 + (number + 0.5) * width for x in xs], ys, width, label=series.name, color=colour)
        elif figure.kind == "scatter":
            plot.scatter(xs, ys, label=series.name, color=colour)
        else:
            style = "steps-post" if figure.kind == "steps" else "default"
            marker = "." if figure.kind == "lines" and len(xs) < _MAX_MARKS else ""
            plot.plot(xs, ys, label=series.name, color=colour, drawstyle=style, marker=marker)
    if not figure.is_empty:
        axes = _Axes(figure)
        plot.set_xlim(axes.x_low, axes.x_high)
        plot.set_ylim(axes.y_low, axes.y_high)
    for label in place_labels(figure) if figure.kind == "scatter" else ():
        offset = (label.dx * _POINTS_PER_UNIT, -label.dy * _POINTS_PER_UNIT)
        side = _SIDES[label.anchor]
        plot.annotate(label.text, label.point, xytext=offset, textcoords="offset points", fontsize=8, ha=side)
    if figure.kind == "bars":
        names = ["\n".join(_wrapped(name, (WIDTH - _LEFT) / len(figure.categories))) for name in figure.categories]
        plot.set_xticks([number + 0.5 for number in range(len(names))], names, fontsize=8)
    if len(figure.series) > 1 or (figure.kind == "lines" and figure.series):
        plot.legend(fontsize=8)
