"""Promises about the whole: who may import whom, where the tags are spelt, in which files a framework is a guest."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from architecture import MODULES, SRC, imports_of, level_of, part_of

import parallelsearch
from parallelsearch import grammar


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_modules_import_only_upwards():
    wrong = [
        f"{module} imports {other}"
        for path, module in MODULES.items()
        if module != "parallelsearch"
        for other in imports_of(path)
        if level_of(other) > level_of(module)
        or (level_of(other) == level_of(module) and part_of(other) != part_of(module))
    ]
    assert not wrong


def test_there_are_no_cycles():
    graph = {module: imports_of(path) - {module} for path, module in MODULES.items() if module != "parallelsearch"}
    # A package's own __init__ is imported by Python before its modules; only its explicit imports count.
    assert list(TopologicalSorter(graph).static_order())


def test_no_one_imports_the_rules_of_a_language():
    """They are found by name, in `coldstart/rules.py`: what is general stays so, and another language takes no change here."""
    english = "parallelsearch.coldstart.english"
    users = [
        f"{module} imports {other}"
        for path, module in MODULES.items()
        if not module.startswith(english)
        for other in imports_of(path)
        if other.startswith(english)
    ]
    assert not users
    assert any(other.startswith(english) for path in MODULES for other in imports_of(path))  # or the name has changed


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


def test_the_version_is_said_once():
    project = (SRC.parents[1] / "pyproject.toml").read_text()
    assert f'version = "{parallelsearch.__version__}"' in project


def test_every_module_says_its_job():
    short = [module for path, module in MODULES.items() if len(ast.get_docstring(tree_of(path)) or "") < 40]
    assert not short


def test_no_print_in_the_library():
    calls = [
        module
        for path, module in MODULES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not calls


# A framework is a guest in a few files. A new file in this table is a decision, not an accident.
GUESTS = {
    "accelerate": {"training/grpo.py", "training/run.py"},
    "aiohttp": {"http/client.py"},
    "bm25s": {"retrieval/bm25.py"},
    "datasets": {"data/sets.py", "training/grpo.py", "training/sft.py"},
    "faiss": {"retrieval/faiss_index.py"},
    "gguf": {"policy/gguf_export.py", "policy/models.py"},
    "haystack": {"integrations/haystack.py"},
    "hydra": {"training/verl/installed.py"},
    "langchain_core": {"integrations/langchain.py"},
    "llama_index": {"integrations/llama_index.py"},
    "matplotlib": {"evaluation/plots.py"},
    "mcp": {"retrieval/mcp_answers.py", "retrieval/mcp_client.py", "server/mcp_server.py"},
    "opentelemetry": {"telemetry.py"},
    "peft": {"policy/models.py", "training/weights.py"},
    "omegaconf": {"training/verl/agent_loop.py", "training/verl/installed.py"},
    "pyarrow": {"files.py", "training/verl/rows.py"},  # read in one place; verl's rows are written in the other
    "pymilvus": {"retrieval/milvus.py"},
    "sentence_transformers": {"retrieval/encoder.py", "retrieval/rerank.py"},
    "trl": {"training/grpo.py", "training/sft.py", "training/vllm_link.py"},
    "uvicorn": {"server/connections.py", "server/running.py"},
    "verifiers": {"integrations/verifiers.py"},
    "verl": {
        "training/verl/agent_loop.py",
        "training/verl/critic.py",
        "training/verl/export.py",
        "training/verl/installed.py",
    },
    "vllm": {"training/vllm_link.py"},
    "zstandard": {"files.py"},
}


def guests_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
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
    allowed = {"policy", "retrieval", "training", "teach", "cli"}
    users = {path.relative_to(SRC).parts[0] for path in MODULES if "torch" in guests_of(path)}
    assert users <= allowed


def test_only_files_replaces_a_file_that_may_be_read():
    """`whole_file` and `whole_folder` are the one way; nobody else makes drafts and renames them."""
    wrong = [
        f"{path.relative_to(SRC)}: {name}"
        for path in MODULES
        if path.name != "files.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (name := f"{node.value.id}.{node.attr}")
        in {"os.replace", "os.rename", "tempfile.mkstemp", "tempfile.mkdtemp"}
    ]
    assert not wrong
