"""The plan of an experiment: what it would run, and a whole one in miniature, stopped and killed on the way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import twins
from kept_rows import read_records

from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.files import read_json
from parallelsearch.training import smoke
from parallelsearch.training.checkpoints import completed
from parallelsearch.trajectory import Trajectory, write_trajectories

ROOT = Path(__file__).parents[1]
SCRIPT, SHIPPED = ROOT / "scripts" / "twins.py", ROOT / "recipes" / "twins-wide.toml"

SFT = """
model = { name = "model", lora_rank = 4 }
data = { train = "cold.jsonl" }

[train]
algorithm = "sft"
out = "unset"
steps = 3
batch_size = 4
max_length = 1024
lr = 1e-2
save_every = 9
"""
GRPO = """
model = { name = "model" }
data = { train = "smoke", num_validation = 4 }
search = { address = "demo", k = 1 }
rollout = { max_turns = 2, max_tokens_per_turn = 32, max_observation_tokens = 64, max_tokens = 400 }

[train]
algorithm = "grpo"
out = "unset"
steps = 2
questions_per_step = 4
samples_per_question = 4
lr = 1e-2
micro_batch_tokens = 4096
eval_every = 1
save_every = 1
"""
PLAN = """
sft = "sft.toml"
grpo = "grpo.toml"
search = "demo"
seeds = [7]
eval = "--max-turns 2 --max-tokens-per-turn 32 --max-observation-tokens 64 --max-tokens 400"
spare_s = 299
at_once = { grpo = 2, eval = 3, keep = 2 }
environment = { OMP_NUM_THREADS = "1", HF_HUB_OFFLINE = "1", TOKENIZERS_PARALLELISM = "false" }
evals = { few = "--data demo-par --limit 2" }
starts = { cold = { evals = ["few"] } }

[arms.gated]
start = "cold"
grpo = "reward.preset=gated"

[arms.no-data]
start = "cold"
grpo = "reward.preset=gated data.train=nowhere.jsonl"
"""
FAILED = "FAILED  train/rl-no-data.s7 (exit status 2)"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plan and recipes in a folder of their own; data and model where the command is typed."""
    (tmp_path / "recipes").mkdir()
    for name, text in {"sft": SFT, "grpo": GRPO, "plan": PLAN}.items():
        (tmp_path / "recipes" / f"{name}.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(place: Path, old: str, new: str) -> None:
    path = place / "recipes" / "plan.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def furnish(place: Path) -> None:
    """The model, and what SFT learns from."""
    tokenizer = smoke.make_tokenizer()
    smoke.make_model(tokenizer).save_pretrained(place / "model")
    tokenizer.save_pretrained(place / "model")
    encoder = TokenizerEncoder(tokenizer)
    lessons = []
    for question in smoke.questions(8):
        segments = [
            encoder.prompt(f"{question.question}\n", question.question),
            encoder.insert(smoke.TURNS[2], "model"),
        ]
        lessons.append(Trajectory(question.question, segments, ["yes"], id=question.id, answer="yes", stop="answer"))
    write_trajectories(place / "cold.jsonl", lessons)


# ---- what would be run -----------------------------------------------------------------------------------------------


def test_the_shipped_plan_says_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    asked = [str(SHIPPED.relative_to(ROOT)), "--out", "nowhere", "--seeds", "2", "3", "--plan"]
    assert twins.main([*asked, "--only", "sequential", "undecided-gated", "undecided-paper"]) == 0
    lines = capsys.readouterr().out.splitlines()
    trained = [line for line in lines if " train " in line]
    assert len(trained) == 2 * (4 + 3)  # the twin's SFT has three stages; two arms share their start
    (one,) = [line for line in trained if line.endswith("train/sft-sequential.s3")]
    assert "model.adapter=nowhere/adapters/sft-sequential-second.s3" in one
    (one,) = [line for line in trained if "rl-sequential.s3" in line]
    assert "model.adapter=nowhere/adapters/sft-sequential.s3" in one
    assert {"rollout.dialect=sequential", "rollout.max_turns=9", "reward.decomposition=0", "train.seed=3"} <= {
        *one.split()
    }
    (one,) = [line for line in trained if "rl-undecided-gated.s3" in line]
    assert {"train.steps=40", "train.eval_every=0", "reward.preset=gated"} <= {*one.split()}, "of the start and its own"
    evaluated = [line for line in lines if "+nowhere/adapters/rl-sequential.s3 " in line]
    assert len(evaluated) == 4
    assert all(" --retry-failures " in line for line in evaluated)
    assert sum("--max-turns 9" in line for line in evaluated) == 1
    (kept,) = [line for line in lines if "results.py keep rl-sequential.s3 " in line]
    assert kept.count("nowhere/eval/rl-sequential.s3/") == 4
    assert twins.main([*asked, "--stages", "sft"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 * 13
    assert twins.main([*asked, "--stages", "sft", "grpo", "--only", "parallel", "sft-sequential"]) == 0
    policies = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    assert policies == [
        f"{name}.s{seed}"
        for names in (
            ("sft-parallel-first", "sft-parallel-second", "sft-parallel", "rl-parallel"),
            ("sft-sequential-first", "sft-sequential-second", "sft-sequential"),
        )
        for seed in (2, 3)
        for name in names
    ]
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('grpo = "reward.preset=gated"', 'grpo = "reward.preset=gaited"', "'gaited'"),
        ('start = "cold"', 'start = "cool"', "Did you mean 'cold'"),
        ('evals = ["few"]', 'evals = ["fewer"]', "Did you mean 'few'"),
        ("[arms.gated]", '[arms."gated.s1"]', "arms.gated.s1"),
        ('evals = ["few"]', 'evals = ["few"], after = "old"', "after: there is no 'old'"),
        ('evals = ["few"]', 'evals = ["few"], after = "cold"', "'cold' comes after itself: cold, cold"),
    ],
)
def test_a_plan_is_checked_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    change(place, old, new)
    assert twins.main(["recipes/plan.toml", "--out", "out"]) == 2
    assert words in capsys.readouterr().err
    assert not (place / "out").exists()


def test_an_unknown_arm_is_told_the_nearest(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert twins.main(["recipes/plan.toml", "--out", "out", "--only", "gate"]) == 2
    assert "Did you mean 'gated'" in capsys.readouterr().err


def test_the_service_that_shares_a_gpu_is_ended_by_who_began_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a stand-in for NVIDIA's command, which says what it is asked, and with what on its standard input."""
    control = place / "nvidia-cuda-mps-control"
    control.write_text('#!/bin/sh\necho "asked $@" >> asked\n[ -n "$1" ] && exit $(cat status) || cat >> asked\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", str(place))
    for status, asked in (("0", "asked -d\nasked \nquit\n"), ("1", "asked -d\n")):  # 1: there is one already
        (place / "status").write_text(status)
        with twins.shared_gpu(True, place):
            assert (place / "asked").read_text() == "asked -d\n"
        assert (place / "asked").read_text() == asked
        (place / "asked").unlink()
    with twins.shared_gpu(False, place):
        assert not (place / "asked").exists()


def test_near_the_end_rows_are_kept_and_nothing_else_begins(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a lent machine an evaluation ended 50 seconds before it was given back, and its rows went with it."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # a runner's own, which is a process of its own otherwise
    (place / "out" / "logs").mkdir(parents=True)
    touched = [place / name for name in ("rows", "report")]
    touch = [(sys.executable, "-c", f"open({str(path)!r}, 'w')") for path in touched]
    jobs = [twins.Job("keep/a", "keep", touch[0], touched[0]), twins.Job("eval/b", "eval", touch[1], touched[1])]
    plan = twins.load_plan(place / "recipes" / "plan.toml")
    left_s = (plan.spare_s + twins.KEEPING_S) / 2
    assert twins.Runner(jobs, plan, place / "out", left_s).run() == 3
    assert [path.exists() for path in touched] == [True, False]
    touched[0].unlink()
    assert twins.Runner(jobs, plan, place / "out", twins.KEEPING_S).run() == 3
    assert not touched[0].exists()


# ---- a whole one -----------------------------------------------------------------------------------------------------


def begin(place: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), "recipes/plan.toml", "--out", "out", *options]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], status: int) -> str:
    output, _ = process.communicate(timeout=500)
    assert process.returncode == status, output
    return output


def said(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    twins.main(["recipes/plan.toml", "--out", "out", *options])
    return capsys.readouterr().out.splitlines()


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    return {line.split()[0]: line.split()[1] for line in said(capsys, "--status")[1:]}


def wait_until(holds: Callable[[], bool], limit_s: float = 500) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_deserted(place: Path) -> bool:
    """No process is at work there."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process != Path(f"/proc/{os.getpid()}") and (process / "cwd").readlink() == place:
                return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_stopped_killed_and_beside_a_failure_it_comes_to_its_rows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    furnish(place)
    out = place / "out"

    # All but a second is to spare: SFT saves after its first step, and no other job begins.
    assert "0 of 9 jobs are done, 0 failed" in finish(begin(place, "--stop-after", "300"), 3)
    assert [step for step, _ in completed(out / "train" / "sft-cold.s7" / "checkpoints")] == [1]
    assert states(capsys)["train/sft-cold.s7"] == "stopped"

    # One arm has no data and fails; the other is under way when the runner is killed, and does not outlive it.
    runner = begin(place)
    wait_until(lambda: '"failed"' in (out / "jobs.json").read_text() or runner.poll() is not None)
    assert states(capsys)["train/rl-gated.s7"] == "running"
    runner.kill()
    assert FAILED in finish(runner, -signal.SIGKILL)
    wait_until(lambda: is_deserted(place), 20)
    wait_until(lambda: states(capsys)["train/rl-gated.s7"] == "stopped", 20)
    found = states(capsys)
    assert found["train/sft-cold.s7"] == "done"
    assert found["train/rl-no-data.s7"] == "failed"
    assert found["keep/rl-gated.s7"] == "waiting"

    # The same command tries the one again, and brings the other to its end.
    output = finish(begin(place), 1)
    assert FAILED in output
    assert "there is no file 'nowhere.jsonl'" in output
    assert "6 of 9 jobs are done, 1 failed" in output
    assert "going on from step 1" in (out / "logs" / "train.sft-cold.s7.log").read_text()
    run = out / "train" / "rl-gated.s7"
    best = read_json(run / "best.json")["checkpoint"]
    source = out / "adapters" / "sft-cold.s7" if best is None else run / "checkpoints" / best
    weights = "adapter_model.safetensors"
    assert (out / "adapters" / "rl-gated.s7" / weights).read_bytes() == (source / weights).read_bytes()
    assert not (out / "adapters" / "rl-gated.s7" / "optimizer.pt").exists()
    for name in ("sft-cold.s7", "rl-gated.s7"):
        assert [(one["set"], one["turns"]) for one in read_records(name, out / "rows")] == [("demo-par", 2)] * 2
    table = "\n".join(said(capsys, "--status"))
    assert "2 of 2 questions" in table
    assert "val/accuracy" in table

    # Without the one that fails nothing is left, until rows are older than what they were made of.
    assert "6 of 6 jobs are done, 0 failed" in finish(begin(place, "--only", "gated"), 0)
    assert said(capsys, "--plan", "--only", "gated") == []
    os.utime(out / "rows" / "rl-gated.s7.jsonl.zst", (0, 0))
    (again,) = said(capsys, "--plan", "--only", "gated")
    assert "results.py keep rl-gated.s7 out/eval/rl-gated.s7/few " in again
