"""Manifests: what differs is named, what is written is read back, nothing half-written is ever seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.manifest import (
    Manifest,
    describe_machine,
    differences,
    hash_text,
    plain,
    read_manifest,
    versions,
)


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    manifest = Manifest({"data": {"n": 3}}, {"cpu": "x"}, ["careful"], "2026-01-01T00:00:00Z", [{"at": "later"}])
    manifest.write(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_differences_name_the_leaf() -> None:
    first = {"search": {"k": 3, "kind": "bm25"}, "seed": 0, "only": 1}
    second = {"search": {"k": 5, "kind": "bm25"}, "seed": 0}
    found = differences(first, second)
    assert [one.key for one in found] == ["only", "search.k"]
    assert str(found[0]) == "only: 1 against (nothing)"
    assert str(found[1]) == "search.k: 3 against 5"
    assert differences(first, first) == []


def test_a_fresh_set_up_equals_the_one_that_was_read(tmp_path: Path) -> None:
    setup = plain({"limits": (1, 2), "path": Path("x"), "none": None})
    Manifest(setup).write(tmp_path)
    assert differences(read_manifest(tmp_path).setup, setup) == []


def test_the_machine_is_described_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTNAME", "secret-host")
    record = describe_machine()
    assert record["num_cpus"] >= 1
    assert record["versions"]["parallelsearch"]
    assert "secret-host" not in json.dumps(record)
    assert "no-such-package" not in versions(["numpy", "no-such-package"])
    assert len(hash_text("x")) == 64


def test_gpus_are_named_where_torch_is_in_use_and_it_is_not_imported_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda number: f"NVIDIA H200 {number}"
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert describe_machine()["gpus"] == ["NVIDIA H200 0", "NVIDIA H200 1"]
    code = "import sys; from parallelsearch.evaluation.manifest import describe_machine as d; print(d()['gpus'], 'torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[] False\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[]", "not the manifest"), ('{"setup": {}, "version": 99}', "version 99")],
)
def test_a_bad_manifest_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_manifest(tmp_path)


def test_a_folder_without_one_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parallelsearch eval --out"):
        read_manifest(tmp_path)
