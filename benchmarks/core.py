"""What the core costs: concurrent sub-queries, overhead of a rollout, dispatch while the model writes, start-up time.

Everything is a ratio within one run. `python benchmarks/core.py` prints the tables; `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from parallelsearch.grammar import render_turn
from parallelsearch.limits import Limits
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit, Result, Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Trajectory

ANSWER = render_turn("Now I know.", answer="done")


class Delayed(Retriever):
    """Answers a query after its own latency; `width` calls at a time, `max_batch` queries each."""

    name = "delayed"

    def __init__(self, latency_s: dict[str, float] | float, width: int = 64, max_batch: int = 1) -> None:
        self.latency_s, self.max_concurrency, self.max_batch = latency_s, width, max_batch

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        waits = [self.latency_s if isinstance(self.latency_s, float) else self.latency_s[query] for query in queries]
        if max(waits) > 0:
            await asyncio.sleep(max(waits))
        return [[Hit(f"{query}-{n}", query, f"text about {query}", rank=n) for n in range(k)] for query in queries]


# ---- sub-queries at once ---------------------------------------------------------------------------------------------


async def fan_out(latency_s: float = 0.2, repeats: int = 5) -> dict[str, float]:
    """A turn of 4 and of 16 sub-queries against one search, for a backend that takes batches and one that does not."""
    figures: dict[str, float] = {}
    for form, max_batch in (("one call for all", 64), ("one call each", 1)):
        times: dict[int, list[float]] = {1: [], 4: [], 16: []}
        for repeat in range(repeats):
            for number, taken in times.items():
                search = Search(Delayed(latency_s, max_batch=max_batch))
                start = time.perf_counter()
                await search.search_many([f"{repeat} {n}" for n in range(number)])
                taken.append(time.perf_counter() - start)
        one = statistics.median(times[1])
        figures[f"4 sub-queries / 1, {form}"] = statistics.median(times[4]) / one
        figures[f"16 sub-queries / 1, {form}"] = statistics.median(times[16]) / one
    return figures


# ---- overhead --------------------------------------------------------------------------------------------------------


async def overhead(number: int = 1000) -> dict[str, float]:
    """1,000 rollouts at once with a policy that writes at once and a search that answers at once: what is left is us."""
    turns = [render_turn("Both at once.", queries=["first thing", "second thing"]), ANSWER]
    questions = [f"question {n}?" for n in range(number)]
    policy = ScriptedPolicy(dict.fromkeys(questions, turns))
    search = Search(Delayed(0.0, max_batch=64), cache_size=0)
    start = time.perf_counter()
    done: list[Trajectory] = await asyncio.gather(*(rollout(question, policy, search) for question in questions))
    taken = time.perf_counter() - start
    num_turns = sum(trajectory.num_llm_calls for trajectory in done)
    return {"ms a turn": 1000 * taken / num_turns, "turns": num_turns, "seconds": taken}


# ---- dispatch while the model writes ---------------------------------------------------------------------------------

TOKENS_PER_S = 50.0
QUERIES = [
    "birth date of painter A number one",
    "birth date of painter B number two",
    "birth date of sculptor C three",
    "birth date of composer D four",
]


def latencies(shape: str, rng: random.Random, median_s: float) -> dict[str, float]:
    if shape == "equal":
        return dict.fromkeys(QUERIES, median_s)
    sigma = math.log(5) / 1.645  # p95 = 5 x p50
    return {query: median_s * math.exp(rng.gauss(0, sigma)) for query in QUERIES}


def finish(starts: Sequence[float], waits: Sequence[float], width: int) -> float:
    """When the last of these searches ends, on a backend that runs `width` at a time, first come first served."""
    free = [0.0] * width
    for start, wait in zip(starts, waits, strict=True):
        server = min(range(width), key=free.__getitem__)
        free[server] = max(free[server], start) + wait
    return max(free)


async def one_turn(
    turn: str, latency_s: dict[str, float], width: int, streaming: bool
) -> tuple[float, list[float], float]:
    """The wait after the turn's end, when each sub-query was dispatched, and when the turn ended."""
    policy = ScriptedPolicy({"q": [turn, ANSWER]}, tokens_per_s=TOKENS_PER_S)
    search = Search(Delayed(latency_s, width=width), cache_size=0)
    trajectory = await rollout("q", policy, search, Limits(max_turns=1), streaming_dispatch=streaming)
    first = trajectory.turns[0]
    end = first.start_s + first.generate_s
    return max(query.end_s for query in first.queries) - end, [query.start_s for query in first.queries], end


async def sequential(latency_s: dict[str, float]) -> float:
    """The waits when the same four searches are made one a turn."""
    turns = [render_turn("One at a time.", queries=[query]) for query in QUERIES]
    policy = ScriptedPolicy({"q": [*turns, ANSWER]}, tokens_per_s=TOKENS_PER_S)
    trajectory = await rollout("q", policy, Search(Delayed(latency_s), cache_size=0), Limits(max_turns=4))
    return sum(
        max(query.end_s for query in turn.queries) - turn.start_s - turn.generate_s
        for turn in trajectory.turns
        if turn.queries
    )


async def dispatch(repeats: int, median_s: float, seed: int) -> list[dict[str, float | str]]:
    turn = render_turn("I need four dates, none of which depends on another.", queries=QUERIES)
    rows: list[dict[str, float | str]] = []
    for shape, width in (
        ("equal", 64),
        ("heavy-tailed", 64),
        ("equal", 1),
        ("equal", 2),
        ("heavy-tailed", 1),
        ("heavy-tailed", 2),
    ):
        rng = random.Random(seed)
        drawn = [latencies(shape, rng, median_s) for _ in range(repeats)]
        late = await asyncio.gather(*(one_turn(turn, latency_s, width, False) for latency_s in drawn))
        early = await asyncio.gather(*(one_turn(turn, latency_s, width, True) for latency_s in drawn))
        slow = await asyncio.gather(*(sequential(latency_s) for latency_s in drawn))
        bound = [
            max(0.0, finish(starts, [latency_s[query] for query in QUERIES], width) - end)
            for (_, starts, end), latency_s in zip(early, drawn, strict=True)
        ]
        mean_late, mean_early = (statistics.fmean(wait for wait, *_ in runs) for runs in (late, early))
        attainable = mean_late - statistics.fmean(bound)
        rows.append(
            {
                "latencies": shape,
                "backend takes": "all" if width > 4 else width,
                "sequential": statistics.fmean(slow),
                "at the end": mean_late,
                "while writing": mean_early,
                "bound": statistics.fmean(bound),
                "attainable saving / wait at the end": attainable / mean_late,
                "saved / attainable": (mean_late - mean_early) / attainable,
            }
        )
    return rows


# ---- start-up --------------------------------------------------------------------------------------------------------

BARE_TYPER = """
import typer
app = typer.Typer(add_completion=False, rich_markup_mode=None)
@app.command()
def ask(question: str, k: int = 3):
    'Ask a question.'
@app.command()
def index(corpus: str, out: str):
    'Build an index.'
app()
"""


def start_up(repeats: int = 15) -> dict[str, float]:
    """`import parallelsearch` against `import pydantic`, and `--help` against a bare typer program's; best of each."""
    commands = {
        "import pydantic": [sys.executable, "-c", "import pydantic; pydantic.BaseModel"],
        "import parallelsearch": [
            sys.executable,
            "-c",
            "import parallelsearch; parallelsearch.Trajectory; parallelsearch.reward",
        ],
        "bare typer --help": [sys.executable, "-c", BARE_TYPER, "--help"],
        "parallelsearch --help": [sys.executable, "-m", "parallelsearch", "--help"],
    }
    best = dict.fromkeys(commands, math.inf)
    for _ in range(repeats):  # interleaved, so that a busy moment hits all alike
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            best[name] = min(best[name], time.perf_counter() - start)
    return {
        **{f"{name}, ms": 1000 * value for name, value in best.items()},
        "import ratio": best["import parallelsearch"] / best["import pydantic"],
        "help ratio": best["parallelsearch --help"] / best["bare typer --help"],
    }


def show(title: str, figures: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<44} {value:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--repeats", type=int, default=40, help="turns for each row of the dispatch table")
    parser.add_argument("--median-s", type=float, default=0.4, help="median latency of a search in the dispatch table")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    figures = {"fan_out": asyncio.run(fan_out()), "overhead": asyncio.run(overhead()), "start_up": start_up()}
    show("Search with 200 ms latency: a turn's time against one search", figures["fan_out"])
    show("1,000 concurrent rollouts, script policy, in-process search", figures["overhead"])
    show("Start-up, best of 15", figures["start_up"])
    rows = asyncio.run(dispatch(options.repeats, options.median_s, options.seed))
    print(
        f"\nWait after a turn of 4 sub-queries, seconds; {TOKENS_PER_S:g} tokens/s, "
        f"median latency {options.median_s} s, seed {options.seed}"
    )
    names = list(rows[0])
    print("  " + " | ".join(names))
    for row in rows:
        print(
            "  " + " | ".join(f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name]) for name in names)
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**figures, "dispatch": rows}, file, indent=1)


if __name__ == "__main__":
    main()
