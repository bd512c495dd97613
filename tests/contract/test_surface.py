"""The surface: public names of the package and of its families, cheap to import, and all that docs and examples use."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from architecture import MODULES, ROOT

FAMILIES = ("coldstart", "data", "evaluation", "policy", "retrieval", "server", "training", "viewer")
PACKAGES = ("parallelsearch", *(f"parallelsearch.{family}" for family in FAMILIES))
BRIDGES = tuple(f"parallelsearch.integrations.{name}" for name in ("haystack", "langchain", "llama_index"))
"""Each bridge needs its framework and has the same names as the others, so it is a door of its own."""
DEMO = "parallelsearch.data.demo"


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
    "haystack",
    "uvicorn",
    "mcp",
    "opentelemetry",
    "pymilvus",
    "matplotlib",
    "pyarrow",
    "jax",
    "ray",
    "verifiers",
    "verl",
    "vllm",
}


def names_for_checkers(package: str) -> set[tuple[str, str]]:
    """Where a type checker is told to find each name: (module, name)."""
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    found = set()
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert all(alias.asname == alias.name for alias in node.names), "without `as`, a checker takes it for private"
        found |= {(str(node.module), alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist_and_are_listed(package):
    module = importlib.import_module(package)
    for name in MODULES.values():  # with all that can be imported in place: a module may not take a function's name
        if name.startswith(f"{package}.") and name.count(".") == package.count(".") + 1 and "__main__" not in name:
            importlib.import_module(name)
    assert names_for_checkers(package) == {(f"{package}.{home}", name) for name, home in module._homes.items()}
    assert set(module.__all__) == {*module._homes, *({"__version__"} if package == "parallelsearch" else ())}
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert not isinstance(getattr(module, name), ModuleType), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_a_module_does_not_take_the_name_of_its_function():
    code = "import parallelsearch.rollout; from parallelsearch import rollout; print(type(rollout).__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert result.stdout.strip() == "function", result.stderr


def test_importing_the_families_imports_nothing_heavy_and_no_module_of_theirs():
    code = f"import sys, {', '.join(PACKAGES)}\nprint(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    loaded = set(ast.literal_eval(result.stdout))
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("parallelsearch")} == {*PACKAGES, "parallelsearch.lazy"}


def test_the_base_modules_import_nothing_heavy():
    code = (
        "import sys, parallelsearch.cli.app, parallelsearch.agent, parallelsearch.addresses, parallelsearch.rewards, parallelsearch.data.demo, "
        "parallelsearch.cli.terminal, parallelsearch.retrieval.bm25, parallelsearch.policy.openai\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)
    assert result.stdout.strip() == "[]", result.stderr


# ---- what docs and examples import -----------------------------------------------------------------------------------

TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
IMPORT = re.compile(r"^\s*(?:from (parallelsearch[\w.]*) import ([\w, ]+|\()|import (parallelsearch[\w.]+))", re.M)
DOTTED = re.compile(r"\bparallelsearch(?:\.\w+){2,}")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_docs_and_examples_import_from_the_surface_only(path):
    allowed = {*PACKAGES, *BRIDGES, DEMO}
    for source, names, module in IMPORT.findall(path.read_text()):
        assert (source or module) in allowed, f"import it from its family: {source or module}"
        assert names != "(", "one line, so that this test can read it"
        public = importlib.import_module(source or module)
        for name in filter(None, names.replace(" ", "").split(",")):
            assert hasattr(public, name), f"{source} has no {name}"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_docs_name_what_exists_by_its_public_name(path):
    """`parallelsearch.FAMILY.name` in a sentence; with one dot it may as well be the name of a span or an event."""
    known = set(MODULES.values())
    for dotted in DOTTED.findall(path.read_text()):
        package, _, name = dotted.rpartition(".")
        if package in known and dotted not in known:
            assert package in {*PACKAGES, *BRIDGES, DEMO}, f"say it by its family: {dotted}"
            assert hasattr(importlib.import_module(package), name), dotted
