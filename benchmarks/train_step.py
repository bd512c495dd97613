"""Where the seconds of a GRPO step go, for several settings, in one process.

    python benchmarks/train_step.py recipes/h200-lora-grpo.toml train.questions_per_step=128 \
        --vary rollout.num_slots=256,512,1024 --steps 2
    python benchmarks/train_step.py recipes/cpu-smoke.toml --vary rollout.num_slots=16,64      # seconds, on a CPU

Every setting is a real run of the recipe in a folder that is thrown away: the first step of each warms up (CUDA graphs are
recorded in it) and does not count; the figures are means over the others, from `metrics.jsonl` (docs/training.md says what
each means). Several `--vary` make a grid. How busy the GPU was comes from `nvidia-smi`, where that is. `--profile` gives the
last step to torch's profiler (which slows it down) and prints what the device, or without one the processor, spent it on.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.recipe import load_recipe
from parallelsearch.training.run import train

GENERATE = ("generate", "prefill", "decode", "record")
TIMES = ("rollout", *GENERATE, "search", "search_alone", "host", "score", "train", "other", "step")
FIXED = ("train.eval_every=0", "train.save_every=1000000", "train.log_trajectories=1")
SAMPLE_MS = 100
PROFILE_ROWS = 30
COLUMNS = {
    **dict.fromkeys(TIMES, ".2f"),
    "tokens": ",.0f",
    "calls": ".2f",
    "gpu": ".0f",
    "memory": ".0f",
}
HEADS = {"search_alone": "alone", "generate": "gener.", "step": "STEP", "gpu": "GPU %", "memory": "GB"}
"""Tokens are those drawn in a step, calls those of a trajectory; GB is the most memory that was in use."""


class GpuMeter:
    """What `nvidia-smi` says about the first GPU, ten times a second."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        program = shutil.which("nvidia-smi")
        if program is not None and torch.cuda.is_available():
            query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0", f"-lms={SAMPLE_MS}"]
            self._process = subprocess.Popen([program, *query], stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip().isdigit():
                self.samples.append((time.perf_counter(), float(line)))

    def mean(self, begin: float, end: float) -> float | None:
        inside = [value for when, value in self.samples if begin <= when <= end]
        return sum(inside) / len(inside) if inside else None

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class StepProfile:
    """One step under torch's profiler: from its first moment to its line."""

    def __init__(self, step: int) -> None:
        self._begin, self._num_seen = step, 0
        self._profiler: Any = None

    def step_ended(self) -> None:
        self._num_seen += 1
        if self._profiler is not None:
            self._profiler.stop()
            self._print()
            self._profiler = None
        if self._num_seen == self._begin - 1:
            kinds = torch.profiler.ProfilerActivity
            activities = [kinds.CPU, kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()
            self._start_s = time.perf_counter()

    def _print(self) -> None:
        wall_s = time.perf_counter() - self._start_s
        averages = self._profiler.key_averages()
        has_device = torch.cuda.is_available()
        if has_device:
            busy_s = sum(one.self_device_time_total for one in averages) / 1e6
            print(f"    profiled step: {wall_s:.2f} s, kernels {busy_s:.2f} s", flush=True)
        by = "self_device_time_total" if has_device else "self_cpu_time_total"
        print(averages.table(sort_by=by, row_limit=PROFILE_ROWS, max_name_column_width=70), flush=True)


def measure(
    recipe: str, changes: list[str], num_steps: int, meter: GpuMeter, profile: StepProfile | None = None
) -> dict[str, Any]:
    """The means of one setting; a step that is profiled is one more, and does not count."""
    out = Path(tempfile.mkdtemp(prefix="train-step-"))
    ends: list[float] = []

    def say(line: str) -> None:
        if line.startswith("step "):
            ends.append(time.perf_counter())
            if profile is not None:
                profile.step_ended()
        print("   ", line, flush=True)

    total = num_steps + 1 + (profile is not None)
    overrides = [*FIXED, *changes, f"train.out={out}", f"train.steps={total}"]
    num_rows = load_recipe(recipe, overrides).train.num_rows
    try:
        train(recipe, overrides, say=say)
        records = [record for record in read_metrics(out / "metrics.jsonl") if "loss" in record][1 : num_steps + 1]
        first = next((out / "trajectories").glob("step-*.jsonl"))
        engine = json.loads(first.read_text(encoding="utf-8").splitlines()[0])["policy"]
        peak_gb = torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None
    finally:
        shutil.rmtree(out, ignore_errors=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def mean(name: str) -> float:
        return sum(record.get(name, 0.0) for record in records) / len(records)

    return {
        **{name: mean(f"time/{name}_s") for name in TIMES},
        "tokens": mean("model_tokens") * num_rows,
        "calls": mean("llm_calls"),
        "gpu": meter.mean(ends[0], ends[num_steps]),
        "memory": peak_gb,
        "engine": {
            name: engine[name] for name in ("engine", "attention", "cuda_graphs", "fused_draw") if name in engine
        },
    }


def grid(varied: list[str]) -> list[list[str]]:
    """Every combination of `key=A,B` and `other=C,D`, each as changes to the recipe."""
    keys = [text.partition("=")[0] for text in varied]
    values = [text.partition("=")[2].split(",") for text in varied]
    return [[f"{key}={value}" for key, value in zip(keys, point, strict=True)] for point in itertools.product(*values)]


def line_of(row: dict[str, Any], width: int) -> str:
    cells = ["-" if row[name] is None else f"{row[name]:{form}}" for name, form in COLUMNS.items()]
    return " ".join([f"{row['setting']:{width}}", *(f"{cell:>7}" for cell in cells)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes to the recipe, for all settings")
    parser.add_argument("--vary", action="append", metavar="key=A,B,C", help="values to try; repeat for a grid")
    parser.add_argument("--steps", type=int, default=2, help="steps that count, after one that does not")
    parser.add_argument("--profile", action="store_true", help="one more step, under torch's profiler")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_intermixed_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    points = grid(args.vary or ["rollout.num_slots=256,512,1024"])
    names = [" ".join(change.partition(".")[2] for change in point) for point in points]
    width = max(map(len, names))
    title = " ".join([f"{'':{width}}", *(f"{HEADS.get(name, name):>7}" for name in COLUMNS)])
    meter = GpuMeter()
    rows: list[dict[str, Any]] = []
    try:
        for name, point in zip(names, points, strict=True):
            print(f"{name} ...", flush=True)
            try:
                profile = StepProfile(args.steps + 2) if args.profile else None
                found = measure(args.recipe, [*args.changes, *point], args.steps, meter, profile)
                rows.append({"setting": name, **found})
            except Exception as error:
                print(f"    failed: {type(error).__name__}: {error}", flush=True)
                continue
            print(f"{title}\n{line_of(rows[-1], width)}", flush=True)
    finally:
        meter.close()
    print(f"\n{args.recipe} {' '.join(args.changes)}")
    print(f"{where}; means of {args.steps} steps after one that warms up; seconds\n{title}")
    for row in rows:
        print(line_of(row, width))
    if rows:
        best = min(rows, key=lambda row: row["step"])
        print(f"fastest: {best['setting']}, {best['step']:.2f} s a step; engine {best['engine']}")
    if args.json:
        result = {"where": where, "recipe": args.recipe, "changes": args.changes, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
