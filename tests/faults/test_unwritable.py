"""`export` and `train` into a folder that is read-only, or on a disk that is full: one message, no traceback, no half file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("gguf")

import test_gguf_export
from test_resume import write_recipe

from parallelsearch.cli.app import main
from parallelsearch.coldstart.run import TokenizerEncoder
from parallelsearch.files import is_draft
from parallelsearch.training.metrics import read_metrics
from parallelsearch.training.smoke import make_model, make_tokenizer
from parallelsearch.trajectory import Segment, Trajectory, read_trajectories, write_trajectories
from unwritable import files_no_larger_than, read_only


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a tiny model with an adapter."""
    folder = tmp_path_factory.mktemp("model")
    base = test_gguf_export.save(folder / "base", test_gguf_export.model(), test_gguf_export.tokenizer())
    adapter = test_gguf_export.stirred_adapter(folder / "adapter", test_gguf_export.model())
    return f"hf:{base.folder}+{adapter}"


def sft_recipe(folder: Path, out: Path, save_every: int) -> Path:
    tokenizer = make_tokenizer()
    for part in (make_model(tokenizer), tokenizer):
        part.save_pretrained(folder / "smoke")
    encoder = TokenizerEncoder(tokenizer)
    segments: list[Segment] = [encoder.prompt("What is ash?\n", "ash"), encoder.insert("a tree", "model")]
    write_trajectories(folder / "cold.jsonl", [Trajectory("What is ash?", segments, id="ash")])
    recipe = folder / "sft.toml"
    recipe.write_text(
        f'[model]\nname = "{folder / "smoke"}"\n[data]\ntrain = "{folder / "cold.jsonl"}"\n'
        f'[train]\nalgorithm = "sft"\nout = "{out}"\nsteps = 2\nbatch_size = 1\nmicro_batch_tokens = 400\n'
        f"max_length = 64\nlr = 1e-3\nsave_every = {save_every}\neval_every = 0\n"
    )
    return recipe


def command(name: str, model: str, folder: Path, out: Path) -> list[str]:
    if name.startswith("export"):
        return ["export", model, str(out / ("m.gguf" if name == "export file" else "merged"))]
    if name == "train grpo":
        changes = {"model.name": "smoke", "train.steps": 1, "train.save_every": 1, "train.eval_every": 0}
        return ["train", str(write_recipe(folder / "grpo.toml", out / "run", changes))]
    return ["train", str(sft_recipe(folder, out / "run", 1 if name == "train sft" else 5))]


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that fails tells its user. An exception that is not told comes out of `main`."""
    monkeypatch.setattr(sys, "argv", ["parallelsearch", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as info:
        main()
    assert info.value.code in (1, 2)
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err[err.index("parallelsearch: ") :]


NAMES = ["export folder", "export file", "train grpo", "train sft", "train sft to its end"]


@pytest.mark.parametrize("name", NAMES)
def test_a_read_only_folder_is_named(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    arguments = command(name, model, tmp_path, out)
    with read_only(out):
        message = said(arguments, monkeypatch, capsys)
    assert str(out) in message
    assert "Permission denied" in message
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("num_bytes", [0, 3_000, 60_000])
@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_told_and_no_half_file_is_left(
    name: str,
    num_bytes: int,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    arguments = command(name, model, tmp_path, out)
    with files_no_larger_than(num_bytes):
        message = said(arguments, monkeypatch, capsys)
    assert "File too large" in message or "write failed" in message
    left = [path for path in out.rglob("*") if path.is_file()]
    if name.startswith("export"):
        assert left == []
    else:  # what says which run it is and what came of it so far, each whole: the next start reads them
        assert not [path for path in left if "checkpoint-" in str(path) or "final" in path.parts or is_draft(path)]
        json.loads((out / "run" / "run.json").read_text() if num_bytes else "null")
        read_metrics(out / "run" / "metrics.jsonl")
        for path in (out / "run").rglob("step-*.jsonl"):
            list(read_trajectories(path))
