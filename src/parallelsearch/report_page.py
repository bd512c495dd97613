"""The HTML page of a report: one file, no script, no network, everything escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from parallelsearch.report_plots import Figure, svg
from parallelsearch.trajectory import Trajectory

_MAX_TEXT = 4000


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    tables: Sequence[Table] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Example:
    """A trajectory worth reading, and why."""

    reason: str
    trajectory: Trajectory


_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6b6b6b; --line: #d8d8d8; --back: #ffffff; --card: #f6f6f4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --soft: #a0a0a0; --line: #444; --back: #17181a; --card: #222427; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto; max-width: 76rem;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
td { max-width: 32rem; overflow: hidden; text-overflow: ellipsis; } th { color: var(--soft); font-weight: 600; }
.warning { background: var(--card); border-left: 4px solid #d9622b; padding: .5rem .9rem; margin: .4rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem; }
.plot { width: 100%; height: auto; background: var(--card); border-radius: 6px; }
.plot text { fill: var(--ink); font: 11px system-ui, sans-serif; } .plot .title { font-size: 14px; font-weight: 600; }
.plot .tick { fill: var(--soft); } .plot .grid { stroke: var(--line); stroke-width: .6; } .plot .axis { stroke: var(--soft); }
details { background: var(--card); border-radius: 6px; padding: .5rem .9rem; margin: .5rem 0; }
summary { cursor: pointer; } .reason { color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12.5px; margin: .4rem 0; padding-left: .7rem;
  border-left: 3px solid var(--line); } pre.model { border-color: #2563a8; } pre.search { border-color: #2e8b57; }
pre.notice { border-color: #d9622b; }
"""


def page(
    title: str,
    sections: Sequence[Section],
    figures: Sequence[Figure],
    warnings: Sequence[str] = (),
    examples: Sequence[Example] = (),
) -> str:
    """The whole page. The plots come after the first section: the numbers first."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts += [f'<p class="warning">{html.escape(warning)}</p>' for warning in warnings]
    for number, section in enumerate(sections):
        parts.append(_section(section))
        if number == 0 and figures:
            parts.append(f'<div class="plots">{"".join(svg(figure) for figure in figures)}</div>')
    if examples:
        parts.append("<h2>Trajectories worth reading</h2>")
        parts += [_example(example) for example in examples]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body>{''.join(parts)}</body></html>\n"
    )


def _section(section: Section) -> str:
    tables = "".join(_table(table) for table in section.tables if table.rows)
    return f"<h2>{html.escape(section.title)}</h2>{tables or '<p>Nothing to show.</p>'}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    body = "".join(
        "<tr>" + "".join(f'<td title="{html.escape(cell)}">{html.escape(cell)}</td>' for cell in row) + "</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _example(example: Example) -> str:
    trajectory = example.trajectory
    said = "".join(
        f'<pre class="{segment.author}">{html.escape(_cut(segment.text.strip()))}</pre>'
        for segment in trajectory.segments
        if segment.author != "prompt" and segment.text.strip()
    )
    golden = ", ".join(trajectory.golden_answers[:3]) or "unknown"
    verdict = f"answer: {trajectory.answer or 'none'}; golden: {golden}; {trajectory.num_llm_calls} calls"
    if trajectory.error:
        verdict += f"; error: {trajectory.error}"
    return (
        f'<details id="{html.escape(trajectory.id)}"><summary>{html.escape(trajectory.question)} '
        f'<span class="reason">({html.escape(example.reason)})</span></summary>'
        f"<p>{html.escape(verdict)}</p>{said}"
        f'<p class="reason">id {html.escape(trajectory.id)} in trajectories.jsonl</p></details>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"
