"""Engines side by side: the same rollouts by the slot engine, by vLLM in the process, and by `vllm serve` over HTTP.

    parallelsearch export hf:smollm2-135m+parallel merged
    python benchmarks/engines.py merged --data questions.jsonl --search bm25:INDEX --engines slot,vllm,server
    python benchmarks/engines.py merged --data questions.jsonl --search demo --engines slot --questions 2 --samples 2

Each engine is measured in a process of its own, one after another, so that none shares the GPU or the counted processor
time with another. All get the same questions, sampling, limits and search (a new cache for each). One pass over other
questions of the file warms up and does not count.

| engine | what it is |
|---|---|
| slot | `hf:`, our own engine |
| vllm | vLLM's `AsyncLLM` behind the policy that training uses; no HTTP |
| vllm-batch | vLLM's `LLM` behind the engine that training uses: turns are gathered, and a call blocks |
| transformers | transformers' own continuous batching; it knows no stop strings, so turns are streamed and cancelled at one |
| server | `vllm serve` through `openai:`, as it is: each turn in one piece, since nobody listens; a seed for each rollout |
| server-unseeded | the same without seeds: with one, vLLM draws each row by itself |
| server-streamed | without seeds, and each turn streamed although nobody listens (`?stream=1`) |
| server-dispatch | without seeds, streamed, and each query is started while the turn is still being written |

A server gets the prompt in the model's own template and continues one text (`api=completions`), as the other engines do.
Processor time is that of the pass: of the measuring process ("client", for slot and vllm also the engine's front end), of
the processes it started, and of the server's. A pass has one client process: "busy" is the share of the wall time in which
it had a core.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import functools
import importlib.metadata
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.data.questions import read_questions
from parallelsearch.dialect import Tool
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.rollouts import rollout_many
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Segment, Trajectory

SERVER_MODEL = "parallelsearch"
"""The name by which `openai:` knows a model that was trained on tags."""
SERVERS: dict[str, dict[str, Any]] = {
    "server": {},
    "server-unseeded": {"extra_body": {"seed": None}},
    "server-streamed": {"extra_body": {"seed": None}, "stream": True},
    "server-dispatch": {"extra_body": {"seed": None}},
}
ENGINES = ("slot", "vllm", "vllm-batch", "transformers", *SERVERS)
TIMEOUT_S = 600.0


# ---- processor time --------------------------------------------------------------------------------------------------


def _stat(pid: int) -> tuple[str, int, float] | None:
    """Name, parent and processor seconds of a process; None if it is gone."""
    try:
        head, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        return None
    fields = rest.split()
    # Engines that name their processes write it over the command line, others have the interpreter there.
    name = line if line and "/" not in line else head.partition("(")[2]
    return name, int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int) -> dict[int, tuple[str, float]]:
    """Process id to name and processor seconds, for a process and all below it."""
    found = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    below: dict[int, tuple[str, float]] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        stat = found.get(pid)
        if stat is not None:
            below[pid] = stat[0], stat[2]
        waiting += [child for child, of in found.items() if of is not None and of[1] == pid and child not in below]
    return below


def spent_s(before: dict[int, tuple[str, float]], after: dict[int, tuple[str, float]]) -> dict[str, float]:
    """Seconds by name, processes of one name together. What a process that has ended in between spent is not known."""
    total: dict[str, float] = {}
    for pid, (name, seconds) in after.items():
        total[name] = total.get(name, 0.0) + seconds - before.get(pid, (name, 0.0))[1]
    return {name: round(total[name], 2) for name in sorted(total, key=lambda name: -total[name]) if total[name] >= 0.01}


# ---- the engines -----------------------------------------------------------------------------------------------------


class ContinuedPolicy(OpenAIPolicy):
    """`openai:` that continues one text, begun in the model's own chat template, as the engines in the process do."""

    def __init__(self, base_url: str, model: str, tokenizer: Any, **options: Any) -> None:
        encode = functools.lru_cache(maxsize=65_536)(functools.partial(tokenizer.encode, add_special_tokens=False))
        super().__init__(base_url, model, api="completions", encode=lambda text: list(encode(text)), **options)
        self._tokenizer = tokenizer

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        if self._tokenizer.chat_template:
            message = [{"role": "user", "content": text}]
            text = self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return super().prompt(text, question, tools)

    def _ids_of(self, text: str) -> None:
        """A turn comes back as text, so the prompt goes out as text; ids are for counting."""


def open_vllm(folder: str, is_batched: bool, arguments: argparse.Namespace) -> Policy:
    """vLLM in this process, behind the engines that training has for it."""
    import torch
    import vllm
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    from parallelsearch import grammar
    from parallelsearch.policy.engine.stops import StopBank, token_bytes
    from parallelsearch.policy.local import end_ids
    from parallelsearch.training.vllm import ColocatedEngine, ServerEngine, VllmPolicy

    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    facts = SimpleNamespace(
        config=config,
        generation_config=GenerationConfig.from_pretrained(folder),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),  # vLLM's own process has the GPU
    )
    eos_ids = end_ids(facts, tokenizer)
    bank = StopBank(token_bytes(tokenizer, config.get_text_config().vocab_size))
    bank.start(grammar.STOP_STRINGS)
    settings: dict[str, Any] = {
        "model": folder,
        "dtype": "bfloat16",
        "max_model_len": arguments.max_context,
        "max_num_seqs": arguments.concurrent,
        "gpu_memory_utilization": arguments.gpu_memory_utilization,
        "kv_cache_memory_bytes": arguments.kv_cache_gb and int(arguments.kv_cache_gb * 1e9),
    }

    class InProcessEngine(ServerEngine):
        """What would be sent to a server, handed to vLLM here."""

        name = "vllm-in-process"
        llm: Any = None
        numbers = itertools.count()

        async def _ask(self, body: dict[str, Any]) -> tuple[list[int], list[float | None]]:
            outer = ("model", "prompt", "return_token_ids", "return_tokens_as_token_ids")
            fields = {key: value for key, value in body.items() if key not in outer}
            parameters = vllm.SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)
            prompt, last = {"prompt_token_ids": body["prompt"][0]}, None
            async for output in self.llm.generate(prompt, parameters, f"turn-{next(self.numbers)}"):
                last = output.outputs[0]
            assert last is not None
            drawn = list(last.token_ids)
            return drawn, [step[token].logprob for step, token in zip(last.logprobs, drawn, strict=True)]

        async def aclose(self) -> None:
            await super().aclose()
            self.llm.shutdown()

    engine: ServerEngine | ColocatedEngine
    if is_batched:
        engine = colocated = ColocatedEngine(facts, bank, eos_ids, arguments.max_context, is_deterministic=False)
        colocated.attach(vllm.LLM(**settings), vllm.SamplingParams)
    else:
        engine = own = InProcessEngine("in-process", folder, bank, eos_ids, is_seeded=False, timeout_s=TIMEOUT_S)
        own.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**settings))
    return VllmPolicy(tokenizer, engine, max_context=arguments.max_context, timeout_s=TIMEOUT_S)


def open_transformers(folder: str, arguments: argparse.Namespace) -> Policy:
    """The model's own continuous batching, a request a turn. Temperature is one for all, as in this benchmark."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig

    from parallelsearch import grammar
    from parallelsearch.policy.engine.stops import StopBank, token_bytes
    from parallelsearch.policy.local import end_ids
    from parallelsearch.training.vllm import ServerEngine, VllmPolicy

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    eos_ids = end_ids(model, tokenizer)
    bank = StopBank(token_bytes(tokenizer, model.config.get_text_config().vocab_size))
    bank.start(grammar.STOP_STRINGS)
    settings = model.generation_config
    settings.do_sample, settings.temperature = arguments.temperature > 0, arguments.temperature or None
    settings.top_p, settings.top_k, settings.eos_token_id = None, None, eos_ids
    room = ContinuousBatchingConfig(max_memory_percent=arguments.gpu_memory_utilization)
    manager = model.init_continuous_batching(generation_config=settings, continuous_batching_config=room)
    manager.start()

    class TransformersEngine(ServerEngine):
        """What would be sent to a server, handed to the manager's thread."""

        name = "transformers"

        async def _ask(self, body: dict[str, Any]) -> tuple[list[int], list[float | None]]:
            tokens: list[int] = []
            done = asyncio.get_running_loop().create_future()
            state = self.bank.start(tuple(body["stop"]))

            def take(output: Any) -> None:
                nonlocal state
                if done.done():
                    return
                if output.error is not None:
                    done.set_exception(RuntimeError(output.error))
                    return
                for token in output.generated_tokens[len(tokens) :]:
                    tokens.append(token)
                    state = int(self.bank.delta[state, token])
                    if self.bank.accepts[state]:
                        manager.cancel_request(name)
                        done.set_result(None)
                        return
                if output.is_finished():
                    done.set_result(None)

            name = f"turn-{next(numbers)}"
            manager.register_result_handler(name, take)
            manager.add_request(body["prompt"][0], name, max_new_tokens=body["max_tokens"], streaming=True)
            await done
            return tokens, [0.0] * len(tokens)  # log-probabilities are not asked for

        async def aclose(self) -> None:
            await super().aclose()
            await asyncio.to_thread(manager.stop, block=True, timeout=30.0)

    numbers = itertools.count()
    engine = TransformersEngine("in-process", folder, bank, eos_ids, is_seeded=False, timeout_s=TIMEOUT_S)
    return VllmPolicy(tokenizer, engine, max_context=arguments.max_context, timeout_s=TIMEOUT_S)


def open_engine(name: str, arguments: argparse.Namespace) -> Policy:
    folder = str(arguments.policy)
    if name == "slot":
        return open_policy(
            f"hf:{folder}", engine="slot", max_slots=arguments.concurrent, max_context=arguments.max_context
        )
    if name in SERVERS:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = arguments.server_model
        return ContinuedPolicy(f"{arguments.server_url}/v1", model, tokenizer, timeout_s=TIMEOUT_S, **SERVERS[name])
    if name == "transformers":
        return open_transformers(folder, arguments)
    return open_vllm(folder, name == "vllm-batch", arguments)


# ---- a measurement ---------------------------------------------------------------------------------------------------


def drawn_tokens(trajectory: Trajectory) -> int:
    return sum(turn.num_tokens or 0 for turn in trajectory.turns)


async def one_pass(
    policy: Policy, search: Search, questions: Sequence[Question], name: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    # Nothing listens to a turn while it is written, unless queries are to be started then.
    limits = Limits(
        max_turns=arguments.max_turns,
        max_tokens_per_turn=arguments.max_turn_tokens,
        max_tokens=arguments.max_context,
        timeout_s=None,
    )
    rollouts = [question for question in questions for _ in range(arguments.samples)]
    servers = tree_cpu_s(arguments.server_pid) if arguments.server_pid and name in SERVERS else {}
    processes, own_s, start_s = tree_cpu_s(os.getpid()), time.process_time(), time.perf_counter()
    done = await rollout_many(
        rollouts,
        policy,
        search,
        limits,
        sampling=Sampling(temperature=arguments.temperature, seed=arguments.seed),
        max_concurrent=arguments.concurrent,
        streaming_dispatch=name == "server-dispatch",
    )
    wall_s, own_s = time.perf_counter() - start_s, time.process_time() - own_s
    after = tree_cpu_s(os.getpid())
    after.pop(os.getpid(), None)
    tokens, calls = sum(map(drawn_tokens, done)), sum(trajectory.num_llm_calls for trajectory in done)
    errors = [str(trajectory.error) for trajectory in done if trajectory.error is not None]
    return {
        "rollouts": len(done),
        "seconds": wall_s,
        "tokens": tokens,
        "tokens_per_s": tokens / wall_s,
        "calls": calls,
        "subqueries": sum(trajectory.num_subqueries for trajectory in done),
        "answers": sum(trajectory.answer is not None for trajectory in done),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "client_cpu_s": own_s,
        "client_busy": own_s / wall_s,
        "children_cpu_s": spent_s(processes, after),
        "server_cpu_s": spent_s(servers, tree_cpu_s(arguments.server_pid)) if servers else {},
    }


@contextmanager
def held(lock: Path | None) -> Iterator[None]:
    """Wait until no other process measures under this file, and keep the others waiting."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One engine, in this process: a pass that warms up, then the passes that count."""
    found = list(read_questions(arguments.data))
    chosen, others = found[: arguments.questions], found[arguments.questions : 2 * arguments.questions]
    start_s = time.perf_counter()
    policy = await asyncio.to_thread(open_engine, name, arguments) if name in ("slot", *SERVERS) else None
    policy = policy or open_engine(name, arguments)  # AsyncLLM belongs to the loop in which it is made
    load_s = time.perf_counter() - start_s
    passes = []
    with held(arguments.lock):
        for questions in [(others or chosen)[: arguments.warmup], *[chosen] * arguments.rounds]:
            search = open_search(arguments.search, k=arguments.k, workers=arguments.search_workers)
            passes.append(await one_pass(policy, search, questions, name, arguments))
            await search.aclose()
    row = {"engine": name, "load_s": load_s, "warm_up": passes[0], "passes": passes[1:], "policy": policy.describe()}
    await policy.aclose()
    return row


# ---- the server ------------------------------------------------------------------------------------------------------


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running_server(arguments: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """The address and process id of the server: the one that was named, or one that is started for as long as needed."""
    if arguments.server_url is not None:
        yield arguments.server_url.removesuffix("/").removesuffix("/v1"), arguments.server_pid
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *shlex.split(arguments.server_command or f"{sys.executable} -m vllm.entrypoints.cli.main serve"),
        str(arguments.policy),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    if arguments.server_command is None:
        command += ["--served-model-name", arguments.server_model, "--dtype", "bfloat16"]
        command += ["--max-model-len", str(arguments.max_context), "--max-num-seqs", str(arguments.concurrent)]
        command += ["--gpu-memory-utilization", str(arguments.gpu_memory_utilization), "--disable-uvicorn-access-log"]
        if arguments.kv_cache_gb:
            command += ["--kv-cache-memory-bytes", str(int(arguments.kv_cache_gb * 1e9))]
    command += shlex.split(arguments.server_args)
    with tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False) as log:
        print(f"{shlex.join(command)}\n    log: {log.name}", flush=True)
        start_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            while not is_healthy(url):
                if process.poll() is not None or time.perf_counter() - start_s > arguments.start_limit_s:
                    raise SystemExit(f"the server did not start:\n{Path(log.name).read_text()[-4000:]}")
                time.sleep(0.5)
            print(f"    there after {time.perf_counter() - start_s:.0f} s", flush=True)
            yield url, process.pid
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# ---- the table -------------------------------------------------------------------------------------------------------


def in_own_process(name: str, argv: Sequence[str], url: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """`measure` in a new interpreter. An engine that fails has its message in its row and costs no other."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "row.json"
        command = [sys.executable, __file__, *argv, "--measure", name, "--json", str(result)]
        command += ["--server-url", url] if url is not None else []
        command += ["--server-pid", str(pid)] if pid is not None else []
        code = subprocess.run(command, check=False).returncode
        if not result.exists():
            return {"engine": name, "failed": f"ended with {code}"}
        row: dict[str, Any] = json.loads(result.read_text())
        return row


def line_of(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"| {row['engine']} | {row['failed']} |" + " |" * 8
    best = min(row["passes"], key=lambda one: one["seconds"])
    seconds = ", ".join(f"{one['seconds']:.1f}" for one in row["passes"])
    children = " ".join(f"{name} {spent:.1f}" for name, spent in best["children_cpu_s"].items()) or "-"
    server = " ".join(f"{name} {spent:.1f}" for name, spent in best["server_cpu_s"].items()) or "-"
    return (
        f"| {row['engine']} | {seconds} | {best['tokens']:,} | {best['tokens_per_s']:,.0f} | {best['calls']:,} "
        f"| {best['client_cpu_s']:.1f} | {best['client_busy']:.0%} | {children} | {server} | {best['errors']} |"
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    heads = (
        "engine",
        "seconds",
        "tokens",
        "tokens/s",
        "calls",
        "client CPU s",
        "busy",
        "its processes",
        "server",
        "errors",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *map(line_of, rows)]
    fastest = {row["engine"]: min(one["seconds"] for one in row["passes"]) for row in rows if "passes" in row}
    if "vllm" in fastest:
        lines += [""] + [
            f"{name} to vllm in process: {seconds / fastest['vllm']:.2f}"
            for name, seconds in fastest.items()
            if name in SERVERS
        ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path, help="a model folder, adapter merged")
    parser.add_argument("--data", type=Path, required=True, help="questions; those behind the first N warm up")
    parser.add_argument("--search", required=True, help="a search address")
    parser.add_argument("--search-workers", type=int, default=0, help="processes that search an index of this machine")
    parser.add_argument("--engines", default="slot,vllm,server", help=f"of {','.join(ENGINES)}")
    parser.add_argument("--questions", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8, help="rollouts of a question")
    parser.add_argument("--warmup", type=int, help="questions of the pass that warms up (default: as many)")
    parser.add_argument("--rounds", type=int, default=1, help="passes that count")
    parser.add_argument("--concurrent", type=int, help="rollouts at once (default: all)")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--max-turns", type=int, default=4)
    parser.add_argument("--max-turn-tokens", type=int, default=160)
    parser.add_argument("--max-context", type=int, default=2560)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
    parser.add_argument(
        "--kv-cache-gb", type=float, help="vLLM's cache, instead of what its share of the memory leaves"
    )
    parser.add_argument("--lock", type=Path, help="runs with one file load side by side and are measured in turn")
    parser.add_argument("--server-url", help="a server that runs already")
    parser.add_argument("--server-pid", type=int, help="its process, to count its processor time")
    parser.add_argument("--server-model", default=SERVER_MODEL, help="the model's name there")
    parser.add_argument("--server-command", help="another server than vLLM; gets the folder, --host and --port")
    parser.add_argument("--server-args", default="", help="more arguments, like '--stream-interval 8'")
    parser.add_argument("--start-limit-s", type=float, default=300.0)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--measure", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.concurrent = arguments.concurrent or arguments.questions * arguments.samples
    arguments.warmup = arguments.questions if arguments.warmup is None else arguments.warmup
    if unknown := set(arguments.engines.split(",")) - set(ENGINES):
        parser.error(f"no engine {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    if not (arguments.policy / "config.json").is_file():
        parser.error(f"no model folder at {arguments.policy}; make it: parallelsearch export hf:BASE+ADAPTER FOLDER")
    return arguments


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    arguments = parse()
    if arguments.measure is not None:
        arguments.json.write_text(json.dumps(asyncio.run(measure(arguments.measure, arguments))))
        return
    argv, names = sys.argv[1:], arguments.engines.split(",")
    facts = {package: _version(package) for package in ("torch", "transformers", "vllm", "aiohttp")}
    setting = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(line_of(row), flush=True)
        if arguments.json is not None:  # after each: a run that is cut off keeps what it has
            record = {"versions": facts, "cores": os.cpu_count(), "setting": setting, "engines": rows}
            arguments.json.write_text(json.dumps(record, indent=2) + "\n")

    for name in names:
        if name not in SERVERS:
            add(in_own_process(name, argv))
    servers = [name for name in names if name in SERVERS]
    if servers:
        with running_server(arguments) as (url, pid):
            for name in servers:
                add(in_own_process(name, argv, url, pid))
    print(f"\n{table(rows)}")


if __name__ == "__main__":
    main()
