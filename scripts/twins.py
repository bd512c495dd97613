"""Several seeds of the parallel policy, its sequential twin and other arms, side by side on one GPU, from SFT to kept rows.

    python scripts/twins.py recipes/twins-wide.toml --out runs/twins           # all of it, or what is left of it
    python scripts/twins.py recipes/twins-wide.toml --out runs/twins --plan    # print the commands that are left; run none
    python scripts/twins.py recipes/twins-wide.toml --out runs/twins --status  # what is done, also while it runs

A plan (`Plan`, one TOML file) names starts, which SFT makes, and arms, which GRPO makes of them. Every job is a command of
this package that goes on where it was killed, so this only says which comes when. A job counts as done by what it wrote:
`adapters/POLICY` (of GRPO the best checkpoint by validation), `eval/POLICY/NAME/report.html`, `rows/POLICY.jsonl.zst`.
All lies under --out. Recipes are looked for beside the plan, data and indexes from the folder where this is typed.
Exit status: 0 all done, 1 a job failed (the next call tries it again), 2 used wrongly, 3 stopped: the same command goes on.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from parallelsearch.config import Settings, load
from parallelsearch.errors import ParallelSearchError, UsageError, nearest
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE, read_summary
from parallelsearch.evaluation.manifest import read_manifest
from parallelsearch.evaluation.report import REPORT_FILE
from parallelsearch.files import held_folder, read_json, whole_folder, write_json
from parallelsearch.policy.models import ADAPTER_CONFIG
from parallelsearch.training.checkpoints import completed, marked_step
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.recipe import load_recipe
from parallelsearch.training.sft import FINAL

Stage = Literal["sft", "grpo", "eval", "keep"]
STAGES: tuple[Stage, ...] = ("sft", "grpo", "eval", "keep")
Name = Annotated[str, Field(pattern=r"^[\w-]+$")]  # part of file names, where a dot parts policy and seed
GRACE_S = 10.0
"""So long before the end of --stop-after what still runs is ended."""
KEEPING_S = 30.0
"""Until so long before that end rows are kept, which takes seconds: what was evaluated must not be lost for want of it."""
SILENCE_S = 5.0
"""A runner that was not heard of for so long was killed."""
ALONE = "sft-"
"""Before the name of a start: its policy, and --only for a start without the arms that RL makes of it."""
JOBS_FILE = "jobs.json"
NEW: dict[str, Any] = {"state": "", "seconds": 0.0}
"""What is known of a job that never began."""


# ---- the plan --------------------------------------------------------------------------------------------------------


class Start(Settings):
    """A cold start: the changes to the SFT recipe, and how its policy, and those that RL makes of it, are evaluated."""

    after: str | None = None
    """The start whose adapter this one goes on from; without it SFT begins with the base."""
    sft: str = ""
    grpo: str = ""
    """Changes to the GRPO recipe of every arm that begins with it."""
    evals: list[str] = Field(default_factory=list)
    """None for a start that only others go on from."""
    eval: str = ""
    """Options besides those of the plan and of the evaluation."""


class Arm(Settings):
    """A start, and the changes to the GRPO recipe besides those of the start."""

    start: str
    grpo: str = ""


class Plan(Settings):
    """The experiment. Changes and options are written as they are typed behind the commands."""

    sft: str
    grpo: str
    """Recipes, beside the plan."""
    search: str
    """For the evaluations, and for the places of gold in the rows."""
    seeds: list[int]
    eval: str = ""
    """Options of every evaluation."""
    evals: dict[Name, str]
    """By name, the data of an evaluation and whatever else differs."""
    starts: dict[Name, Start]
    arms: dict[Name, Arm]
    at_once: dict[Stage | Literal["all"], Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """How many processes of a stage run at a time (1 unless set), and how many of all."""
    spare_s: float = Field(default=45.0, ge=0)
    """With --stop-after: so long before the end training is told to save itself and stop, and from then on nothing begins but
    the keeping of rows."""
    environment: dict[str, str] = Field(default_factory=dict)
    """For every job, where the caller's own environment does not say otherwise."""


@dataclass(frozen=True)
class Job:
    """One command. It is done when `target` is there; `needs` have to be done before it begins."""

    name: str
    stage: Stage
    command: tuple[str, ...]
    target: Path
    needs: tuple[Job, ...] = ()
    recipe: tuple[Path, tuple[str, ...]] | None = None
    """Of a training job: file and changes."""

    @property
    def is_done(self) -> bool:
        if self.stage != "keep" or not self.target.exists():
            return self.target.exists()
        kept_s = self.target.stat().st_mtime  # an evaluation that came later has rows of its own
        return all(need.is_done and need.target.stat().st_mtime <= kept_s for need in self.needs)


def load_plan(path: Path) -> Plan:
    plan = load(path, Plan)
    for arm in plan.arms.values():
        _known(arm.start, plan.starts, f"{path}: start")
    for name, start in plan.starts.items():
        for wanted in start.evals:
            _known(wanted, plan.evals, f"{path}: evaluation")
        seen = [name]
        while (before := plan.starts[seen[-1]].after) is not None:
            _known(before, plan.starts, f"{path}: after")
            if before in seen:
                raise UsageError(f"{path}: the start '{name}' comes after itself: {', '.join((*seen, before))}")
            seen.append(before)
    return plan


def _known(name: str, known: Mapping[str, Any], what: str) -> None:
    if name not in known:
        raise UsageError(f"{what}: there is no '{name}'.{nearest(name, known)} There are: {', '.join(known)}")


def jobs_of(plan: Plan, folder: Path, out: Path, arms: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Every job of these arms (`sft-START`: of that start alone) and seeds, all seeds of an arm before the next, each job
    after those that it needs; recipes lie in `folder`."""
    jobs: list[Job] = []
    program = (sys.executable, "-m", "parallelsearch")

    def training(stage: Stage, policy: str, recipe: str, changes: Sequence[str], needs: tuple[Job, ...] = ()) -> Job:
        path, run = folder / recipe, out / "train" / policy
        overrides = (*changes, f"train.out={run}")
        command = (*program, "train", str(path), *overrides)
        job = Job(f"train/{policy}", stage, command, out / "adapters" / policy, needs, (path, overrides))
        jobs.append(job)
        return job

    def evaluated(policy: str, start: Start, trained: Job) -> None:
        assert trained.recipe is not None
        address = f"hf:{load_recipe(*trained.recipe).model.name}+{trained.target}"
        evals: list[Job] = []
        if not start.evals:
            return
        for name in start.evals:
            run = out / "eval" / policy / name
            options = shlex.split(f"{plan.eval} {plan.evals[name]} {start.eval}")
            # What failed in a try that was broken off would otherwise stay as wrong answers.
            asked = ("eval", "--policy", address, "--search", plan.search, *options, "--retry-failures")
            command = (*program, *asked, "--out", str(run))
            evals.append(Job(f"eval/{policy}/{name}", "eval", command, run / REPORT_FILE, (trained,)))
        script, rows = os.path.relpath(Path(__file__).with_name("results.py")), out / "rows"
        runs = [str(one.target.parent) for one in evals]
        command = (sys.executable, script, "keep", policy, *runs, "--search", plan.search, "--rows", str(rows))
        jobs.extend((*evals, Job(f"keep/{policy}", "keep", command, rows / f"{policy}.jsonl.zst", tuple(evals))))

    started: dict[tuple[str, int], Job] = {}

    def begun(of: str, seed: int) -> Job:
        """The training of a start, and before it those that it goes on from."""
        if (of, seed) not in started:
            start, policy = plan.starts[of], f"{ALONE}{of}.s{seed}"
            before = () if start.after is None else (begun(start.after, seed),)
            changes = (
                *shlex.split(start.sft),
                f"train.seed={seed}",
                *(f"model.adapter={one.target}" for one in before),
            )
            started[of, seed] = training("sft", policy, plan.sft, changes, before)
            evaluated(policy, start, started[of, seed])
        return started[of, seed]

    for name in arms:
        for seed in seeds:
            arm = plan.arms.get(name)
            base = begun(name.removeprefix(ALONE) if arm is None else arm.start, seed)
            if arm is not None:
                said = shlex.split(f"{plan.starts[arm.start].grpo} {arm.grpo}")
                changes = (*said, f"train.seed={seed}", f"model.adapter={base.target}")
                trained = training("grpo", f"rl-{name}.s{seed}", plan.grpo, changes, (base,))
                evaluated(f"rl-{name}.s{seed}", plan.starts[arm.start], trained)
    return jobs


# ---- what training left ----------------------------------------------------------------------------------------------


def keep_adapter(job: Job, out: Path) -> bool:
    """Put the trained adapter in its place, without what only training needs. False if the run has not come to its end."""
    assert job.recipe is not None
    run = out / job.name
    source = run / FINAL
    if job.stage == "grpo":
        known, best = completed(run / "checkpoints"), run / "best.json"
        if not known or known[-1][0] < (load_recipe(*job.recipe).train.steps or 0):
            return False
        source = known[-1][1]
        if best.is_file():  # no checkpoint is named where none was better than the start
            name = read_json(best)["checkpoint"]
            source = job.needs[0].target if name is None else source.with_name(name)
    elif marked_step(source) is None:
        return False
    if not (source / ADAPTER_CONFIG).is_file():
        raise UsageError(f"{source} is no adapter: set model.lora_rank in the SFT recipe")
    with whole_folder(job.target) as draft:
        for file in (*source.glob("adapter_*"), source / "parallelsearch.json"):
            shutil.copy(file, draft)
    return True


# ---- running ---------------------------------------------------------------------------------------------------------


def _die_with_parent() -> None:
    """A killed runner must not leave jobs behind that hold their folders (Linux; elsewhere they run to their end)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class Runner:
    """Begins jobs as their turn comes and waits for them. What it knows of each job stands in `jobs.json`."""

    def __init__(self, jobs: Sequence[Job], plan: Plan, out: Path, stop_after_s: float | None) -> None:
        # Training first: everything else waits for it.
        self.jobs, self.plan, self.out = sorted(jobs, key=lambda job: job.recipe is None), plan, out
        self.environment = {**plan.environment, **os.environ}
        self.end_s = None if stop_after_s is None else time.monotonic() + stop_after_s
        self.is_asked_to_stop = False
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}
        self.begun: set[str] = set()
        self.records = read_records(out)

    @property
    def left_s(self) -> float:
        return float("inf") if self.end_s is None else self.end_s - time.monotonic()

    def run(self) -> int:
        """Everything that can be done now. Returns the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)
        write_json(self.out / JOBS_FILE, self.records)
        while True:
            os.utime(self.out / JOBS_FILE)
            for job, process, began_s in list(self.running.values()):
                if process.poll() is not None:
                    self._ended(job, process.returncode, time.monotonic() - began_s)
            if self.is_asked_to_stop or self.left_s <= GRACE_S:
                self._stop()
                break
            for job in self.jobs:
                if self._may_begin(job):
                    self._begin(job)
            if not self.running:
                break
            time.sleep(0.2)
        num_left = sum(not job.is_done for job in self.jobs)
        failed = [name for name in self.begun if self.records[name]["state"] == "failed"]
        print(f"{len(self.jobs) - num_left} of {len(self.jobs)} jobs are done, {len(failed)} failed", flush=True)
        return 1 if failed else 3 if num_left else 0

    def _ask_to_stop(self, *_: Any) -> None:
        self.is_asked_to_stop = True

    def _may_begin(self, job: Job) -> bool:
        if self.left_s <= (KEEPING_S if job.stage == "keep" else self.plan.spare_s):
            return False
        at_once = self.plan.at_once
        beside = sum(other.stage == job.stage for other, _, _ in self.running.values())
        if beside >= at_once.get(job.stage, 1) or len(self.running) >= at_once.get("all", len(self.jobs)):
            return False
        is_ready = all(need.is_done and need.name not in self.running for need in job.needs)
        return is_ready and job.name not in self.begun and not job.is_done

    def _begin(self, job: Job) -> None:
        command = list(job.command)
        if job.recipe is not None and self.end_s is not None:  # training saves at its time limit, and not on a signal
            command += ["--time-limit-s", f"{max(1.0, self.left_s - self.plan.spare_s):.0f}"]
        with log_of(job, self.out).open("ab") as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            file.flush()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self.begun.add(job.name)
        self.running[job.name] = (job, process, time.monotonic())
        self._record(job, "running", 0.0)
        print(f"begun   {job.name}", flush=True)

    def _ended(self, job: Job, status: int, took_s: float) -> None:
        del self.running[job.name]
        reason = f"exit status {status}"
        if status == 0 and job.recipe is not None:
            try:
                if not keep_adapter(job, self.out) and self.end_s is not None:
                    self._record(job, "stopped", took_s)
                    return
            except ParallelSearchError as error:
                reason = str(error)
        if job.is_done:
            self._record(job, "done", took_s)
            print(f"done    {job.name}, {took_s:.0f} s", flush=True)
            return
        self._record(job, "failed", took_s)
        log = log_of(job, self.out)
        _, _, said = f"\n{log.read_text(encoding='utf-8', errors='replace')}".rpartition("\n$ ")
        last = said.splitlines()[1:]  # without the command
        print(f"FAILED  {job.name} ({reason}), {log}:", *last[-8:], sep="\n    ", flush=True)

    def _stop(self) -> None:
        """End what runs: ask, wait, kill."""
        for _, process, _ in self.running.values():
            _signal(process, signal.SIGTERM)
        deadline_s = time.monotonic() + GRACE_S / 2
        for job, process, began_s in list(self.running.values()):
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
            del self.running[job.name]
            self._record(job, "stopped", time.monotonic() - began_s)

    def _record(self, job: Job, state: str, took_s: float) -> None:
        seconds = self.records.get(job.name, NEW)["seconds"] + took_s
        self.records[job.name] = {"state": state, "seconds": round(seconds, 1), "begun_at": round(time.time(), 1)}
        write_json(self.out / JOBS_FILE, self.records)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the job and to whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def shared_gpu(is_wanted: bool, out: Path) -> Iterator[None]:
    """CUDA's multi-process service: without it, processes take turns on the GPU. One that ran already is left as it is."""
    control = shutil.which("nvidia-cuda-mps-control") if is_wanted else None
    if is_wanted and control is None:
        print("nvidia-cuda-mps-control is not installed: the jobs take turns on the GPU", flush=True)
    is_ours = False
    if control is not None:
        os.environ.setdefault("CUDA_MPS_LOG_DIRECTORY", str((out / "logs").resolve()))
        is_ours = subprocess.run([control, "-d"], check=False).returncode == 0
    try:
        yield
    finally:
        if control is not None and is_ours:
            subprocess.run([control], input="quit\n", text=True, check=False)


# ---- what is known of the jobs ---------------------------------------------------------------------------------------


def log_of(job: Job, out: Path) -> Path:
    return out / "logs" / f"{job.name.replace('/', '.')}.log"


def read_records(out: Path) -> dict[str, dict[str, Any]]:
    path = out / JOBS_FILE
    return dict(read_json(path)) if path.is_file() else {}


def is_at_work(out: Path) -> bool:
    """Whether a runner is. It is known by its touch: to try the folder's lock would keep one from starting."""
    path = out / JOBS_FILE
    return path.is_file() and time.time() - path.stat().st_mtime < SILENCE_S


def status_row(job: Job, record: Mapping[str, Any], out: Path, is_running: bool) -> tuple[str, ...]:
    """Job, state, seconds, how far it is, and its last figure."""
    state, seconds = str(record["state"]), float(record["seconds"])
    if job.is_done:
        state = "done"
    elif state == "running" and is_running:
        seconds += time.time() - record["begun_at"]
    elif state != "failed":
        state = "stopped" if state else "ready" if all(need.is_done for need in job.needs) else "waiting"
    return job.name, state, f"{seconds:.0f}", *_progress(job, out / job.name)


def _progress(job: Job, folder: Path) -> tuple[str, str]:
    done = last = ""
    if job.recipe is not None:
        name = "loss" if job.stage == "sft" else "val/accuracy"
        for record in read_metrics(folder / "metrics.jsonl"):
            done = f"{record['step']} steps"
            last = f"{name} {record[name]:.3f} at step {record['step']}" if name in record else last
    elif (folder / TRAJECTORIES_FILE).is_file():
        with (folder / TRAJECTORIES_FILE).open("rb") as file:
            num_done = sum(1 for _ in file)
        done = f"{num_done} of {read_manifest(folder).setup['data']['num_questions']} questions"
        if job.is_done:
            last = f"EM {next(iter(read_summary(folder)['subsets'].values()))['em']:.3f}"
    return done, last


# ---- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plan_file", metavar="PLAN.toml", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="where everything goes; the same one goes on")
    parser.add_argument(
        "--only", metavar="ARM", nargs="+", help="these arms with their starts, in this order; sft-START: without RL"
    )
    parser.add_argument("--seeds", metavar="N", nargs="+", type=int, help="others than the plan's")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--stop-after", metavar="SECONDS", type=float, help="save and be gone by then")
    parser.add_argument("--mps", action="store_true", help="with CUDA's multi-process service")
    parser.add_argument("--plan", action="store_true", help="print the commands that are left, and run none")
    parser.add_argument("--status", action="store_true", help="print a table of the jobs, and run none")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except ParallelSearchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    plan, out = load_plan(options.plan_file), options.out
    known = {**plan.arms, **{f"{ALONE}{name}": start for name, start in plan.starts.items()}}
    for name in options.only or ():
        _known(name, known, "--only")
    arms = options.only or list(plan.arms)
    jobs = jobs_of(plan, options.plan_file.parent, out, arms, options.seeds or plan.seeds)
    chosen = [job for job in jobs if job.stage in options.stages]
    if options.plan:
        for job in chosen:
            if not job.is_done:
                print(shlex.join(job.command))
        return 0
    if options.status:
        records, is_running = read_records(out), is_at_work(out)
        rows: list[tuple[str, ...]] = [("job", "state", "seconds", "done", "last figure")]
        rows += [status_row(job, records.get(job.name, NEW), out, is_running) for job in chosen]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return 0 if all(job.is_done for job in chosen) else 3
    with held_folder(out, "choose another --out"):
        (out / "logs").mkdir(exist_ok=True)
        with shared_gpu(options.mps, out):
            return Runner(chosen, plan, out, options.stop_after).run()


if __name__ == "__main__":
    sys.exit(main())
