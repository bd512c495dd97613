"""The page on the architecture is true: its picture is that of the imports, and the files and names of its walks exist."""

import ast
import re
from xml.etree import ElementTree

import architecture
import pytest
from architecture import LEVELS, MODULES, PICTURE, ROOT, SRC

ROW = re.compile(r"^\| `([\w/]+\.py)` `([\w.]+)` \|", re.M)
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_picture_is_that_of_the_imports():
    assert PICTURE.read_text() == architecture.picture(), "type: python scripts/architecture.py"


def test_every_part_is_a_box_and_no_arrow_leads_up():
    tree = ElementTree.parse(PICTURE)
    names = {str(text.text) for text in tree.iter("{http://www.w3.org/2000/svg}text") if text.get("class") == "name"}
    parts = {name for level in LEVELS for name in level} - architecture.HIDDEN
    assert names == {name.replace(".", "/") + ("/" if (SRC / name).is_dir() else ".py") for name in parts}
    for level in LEVELS:
        for name in level:
            assert (SRC / name.replace(".", "/")).is_dir() or (SRC / f"{name.replace('.', '/')}.py").exists(), name


def test_a_changed_import_changes_the_picture(monkeypatch):
    found = architecture.edges()
    found["errors"].add("files")
    found["files"].discard("errors")
    monkeypatch.setattr(architecture, "edges", lambda: found)
    with pytest.raises(AssertionError):
        test_the_picture_is_that_of_the_imports()


def test_an_arrow_is_left_out_only_where_another_way_leads():
    found = architecture.edges()
    kept = architecture.reduced(found)
    for name, others in found.items():
        assert kept[name] <= others
        assert architecture._reached(kept, name) == architecture._reached(found, name)


def test_names_passed_on_by_a_family_count_as_imports_of_their_module(tmp_path):
    path = tmp_path / "user.py"
    path.write_text("from parallelsearch import evaluate\n")
    assert "parallelsearch.evaluation.whole" in architecture.imports_of(path)


def test_the_walks_name_files_and_names_that_exist():
    rows = ROW.findall(PAGE)
    assert len(rows) > 15
    for file, name in rows:
        assert SRC / file in MODULES, file
        names: list[ast.stmt] = ast.parse((SRC / file).read_text()).body
        for part in name.split("."):
            found = [node for node in names if getattr(node, "name", None) == part]
            assert found, f"{file} has no {name}"
            names = getattr(found[0], "body", [])


def test_the_ten_changes_name_files_that_exist():
    table = [
        line
        for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines()
        if line.startswith("| a") or "the wording" in line
    ]
    assert len(table) == 10
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", "\n".join(table)):
        assert (SRC / path).exists(), path
