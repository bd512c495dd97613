"""Engines on a real GPU, measured in one session: docs/results/engines.json to tables of docs/cluster.md and docs/speed.md.

    python scripts/engine_runs.py           # write the tables between their marks anew
    python scripts/engine_runs.py --check   # exit 1 if a table is not what the file says
    python scripts/engine_runs.py plot      # docs/images/engines.png

The file has what the runs wrote themselves (`metrics.jsonl` of TRL's runs, verl's console, `--json` of benchmarks/engines.py
and benchmarks/train_step.py), step by step. `alone` are the steps in which nothing else used the GPU: only they are timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marked import filled, markdown, write

from parallelsearch.evaluation.plots import Figure, Series, save_grid

DOCS = Path(__file__).resolve().parents[1] / "docs"
FILE, PLOT = DOCS / "results" / "engines.json", DOCS / "images" / "engines.png"
PAGES = (DOCS / "cluster.md", DOCS / "speed.md")
RUNS = ("verl", "verl-async", "trl-slot", "trl-colocate", "trl-server")
PARTS = {
    "rollout": "of these: rollout",
    "again": "log-probabilities again",
    "update": "update",
    "weights": "new weights to the engine",
    "other": "scoring and the rest",
}
NUM_ENDS = 5
"""Rewards are compared over the first and the last so many steps."""

Data = dict[str, Any]


def read() -> Data:
    data: Data = json.loads(FILE.read_text(encoding="utf-8"))
    return data


# ---- tables ----------------------------------------------------------------------------------------------------------


def median_alone(run: Data, part: str) -> float | None:
    """Of the steps in which the run had the GPU to itself; of all but the first where it never had."""
    values = run["seconds"].get(part)
    if values is None:
        return None
    kept = set(run["alone"]) or set(run["steps"][1:])
    return float(statistics.median(value for step, value in zip(run["steps"], values, strict=True) if step in kept))


def seconds(run: Data, part: str) -> str:
    value = median_alone(run, part)
    return "-" if value is None else f"{value:.1f}" if value >= 0.05 else "0"


def validated(run: Data, step: int) -> str:
    return next((f"{value:.3f}" for at, value in run["validation"] if at == step), "-")


def training_table(data: Data) -> str:
    """Five ways to train on the same questions, one GPU."""
    runs = [data["training"][name] for name in RUNS]

    def means(run: Data) -> str:
        first, last = run["reward"][:NUM_ENDS], run["reward"][-NUM_ENDS:]
        return f"{statistics.mean(first):.2f}, {statistics.mean(last):.2f}" if len(run["reward"]) >= 20 else "-"

    def differences(run: Data) -> str:
        name = "probability_difference" if "probability_difference" in run else "logprob_difference"
        return f"{statistics.mean(run[name]):.4f}, {max(run[name + '_max']):.2f}"

    step = "seconds a step, median"
    rows = [
        ["updates", *(str(len(run["steps"])) for run in runs)],
        [f"mean reward, first and last {NUM_ENDS} steps", *map(means, runs)],
        *(
            [f"exact match on 192 held-out questions, {when}", *(validated(run, at) for run in runs)]
            for when, at in (("before", 0), ("after 10", 10), ("after 20", 20))
        ),
        [step, *(seconds(run, "step") + ("" if run["alone"] else " (never alone)") for run in runs)],
        *([label, *(seconds(run, part) for run in runs)] for part, label in PARTS.items()),
        ["sampler against trainer: mean, worst", *map(differences, runs)],
    ]
    return markdown(["", *(run["label"] for run in runs)], rows)


def engines_table(data: Data) -> str:
    """1,024 rollouts by engine and model; the ratio is to vLLM in the process, same model."""
    base = {row["model"]: row["seconds"] for row in data["engines"] if row["engine"] == "vllm"}
    rows = [
        [
            row["model"],
            row["engine"],
            f"{row['seconds']:.1f}",
            f"{row['seconds'] / base[row['model']]:.2f}",
            f"{row['tokens']:,}",
            f"{row['tokens'] / row['seconds']:,.0f}",
            f"{row['client_cpu_s']:.1f} ({row['client_cpu_s'] / row['seconds']:.0%})",
            f"{row['engine_cpu_s']:.1f}" if row["engine_cpu_s"] else "-",
            f"{row['server_cpu_s']:.1f}" if row["server_cpu_s"] else "-",
            f"{row['load_s']:.0f}" if not row["engine"].startswith("server") else "-",
        ]
        for row in data["engines"]
    ]
    head = ["model", "engine", "seconds", "to vllm", "drawn tokens", "tokens/s"]
    return markdown([*head, "client CPU s", "engine CPU s", "server CPU s", "there after s"], rows)


def step_table(data: Data) -> str:
    """A step of training, part by part, without and with fused kernels."""
    parts = ("rollout", "prefill", "decode", "score", "train", "other", "step")
    rows = [
        [name, *(f"{row[part]:.2f}" for part in parts), f"{row['tokens']:,.0f}", f"{row['tokens'] / row['step']:,.0f}"]
        for name, row in data["step"].items()
    ]
    return markdown(["", *parts, "drawn tokens", "a second"], rows)


TABLES: dict[str, Callable[[Data], str]] = {
    "training": training_table,
    "engines": engines_table,
    "step": step_table,
}


def page_with_tables(text: str, data: Data) -> str:
    return filled(text, "runs", lambda name: TABLES[name](data))


# ---- the plot --------------------------------------------------------------------------------------------------------


def smoothed(values: Sequence[float], width: int = 3) -> list[float]:
    """Means over so many steps, the present one last: 32 questions a step differ more than the policies do."""
    return [statistics.mean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]


def figures(data: Data) -> list[Figure]:
    runs = [data["training"][name] for name in RUNS]
    reward = Figure(
        "reward",
        "Mean reward, over three steps",
        "lines",
        "update",
        "reward",
        tuple(Series(run["label"], tuple(zip(run["steps"], smoothed(run["reward"]), strict=True))) for run in runs),
    )
    validation = Figure(
        "validation",
        "Exact match on 192 questions",
        "lines",
        "update",
        "exact match",
        tuple(Series(run["label"], tuple((at, value) for at, value in run["validation"])) for run in runs),
        y_max=0.6,
    )
    times = Figure(
        "seconds",
        "Where a step's seconds go",
        "bars",
        "",
        "seconds",
        tuple(
            Series(
                label.removeprefix("of these: "),
                tuple((float(number), median_alone(run, part) or 0.0) for number, run in enumerate(runs)),
            )
            for part, label in PARTS.items()
        ),
        tuple(run["label"] for run in runs),
        y_max=8.0,
    )
    return [reward, validation, times]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if a table is not what the file says"
    )
    parser.add_argument("command", nargs="?", choices=["plot"], help=f"draw {PLOT.name}")
    options = parser.parse_args(arguments)
    data = read()
    if options.command == "plot":
        save_grid(figures(data), PLOT, num_columns=3)
        return 0
    return write(PAGES, lambda text: page_with_tables(text, data), only_checks=options.check)


if __name__ == "__main__":
    sys.exit(main())
