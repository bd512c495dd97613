"""Sampling through TRL's vLLM: whole runs over a stand-in for vLLM (its engine is a transformers model), and bad starts.

vLLM itself and the NCCL transfer of weights cannot run here. TRL's client, its weight sync and its loss are TRL's own.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tiny_runs import tiny_model, tiny_recipe
from vllm_server import make_app

from free_ports import free_port
from parallelsearch.errors import MissingExtraError, PolicyError, UsageError
from parallelsearch.grammar import STOP_STRINGS
from parallelsearch.policy.base import Sampling
from parallelsearch.policy.engine.stops import StopBank
from parallelsearch.training import run as loop
from parallelsearch.training import vllm as vllm_policy
from parallelsearch.training import vllm_link
from parallelsearch.training.guards import TrainingStoppedError
from parallelsearch.training.recipe import ModelSettings
from parallelsearch.training.vllm import ServerEngine, cut, turn_seed
from parallelsearch.training.weights import load_weights

HERE = Path(__file__).parent
VERSION = "0.31.0"


def make_site(folder: Path, version: str = VERSION) -> Path:
    """A folder for sys.path in which the stand-in is installed under this version."""
    shutil.copytree(HERE / "stand_in", folder)
    (folder / f"vllm-{version}.dist-info").mkdir()
    (folder / f"vllm-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
    )
    (folder / f"vllm-{version}.dist-info" / "top_level.txt").write_text("vllm\n", encoding="utf-8")
    return folder


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A server process and a process that trains through it."""
    folder = tmp_path_factory.mktemp("vllm")
    model, tokenizer = tiny_model(1.0)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    site, port = make_site(folder / "site"), free_port()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen(
        [sys.executable, str(HERE / "vllm_server.py"), str(folder / "model"), str(port)],
        env={**environment, "PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 400
        while server.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.1)
        assert server.poll() is None, server.communicate()[0][-3000:]
        arguments = [str(folder / "model"), str(port), str(folder / "runs"), str(folder / "result.json")]
        done = subprocess.run(
            [sys.executable, str(HERE / "vllm_run.py"), *arguments],
            env={**environment, "PYTHONPATH": os.pathsep.join([str(site), str(HERE), str(HERE.parent)])},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    finally:
        server.kill()
        server.communicate()
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def steps_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [record for record in run["metrics"] if "loss" in record]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_turn_is_asked_for_in_the_words_of_trl(runs: dict[str, Any]) -> None:
    words = runs["words"]
    assert words["our_body"] == words["their_body"], "TRL's client speaks another contract now"
    length = len(words["ours"][0])
    assert words["ours"] == [values[:length] for values in words["theirs"]]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_greedy_rollouts_are_those_of_the_local_engine(runs: dict[str, Any]) -> None:
    local, served = runs["greedy"]["batch"], runs["greedy"]["vllm"]
    assert len(local) == 8
    for one, other in zip(local, served, strict=True):
        assert other.pop("logprobs") == pytest.approx(one.pop("logprobs"), abs=1e-4)
        assert other == one
    assert {finish for one in local for finish in one["finishes"]} >= {"stop"}


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", ["full", "lora", "ppo", "colocate"])
def test_a_run_samples_from_the_weights_it_trains(runs: dict[str, Any], name: str) -> None:
    """The sampler's log-probabilities, at its temperature, are the trainer's: ids, weights and temperature all agree."""
    run, steps = runs[name], steps_of(runs[name])
    assert run["is_finished"]
    assert len(steps) == 2
    for record in steps:
        assert record["sampler_drift"] < 1e-4
        assert record["sampler_drift"] <= record["sampler_drift_max"] < 1e-2
        assert record["grad_norm"] > 0
        assert record["stop/error"] == 0
    has_correction = [record.get("sampling/importance_sampling_ratio/mean") for record in steps]
    assert has_correction == ([None, None] if name == "ppo" else pytest.approx([1.0, 1.0], abs=1e-3))
    assert [record["step"] for record in run["metrics"] if "val/accuracy" in record] == [0, 1, 2]
    engine = "vllm-colocate" if name == "colocate" else "vllm-server"
    assert {policy["engine"] for policy in run["policies"]} == {engine}


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", ["full", "lora", "lora-bfloat16", "ppo"])
def test_the_server_has_the_trained_weights_at_the_end(runs: dict[str, Any], name: str) -> None:
    """Brought over once for each of three states, by TRL; an adapter folded in."""
    run = runs[name]
    server = run["server"]
    tolerance = 1e-2 if name == "lora-bfloat16" else 1e-5
    assert server["weights"] == pytest.approx(run["trained"], rel=tolerance)
    assert (server["inits"], server["updates"], server["reset_prefix_cache"]) == (1, 3, 3)
    assert server["start_weight_update"] == server["finish_weight_update"] == 3
    assert server["max_in_flight"] >= 4, "rollouts ask at the same time"


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_in_the_process_the_turns_of_all_rollouts_are_one_call(runs: dict[str, Any]) -> None:
    run = runs["colocate"]
    llm = run["server"]
    assert llm["weights"] == pytest.approx(run["trained"], rel=1e-5)
    assert llm["num_resets"] == 3
    sizes = llm["batch_sizes"]
    assert sizes[0] == 6, "the validation questions"
    assert sizes.count(16) >= 2, "the first turns of both steps"
    assert llm["options"]["max_model_len"] == 400
    assert llm["options"]["gpu_memory_utilization"] == 0.3
    assert llm["options"]["logprobs_mode"] == "processed_logprobs"


# ---- where a turn ends -----------------------------------------------------------------------------------------------


VOCABULARY = [b"</sea", b"rch>\n\n", b"x", None, b"</answer>", b"</search> tail"]


def ended(ids: list[int], max_new_tokens: int = 10) -> tuple[list[int], str]:
    bank = StopBank(VOCABULARY)
    start = bank.start(("</search>", "</answer>"))
    output = cut(bank, start, [3], max_new_tokens, ids, [-0.5] * len(ids))
    assert len(output.logprobs) == len(output.token_ids)
    return output.token_ids, output.finish


def test_the_token_that_completes_a_stop_string_is_kept_whole_and_nothing_behind_it() -> None:
    assert ended([2, 0, 1, 2, 2]) == ([2, 0, 1], "stop")
    assert ended([5, 4]) == ([5], "stop")
    assert ended([2, 3, 4]) == ([2, 3], "eos")
    assert ended([2, 2]) == ([2, 2], "length")
    assert ended([2, 2, 2, 4], max_new_tokens=3) == ([2, 2, 2], "length")


def test_an_answer_without_numbers_is_an_error() -> None:
    bank = StopBank(VOCABULARY)
    with pytest.raises(PolicyError, match="0 tokens"):
        cut(bank, bank.start(("</answer>",)), [3], 5, [], [])
    with pytest.raises(PolicyError, match="2 tokens with 1"):
        cut(bank, bank.start(("</answer>",)), [3], 5, [1, 2], [-1.0])
    with pytest.raises(PolicyError, match="not a number"):
        cut(bank, bank.start(("</answer>",)), [3], 5, [1, 2], [-1.0, None])


def test_every_turn_has_a_seed_of_its_own() -> None:
    seeds = {turn_seed(Sampling(1.0, seed=seed), place) for seed in range(20) for place in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


# ---- a server that fails ---------------------------------------------------------------------------------------------


Serve = Callable[[Starlette], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Runs apps on loopback, in threads."""
    started: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: Starlette) -> int:
        port = free_port()
        config = uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        started.append((server, thread))
        deadline = time.monotonic() + 120
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return port

    yield start
    for server, thread in started:
        server.should_exit = True
        thread.join(10)


def engine_at(port: int, timeout_s: float = 60.0) -> ServerEngine:
    url = f"http://127.0.0.1:{port}"
    return ServerEngine(url, "tiny", StopBank(VOCABULARY), [3], is_seeded=True, timeout_s=timeout_s)


async def ask(engine: ServerEngine) -> Any:
    try:
        sampling = Sampling(1.0, seed=4)
        return await engine.generate([1, 2], stop=STOP_STRINGS, max_new_tokens=4, sampling=sampling, key="a")
    finally:
        await engine.aclose()


def completions(handle: Any) -> Starlette:
    return Starlette(routes=[Route("/v1/completions", handle, methods=["POST"])])


async def test_a_busy_server_is_asked_again_and_a_seed_is_sent(serve: Serve) -> None:
    bodies: list[dict[str, Any]] = []

    async def handle(request: Request) -> Response:
        bodies.append(await request.json())
        if len(bodies) == 1:
            return JSONResponse({"error": "busy"}, 503, {"Retry-After": "0"})
        return JSONResponse({"choices": [{"token_ids": [2, 4], "logprobs": {"token_logprobs": [-1.0, -2.0]}}]})

    output = await ask(engine_at(serve(completions(handle))))
    assert (output.token_ids, output.logprobs, output.finish) == ([2, 4], [-1.0, -2.0], "stop")
    assert [body["seed"] for body in bodies] == [turn_seed(Sampling(1.0, seed=4), 2)] * 2


async def test_failures_of_the_server_are_failures_of_one_turn(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(request: Request) -> Response:
        return JSONResponse({"error": {"message": "unknown field 'top_k'"}}, 400)

    async def chat(request: Request) -> Response:
        return JSONResponse({"choices": [{"text": "hello"}]})

    async def sleep(request: Request) -> Response:
        await asyncio.sleep(30)
        return Response()

    with pytest.raises(PolicyError, match="unknown field 'top_k'"):
        await ask(engine_at(serve(completions(refuse))))
    with pytest.raises(PolicyError, match="without token ids"):
        await ask(engine_at(serve(completions(chat))))
    with pytest.raises(PolicyError, match="did not answer in time"):
        await ask(engine_at(serve(completions(sleep)), timeout_s=0.3))
    monkeypatch.setattr(vllm_policy, "MAX_ATTEMPTS", 2)
    with pytest.raises(PolicyError, match=r"refused the connection.*2 attempts"):
        await ask(engine_at(free_port()))


def trainer_of(tmp_path: Path, weights: Any, sync_weights: Any = None) -> Any:
    """What a link sees of a trainer."""
    return SimpleNamespace(
        vllm_generation=SimpleNamespace(sync_weights=sync_weights, model="the trained one"),
        weights=weights,
        collector=SimpleNamespace(policy=SimpleNamespace(engine=engine_at(1))),
        state=SimpleNamespace(global_step=6),
        step=3,
        recipe=tiny_recipe(tmp_path, {"rollout.engine": "vllm"}),
    )


@pytest.mark.parametrize(("rank", "precision"), [(0, "bfloat16"), (4, "float32"), (4, "bfloat16")])
def test_an_adapter_in_bfloat16_is_sent_from_the_copy_it_is_folded_into(
    tmp_path: Path, rank: int, precision: Any
) -> None:
    """TRL would merge it into the frozen weights and take it out again: in bfloat16 a third of them come back changed."""
    model, tokenizer = tiny_model()
    settings = ModelSettings(name="x", lora_rank=rank, precision=precision)
    weights = load_weights(
        settings,
        torch.device("cpu"),
        needs_reference=False,
        samples_elsewhere=True,
        model=model,
        tokenizer=tokenizer,
    )
    trainer = trainer_of(tmp_path, weights)
    vllm_link.WeightLink(trainer)
    has_copy = rank > 0 and precision == "bfloat16"
    assert weights.samples_itself != has_copy, "all weights need no second copy where nobody samples from it"
    assert trainer.vllm_generation.model is (weights.sampler if has_copy else "the trained one")


def test_a_run_stops_when_vllm_does_not_take_the_weights(tmp_path: Path) -> None:
    def broken() -> None:
        raise ConnectionError("gone")

    trainer = trainer_of(tmp_path, SimpleNamespace(samples_itself=True), broken)
    with pytest.raises(TrainingStoppedError, match=r"step 3.*gone(.|\n)*newest checkpoint(.|\n)*vllm serve smoke"):
        vllm_link.WeightLink(trainer).sync()


# ---- a bad start -----------------------------------------------------------------------------------------------------


def start_run(tmp_path: Path, **changes: Any) -> None:
    settings = {f"rollout.{name}": value for name, value in changes.items()}
    recipe = tiny_recipe(tmp_path, {"model.name": "/no/such/model", "rollout.engine": "vllm", **settings})
    loop.train(recipe)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM seems to be there, and a GPU too."""
    monkeypatch.syspath_prepend(str(make_site(tmp_path / "site")))
    monkeypatch.setattr(vllm_link, "check_device", lambda: None)


def test_vllm_that_is_not_installed_is_named_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"needs vLLM.*>=0\.22.*pip install 'trl\[vllm\]'.*\"auto\""):
        start_run(tmp_path)
    assert not (tmp_path / "run.json").exists(), "another engine may be chosen for the same folder"


def test_a_version_that_trl_does_not_take_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_site(tmp_path / "site", "0.40.1")))
    with pytest.raises(UsageError, match=r"vLLM 0\.40\.1 is installed.*TRL takes vllm.*<=0\.31"):
        start_run(tmp_path)


def test_a_build_of_a_supported_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_site(tmp_path / "site", "0.31.0+cu129")))
    with pytest.raises(UsageError, match="needs a GPU"):
        start_run(tmp_path)


@pytest.mark.usefixtures("installed")
def test_a_server_that_is_not_there_is_named_with_the_command_to_start_it(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(UsageError, match="cannot be reached") as caught:
        start_run(tmp_path, vllm_port=port, vllm_tensor_parallel_size=2)
    command = str(caught.value).splitlines()[-1].strip()
    for words in (
        "VLLM_SERVER_DEV_MODE=1 vllm serve /no/such/model",
        f"--port {port}",
        "--tensor-parallel-size 2",
        "--max-model-len 400",
        "--logprobs-mode processed_logprobs",
        '--weight-transfer-config \'{"backend": "nccl"}\'',
    ):
        assert words in command


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"has_dev_mode": False}, "VLLM_SERVER_DEV_MODE=1 is not in its environment"),
        ({"transfer": None}, "without --weight-transfer-config"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode raw_logprobs"),
        ({"max_model_len": 300}, r"takes 300 tokens, fewer than rollout\.max_tokens = 400"),
    ],
)
def test_a_server_started_wrongly_is_refused(tmp_path: Path, serve: Serve, config: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        start_run(tmp_path, vllm_port=serve(make_app(**config)))


@pytest.mark.usefixtures("installed")
def test_a_server_started_rightly_passes(tmp_path: Path, serve: Serve) -> None:
    vllm_link.check(tiny_recipe(tmp_path, {"rollout.engine": "vllm", "rollout.vllm_port": serve(make_app())}))


def test_tensor_parallel_is_for_servers(tmp_path: Path) -> None:
    changes = {"rollout.vllm_mode": "colocate", "rollout.vllm_tensor_parallel_size": 2}
    with pytest.raises(UsageError, match=r"vllm_tensor_parallel_size.*server"):
        tiny_recipe(tmp_path, {"rollout.engine": "vllm", **changes})


# ---- TRL -------------------------------------------------------------------------------------------------------------


def test_trl_still_has_what_is_used_of_its_vllm_support(tmp_path: Path) -> None:
    import trl
    from trl.generation.vllm_client import VLLMClient
    from trl.generation.vllm_generation import VLLMGeneration

    known = {field.name for field in fields(trl.GRPOConfig)}
    recipe = tiny_recipe(tmp_path, {"rollout.engine": "vllm"})
    assert set(vllm_link.config_options(recipe)) <= known
    trainer, generation = inspect.getsource(trl.GRPOTrainer), inspect.getsource(VLLMGeneration)
    for name in vllm_link.TRAINER_NAMES:
        assert f"self.{name} = " in trainer, f"TRL's trainer sets no '{name}' any more"
    for name in vllm_link.GENERATION_NAMES:
        assert f"self.{name} = " in generation or hasattr(VLLMGeneration, name), f"VLLMGeneration has no '{name}'"
    client = inspect.getsource(VLLMClient)
    for path in ("/health", "/server_info", "/v1/models", "/v1/completions", "weight_transfer_config"):
        assert path in client, f"TRL's client does not use {path} any more"
    assert "logprobs_mode" in trainer
    assert vllm_link.supported_versions().contains(VERSION)
