"""Plots as data, drawn twice: as SVG inside a page (no dependency), as PNG files with matplotlib (extra `report`).

A `Figure` holds series of points and says how to draw them. Nothing here knows what is plotted.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from parallelsearch.errors import require

COLOURS = ("#2563a8", "#d9622b", "#2e8b57", "#8e44ad", "#b8860b", "#c0392b", "#16808a", "#6b6b6b")
WIDTH, HEIGHT = 560, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 46


@dataclass(frozen=True, slots=True)
class Series:
    """Points under one name. `labels` stand beside the points of a scatter plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()


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
    x_min: float | None = field(default=None)

    @property
    def is_empty(self) -> bool:
        return not any(series.points for series in self.series)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / about
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
                margin = 0.1 * (self.x_high - self.x_low) or 0.5
                self.x_low, self.x_high = max(0.0, self.x_low - margin), self.x_high + margin
            if self.x_high <= self.x_low:
                self.x_high = self.x_low + 1.0
        self.y_low, self.y_high = 0.0, figure.y_max or (max(ys) * 1.1 or 1.0)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / (self.x_high - self.x_low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - _TOP - _BOTTOM)


def svg(figure: Figure) -> str:
    """The figure as an SVG element; every text in it is escaped."""
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 18 * math.ceil(len(figure.series) / 3)}" role="img" '
        f'aria-label="{html.escape(figure.title)}" class="plot">'
        f'<text x="{_LEFT}" y="18" class="title">{html.escape(figure.title)}</text>'
    )
    if figure.is_empty:
        return f'{head}<text x="{WIDTH / 2}" y="{HEIGHT / 2}" class="tick" text-anchor="middle">nothing to show</text></svg>'
    axes = _Axes(figure)
    parts = [head, *_grid(figure, axes)]
    for number, series in enumerate(figure.series):
        parts += _marks(figure, axes, series, number)
    parts += _legend(figure.series)
    return "".join(parts) + "</svg>"


def _grid(figure: Figure, axes: _Axes) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts: list[str] = []
    for value in ticks(axes.y_low, axes.y_high):
        y = axes.y(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="tick" text-anchor="end">{value:g}</text>')
    if axes.is_bars:
        names = [(number + 0.5, category) for number, category in enumerate(figure.categories)]
    else:
        names = [(value, f"{value:g}") for value in ticks(axes.x_low, axes.x_high)]
    for place, name in names:
        parts.append(
            f'<text x="{axes.x(place):.1f}" y="{bottom + 16}" class="tick" text-anchor="middle">{html.escape(name)}</text>'
        )
    parts.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" class="axis"/>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 34}" class="label" text-anchor="middle">{html.escape(figure.x_label)}</text>'
    )
    up = (_TOP + bottom) / 2
    parts.append(
        f'<text x="14" y="{up}" class="label" text-anchor="middle" transform="rotate(-90 14 {up})">'
        f"{html.escape(figure.y_label)}</text>"
    )
    return parts


def _marks(figure: Figure, axes: _Axes, series: Series, number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    if figure.kind == "scatter":
        parts: list[str] = []
        for at, (x, y) in enumerate(series.points):
            label = series.labels[at] if at < len(series.labels) else ""
            parts.append(f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4.5" fill="{colour}"/>')
            parts.append(
                f'<text x="{axes.x(x) + 7:.1f}" y="{axes.y(y) + 4:.1f}" class="tick">{html.escape(label)}</text>'
            )
        return parts
    if figure.kind == "bars":
        width = 0.8 / len(figure.series)
        return [
            f'<rect x="{axes.x(x + 0.1 + number * width):.1f}" y="{axes.y(y):.1f}" '
            f'width="{axes.x(width) - axes.x(0):.1f}" height="{axes.y(0) - axes.y(y):.1f}" fill="{colour}">'
            f"<title>{html.escape(series.name)}: {y:.3g}</title></rect>"
            for x, y in series.points
        ]
    places = [(axes.x(x), axes.y(y)) for x, y in (_stepped(series) if figure.kind == "steps" else series.points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']


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
        x, y = _LEFT + (number % 3) * 165, HEIGHT + 6 + 18 * (number // 3)
        name = series.name if len(series.name) <= 24 else series.name[:23] + "…"
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}" class="tick">{html.escape(name)}</text>')
    return parts


def save_png(figure: Figure, path: Path) -> None:
    """Draw the figure with matplotlib, without a display."""
    require("matplotlib", "report")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(7.0, 4.2), dpi=150)
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    axes.set(title=figure.title, xlabel=figure.x_label, ylabel=figure.y_label)
    axes.grid(True, axis="both" if figure.kind != "bars" else "y", alpha=0.3)
    for number, series in enumerate(figure.series):
        colour, xs, ys = COLOURS[number % len(COLOURS)], [x for x, _ in series.points], [y for _, y in series.points]
        if figure.kind == "bars":
            width = 0.8 / len(figure.series)
            axes.bar([x + 0.1 + (number + 0.5) * width for x in xs], ys, width, label=series.name, color=colour)
        elif figure.kind == "scatter":
            axes.scatter(xs, ys, label=series.name, color=colour)
            for at, label in enumerate(series.labels[: len(xs)]):
                axes.annotate(label, (xs[at], ys[at]), xytext=(5, -3), textcoords="offset points", fontsize=7)
        else:
            style = "steps-post" if figure.kind == "steps" else "default"
            axes.plot(xs, ys, label=series.name, color=colour, drawstyle=style)
    if figure.kind == "bars":
        axes.set_xticks([number + 0.5 for number in range(len(figure.categories))], list(figure.categories))
    axes.set_ylim(0, figure.y_max)
    if len(figure.series) > 1:
        axes.legend(fontsize=8)
    canvas.tight_layout()
    canvas.savefig(path)
