"""Promises about the whole: who may import whom, what the package exports, where the tags are spelt."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import parallelsearch
from parallelsearch import grammar

SRC = Path(parallelsearch.__file__).parent
MODULES = {
    path: ".".join(("parallelsearch", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(SRC.rglob("*.py"))
}

# A module imports only from modules further up. A package is one level; inside it, cycles are still forbidden.
LEVELS = [
    "errors", "retry", "config", "grammar", "answers", "retrieval", "trajectory", "observation", "search", "policy", "rollout", "telemetry",
    "rewards", "data", "datasets", "demo", "statistics", "chance", "metrics", "manifest", "baselines", "baseline_formats", "gold",
    "run_folder", "evaluation", "comparison", "report_plots", "report_page", "report_tables", "report", "addresses", "agent",
    "integrations", "indexing", "terminal", "doctor", "server", "training", "viewer", "commands", "cli", "__main__",
]  # fmt: skip


def level(module: str) -> int:
    name = module.split(".")[1]
    assert name in LEVELS, f"say in LEVELS where '{name}' belongs"
    return LEVELS.index(name)


def imports_of(path: Path) -> set[str]:
    """The package's own modules that a file imports, anywhere in it, but for type checking alone."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found.add(node.module)
    known = set(MODULES.values())
    return {name for name in found if name in known and name != "parallelsearch"}


def test_modules_import_only_upwards():
    wrong = [
        f"{module} imports {other}"
        for path, module in MODULES.items()
        if module != "parallelsearch"
        for other in imports_of(path)
        if level(other) > level(module)
    ]
    assert not wrong


def test_there_are_no_cycles():
    graph = {module: imports_of(path) - {module} for path, module in MODULES.items() if module != "parallelsearch"}
    # A package's own __init__ is imported by Python before its modules; only its explicit imports count.
    assert list(TopologicalSorter(graph).static_order())


def test_only_the_grammar_spells_the_tags():
    tags = [form for tag in grammar.TAGS for form in (grammar.opening(tag), grammar.closing(tag))]
    wrong = [
        f"{path.name}: {tag}"
        for path in MODULES
        if path.name != "grammar.py"
        for tag in tags
        if tag in path.read_text()
    ]
    assert not wrong


def test_public_names_exist_and_are_listed():
    assert sorted(parallelsearch.__all__) == sorted(["__version__", *parallelsearch._HOME])
    for name in parallelsearch.__all__:
        assert getattr(parallelsearch, name) is not None
    assert set(parallelsearch.__all__) <= set(dir(parallelsearch))


def test_the_version_is_said_once():
    project = (SRC.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{parallelsearch.__version__}"' in project


HEAVY = {
    "torch",
    "transformers",
    "faiss",
    "trl",
    "datasets",
    "peft",
    "starlette",
    "langchain_core",
    "llama_index",
    "uvicorn",
    "mcp",
    "opentelemetry",
    "pymilvus",
    "matplotlib",
    "pyarrow",
    "jax",
    "ray",
    "verl",
    "vllm",
}


def test_the_base_modules_import_nothing_heavy():
    code = (
        "import sys, parallelsearch.cli, parallelsearch.agent, parallelsearch.addresses, parallelsearch.rewards, parallelsearch.demo, "
        "parallelsearch.terminal, parallelsearch.retrieval.bm25, parallelsearch.policy.openai\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "[]", result.stderr


def test_every_module_says_its_job():
    short = [
        module for path, module in MODULES.items() if len(ast.get_docstring(ast.parse(path.read_text())) or "") < 40
    ]
    assert not short


def test_no_print_in_the_library():
    calls = [
        module
        for path, module in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls


# A framework is a guest in a few files. A new file in this table is a decision, not an accident.
GUESTS = {
    "accelerate": {"training/grpo.py", "training/loop.py"},
    "bm25s": {"retrieval/bm25.py"},
    "datasets": {"datasets.py", "training/grpo.py", "training/sft.py"},
    "faiss": {"retrieval/faiss_index.py"},
    "gguf": {"policy/gguf_export.py", "policy/models.py"},
    "hydra": {"training/verl/installed.py"},
    "langchain_core": {"integrations/langchain.py"},
    "llama_index": {"integrations/llama_index.py"},
    "matplotlib": {"report_plots.py", "training/metrics_log.py"},
    "mcp": {"retrieval/mcp_answers.py", "retrieval/mcp_client.py", "server/mcp_server.py"},
    "opentelemetry": {"telemetry.py"},
    "peft": {"policy/models.py", "training/models.py"},
    "omegaconf": {"training/verl/agent_loop.py", "training/verl/installed.py"},
    "pyarrow": {"data.py", "retrieval/corpus.py", "training/verl/rows.py"},
    "pymilvus": {"retrieval/milvus.py"},
    "sentence_transformers": {"retrieval/encoder.py", "retrieval/rerank.py"},
    "tenacity": {"retry.py"},
    "trl": {"training/grpo.py", "training/sft.py", "training/vllm_link.py"},
    "uvicorn": {"server/running.py"},
    "verl": {"training/verl/agent_loop.py", "training/verl/export.py", "training/verl/installed.py"},
    "vllm": {"training/vllm_link.py"},
    "zstandard": {"retrieval/corpus.py"},
}


def guests_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "id", "") == "require"
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value).split(".")[0])
    return found


def test_frameworks_live_where_they_are_said_to():
    where: dict[str, set[str]] = {name: set() for name in GUESTS}
    for path in MODULES:
        for name in guests_of(path) & GUESTS.keys():
            where[name].add(str(path.relative_to(SRC)))
    assert where == GUESTS


def test_torch_stays_out_of_the_core():
    allowed = {"policy", "retrieval", "training", "doctor.py"}
    users = {path.relative_to(SRC).parts[0] for path in MODULES if "torch" in guests_of(path)}
    assert users <= allowed
