"""A model written as GGUF: what the package's own reader and llama.cpp itself make of the file, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import pytest
import tiny_models
import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from typer.testing import CliRunner

from parallelsearch.cli.app import app
from parallelsearch.errors import ParallelSearchError, PolicyError, UsageError
from parallelsearch.policy import models
from parallelsearch.policy.gguf_export import _QWEN2_WORDS, write_gguf
from parallelsearch.policy.models import ModelSpec
from unwritable import files_no_larger_than

TEXTS = [
    *tiny_models.LINES,
    "Monet's  birth:\t1840\n\n1. Paris (Title: France) is it.\n\n\n2. Lima   3",
    "<|im_start|>user\nWho is older?<|im_end|>\n",
]


def byte_level(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


CUTS = {
    "gpt-2": lambda: byte_level(True),
    "smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
    "qwen2": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_QWEN2_WORDS), "isolated"), byte_level(False)]
    ),
}


def tokenizer(cut: str = "gpt-2") -> Any:
    raw = Tokenizer(tokenizer_models.BPE())
    raw.pre_tokenizer = CUTS[cut]()
    raw.normalizer = normalizers.NFC() if cut == "qwen2" else None
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(TEXTS * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    fast.chat_template = tiny_models.CHATML
    return fast


def model(kind: str = "llama", **changes: Any) -> Any:
    """Nothing at its default, so that a setting which gets lost changes the logits; every weight drawn, biases too."""
    torch.manual_seed(1)
    settings = {
        "vocab_size": 411,  # more rows than tokens
        "hidden_size": 96,
        "intermediate_size": 80,  # no whole blocks of q8_0
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 192,
        "rms_norm_eps": 3e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    } | changes
    build: Any = (
        LlamaForCausalLM(LlamaConfig(**settings)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**settings))
    )
    with torch.no_grad():
        for parameter in build.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.15)
    return build.eval()


def save(folder: Path, network: Any, words: Any) -> ModelSpec:
    network.save_pretrained(folder)
    words.save_pretrained(folder)
    return ModelSpec(folder.name, folder)


def stirred_adapter(folder: Path, network: Any) -> Path:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=2, target_modules=["q_proj", "k_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(network, settings).save_pretrained(folder)
    return folder


def fields(file: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(file).fields.items()}


def tensors(file: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}


def logits(network: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network(torch.tensor([ids])).logits[0]
    return found


# ---- read back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "cut", "tied", "with_adapter"),
    [
        ("llama", "gpt-2", True, False),
        ("llama", "gpt-2", False, True),
        ("llama", "gpt-2", True, True),
        ("qwen2", "qwen2", False, False),
        ("qwen2", "qwen2", True, True),
    ],
)
def test_read_back_it_is_the_same_model(kind: str, cut: str, tied: bool, with_adapter: bool, tmp_path: Path) -> None:
    words = tokenizer(cut)
    spec = save(tmp_path / "base", model(kind, tie_word_embeddings=tied), words)
    if with_adapter:
        adapter = stirred_adapter(tmp_path / "adapter", model(kind, tie_word_embeddings=tied))
        spec = ModelSpec(spec.name, spec.folder, adapter)
    file = write_gguf(spec, tmp_path / "deep" / "out.gguf")
    assert [entry.name for entry in file.parent.iterdir()] == ["out.gguf"]

    folder = models.convert_gguf(file, tmp_path / "read")
    found, found_words = models.load(ModelSpec("read", folder), "cpu", torch.float32)
    # The file keeps float16 and the reader bfloat16; vectors go through the file unrounded.
    expected = models.load(spec, "cpu", torch.float32)[0]
    for parameter in expected.parameters():
        stored = parameter.data if parameter.dim() == 1 else parameter.data.half()
        parameter.data = stored.bfloat16().float()
    weights = found.state_dict()
    assert weights.keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        assert torch.equal(weights[name], value), name
    assert found.config.tie_word_embeddings is tied
    for text in TEXTS:
        ids = words(text)["input_ids"]
        assert found_words(text)["input_ids"] == ids
        assert found_words.decode(ids) == words.decode(ids)
        torch.testing.assert_close(logits(found, ids), logits(expected, ids), atol=1e-4, rtol=1e-4)
    chat = [{"role": "user", "content": "Who is older?"}]
    assert found_words.apply_chat_template(chat, tokenize=False) == words.apply_chat_template(chat, tokenize=False)
    assert (found_words.eos_token, found_words.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_a_model_without_a_chat_template_keeps_its_first_and_last_token(tmp_path: Path) -> None:
    words = tokenizer()
    words.chat_template, words.bos_token, words.eos_token = None, "<|im_start|>", "<|endoftext|>"
    file = write_gguf(save(tmp_path / "base", model(), words), tmp_path / "out.gguf")
    found, found_words = models.load(
        ModelSpec("read", models.convert_gguf(file, tmp_path / "read")), "cpu", torch.float32
    )
    assert (found_words.bos_token, found_words.eos_token) == ("<|im_start|>", "<|endoftext|>")
    assert found.generation_config.eos_token_id == 0
    assert found_words.chat_template is None


def test_the_address_of_a_file_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    spec = save(tmp_path / "base", model(), tokenizer())
    file = write_gguf(spec, tmp_path / "out.gguf")
    again = write_gguf(models.parse_spec(str(file)), tmp_path / "again.gguf", "f32")
    first, second = tensors(file), tensors(again)
    assert first.keys() == second.keys()
    queries = "blk.1.attn_q.weight"
    rounded = torch.from_numpy(first[queries].data.copy()).bfloat16().float().numpy()
    assert np.array_equal(second[queries].data, rounded)


def test_a_file_becomes_a_folder_for_programs_that_read_no_gguf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    file = write_gguf(save(tmp_path / "base", model(), tokenizer()), tmp_path / "out.gguf", "f32")
    folder = models.write_merged(models.parse_spec(str(file)), tmp_path / "folder")
    first, second = (models.load(models.parse_spec(str(path)), "cpu", torch.float32)[0] for path in (file, folder))
    assert torch.equal(logits(first, [3, 1, 4]), logits(second, [3, 1, 4]))


# ---- the file --------------------------------------------------------------------------------------------------------


def test_what_the_file_says(tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(head_dim=24, tie_word_embeddings=True), tokenizer())
    adapter = stirred_adapter(tmp_path / "steps" / "mine", model(head_dim=24, tie_word_embeddings=True))
    file = write_gguf(ModelSpec(str(spec.folder), spec.folder, adapter), tmp_path / "out.gguf")
    said = fields(file)
    expected = {
        "general.architecture": "llama",
        "general.name": "base-mine",
        "general.file_type": gguf.LlamaFileType.MOSTLY_F16,
        "llama.vocab_size": 411,
        "llama.context_length": 192,
        "llama.embedding_length": 96,
        "llama.feed_forward_length": 80,
        "llama.block_count": 2,
        "llama.attention.head_count": 6,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 24,
        "llama.attention.value_length": 24,
        "llama.rope.dimension_count": 24,
        "llama.rope.freq_base": 300.0,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(3e-2),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.bos_token_id": 2,  # there is none, and the field is needed
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": tiny_models.CHATML,
    }
    assert {name: said[name] for name in expected} == expected
    assert str(tmp_path) not in json.dumps(said)
    assert "output.weight" not in tensors(file)
    assert tensors(file)["blk.0.attn_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32


def test_tokens_keep_their_ids_and_kinds(tmp_path: Path) -> None:
    words = tokenizer()
    words.add_tokens(["<note>"])
    spec = save(tmp_path / "base", model(), words)
    said = fields(write_gguf(spec, tmp_path / "out.gguf"))
    tokens, types = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 411
    assert tokens[: len(words)] == words.convert_ids_to_tokens(range(len(words)))
    assert tokens[len(words) :] == [f"[PAD{number}]" for number in range(len(words), 411)]
    assert types[:4] == [3, 3, 3, 1]
    assert types[len(words) - 1] == gguf.TokenType.USER_DEFINED
    assert set(types[len(words) :]) == {gguf.TokenType.UNUSED}


@pytest.mark.parametrize("cut", CUTS)
def test_the_cut_is_named_as_the_tokenizer_has_it(cut: str, tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(), tokenizer(cut))
    assert fields(write_gguf(spec, tmp_path / "out.gguf"))["tokenizer.ggml.pre"] == cut


def test_a_tokenizer_that_begins_every_text_says_so(tmp_path: Path) -> None:
    from tokenizers import processors

    words = tokenizer()
    words.bos_token = "<|im_start|>"
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    said = fields(write_gguf(save(tmp_path / "base", model(), words), tmp_path / "out.gguf"))
    assert (said["tokenizer.ggml.add_bos_token"], said["tokenizer.ggml.bos_token_id"]) == (True, 1)


@pytest.mark.parametrize(("dtype", "largest_error"), [("f32", 0.0), ("f16", 2**-11), ("bf16", 2**-8), ("q8_0", None)])
def test_types(dtype: str, largest_error: float | None, tmp_path: Path) -> None:
    network = model()
    spec = save(tmp_path / "base", network, tokenizer())
    found = tensors(write_gguf(spec, tmp_path / "out.gguf", dtype))
    gate, down = found["blk.0.ffn_gate.weight"], found["blk.0.ffn_down.weight"]
    assert gate.tensor_type == gguf.GGMLQuantizationType[dtype.upper()]
    expected = network.model.layers[0].mlp.gate_proj.weight.detach().numpy()
    error = np.abs(gguf.dequantize(gate.data, gate.tensor_type) - expected)
    if largest_error is not None:
        assert (error <= largest_error * np.abs(expected)).all()
    else:
        steps = np.abs(expected).reshape(80, 3, 32).max(-1, keepdims=True) / 127
        assert (error.reshape(80, 3, 32) <= steps * 0.57).all()
        assert down.tensor_type == gguf.GGMLQuantizationType.F16  # rows of 80


# ---- llama.cpp itself ------------------------------------------------------------------------------------------------

SERVER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], 0
params.n_ctx, params.n_parallel = 192, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = False
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
time.sleep(1_000)
"""


@contextmanager
def llama_cpp(file: Path) -> Iterator[httpx.Client]:
    pytest.importorskip("xllamacpp")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(file)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        address = next(line.split()[1] for line in process.stdout if line.startswith("listening"))
        with httpx.Client(base_url=address, timeout=400) as client:
            yield client
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("kind", "cut", "changes"),
    [
        ("llama", "gpt-2", {}),
        ("llama", "smollm", {"tie_word_embeddings": True, "head_dim": 24}),
        ("qwen2", "qwen2", {}),
    ],
)
def test_llama_cpp_reads_the_same_tokens_and_gives_the_same_probabilities(
    kind: str, cut: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    network, words = model(kind, **changes), tokenizer(cut)
    file = write_gguf(save(tmp_path / "base", network, words), tmp_path / "out.gguf", "f32")
    with llama_cpp(file) as client:
        for text in TEXTS:
            ids = words(text)["input_ids"]
            assert client.post("/tokenize", json={"content": text, "parse_special": True}).json()["tokens"] == ids
            # Half a character would not be sent, so that "a" is drawn; the probabilities are those before it was favoured.
            favoured = [[words.convert_tokens_to_ids("a"), 100]]
            request = {"prompt": ids, "n_predict": 1, "n_probs": 20, "temperature": 0, "logit_bias": favoured}
            answer = client.post("/completion", json=request).json()["completion_probabilities"][0]["top_logprobs"]
            expected = torch.log_softmax(logits(network, ids)[-1], -1)
            assert [entry["logprob"] for entry in answer] == pytest.approx(
                [float(expected[entry["id"]]) for entry in answer], abs=0.02
            )
            assert answer[0]["id"] == int(expected.argmax())


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: tiny_models.model("gpt2"), "is a GPT2LMHeadModel; as GGUF can be written: LlamaForCausalLM, Qwen2"),
        (lambda: tiny_models.model("qwen3"), "is a Qwen3ForCausalLM"),
        (lambda: model(attention_bias=True), "not a plain LlamaForCausalLM.*attention_bias"),
        (lambda: model(hidden_act="gelu"), "activation 'gelu'"),
        (
            lambda: model(rope_parameters={"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}),
            "rope type 'linear'",
        ),
        (lambda: model("qwen2", use_sliding_window=True, sliding_window=64), "use_sliding_window"),
    ],
)
def test_other_layouts(network: Any, message: str, tmp_path: Path) -> None:
    spec = save(tmp_path / "base", network(), tokenizer())
    with pytest.raises(UsageError, match=message):
        write_gguf(spec, tmp_path / "out.gguf")


def word_level() -> Any:
    raw = Tokenizer(tokenizer_models.WordLevel({"a": 0, "<|im_end|>": 1}, unk_token="a"))
    raw.pre_tokenizer = byte_level(True)
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>")


def lower_case() -> Any:
    words = tokenizer()
    words.backend_tokenizer.normalizer = normalizers.Lowercase()
    return words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            lambda: tiny_models.tokenizer(),
            "cannot be written: it has BPE, ByteLevel. Known are byte-level BPE as GPT-2",
        ),
        (word_level, "it has WordLevel"),
        (lower_case, "it has BPE, ByteLevel, Lowercase"),
    ],
)
def test_other_tokenizers(words: Any, message: str, tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(vocab_size=500), words())
    with pytest.raises(UsageError, match=message):
        write_gguf(spec, tmp_path / "out.gguf")


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(vocab_size=390), tokenizer())
    with pytest.raises(UsageError, match="has ids up to 399, its model only 390 rows"):
        write_gguf(spec, tmp_path / "out.gguf")


@pytest.mark.parametrize(("value", "helps"), [(1e5, True), (float("nan"), False)])
def test_weights_a_type_cannot_hold(value: float, helps: bool, tmp_path: Path) -> None:
    network = model()
    network.model.layers[1].mlp.up_proj.weight.data[3, 4] = value
    spec = save(tmp_path / "base", network, tokenizer())
    with pytest.raises(UsageError, match=r"'blk.1.ffn_up.weight' holds (100000|nan), which f16 cannot.*--dtype bf16"):
        write_gguf(spec, tmp_path / "out.gguf")
    if helps:
        write_gguf(spec, tmp_path / "out.gguf", "bf16")
    else:
        with pytest.raises(UsageError, match="nan"):
            write_gguf(spec, tmp_path / "out.gguf", "f32")
    assert [entry.name for entry in tmp_path.iterdir() if "gguf" in entry.name] == ["out.gguf"] * helps


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(), tokenizer())
    (tmp_path / "there.gguf").mkdir()
    with pytest.raises(UsageError, match="there already"):
        write_gguf(spec, tmp_path / "there.gguf")
    with pytest.raises(UsageError, match=r"does not end in \.gguf"):
        write_gguf(spec, tmp_path / "out.bin")
    with pytest.raises(UsageError, match=r"unknown dtype 'q8'; known are f16, bf16, f32, q8_0. Did you mean 'q8_0'\?"):
        write_gguf(spec, tmp_path / "out.gguf", "q8")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParallelSearchError, match=r"could not write '.*out.gguf': (File exists|Not a directory)"):
        write_gguf(spec, tmp_path / "file" / "out.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PolicyError, match="could not read the settings"):
        write_gguf(ModelSpec("empty", tmp_path / "empty"), tmp_path / "out.gguf")


@pytest.mark.parametrize("max_bytes", [2_000, 200_000])
def test_a_full_disk_leaves_nothing_behind(max_bytes: int, tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(), tokenizer())
    with (
        files_no_larger_than(max_bytes),
        pytest.raises(
            ParallelSearchError, match=r"could not write .*File too large. The file needs 0.\d MB, [\d,]+ MB"
        ),
    ):
        write_gguf(spec, tmp_path / "out" / "out.gguf")
    assert list((tmp_path / "out").iterdir()) == []


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_suffix_decides(tmp_path: Path) -> None:
    spec = save(tmp_path / "base", model(), tokenizer())
    adapter = stirred_adapter(tmp_path / "adapter", model())
    file = tmp_path / "out.gguf"
    result = CliRunner().invoke(
        app, ["export", f"hf:{spec.folder}+{adapter}", str(file), "--dtype", "q8_0", "--json"], catch_exceptions=False
    )
    assert json.loads(result.stdout) == {
        "file": str(file),
        "num_bytes": file.stat().st_size,
        "address": f"hf:{file}",
    }
    assert fields(file)["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q8_0
    plain = tmp_path / "plain.gguf"  # a model without adapter is one too
    said = CliRunner().invoke(app, ["export", f"hf:{spec.folder}", str(plain)], catch_exceptions=False).stdout
    assert f"llama-server -m {plain}" in said
    assert plain.is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf:smollm2-135m", "merged", "--dtype", "f16"], "--dtype is for a file"),
        (["runs/verl-7b-grpo", "out.gguf"], "Merge a checkpoint first: parallelsearch export runs/verl-7b-grpo FOLDER"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["export", *arguments])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
