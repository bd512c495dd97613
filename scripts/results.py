"""The published tables, from rows that anybody can check: docs/results/*.jsonl.zst to docs/results.md.

    python scripts/results.py                          # write the tables between their marks anew
    python scripts/results.py --check                  # exit 1 if a table is not what the rows say
    python scripts/results.py keep NAME RUN --search A # keep a run's rows: verdicts, calls, gold, parts, budget's places
    python scripts/results.py keep-whole --search A --data questions_with_gold --split dev
    python scripts/results.py sample OUT.jsonl         # the questions of the sample, by the hash of their ids

A file has a line for each question, and no text of the question: its id, what was answered, every verdict that the metrics
need, and where each piece of gold stands in the order of `parallelsearch budget`. The tables are computed by the same
code that `eval` and `budget` use. What depends on the clock is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import zstandard

from parallelsearch.addresses import open_search
from parallelsearch.data import load_questions
from parallelsearch.evaluation.budget import (
    LABELLED,
    PASSAGES,
    WHOLE,
    Arm,
    Cell,
    Found,
    cells,
    labelled_arm,
    run_arm,
    whole_arm,
)
from parallelsearch.evaluation.metrics import Row, row_from_dict, row_of, summarise
from parallelsearch.files import read_jsonl
from parallelsearch.trajectory import Question, read_trajectories

ROOT = Path(__file__).parents[1]
ROWS, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "results.md"
SHIPPED = "shipped-parallel"
_CLOCK = {"elapsed_s": 0.0, "generate_s": 0.0, "wait_s": 0.0, "search_s": 0.0}
_SIZES: dict[tuple[str, str], int] = {
    ("hotpotqa", "parallel"): 80,
    ("2wikimultihopqa", "parallel"): 50,
    ("2wikimultihopqa", "mixed"): 60,
    ("hotpotqa", "sequential"): 60,
    ("2wikimultihopqa", "sequential"): 30,
    ("musique", "sequential"): 20,
}
_SUBSETS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "HotpotQA-par": lambda row: (row["dataset"], row["kind"]) == ("hotpotqa", "parallel"),
    "2Wiki-par": lambda row: (row["dataset"], row["kind"]) == ("2wikimultihopqa", "parallel"),
    "comparisons, pooled": lambda row: row["kind"] == "parallel",
    "2Wiki-mixed": lambda row: row["kind"] == "mixed",
    "chains": lambda row: row["kind"] == "sequential",
}

# ---- rows ------------------------------------------------------------------------------------------------------------


def write_rows(name: str, rows: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    ROWS.mkdir(exist_ok=True)
    (ROWS / f"{name}.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=19).compress(text.encode()))


def read_kept(name: str) -> list[dict[str, Any]]:
    return [record for _, record in read_jsonl(ROWS / f"{name}.jsonl.zst")]


async def keep(name: str, folder: Path, address: str, order: Path | None) -> None:
    """A run's rows. Of a run that is not finished, the questions up to the first that is missing in `order`, so that quick
    answers are not preferred to slow ones."""
    search = open_search(address)
    found = {one.id: one.places for one in (await run_arm(name, folder, search)).found}
    await search.aclose()
    kept = {}
    for trajectory in read_trajectories(folder / "trajectories.jsonl"):
        row = {key: value for key, value in row_of(trajectory).to_dict().items() if key not in _CLOCK}
        kept[trajectory.id] = {**row, "answer": trajectory.answer, "places": found.get(trajectory.id)}
    if order is not None:
        ids = [record["id"] for _, record in read_jsonl(order)]
        missing = next((number for number, key in enumerate(ids) if key not in kept), len(ids))
        kept = {key: kept[key] for key in ids[:missing]}
    write_rows(name, kept.values())


async def keep_whole(address: str, data: str, split: str | None) -> None:
    questions = load_questions(data, split=split)
    by_id = {question.id: question for question in questions}
    search = open_search(address)
    arms = {
        "whole-question": await whole_arm(questions, search),
        "parts-as-labelled": await labelled_arm(questions, search),
    }
    await search.aclose()
    for name, arm in arms.items():
        write_rows(
            name,
            (
                {"id": one.id, "dataset": by_id[one.id].dataset, "kind": by_id[one.id].kind, "places": one.places}
                for one in arm.found
            ),
        )


def write_sample(out: Path) -> None:
    """So many of each data set and kind, those whose ids have the least hashes: nobody chose them. The kinds are shuffled
    into each other evenly, so that the beginning of the file is a smaller sample of the same make."""
    drawn: dict[tuple[str, str], list[Question]] = {key: [] for key in _SIZES}
    questions = load_questions("questions_with_gold", split="dev").questions
    for question in sorted(questions, key=lambda one: hashlib.sha256(one.id.encode()).hexdigest()):
        drawn[question.dataset or "", question.kind or ""].append(question)
    placed = [
        ((number + 0.5) / size, question)
        for key, size in _SIZES.items()
        for number, question in enumerate(drawn[key][:size])
    ]
    with out.open("w", encoding="utf-8") as file:
        for _, question in sorted(placed, key=lambda one: one[0]):
            record = {key: value for key, value in asdict(question).items() if value is not None and key != "metadata"}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def metric_row(record: dict[str, Any], line: int) -> Row:
    known = {field.name for field in fields(Row)}
    return row_from_dict({**{k: v for k, v in record.items() if k in known}, **_CLOCK}, "docs/results", line)


def arm_of(name: str, rows: Sequence[dict[str, Any]], group: str) -> Arm:
    """The kept places as an arm, all of one group."""
    arm = Arm(name)
    for row in rows:
        arm.found.append(Found(row["id"], group, {int(rounds): places for rounds, places in row["places"].items()}))
    return arm


# ---- tables ----------------------------------------------------------------------------------------------------------


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _figure(value: float | None, interval: Sequence[float] | None = None, digits: int = 3) -> str:
    if value is None:
        return "–"
    text = f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"
    if interval is None:
        return text
    return f"{text} ({_figure(interval[0], None, digits)}, {_figure(interval[1], None, digits)})"


def budget_lines(chosen: set[str] | None, with_policy: bool) -> list[list[str]]:
    """The arms on the same questions, with what each is ahead of the whole question."""
    files = {
        WHOLE: "whole-question",
        LABELLED: "parts-as-labelled",
        **({"parallel policy": SHIPPED} if with_policy else {}),
    }
    kept = {arm: read_kept(file) for arm, file in files.items()}
    lines = []
    for name, holds in _SUBSETS.items():
        own = {
            arm: [row for row in rows if holds(row) and (chosen is None or row["id"] in chosen)]
            for arm, rows in kept.items()
        }
        found = cells([arm_of(arm, rows, name) for arm, rows in own.items() if rows])
        for arm, num_rounds in dict.fromkeys((cell.arm, cell.num_rounds) for cell in found):
            if arm == LABELLED and num_rounds > (2 if name == "2Wiki-mixed" else 1):
                continue  # nothing is left to be asked there
            row = {c.num_passages: c for c in found if (c.arm, c.num_rounds) == (arm, num_rounds)}
            figures = [_budget_figure(row[size]) for size in PASSAGES]
            if num_rounds > 1 and lines[-1][2] == arm and lines[-1][4:] == figures:
                continue  # no question took another round
            lines.append([name, f"{len(own[WHOLE]):,}", arm, str(num_rounds), *figures])
    return lines


_BUDGET_HEAD = ("questions", "n", "arm", "rounds", *(f"{size} passages" for size in PASSAGES))


def whole_table() -> str:
    """The two arms without a model, on every dev question."""
    return _markdown(_BUDGET_HEAD, budget_lines(None, with_policy=False))


def budget_table() -> str:
    """All three on the questions of the sample."""
    return _markdown(_BUDGET_HEAD, budget_lines({row["id"] for row in read_kept(SHIPPED)}, with_policy=True))


def _budget_figure(cell: Cell) -> str:
    """All gold / gold recall; behind an arm that is not the first, its lead in all gold."""
    text = f"{_figure(cell.all_gold)} / {_figure(cell.gold_recall)}"
    if cell.difference is None or cell.difference_low is None or cell.difference_high is None:
        return text
    return f"{text}, {_signed(cell.difference)} ({_signed(cell.difference_low)}, {_signed(cell.difference_high)})"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".", 1)


_COLUMNS = (
    "num_llm_calls",
    "split_ratio",
    "decomposition_accuracy",
    "parts_covered",
    "all_gold_ratio",
    "em_given_gold",
)


def shipped_table() -> str:
    rows = read_kept(SHIPPED)
    lines = []
    for name, holds in _SUBSETS.items():
        own = [metric_row(row, line) for line, row in enumerate(rows, start=1) if holds(row)]
        found = summarise(own)
        figures = [_figure(found[key], digits=2 if key == "num_llm_calls" else 3) for key in _COLUMNS]
        reading = _figure(found["reading"], found["ci95"].get("reading"))
        em = _figure(found["em"], found["ci95"]["em"])
        lines.append([name, str(len(own)), _figure(found["chance_em"]), em, *figures, reading])
    head = ("questions", "n", "chance", "EM", "calls", "split", "decomposition accuracy", "parts covered")
    return _markdown((*head, "all gold at hand", "EM given gold", "reading"), lines)


TABLES: dict[str, Callable[[], str]] = {"whole": whole_table, "budget": budget_table, "shipped": shipped_table}
_MARKED = re.compile(r"(<!-- rows: (\w+) -->\n)(.*?)(<!-- end of rows -->)", re.DOTALL)


def page_with_tables(text: str) -> str:
    """The page with every marked table as the rows have it."""
    return _MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[4]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a table is not what the rows say"
    )
    commands = parser.add_subparsers(dest="command")
    kept = commands.add_parser("keep")
    kept.add_argument("name")
    kept.add_argument("run", type=Path)
    kept.add_argument("--search", required=True)
    kept.add_argument("--order", type=Path, help="the question file, for a run that is not finished")
    whole = commands.add_parser("keep-whole")
    whole.add_argument("--search", required=True)
    whole.add_argument("--data", required=True)
    whole.add_argument("--split")
    commands.add_parser("sample").add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "keep":
        asyncio.run(keep(options.name, options.run, options.search, options.order))
    elif options.command == "keep-whole":
        asyncio.run(keep_whole(options.search, options.data, options.split))
    elif options.command == "sample":
        write_sample(options.out)
    else:
        old = PAGE.read_text(encoding="utf-8")
        new = page_with_tables(old)
        if options.check:
            return int(old != new)
        PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
