"""Native calls through servers that are real: llama.cpp, which reads them itself, and `transformers serve`, which leaves them in
the text. The model is a tiny one, trained here to call once and then to answer."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import calling_model
import pytest
import test_gguf_export
from real_servers import served, transformers_serve

from free_ports import free_port
from parallelsearch.addresses import open_policy, open_search
from parallelsearch.limits import Limits
from parallelsearch.policy.gguf_export import write_gguf
from parallelsearch.policy.models import parse_spec
from parallelsearch.rollout import rollout
from parallelsearch.trajectory import Trajectory

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
pytestmark = pytest.mark.slow

LLAMA_CPP = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.use_jinja = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "jinja"
params.n_ctx, params.n_parallel, params.warmup = 4096, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
time.sleep(1_000)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model as a folder; its vocabulary is cut as GPT-2's is, which llama.cpp knows."""
    words = test_gguf_export.tokenizer("gpt-2")
    words.chat_template = calling_model.QWEN
    made = tmp_path_factory.mktemp("calling") / "model"
    calling_model.train(words, [QUESTION]).save_pretrained(made)
    words.save_pretrained(made)
    return made


async def ask(url: str, model: str, **options: Any) -> Trajectory:
    policy, search = open_policy(f"openai:{url}#{model}"), open_search("demo", k=1)
    limits = Limits(max_turns=2, max_tokens_per_turn=120, max_tokens=4096)
    try:
        return await rollout(QUESTION, policy, search, limits, **options)
    finally:
        await policy.aclose()
        await search.aclose()


async def test_llama_cpp_reads_the_calls_and_takes_the_results_by_id(folder: Path, tmp_path: Path) -> None:
    file, port = tmp_path / "calling.gguf", free_port()
    write_gguf(parse_spec(str(folder)), file)
    with served([sys.executable, "-c", LLAMA_CPP, str(file), str(port), "jinja"], port) as url:
        trajectory = await ask(url, "tiny")
    assert trajectory.dialect == "tools"
    assert [query.text for query in trajectory.rounds[0].queries] == ["Monet", "Pissarro"]
    called, *_ = (segment for segment in trajectory.segments if segment.author == "model")
    (call,) = called.calls or []
    assert call.name == "search"
    (reply,) = (segment for segment in trajectory.segments if segment.author == "search")
    assert reply.call_id == call.id
    assert trajectory.stop == "answer"
    assert trajectory.answer  # what a model of this size makes of the results is not the point


async def test_llama_cpp_without_templates_takes_no_tools_and_is_asked_in_tags(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, port = tmp_path / "calling.gguf", free_port()
    write_gguf(parse_spec(str(folder)), file)
    with served([sys.executable, "-c", LLAMA_CPP, str(file), str(port), "plain"], port) as url:
        with caplog.at_level(logging.WARNING):
            trajectory = await ask(url, "tiny")
        insisted = await ask(url, "tiny", dialect="tools")
    assert trajectory.dialect == "parallel"
    assert "takes no tools" in caplog.text
    assert "jinja" in (insisted.error or "")


async def test_transformers_serve_leaves_the_calls_in_the_text(folder: Path) -> None:
    with transformers_serve(folder) as url:
        trajectory = await ask(url, str(folder))
    assert trajectory.dialect == "tools"
    assert [query.text for query in trajectory.rounds[0].queries] == ["Monet", "Pissarro"]
    assert trajectory.stop == "answer"
    assert trajectory.answer  # what a model of this size makes of the results is not the point
