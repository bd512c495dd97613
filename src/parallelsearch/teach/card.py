"""The card of a taught policy: what it was made from, what that cost, how it does before and after, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallelsearch.files import write_json, write_whole

_METRICS = (
    ("em", "exact match"),
    ("f1", "F1"),
    ("gold_recall", "gold pages at hand"),
    ("parts_covered", "parts covered"),
    ("split_ratio", "split"),
    ("num_llm_calls", "LLM calls"),
)


def write_card(out: Path, record: Mapping[str, Any]) -> Path:
    """`README.md`, and the same for programs in `teach.json`."""
    write_json(out / "teach.json", record)
    write_whole(out / "README.md", "\n".join(_lines(out, record)) + "\n")
    return out / "README.md"


def _lines(out: Path, record: Mapping[str, Any]) -> list[str]:
    settings, questions, lessons = record["settings"], record["questions"], record["trajectories"]
    measured = record["evaluation"]
    addresses = [record["address"], *([f"gguf:{record['gguf']}"] if record.get("gguf") else [])]
    lines = [
        f"# A search policy for {Path(settings['corpus']).name}",
        "",
        f"`{settings['base']}`, taught with `parallelsearch teach` on {record['index']['num_passages']:,} passages.",
        "",
        "## Use it",
        "",
        "```",
        *(f'parallelsearch ask "..." --policy {one} --search bm25:{out / "index"}' for one in addresses),
        "```",
        "",
        "## What it learned from",
        "",
        f"- Questions: {_made_by(questions['source'], settings)}. {questions['num_train']} to learn from, "
        f"{questions['num_held_out']} held out for the table below.",
        f"- Rejected: {_listed(questions['rejected'])}.",
        f"- Trajectories with real searches: {lessons['num_kept']} ({_listed(lessons['kinds'])}); tried by the teacher and "
        f"kept because right: {lessons['num_sampled']}.",
        f"- SFT: {record['sft']['step']} steps on {record['sft']['num_rows']} trajectories.",
    ]
    if record["grpo"]:
        lines.append(f"- GRPO: {record['grpo']['step']} steps.")
    lines += _cost(record)
    lines += ["", "## Before and after", "", *_table(measured), ""]
    shared = questions["num_held_out_on_trained_pages"]
    lines.append(
        f"The same {measured['num_questions']} held-out questions over the same index, greedy. {shared} of them are about a "
        "page that a question to learn from is about, too; no question stands in both."
    )
    return lines


def _made_by(source: str, settings: Mapping[str, Any]) -> str:
    if source == "file":
        return f"from {Path(settings['questions']).name}"
    if source == "teacher":
        return f"written by {settings['teacher']}, each answered a second time from its passages alone"
    return f"made from the passages by the rules '{settings['rules']}'"


def _cost(record: Mapping[str, Any]) -> list[str]:
    spent = record["trajectories"].get("teacher") or record["questions"].get("teacher")
    if not spent:
        return []
    price = f", which cost {spent['cost']:.2f}" if "cost" in spent else ""
    return [
        f"- The teacher: {spent['num_replies']} replies, {spent['num_read']:,} tokens read and {spent['num_written']:,} "
        f"written{price}."
    ]


def _table(measured: Mapping[str, Any]) -> list[str]:
    tests = {test["metric"]: test for test in measured["tests"]}
    lines = ["| | before, 95% | after, 95% | difference, 95% |", "|---|---|---|---|"]
    for metric, name in _METRICS:
        before, after = measured["before"].get(metric), measured["after"].get(metric)
        if before is None or after is None:
            continue
        test = tests.get(metric)
        interval = f"{test['difference']:+.3f} ({test['low']:+.3f}, {test['high']:+.3f})" if test else ""
        shown = [_with_interval(measured[run], metric) for run in ("before", "after")]
        lines.append(f"| {name} | {shown[0]} | {shown[1]} | {interval} |")
    return lines


def _with_interval(summary: Mapping[str, Any], metric: str) -> str:
    around = summary["ci95"].get(metric)
    return f"{summary[metric]:.3f}" + (f" ({around[0]:.3f}, {around[1]:.3f})" if around else "")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
