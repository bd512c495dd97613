"""Wall clock of one question: sub-queries one after another, all at once, or each as soon as it is written.

    python benchmarks/latency_grid.py [--out DIR] [--dialect parallel] [--tokens-per-s 50] [--load 32] [--quick]

For 1, 2, 3, 4 and 8 sub-queries and search latencies of 0.05 to 2 s, a policy writes at a fixed pace and the backend answers
after a fixed time. `sequential` asks one sub-query a turn; `parallel` asks all in one turn and dispatches when the turn is
complete; `streaming` dispatches each sub-query the moment it is written. Single stream: one question at a time, with search
times that are all the same and with log-normal ones of the same median. Under load:
many questions at once over a backend that takes a limited number of calls at a time, each with up to 64 queries. The whole
trajectory is timed, answer included. With `--dialect tools` the same queries are written as native calls. Writes a table and,
with matplotlib, a plot.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parallelsearch import grammar
from parallelsearch.dialect import Tool
from parallelsearch.evaluation.plots import Figure, Series, save_png
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Generation, OnCall, OnText, Policy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.base import Hit, Result, Retriever
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Call, Segment

NUM_SUBQUERIES = (1, 2, 3, 4, 8)
LATENCIES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
WAYS = ("sequential", "parallel", "streaming")


class SlowRetriever(Retriever):
    """Answers a call after `latency_s`, or after a log-normal time with that median: the same for the same queries."""

    name = "slow"
    max_batch = 64

    def __init__(self, latency_s: float, spread: float, max_concurrency: int) -> None:
        self.latency_s, self.spread, self.max_concurrency = latency_s, spread, max_concurrency

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        draw = random.Random("|".join(queries))
        await asyncio.sleep(self.latency_s * draw.lognormvariate(0.0, self.spread))
        return [[Hit(query, f"Title of {query}", "A passage of a few words.", score=1.0, rank=1)] for query in queries]


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the grid: the median time of a question, in seconds."""

    way: str
    num_subqueries: int
    latency_s: float
    load: int
    spread: float
    median_s: float
    p95_s: float
    num_llm_calls: float


class Caller(Policy):
    """Writes native calls at a fixed pace, four characters a token: what a server streams, without the server."""

    name, streams, takes_tools = "caller", True, True

    def __init__(self, way: str, num: int, tokens_per_s: float) -> None:
        self.way, self.num, self.tokens_per_s = way, num, tokens_per_s

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        return Segment("prompt", text)

    async def generate(
        self, segments: Sequence[Segment], *, on_text: OnText | None = None, on_call: OnCall | None = None, **_: Any
    ) -> Generation:
        name = segments[0].text.rpartition("Question: ")[2].strip().removesuffix("?")
        asked = rounds(self.way, self.num, name)
        number = sum(segment.author == "model" for segment in segments)
        if number >= len(asked):
            await self._write("the first one", on_text or (lambda piece: None))
            return Generation("the first one", "eos")
        call = Call(f"call-{number}", "search", json.dumps({"queries": asked[number]}))
        await self._write("I need these heights.", on_text or (lambda piece: None))
        await self._write(call.arguments, lambda piece: on_call(0, call.name, piece) if on_call else None)
        return Generation("I need these heights.", "eos", calls=[call])

    async def _write(self, text: str, tell: OnText) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for number, at in enumerate(range(0, len(text), 4), start=1):
            await asyncio.sleep(max(0.0, start_s + number / self.tokens_per_s - loop.time()))
            tell(text[at : at + 4])


def rounds(way: str, num: int, name: str) -> list[list[str]]:
    queries = [f"what is the height of mountain {letter} of {name}" for letter in "abcdefgh"[:num]]
    return [[query] for query in queries] if way == "sequential" else [queries]


def turns(way: str, num: int, name: str) -> list[str]:
    written = [grammar.render_turn("I need these heights.", part) for part in rounds(way, num, name)]
    return [*written, grammar.render_turn("Now I can compare them.", answer="the first one")]


async def measure(
    way: str, num: int, latency_s: float, load: int, spread: float, tokens_per_s: float, repeats: int, dialect: str
) -> Cell:
    questions = [f"question {number}" for number in range(load * repeats)]
    script = {name: turns(way, num, name) for name in questions}
    policy: Policy = ScriptedPolicy(script, tokens_per_s=tokens_per_s)
    if dialect == "tools":
        policy = Caller(way, num, tokens_per_s)
    search = Search(SlowRetriever(latency_s, spread, 4), cache_size=0, max_batch=1 if load == 1 else None)
    if load == 1:
        search.max_concurrency = 8
    limits = Limits(max_turns=9, max_subqueries=8, max_tokens=20_000)
    times: list[float] = []
    calls: list[int] = []

    async def ask(name: str) -> None:
        is_early = way == "streaming"
        trajectory = await rollout(name, policy, search, limits, dialect=dialect, streaming_dispatch=is_early)
        if trajectory.answer != "the first one" or trajectory.num_subqueries != num:
            raise RuntimeError(f"the rollout went wrong: {trajectory.stop} {trajectory.error}")
        times.append(trajectory.elapsed_s or 0.0)
        calls.append(trajectory.num_llm_calls)

    for start in range(0, len(questions), load):
        await asyncio.gather(*(ask(name) for name in questions[start : start + load]))
    await search.aclose()
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return Cell(way, num, latency_s, load, spread, statistics.median(times), p95, statistics.mean(calls))


async def grid(options: argparse.Namespace) -> list[Cell]:
    latencies = (0.05, 0.5) if options.quick else LATENCIES_S
    places = [
        (way, num, latency, load, spread)
        for load, spread in settings(options)
        for num in NUM_SUBQUERIES
        for latency in latencies
        for way in WAYS
    ]
    # Almost all of it is waiting, so single-stream cells can wait side by side; a loaded cell has the machine alone.
    room = asyncio.Semaphore(16)

    async def cell(way: str, num: int, latency: float, load: int, spread: float) -> Cell:
        repeats = 1 if load > 1 else options.repeats if spread == 0 else 5 * options.repeats
        async with room:
            return await measure(way, num, latency, load, spread, options.tokens_per_s, repeats, options.dialect)

    cells = list(await asyncio.gather(*(cell(*place) for place in places if place[3] == 1)))
    for place in places:
        if place[3] > 1:
            cells.append(await cell(*place))
    return cells


def settings(options: argparse.Namespace) -> list[tuple[int, float]]:
    """Load and spread of each table."""
    loads = [] if options.load <= 1 else [(options.load, 0.0)]
    return [(1, 0.0), (1, options.spread), *loads]


def table(cells: Sequence[Cell], load: int, spread: float) -> str:
    found = {(c.way, c.num_subqueries, c.latency_s): c for c in cells if (c.load, c.spread) == (load, spread)}
    lines = [
        "| sub-queries | latency s | sequential s | parallel s | streaming s | par. / seq. | stream. / par. |",
        "|---|---|---|---|---|---|---|",
    ]
    for num, latency in sorted({(key[1], key[2]) for key in found}):
        a, b, c = (found[way, num, latency].median_s for way in WAYS)
        lines.append(f"| {num} | {latency:g} | {a:.2f} | {b:.2f} | {c:.2f} | {b / a:.2f} | {c / b:.2f} |")
    return "\n".join(lines)


def heading(load: int, spread: float) -> str:
    latency = "every search takes the same time" if spread == 0 else f"log-normal search times, sigma {spread:g}"
    return f"{'single stream' if load == 1 else f'{load} questions at once'}, {latency}"


def figures(cells: Sequence[Cell], load: int, spread: float) -> list[Figure]:
    """Seconds against latency for 2 and 4 sub-queries, and against the number of sub-queries at 0.5 s."""
    shown = [cell for cell in cells if (cell.load, cell.spread) == (load, spread)]
    ending = f"load_{load}" + ("_spread" if spread else "")
    made = []
    for num in (2, 4):
        series = tuple(
            Series(way, tuple((c.latency_s, c.median_s) for c in shown if (c.way, c.num_subqueries) == (way, num)))
            for way in WAYS
        )
        title = f"{num} sub-queries, {heading(load, spread)}"
        name = f"latency_{num}_subqueries_{ending}"
        made.append(Figure(name, title, "lines", "search latency (s)", "median seconds a question", series, x_min=0.0))
    series = tuple(
        Series(way, tuple((float(c.num_subqueries), c.median_s) for c in shown if (c.way, c.latency_s) == (way, 0.5)))
        for way in WAYS
    )
    title = f"Search latency 0.5 s, {heading(load, spread)}"
    made.append(
        Figure(f"subqueries_{ending}", title, "lines", "sub-queries", "median seconds a question", series, x_min=0.0)
    )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dialect", choices=["parallel", "tools"], default="parallel")
    parser.add_argument("--tokens-per-s", type=float, default=50.0)
    parser.add_argument("--load", type=int, default=32, help="questions at once in the loaded table; 1 leaves it out")
    parser.add_argument("--spread", type=float, default=0.6, help="sigma of the log-normal search times")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two latencies instead of six")
    options = parser.parse_args()
    cells = asyncio.run(grid(options))
    for load, spread in settings(options):
        print(f"\n{heading(load, spread)}, {options.tokens_per_s:g} tokens a second\n")
        print(table(cells, load, spread))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "latency_grid.json").write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
        for figure in [figure for place in settings(options) for figure in figures(cells, *place)]:
            save_png(figure, options.out / f"{figure.name}.png")


if __name__ == "__main__":
    main()
