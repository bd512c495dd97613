"""The `gguf:` policy: tokens, stops, log-probabilities and adapters on llama.cpp itself, against transformers and peft."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import calling_model
import gguf
import numpy as np
import pytest
import tiny_models
import torch
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata
from test_gguf_export import TEXTS, model, save, tensors, tokenizer
from transformers import AutoTokenizer

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.data import demo
from parallelsearch.dialect import Part
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import MissingExtraError, PolicyError, UsageError, install_command
from parallelsearch.policy import gguf as gguf_policy
from parallelsearch.policy import llama_cpp, models
from parallelsearch.policy.base import Generation, Message, Sampling
from parallelsearch.policy.engine import draw, draw_numpy
from parallelsearch.policy.engine.llama import Threads
from parallelsearch.policy.gguf import GgufPolicy, GgufSpec, parse_gguf
from parallelsearch.policy.gguf_export import write_gguf
from parallelsearch.policy.gguf_lora import Base, as_gguf, write_lora
from parallelsearch.policy.models import ModelSpec, write_note
from parallelsearch.rollout import rollout
from parallelsearch.trajectory import Segment

EVERY_LAYER = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
BASE = Base("llama", 6, 2)


def write_adapter(folder: Path, **settings: Any) -> Path:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    config = LoraConfig(r=2, lora_alpha=3, target_modules=EVERY_LAYER, init_lora_weights=False, **settings)
    get_peft_model(model(), config).save_pretrained(folder)
    write_note(folder, dialect="sequential")
    return folder


class Tiny:
    """A model of 96 dimensions with an adapter, for transformers and for llama.cpp."""

    def __init__(self, folder: Path) -> None:
        self.words = tokenizer()
        self.base = save(folder / "base", model(), self.words)
        self.adapter = write_adapter(folder / "adapter")
        self.spec = ModelSpec(self.base.name, self.base.folder, self.adapter)
        self.net = models.load(self.spec, "cpu", torch.float32)[0]
        self.file = write_gguf(self.base, folder / "base.gguf", "f32")
        self.merged = write_gguf(self.spec, folder / "merged.gguf", "f32")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARALLELSEARCH_CACHE", str(folder / "cache"))
        yield Tiny(folder)


@pytest.fixture(scope="module")
def policy(tiny: Tiny) -> Iterator[GgufPolicy]:
    made = GgufPolicy(parse_gguf(f"{tiny.file}+{tiny.adapter}"), num_threads=1, max_slots=3)
    yield made
    made.engine.close()


def rewritten(file: Path, target: Path, settings: dict[str, MetadataDetails]) -> Path:
    """The same weights in a file that says something else of them."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    copy_with_new_metadata(reader, writer, settings, [])
    return target


def write(policy: GgufPolicy, text: str, **options: Any) -> Generation:
    return asyncio.run(turn(policy, text, **options))


async def turn(policy: GgufPolicy, text: str, **options: Any) -> Generation:
    settings = {"stop": (), "max_tokens": 24, "sampling": Sampling(), "session": text} | options
    return await policy.generate([policy.prompt(text, text)], **settings)


# ---- the adapter -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 7}, "rank_pattern": {"q_proj": 4}}]
)
def test_base_and_adapter_are_what_peft_merges(settings: dict[str, Any], tiny: Tiny, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", **settings)
    merged = tensors(write_gguf(ModelSpec("x", tiny.base.folder, adapter), tmp_path / "merged.gguf", "f32"))
    base = tensors(tiny.file)
    write_lora(adapter, BASE, tmp_path / "lora.gguf")
    lora = tensors(tmp_path / "lora.gguf")
    alpha = gguf.GGUFReader(tmp_path / "lora.gguf").get_field("adapter.lora.alpha").contents()
    changed = {name.rpartition(".")[0] for name in lora}
    assert len(changed) == 2 * len(EVERY_LAYER)
    for name in changed:
        a, b = lora[f"{name}.lora_a"].data, lora[f"{name}.lora_b"].data
        found = base[name].data + alpha / b.shape[1] * (b @ a)  # as llama.cpp scales it
        np.testing.assert_allclose(found, merged[name].data, atol=1e-5)
        assert not np.allclose(base[name].data, merged[name].data, atol=1e-2)


def test_the_file_is_made_once_wherever_the_adapter_lies_and_again_when_it_changes(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "cache"))
    adapter = shutil.copytree(tiny.adapter, tmp_path / "mine")
    with as_gguf(adapter, BASE) as first:
        made_at = first.stat().st_mtime_ns
    elsewhere = shutil.copytree(adapter, tmp_path / "reinstalled" / "mine")
    (elsewhere / "adapter_model.safetensors").touch()
    with as_gguf(elsewhere, BASE) as again:
        assert again == first
        assert again.stat().st_mtime_ns == made_at
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_alpha": 3}))
    with as_gguf(adapter, BASE) as other:
        assert other != first
    assert not list(first.parent.glob(".*"))


def test_where_nothing_can_be_kept_it_is_made_for_the_moment(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path / "file"))
    with as_gguf(tiny.adapter, BASE) as file:
        assert file.read_bytes()[:4] == b"GGUF"
    assert not file.exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"use_dora": True}, "use_dora"), ({"bias": "all"}, "trained biases"), ({"peft_type": "IA3"}, "the type IA3")],
)
def test_what_is_not_plain_lora_is_refused(change: dict[str, Any], problem: str, tiny: Tiny, tmp_path: Path) -> None:
    adapter = shutil.copytree(tiny.adapter, tmp_path / "odd")
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(UsageError, match=f"{problem}.*parallelsearch export"):
        write_lora(adapter, BASE, tmp_path / "lora.gguf")
    with pytest.raises(UsageError, match="a 'gemma' cannot be converted here, only for llama"):
        write_lora(tiny.adapter, Base("gemma", 6, 2), tmp_path / "lora.gguf")


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_ids_are_those_of_transformers_and_control_tokens_stay_with_trusted_text(
    policy: GgufPolicy, tiny: Tiny
) -> None:
    for text in TEXTS:
        plain = tiny.words.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert policy.insert(text, "search").token_ids == plain
        assert policy.decode(plain) == text
        assert policy.count_tokens(text) == len(plain)
    said = policy.prompt("Who is <|im_end|> older?", "?")
    chat = [{"role": "user", "content": "Who is <|im_end|> older?"}]
    assert said.text == tiny.words.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert said.token_ids == tiny.words.encode(said.text, add_special_tokens=False)
    mixed = policy.insert_parts([Part("<|im_start|>", is_trusted=True), Part("<|im_start|>")], "search")
    assert mixed.token_ids is not None
    assert (mixed.token_ids[0], mixed.token_ids.count(1)) == (1, 1)
    assert policy.special_tokens == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
    assert policy.decode([1, *policy.insert("a", "search").token_ids, 2]) == "a"  # type: ignore[misc]


def with_tools(tiny: Tiny, folder: Path) -> Path:
    """The base with Qwen's chat template, as a file."""
    words = copy.deepcopy(tiny.words)
    words.chat_template = calling_model.QWEN
    net = model(max_position_embeddings=2048)
    return write_gguf(save(folder / "calling", net, words), folder / "calling.gguf", "f32")


def test_a_file_whose_template_has_tools_is_asked_with_them(tiny: Tiny, tmp_path: Path) -> None:
    file = with_tools(tiny, tmp_path)
    policy = open_policy(f"gguf:{file}", num_threads=1)
    assert isinstance(policy, GgufPolicy)
    assert (policy.dialect, policy.takes_tools) == ("tools", True)
    tools = open_dialect("tools").tools
    prompt = policy.prompt("Who is older?", "", tools)
    words = AutoTokenizer.from_pretrained(str(tmp_path / "calling"))
    options = {"tools": [tool.schema() for tool in tools], "add_generation_prompt": True, "tokenize": False}
    chat = [{"role": "user", "content": "Who is older?"}]
    assert prompt.text == words.apply_chat_template(chat, **options)
    assert prompt.token_ids == words.encode(prompt.text, add_special_tokens=False)
    end, called = words.convert_tokens_to_ids("<|im_end|>"), words.encode("I call.", add_special_tokens=False)
    for drawn in (called, [*called, end]):
        segments = [prompt, Segment("model", "I call.", drawn)]
        written = policy.ids_of([*segments, *policy.insert_messages([Message("search", "one")], segments)])
        said = {"role": "assistant", "content": "I call."}
        rendered = words.apply_chat_template([*chat, said, {"role": "tool", "content": "one"}], **options)
        assert written == words.encode(rendered, add_special_tokens=False)
    asyncio.run(policy.aclose())
    adapted = open_policy(f"gguf:{file}+{shutil.copytree(tiny.adapter, tmp_path / 'mine')}", num_threads=1)
    assert adapted.dialect == "sequential"
    asyncio.run(adapted.aclose())


def test_a_vocabulary_that_wants_a_first_token_gets_it_once(tiny: Tiny, tmp_path: Path) -> None:
    found = []
    for template in ("<|im_start|>{{ messages[0].content }}", "{{ bos_token }}<|im_start|>{{ messages[0].content }}"):
        said = {
            "tokenizer.ggml.add_bos_token": MetadataDetails(gguf.GGUFValueType.BOOL, True),
            "tokenizer.chat_template": MetadataDetails(gguf.GGUFValueType.STRING, template),
        }
        policy = GgufPolicy(GgufSpec("first", rewritten(tiny.file, tmp_path / "first.gguf", said)), num_threads=1)
        found.append(policy.prompt("Who?", "").token_ids)
        asyncio.run(policy.aclose())
    plain = tiny.words.encode("<|im_start|>Who?", add_special_tokens=False)
    assert found == [[2, *plain]] * 2  # the token that the file names as the one that begins a text


# ---- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_are_those_of_the_merged_model(temperature: float, policy: GgufPolicy, tiny: Tiny) -> None:
    found = write(policy, TEXTS[0], sampling=Sampling(temperature, seed=5))
    start = policy.prompt(TEXTS[0], "").token_ids
    assert found.token_ids is not None
    assert found.logprobs is not None
    assert start is not None
    expected = tiny_models.fresh_logprobs(tiny.net, start + found.token_ids, len(start))
    np.testing.assert_allclose(found.logprobs, expected, atol=0.02)  # llama.cpp keeps keys and values in float16
    assert len(found.token_ids) == found.num_tokens == 24
    if temperature == 0:
        assert found.token_ids == write(policy, TEXTS[0]).token_ids


def test_a_turn_ends_with_the_token_that_completes_a_stop_string_and_streams_as_it_is(policy: GgufPolicy) -> None:
    how = {"max_tokens": 64, "sampling": Sampling(1.0, seed=4)}
    whole = write(policy, TEXTS[1], **how)
    assert whole.token_ids is not None
    pieces = [policy.tokenizer.piece(token) for token in whole.token_ids]
    # A string that begins in one token and is complete in the middle of the next.
    at, stop = next(
        (at, stop.decode())
        for at, (left, right) in enumerate(itertools.pairwise(pieces), 2)
        if (stop := left[-1:] + right[:1]).isascii() and len(right) > 1 and stop not in b"".join(pieces[: at - 1])
    )
    told: list[str] = []
    cut = write(policy, TEXTS[1], **how, stop=("</never>", stop), on_text=told.append)
    assert (cut.finish, cut.token_ids) == ("stop", whole.token_ids[:at])
    assert stop in cut.text
    assert not cut.text.endswith(stop)
    assert "".join(told) == cut.text
    assert len(told) > 1
    assert cut.logprobs == pytest.approx(whole.logprobs[:at] if whole.logprobs else None, abs=1e-3)


def test_many_at_once_are_what_they_are_one_at_a_time(tiny: Tiny) -> None:
    """Five rollouts in three sequences: the cache grows on the way, and two wait until another ends."""
    texts = [f"{TEXTS[number % 3]} {number}" for number in range(5)]

    async def two_turns(policy: GgufPolicy, text: str) -> list[list[int] | None]:
        async with policy.session(text) as key:
            segments = [policy.prompt(text, text)]
            for insert in ("\nfound: one\n", "\nfound: two\n"):
                found = await policy.generate(
                    segments, stop=(), max_tokens=12, sampling=Sampling(1.0, seed=7), session=key
                )
                segments += [found.segment(), policy.insert(insert, "search")]
        return [segment.token_ids for segment in segments]

    async def all_of(num_at_once: int, max_slots: int) -> tuple[list[Any], dict[str, int]]:
        policy = GgufPolicy(GgufSpec("tiny", tiny.merged), num_threads=1, max_slots=max_slots)
        room = asyncio.Semaphore(num_at_once)

        async def one(text: str) -> Any:
            async with room:
                return await two_turns(policy, text)

        found = await asyncio.gather(*map(one, texts))
        stats = dict(policy.engine.stats)
        await policy.aclose()
        return found, stats

    alone, stats_alone = asyncio.run(all_of(1, 1))
    together, stats = asyncio.run(all_of(5, 3))
    assert together == alone
    assert stats["steps"] < 0.8 * stats_alone["steps"]
    # The second turn reads only what came behind the first; so does who begins as another one did. Where rollouts wait for a
    # sequence, one that asks for its second turn late may have lost its own to them.
    second_turns = sum(len(ids[0]) + len(ids[1]) - 1 for ids in alone)
    assert stats_alone["reused"] >= second_turns
    with_room, stats = asyncio.run(all_of(5, 5))
    assert with_room == alone
    assert stats["reused"] >= second_turns


def test_the_fixed_beginning_of_a_prompt_is_read_once_for_all_processes(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARALLELSEARCH_CACHE", str(tmp_path))
    fixed, question = "Answer the question between the tags, after you have searched. Question: ", "who painted it?"

    def read(expects: bool = True) -> tuple[Generation, int]:
        """What a new process writes, and how many tokens of prompt it reads for that."""
        policy = GgufPolicy(parse_gguf(f"{tiny.file}+{tiny.adapter}"), num_threads=1)
        if expects:
            policy.expect([fixed + "Which?", fixed + "And when was it?"])
        found = write(policy, fixed + question)
        asyncio.run(policy.aclose())
        return found, policy.engine.stats["prefilled"]

    alone, num_prompt = read(expects=False)
    assert not list(tmp_path.rglob("start-*")), "nobody expected anything"
    first = read()
    assert first[1] == num_prompt
    assert first[0].token_ids == alone.token_ids
    # Another cut of the same tokens goes through other kernels.
    assert first[0].logprobs == pytest.approx(alone.logprobs, abs=0.02)
    (kept,) = tmp_path.rglob("start-*")
    again, num_new = read()
    assert again == first[0], "a kept state is the state"
    assert 0 < num_new < num_prompt / 2
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole[:99] + bytes([whole[99] ^ 255]) + whole[100:]):
        kept.write_bytes(damaged)
        assert read() == (again, num_prompt), "read again, and kept anew"
        assert read() == (again, num_new)
    kept.unlink()
    kept.mkdir()  # nothing can be written there
    assert read() == read() == (again, num_prompt)


def test_a_cancelled_turn_leaves_its_place(policy: GgufPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    step, is_cancelled = policy.engine._step, threading.Event()

    def held_step() -> None:
        step()
        assert is_cancelled.wait(60)

    async def main() -> Generation:
        has_begun = asyncio.Event()
        options = {"max_tokens": 150, "session": "long", "on_text": lambda _: has_begun.set()}
        long = asyncio.create_task(turn(policy, TEXTS[0], **options))
        await has_begun.wait()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        is_cancelled.set()
        return await turn(policy, TEXTS[1], max_tokens=4)

    monkeypatch.setattr(policy.engine, "_step", held_step)
    num_steps = policy.engine.stats["steps"]
    assert asyncio.run(main()).num_tokens == 4
    assert not policy.engine._running()
    assert policy.engine.stats["steps"] - num_steps < 150, "the cancelled turn was not written to its end"


def test_a_full_context_is_told(policy: GgufPolicy) -> None:
    with pytest.raises(PolicyError, match=r"the context is full: .* takes 192 here"):
        write(policy, "one two three " * 60)


def test_the_draw_is_that_of_the_engines_on_torch() -> None:
    generator = np.random.default_rng(0)
    logits = (3 * generator.standard_normal((40, 3000))).astype(np.float32)
    for row, sampling in enumerate([Sampling(1.0, seed=2**40 + 9), Sampling(0.7, 0.8, seed=3), Sampling()] * 13):
        low, high = (torch.tensor([word]) for word in draw.seed_words(sampling.seed))
        keys = draw.row_keys(low, high, torch.tensor([100 + row]))
        temperature, top_p = torch.tensor([sampling.temperature]), torch.tensor([sampling.top_p])
        logprobs = draw.log_probs(torch.from_numpy(logits[row : row + 1]), temperature)
        scores = draw.choice_scores(logprobs, temperature, top_p, keys if sampling.temperature else None)
        token, logprob = draw_numpy.draw(logits[row], sampling, 100 + row)
        assert token == int(scores.argmax())
        assert logprob == pytest.approx(float(logprobs[0, token]), abs=1e-5)


def test_threads_give_way_to_other_programs_and_come_back() -> None:
    threads = Threads(4)
    assert not threads.note(0.2, 0.05, 1.0)  # too short to tell
    assert threads.note(0.2, 0.1, 1.2)
    assert threads.count == 2
    assert not threads.note(0.3, 0.29, 1.5)  # not so soon
    assert threads.note(0.3, 0.29, 2.5)
    assert threads.count == 4
    assert threads.note(0.3, 0.1, 2.8)
    assert not threads.note(0.3, 0.29, 3.9)  # the second time it waits twice as long
    assert threads.note(0.3, 0.29, 4.9)


def test_what_two_threads_close_is_freed_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """To free it twice ends the process; the functions here only count that."""
    policy = GgufPolicy(parse_gguf(str(tiny.file)), num_threads=1, max_slots=1)
    functions, freed = llama_cpp.library().call, []

    def counting(name: str) -> Any:
        free = getattr(functions, name)

        def once(pointer: Any) -> None:
            freed.append(name)
            time.sleep(0.1)  # as it takes with a large model
            if freed.count(name) == 1:
                free(pointer)

        return once

    for name in ("llama_free", "llama_model_free"):
        monkeypatch.setattr(functions, name, counting(name))
    threads = [threading.Thread(target=asyncio.run, args=[policy.aclose()]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert freed == ["llama_free", "llama_model_free"]


# ---- addresses -------------------------------------------------------------------------------------------------------


def test_what_export_writes_is_opened_and_says_how_it_talks(policy: GgufPolicy, tiny: Tiny) -> None:
    assert policy.dialect == "sequential"
    merged = open_policy(f"gguf:{tiny.merged}", num_threads=1)
    assert isinstance(merged, GgufPolicy)
    assert merged.dialect == "sequential"
    expected = write(policy, TEXTS[2])
    found = write(merged, TEXTS[2])
    assert found.token_ids == expected.token_ids
    np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-3)
    asyncio.run(merged.aclose())
    with pytest.raises(PolicyError, match="the model is closed"):
        merged.insert("a text", "search")
    with pytest.raises(PolicyError, match="closed"):
        asyncio.run(
            merged.generate([policy.prompt("x", "x")], stop=(), max_tokens=2, sampling=Sampling(), session="late")
        )
    record = policy.describe()
    assert record["kind"] == "gguf"
    assert (record["adapter"], record["engine"]) == ("adapter", "llama.cpp")
    assert str(tiny.adapter.parent) not in json.dumps({name: record[name] for name in record if name != "model"})


def test_bad_input_is_told(tiny: Tiny, tmp_path: Path) -> None:
    def refused(address: str, problem: str, kind: type[Exception] = UsageError) -> None:
        with pytest.raises(kind, match=problem):
            open_policy(address)

    (tmp_path / "text.gguf").write_text("this is no model")
    (tmp_path / "cut.gguf").write_bytes(tiny.file.read_bytes()[:5000])
    (tmp_path / "folder").mkdir()
    refused(f"gguf:{tmp_path}/none.gguf", "there is no file")
    refused("gguf:smollm2-135", "Did you mean 'smollm2-135m'")
    refused(f"gguf:{tmp_path}", "name a file in it: gguf:.*cut.gguf")
    refused(f"gguf:{tmp_path}/folder", "without a .gguf file. For a transformers model write hf:")
    refused(f"gguf:{tmp_path}/text.gguf", "is no GGUF file: it begins with b'this'", PolicyError)
    refused(f"gguf:{tmp_path}/cut.gguf", "llama.cpp cannot load .* not whole: download it again", PolicyError)
    (tmp_path / "half.gguf").write_bytes(tiny.file.read_bytes()[:-5000])
    refused(f"gguf:{tmp_path}/half.gguf", "not whole: download it again", PolicyError)
    refused(f"gguf:{tmp_path}/haf.gguf", "Did you mean '.*/half.gguf'")
    for key, kind, value, problem in (
        ("attention.causal", "BOOL", False, "has an encoder"),
        ("pooling_type", "UINT32", 1, "makes vectors"),
    ):
        detail = MetadataDetails(gguf.GGUFValueType[kind], value)
        file = rewritten(tiny.file, tmp_path / "encoder.gguf", {f"llama.{key}": detail})
        refused(f"gguf:{file}", f"{problem} .*Take a chat model", PolicyError)
    refused(f"gguf:{tiny.file}+{tmp_path}/none.gguf", "there is no adapter file")
    refused(f"gguf:{tiny.file}+{tmp_path}/folder", "has no adapter_config.json; expected gguf:FILE")
    refused(
        f"gguf:{tiny.file}+parallel", "does not fit .* trained on 'smollm2-135m'.* leave it out: gguf:", PolicyError
    )
    refused(f"gguf:{tiny.file}+{tiny.merged}", "does not fit .* leave it out: gguf:", PolicyError)
    refused(f"gguf:{tiny.file}?max_contxt=100", "no option 'max_contxt'.* Did you mean 'max_context'")
    refused(f"gguf:{tiny.file}?max_context=many", "max_context of gguf: is a whole number, not 'many'")
    with pytest.raises(UsageError, match="max_context is a number up to 192"):
        open_policy(f"gguf:{tiny.file}?max_context=500")
    small = open_policy(f"gguf:{tiny.file}?max_context=100&num_threads=1", max_context=50)
    assert small.max_context == 100
    asyncio.run(small.aclose())


def test_what_does_not_fit_into_memory_is_told_before_it_is_taken(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A token takes 2 layers x 2 heads x 16 numbers x 2 bytes, for keys and for values."""
    num_tokens = 2 * 150
    monkeypatch.setattr(llama_cpp, "free_memory", lambda: 256 * num_tokens)
    monkeypatch.setattr(gguf_policy, "free_memory", lambda: tiny.file.stat().st_size - 1)
    policy = GgufPolicy(GgufSpec("tiny", tiny.file), num_threads=1, max_context=150, max_slots=8)
    assert "of memory are free: it will be slow. Take a smaller model" in caplog.text

    async def four() -> list[Generation]:
        return await asyncio.gather(*(turn(policy, f"{TEXTS[0]} {number}", max_tokens=4) for number in range(4)))

    assert [one.num_tokens for one in asyncio.run(four())] == [4] * 4
    assert policy.engine.max_slots == 2
    assert "4 x 150 tokens take 0.0 GB" in caplog.text
    asyncio.run(policy.aclose())
    monkeypatch.setattr(llama_cpp, "free_memory", lambda: 256 * 100)
    with pytest.raises(PolicyError, match="Lower max_context or max_slots"):
        GgufPolicy(GgufSpec("tiny", tiny.file), num_threads=1, max_context=150)


def test_without_the_extra_it_says_what_to_type(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    llama_cpp.library.cache_clear()
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("llama"))):
        open_policy(f"gguf:{tiny.file}")
    llama_cpp.library.cache_clear()


# ---- the packaged model ----------------------------------------------------------------------------------------------


@pytest.mark.model
def test_the_packaged_base_with_the_shipped_adapter_answers_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARALLELSEARCH_CACHE", raising=False)  # where other tests have converted the base already

    async def main() -> None:
        policy = open_policy("gguf:smollm2-135m+parallel", num_threads=1)
        assert isinstance(policy, GgufPolicy)
        assert policy.dialect == "parallel"
        words = AutoTokenizer.from_pretrained(str(models.resolve("smollm2-135m")))
        search = open_search("demo")
        found = await rollout("Who is older, Claude Monet or Camille Pissarro?", policy, search)
        assert found.answer == "Camille Pissarro"
        assert len(found.turns[0].queries) == 2
        # Every text of the rollout is cut as transformers cuts it.
        for segment in found.segments:
            if segment.author == "search":
                assert segment.token_ids == words.encode(
                    segment.text, add_special_tokens=False, split_special_tokens=True
                )
        numbered = "born:  1840\n\n1. Paris \n 2. x   7\n\nA  b 19"
        for text in (numbered, *(passage.text for passage in demo.passages()[:50])):
            assert policy.insert(text, "search").token_ids == words.encode(
                text, add_special_tokens=False, split_special_tokens=True
            )
        chat = found.segments[0]
        assert chat.token_ids == words.encode(chat.text, add_special_tokens=False)
        assert "You are a helpful AI assistant named SmolLM" in chat.text
        await policy.aclose()

    asyncio.run(main())
