"""Where a training step's time goes on 8, 64 and 512 GPUs, and how many retrievers it needs: the rollout loop, simulated.

    python benchmarks/cluster_plan.py --plot docs/images/cluster-plan.png

Every trajectory is simulated: it waits for a place in an engine, its turn is decoded in a batch with all others (the more
and the longer, the slower), its sub-queries queue at the retrievers, its results are prefilled, until it answers. Figures
marked measured come from runs of this project (docs/search.md, docs/cluster.md); those marked assumed are arithmetic on data
sheets. It is a plan to order hardware by, not a measurement. Of 512 GPUs an eighth is simulated, with an eighth of the
retrievers.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_SIMULATED_GPUS = 64


@dataclass(frozen=True)
class Model:
    """Qwen2.5-7B on GPUs of the H100's class. Assumed: data sheets and arithmetic."""

    num_weights: float = 7.6e9
    kv_bytes_per_token: float = 28 * 2 * 4 * 128 * 2  # layers, key and value, heads, size, bfloat16
    memory_bytes_per_s: float = 3.35e12 * 0.6
    flops: float = 990e12
    prefill_share: float = 0.4  # of peak
    train_share: float = 0.35
    launch_s: float = 0.002  # of a decoding step, beside memory traffic
    max_rows: int = 256  # an engine decodes together; verl's default
    train_flops_per_token: float = (
        12.0  # x weights: forward, backward with recomputation, old and reference log-probabilities
    )
    sync_bytes_per_s: float = 35e9  # 400 Gbit/s at 70%
    switch_s: float = 3.0  # engine to sleep and awake again

    def step_s(self, num_tokens: float) -> float:
        """One token for each of the rows that have `num_tokens` of context together."""
        read = 2 * self.num_weights + num_tokens * self.kv_bytes_per_token
        return self.launch_s + read / self.memory_bytes_per_s

    @property
    def prefill_s_per_token(self) -> float:
        return 2 * self.num_weights / (self.flops * self.prefill_share)

    def train_s(self, num_tokens: float, num_gpus: int) -> float:
        return self.train_flops_per_token * self.num_weights * num_tokens / (num_gpus * self.flops * self.train_share)

    @property
    def sync_s(self) -> float:
        return self.switch_s + 2 * self.num_weights / self.sync_bytes_per_s


@dataclass(frozen=True)
class Retriever:
    """One replica of the search server."""

    name: str
    queries_per_s: float
    latency_s: float


# Measured: soak of five and a half minutes on 2 cores, 2,176 to 2,424 queries/s (docs/search.md).
SMALL = Retriever("305,293 passages, 2 cores", 2_300.0, 0.005)
# The line through three measured sizes (docs/search.md): 17 ms of CPU a query. 32 processes of one core, assumed to scale.
WIKIPEDIA = Retriever("21 million passages, 32 cores", 32 / 0.017, 0.017)
RETRIEVERS = {"small": SMALL, "wikipedia": WIKIPEDIA}


@dataclass(frozen=True)
class Habits:
    """What trajectories look like. Assumed, after the paper's tables 3 and 6: 2.0 to 3.6 calls of the model a question."""

    calls: tuple[float, ...] = (0.03, 0.52, 0.25, 0.12, 0.08)  # 1, 2, ... calls; mean 2.7
    subqueries: tuple[float, ...] = (0.5, 0.4, 0.1)  # 1, 2, 3 in a round; mean 1.6
    turn_median_tokens: float = 90.0
    turn_sigma: float = 0.6
    max_turn_tokens: int = 500
    prompt_tokens: int = 250
    tokens_per_subquery: int = 300
    max_observation_tokens: int = 1000


@dataclass(frozen=True)
class Trouble:
    """What goes wrong with the retrievers, and when."""

    at_s: float = math.inf
    share_lost: float = 0.0
    detect_s: float = 0.0  # a query that meets the lost part waits so long before another is asked


AGENT_S_PER_TURN = 0.010 / 3
"""Measured: 10 ms of CPU for a trajectory of three turns in verl's agent worker, its own work included (docs/cluster.md)."""
SEARCH_TIMEOUT_S = 30.0


@dataclass
class Rollout:
    """What one simulated rollout phase came to."""

    wall_s: float
    tail_s: float  # from the moment when 90% of the trajectories were done
    num_tokens: float
    num_queries: int
    peak_queries_per_s: float
    search_wait_s: float  # mean over trajectories
    num_failed: int = 0


class Engine:
    """One copy of the model. All rows advance a token a step; a heap knows which turn ends next."""

    def __init__(self, model: Model) -> None:
        self.model, self.clock, self.at_s, self.context = model, 0.0, 0.0, 0.0
        self.ends: list[tuple[float, int]] = []
        self.waiting: deque[tuple[int, int, int, float]] = deque()
        self.version = 0

    def advance(self, now_s: float) -> None:
        if self.ends and now_s > self.at_s:
            self.clock += (now_s - self.at_s) / self.model.step_s(self.context)
        self.at_s = max(self.at_s, now_s)

    def join(self, row: int, num_new: int, num_turn: int, context: float) -> None:
        """A row enters, or waits for a place: `num_new` tokens are prefilled, which holds up everyone."""
        if len(self.ends) >= self.model.max_rows:
            self.waiting.append((row, num_new, num_turn, context))
            return
        self.at_s += num_new * self.model.prefill_s_per_token
        self.context += context
        heapq.heappush(self.ends, (self.clock + num_turn, row))

    def leave(self, context: float) -> int:
        """The turn that ends first."""
        _, row = heapq.heappop(self.ends)
        self.context -= context
        if self.waiting:
            self.join(*self.waiting.popleft())
        return row

    def next_end_s(self) -> float:
        left = max(0.0, self.ends[0][0] - self.clock)
        return self.at_s + left * self.model.step_s(self.context)


def _script(rng: random.Random, habits: Habits) -> list[tuple[int, int]]:
    """A trajectory's turns: how many tokens each has and how many sub-queries it asks; the last one answers."""
    (num_calls,) = rng.choices(range(1, len(habits.calls) + 1), habits.calls)
    asked = rng.choices(range(1, len(habits.subqueries) + 1), habits.subqueries, k=num_calls - 1)
    drawn = (rng.lognormvariate(math.log(habits.turn_median_tokens), habits.turn_sigma) for _ in range(num_calls))
    tokens = [max(8, min(habits.max_turn_tokens, int(number))) for number in drawn]
    return list(zip(tokens, [*asked, 0], strict=True))


def simulate(
    num_gpus: int,
    num_rows: int,
    queries_per_s: float,
    latency_s: float,
    *,
    model: Model,
    habits: Habits,
    trouble: Trouble,
    seed: int = 0,
) -> Rollout:
    """All trajectories of one step over `num_gpus` engines, one agent worker for each, and pooled retrievers."""
    # Drawn before anything runs: two simulations with the same seed differ by what happens to the same trajectories.
    rng = random.Random(seed)
    scripts = [_script(rng, habits) for _ in range(num_rows)]
    engines = [Engine(model) for _ in range(num_gpus)]
    workers_free_s = [0.0] * num_gpus
    context = [0.0] * num_rows
    searched_s = [0.0] * num_rows
    turn = [0] * num_rows  # of the script, the one being written
    search_free_s = 0.0
    num_queries = num_failed = 0
    per_second: dict[int, int] = {}
    done_s: list[float] = []
    events: list[tuple[float, int, int, int, int]] = []  # time, kind, engine, version or row, tokens
    END, ARRIVE = 0, 1

    def schedule(number: int) -> None:
        engine = engines[number]
        engine.version += 1
        if engine.ends:
            heapq.heappush(events, (engine.next_end_s(), END, number, engine.version, 0))

    def enter(number: int, row: int, num_new: int, now_s: float) -> None:
        num_turn, _ = scripts[row][turn[row]]
        context[row] += num_new
        engines[number].advance(now_s)
        # Half of the turn's own tokens are there on average while it is written.
        engines[number].join(row, num_new, num_turn, context[row] + num_turn / 2)

    for row in range(num_rows):
        enter(row % num_gpus, row, habits.prompt_tokens, 0.0)
    for number in range(num_gpus):
        schedule(number)
    while events:
        now_s, kind, number, tag, num_new = heapq.heappop(events)
        if kind == ARRIVE:
            enter(number, tag, num_new, now_s)
            schedule(number)
            continue
        engine = engines[number]
        if tag != engine.version:
            continue
        engine.advance(now_s)
        row = engine.ends[0][1]
        num_turn, asked = scripts[row][turn[row]]
        engine.leave(context[row] + num_turn / 2)
        context[row] += num_turn
        turn[row] += 1
        schedule(number)
        workers_free_s[number] = max(workers_free_s[number], now_s) + AGENT_S_PER_TURN
        read_s = workers_free_s[number]
        if asked == 0:
            done_s.append(read_s)
            continue
        num_queries += asked
        per_second[int(read_s)] = per_second.get(int(read_s), 0) + asked
        is_late = read_s >= trouble.at_s
        rate = queries_per_s * (1 - trouble.share_lost if is_late else 1.0)
        if rate <= 0:
            found_s, num_failed = read_s + SEARCH_TIMEOUT_S, num_failed + asked
        else:
            search_free_s = max(search_free_s, read_s) + asked / rate
            found_s = search_free_s + latency_s
            if is_late and read_s < trouble.at_s + trouble.detect_s and rng.random() < trouble.share_lost * asked:
                found_s += trouble.detect_s
            if found_s - read_s > SEARCH_TIMEOUT_S:
                found_s, num_failed = read_s + SEARCH_TIMEOUT_S, num_failed + asked
        searched_s[row] += found_s - read_s
        shown = min(habits.max_observation_tokens, asked * habits.tokens_per_subquery)
        heapq.heappush(events, (found_s, ARRIVE, number, row, shown))
    done_s.sort()
    return Rollout(
        wall_s=done_s[-1],
        tail_s=done_s[-1] - done_s[int(0.9 * len(done_s)) - 1],
        num_tokens=sum(context),
        num_queries=num_queries,
        peak_queries_per_s=max(per_second.values(), default=0),
        search_wait_s=sum(searched_s) / num_rows,
        num_failed=num_failed,
    )


@dataclass
class Step:
    """One training step of a cluster."""

    batch: str
    num_gpus: int
    num_rows: int
    num_retrievers: int
    generation_s: float
    search_s: float
    tail_s: float
    train_s: float
    sync_s: float
    mean_queries_per_s: float
    peak_queries_per_s: float
    num_failed: int

    @property
    def total_s(self) -> float:
        return self.generation_s + self.search_s + self.train_s + self.sync_s


def step(
    batch: str,
    num_gpus: int,
    num_rows: int,
    retriever: Retriever,
    num_retrievers: int,
    model: Model,
    habits: Habits,
    trouble: Trouble | None = None,
) -> Step:
    share = min(1.0, MAX_SIMULATED_GPUS / num_gpus)
    gpus, rows = round(num_gpus * share), round(num_rows * share)
    settings = {"model": model, "habits": habits}
    free = simulate(gpus, rows, math.inf, 0.0, trouble=Trouble(), **settings)
    found = simulate(
        gpus,
        rows,
        retriever.queries_per_s * num_retrievers * share,
        retriever.latency_s,
        trouble=trouble or Trouble(),
        **settings,
    )
    return Step(
        batch=batch,
        num_gpus=num_gpus,
        num_rows=num_rows,
        num_retrievers=num_retrievers,
        generation_s=free.wall_s,
        search_s=found.wall_s - free.wall_s,
        tail_s=found.tail_s,
        train_s=model.train_s(found.num_tokens / share, num_gpus),
        sync_s=model.sync_s,
        mean_queries_per_s=found.num_queries / share / found.wall_s,
        peak_queries_per_s=found.peak_queries_per_s / share,
        num_failed=round(found.num_failed / share),
    )


def enough(batch: str, num_gpus: int, num_rows: int, retriever: Retriever, model: Model, habits: Habits) -> Step:
    """The fewest retrievers with which searching makes the rollout at most 5% longer than retrievers without end do."""
    best = step(batch, num_gpus, num_rows, retriever, 1_000_000, model, habits)
    low, high = 0, 1
    while True:
        found = step(batch, num_gpus, num_rows, retriever, high, model, habits)
        if found.search_s - best.search_s <= 0.05 * best.generation_s:
            break
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        tried = step(batch, num_gpus, num_rows, retriever, middle, model, habits)
        if tried.search_s - best.search_s <= 0.05 * best.generation_s:
            high, found = middle, tried
        else:
            low = middle
    return found


def failures(plan: Step, retriever: Retriever, model: Model, habits: Habits) -> dict[str, Step]:
    """The same step with retrievers that fail a third into the rollout."""
    at_s = (plan.generation_s + plan.search_s) / 3
    lost = 1 / max(1, plan.num_retrievers)
    cases = {
        "none": Trouble(),
        "one refuses": Trouble(at_s, lost, 0.0),
        "one hangs": Trouble(at_s, lost, 5.0),  # half of the client's 10 s, then the next replica is asked
        "all hang": Trouble(at_s, 1.0, 0.0),
    }
    return {
        name: step(plan.batch, plan.num_gpus, plan.num_rows, retriever, plan.num_retrievers, model, habits, trouble)
        for name, trouble in cases.items()
    }


def interruptions(num_gpus: int, step_s: float) -> dict[str, float]:
    """A lost node ends verl's run; it starts again from its newest checkpoint. Rate: 419 unexpected interruptions in 54 days
    on 16,384 GPUs (Llama 3 report). Best interval between checkpoints: Young's root of 2 x cost x time between failures."""
    per_day = 419 / 54 / 16_384 * num_gpus
    between_s = 86_400 / per_day
    save_s, restart_s = 30.0, 600.0  # assumed
    interval_s = math.sqrt(2 * save_s * between_s)
    lost = save_s / interval_s + (interval_s / 2 + restart_s) / between_s
    return {"per_day": per_day, "save_every_steps": interval_s / step_s, "time_lost": lost}


def plot(plans: list[Step], sweep: dict[int, list[tuple[int, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    labels = [f"{plan.num_gpus} GPUs\n{plan.num_rows:,}\ntrajectories" for plan in plans]
    bottom = [0.0] * len(plans)
    parts = (
        ("generation", "#4477aa", [plan.generation_s - plan.tail_s for plan in plans]),
        ("waiting for the last 10%", "#99bbdd", [plan.tail_s for plan in plans]),
        ("waiting for search", "#ee6677", [max(0.0, plan.search_s) for plan in plans]),
        ("training", "#228833", [plan.train_s for plan in plans]),
        ("sending weights", "#ccbb44", [plan.sync_s for plan in plans]),
    )
    for name, colour, values in parts:
        left.bar(labels, values, bottom=bottom, label=name, color=colour)
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    for place, plan in enumerate(plans):
        left.text(place, bottom[place], f"{plan.total_s:.0f} s", ha="center", va="bottom")
    left.set_ylabel("seconds a step")
    left.set_title("Where a step's time goes (sync trainer, 7B)")
    left.tick_params(axis="x", labelsize=8)
    left.margins(y=0.1)
    left.legend(frameon=False)
    for number, (num_gpus, points) in enumerate(sweep.items()):
        colour = ("#4477aa", "#228833", "#aa3377")[number % 3]
        right.plot([n for n, _ in points], [s for _, s in points], marker="o", color=colour, label=f"{num_gpus} GPUs")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter("{x:.0f}")
    right.set_xlabel("retriever replicas")
    right.set_ylabel("seconds of rollout")
    right.set_title("Rollout against retrievers (320 trajectories a GPU)")
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--retriever", choices=sorted(RETRIEVERS), default="wikipedia")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument(
        "--rows-per-gpu", type=int, default=320, help="trajectories a GPU where the batch grows with the cluster"
    )
    parser.add_argument("--rows", type=int, default=2560, help="trajectories where the batch stays the same")
    parser.add_argument("--plot", type=Path, help="write the figure to this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model, habits, retriever = Model(), Habits(), RETRIEVERS[options.retriever]
    plans = [enough("grows", n, n * options.rows_per_gpu, retriever, model, habits) for n in options.gpus]
    plans += [enough("stays", n, options.rows, retriever, model, habits) for n in options.gpus if n > options.gpus[0]]
    if options.json:
        print(json.dumps([{**asdict(plan), "total_s": plan.total_s} for plan in plans]))
    else:
        print(f"retriever: {retriever.name}, {retriever.queries_per_s:,.0f} queries/s a replica")
        columns = ("batch", "GPUs", "trajectories", "generation s", "search s", "last 10% s", "training s", "sync s")
        print(_row([*columns, "step s", "queries/s mean / peak", "replicas"]))
        print("|---" * (len(columns) + 3) + "|")
        for plan in plans:
            seconds = (plan.generation_s, plan.search_s, plan.tail_s, plan.train_s, plan.sync_s)
            rates = f"{plan.mean_queries_per_s:,.0f} / {plan.peak_queries_per_s:,.0f}"
            facts = [plan.batch, plan.num_gpus, f"{plan.num_rows:,}", *(f"{value:.1f}" for value in seconds)]
            print(_row([*facts, f"{plan.total_s:.0f}", rates, plan.num_retrievers]))
        print("\n| retrievers | step s | queries that failed |\n|---|---|---|")
        middle = plans[min(1, len(plans) - 1)]
        for name, found in failures(middle, retriever, model, habits).items():
            where = f"{name} ({middle.num_gpus} GPUs, {middle.num_retrievers} replicas)"
            print(_row([where, f"{found.total_s:.0f}", f"{found.num_failed:,}"]))
        print("\n| GPUs | interruptions a day | save every | time lost |\n|---|---|---|---|")
        for plan in plans[: len(options.gpus)]:
            record = interruptions(plan.num_gpus, plan.total_s)
            steps, lost = f"{record['save_every_steps']:.0f} steps", f"{record['time_lost']:.1%}"
            print(_row([plan.num_gpus, f"{record['per_day']:.3f}", steps, lost]))
    if options.plot:
        sweep: dict[int, list[tuple[int, float]]] = {}
        for plan in plans[: len(options.gpus)]:
            tried = [
                step("grows", plan.num_gpus, plan.num_rows, retriever, count, model, habits)
                for count in (1, 2, 4, 8, 16, 32)
                if plan.num_retrievers / 4 <= count
            ]
            sweep[plan.num_gpus] = [(found.num_retrievers, found.generation_s + found.search_s) for found in tried]
        plot(plans, sweep, options.plot)


if __name__ == "__main__":
    main()
