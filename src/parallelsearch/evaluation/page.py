"""The HTML page of a report: one file, no script, no network, everything escaped.

All it points at is the viewer's page, where one lies beside it, and in its examples the web pages that were found.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from parallelsearch.evaluation.plots import Figure, svg
from parallelsearch.markup import STYLE as MARKUP
from parallelsearch.markup import steps_html, text_html
from parallelsearch.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    tables: Sequence[Table] = field(default_factory=list)
    is_folded: bool = False
    nothing: str = "Nothing to show."
    """What is said where no table has a row."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One number for the top of the page."""

    value: str
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A trajectory worth reading, and why."""

    reason: str
    trajectory: Trajectory


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5f6368; --line: #dcdcd8; --back: #ffffff; --card: #f7f7f5;
  --link: #1d5a9e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --soft: #a3a6aa; --line: #3c3f43; --back: #17181a; --card: #202225; --link: #86b7ee; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2.5rem auto 4rem;
  max-width: 78rem; padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 1rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.8rem 0 .8rem; }
a { color: var(--link); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .8rem; margin: 0 0 .5rem; }
.fact { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; }
.fact dt { color: var(--soft); font-size: 13px; } .fact dd { margin: 0; }
.fact dd.value { font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.fact dd.note { color: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin: .4rem 0 1.2rem; width: fit-content;
  max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .45rem .65rem; text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; background: var(--card); max-width: 9rem; }
tbody tr { border-top: 1px solid var(--line); } tbody tr.again { border-top: none; }
.again td:first-child { color: var(--soft); }
td { max-width: 34rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; } .number { text-align: right; }
small { display: block; color: var(--soft); font-size: 11.5px; }
.warning { background: var(--card); border-left: 4px solid #d9622b; padding: .5rem .9rem; margin: .4rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1.2rem;
  margin: 1.8rem 0 1rem; }
.plot { width: 100%; height: auto; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .4rem; }
.plot text { fill: var(--ink); font: 11px system-ui, sans-serif; } .plot .title { font-size: 14px; font-weight: 600; }
.plot .tick, .plot .label { fill: var(--soft); } .plot .grid { stroke: var(--line); stroke-width: .7; }
.plot .axis { stroke: var(--soft); }
summary { cursor: pointer; } .reason { color: var(--soft); }
.folded > summary { font-size: 1.15rem; font-weight: 600; margin: 2.8rem 0 .8rem; }
.example { display: flex; gap: 1rem; align-items: baseline; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: .55rem .9rem; margin: .5rem 0; }
.example details { flex: 1; min-width: 0; } .example a { white-space: nowrap; }
"""


def page(
    title: str,
    sections: Sequence[Section],
    figures: Sequence[Figure],
    warnings: Sequence[str] = (),
    examples: Sequence[Example] = (),
    facts: Sequence[Fact] = (),
    viewer: str | None = None,
) -> str:
    """The whole page. The plots come after the first section: the numbers first. `viewer` is the address of the viewer's
    page, as seen from this one."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="warning">{html.escape(warning)}</p>' for warning in warnings]
    if facts:
        parts.append(f'<dl class="facts">{"".join(map(_fact, facts))}</dl>')
    for number, section in enumerate(sections):
        parts.append(_section(section))
        if number == 0 and figures:
            parts.append(f'<div class="plots">{"".join(svg(figure) for figure in figures)}</div>')
    if examples:
        parts.append("<h2>Trajectories worth reading</h2>")
        if viewer is not None:
            whole = f'<a href="{html.escape(quote(viewer))}">All trajectories in the viewer</a>'
            parts.append(f"<p>{whole}: filters, waterfall, every hit.</p>")
        parts += [_example(example, viewer) for example in examples]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}{MARKUP}</style></head>\n<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _fact(fact: Fact) -> str:
    note = f'<dd class="note">{html.escape(fact.note)}</dd>' if fact.note else ""
    value = f'<dd class="value">{html.escape(fact.value)}</dd>'
    return f'<div class="fact"><dt>{html.escape(fact.name)}</dt>{value}{note}</div>'


def _section(section: Section) -> str:
    title = html.escape(section.title)
    tables = (
        "".join(_table(table, title) for table in section.tables if table.rows)
        or f"<p>{html.escape(section.nothing)}</p>"
    )
    if section.is_folded:
        return f'<details class="folded"><summary>{title}</summary>{tables}</details>'
    return f"<h2>{title}</h2>{tables}"


_NUMBER = re.compile(r"[-+–]|[-+]?\d[\d.,]*( \(\d+%\))?|[-+]?[\d.]+ \[.*\]|\[.*\]")
_WITH_INTERVAL = re.compile(r"(?P<value>\S+) (?P<rest>\[.*\]|\(\d+%\))")


def _table(table: Table, name: str) -> str:
    """Columns of numbers stand to the right; an interval goes under its value. A wide table scrolls, also by keyboard."""
    columns = list(zip(*table.rows, strict=True))
    marks = [' class="number"' if all(_NUMBER.fullmatch(cell) for cell in column) else "" for column in columns]
    head = "".join(f"<th{mark}>{html.escape(cell)}</th>" for cell, mark in zip(table.head, marks, strict=True))
    body, before = "", ""
    for row in table.rows:
        cells = "".join(f"<td{mark}{_cell(cell)}</td>" for cell, mark in zip(row, marks, strict=True))
        body += f'<tr class="again">{cells}</tr>' if row[0] == before else f"<tr>{cells}</tr>"
        before = row[0]
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(text: str) -> str:
    """The rest of a cell after its opening: a long text has a tooltip."""
    parts = _WITH_INTERVAL.fullmatch(text)
    if parts is not None:
        return f">{html.escape(parts['value'])}<small>{html.escape(parts['rest'])}</small>"
    tip = f' title="{html.escape(text)}"' if len(text) > 40 else ""
    return f"{tip}>{html.escape(text)}"


def viewer_address(viewer: str, id: str) -> str:
    """Where the viewer's page shows this trajectory at once."""
    return f"{quote(viewer)}#id={quote(id, safe='')}"


def _example(example: Example, viewer: str | None) -> str:
    trajectory = example.trajectory
    golden = ", ".join(trajectory.golden_answers[:3]) or "unknown"
    is_text = trajectory.written and trajectory.answer is not None
    said = "a text" if is_text else trajectory.answer or "none"
    verdict = f"answer: {said}; golden: {golden}; {trajectory.num_llm_calls} calls"
    if trajectory.error:
        verdict += f"; error: {trajectory.error}"
    link = ""
    if viewer is not None:
        name = html.escape(f"Open in the viewer: {trajectory.question}")
        address = html.escape(viewer_address(viewer, trajectory.id))
        link = f'<a href="{address}" aria-label="{name}">open in the viewer</a>'
    return (
        f'<div class="example"><details id="{html.escape(trajectory.id)}"><summary>{html.escape(trajectory.question)} '
        f'<span class="reason">({html.escape(example.reason)})</span></summary>'
        f"<p>{html.escape(verdict)}</p>{text_html(trajectory) if is_text else ''}{steps_html(trajectory)}"
        f'<p class="reason">id {html.escape(trajectory.id)} in trajectories.jsonl</p></details>{link}</div>'
    )
