"""The policy beside other people's code: the official client on the same server, and a real model behind a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fault_server import (
    SEARCH,
    FaultServer,
    ask,
    engine,
    policy_for,
)
from real_servers import transformers_serve

from parallelsearch import grammar
from parallelsearch.errors import PolicyError
from parallelsearch.policy.base import Generation
from parallelsearch.policy.openai import OpenAIPolicy


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize("stream", [True, False])
async def test_official_client_reads_the_same_text_from_the_same_server(stream: bool) -> None:
    """The server of these tests is only worth something if the official client understands it."""
    from openai import AsyncOpenAI

    async with FaultServer(engine(SEARCH, "keep")) as server:
        ours = await ask(policy_for(server, stream=stream))
        async with AsyncOpenAI(base_url=server.url, api_key="x") as client:
            messages: Any = [{"role": "user", "content": "Who is older?"}]
            answer: Any = await client.chat.completions.create(
                model="tiny", messages=messages, stop=list(grammar.STOP_STRINGS), stream=stream, temperature=0.0
            )
            if stream:
                theirs = "".join([part.choices[0].delta.content or "" async for part in answer])
            else:
                theirs = answer.choices[0].message.content
    assert ours.text == theirs == SEARCH


@pytest.fixture(scope="module")
def real_server() -> Iterator[tuple[str, str]]:
    """`transformers serve` with SmolLM2-135M: base URL and model name."""
    from parallelsearch.policy.models import resolve

    folder = str(resolve("smollm2-135m"))
    with transformers_serve(folder) as url:
        yield url, folder


@pytest.mark.slow
@pytest.mark.model
async def test_real_server(real_server: tuple[str, str]) -> None:
    url, model = real_server
    few = "".join(f"<search> {pair} </search>\n" for pair in ("a ## b", "c ## d", "e ## f")) + "<search>"

    async def say(text: str, max_tokens: int = 20, **options: Any) -> tuple[Generation, list[str]]:
        policy = OpenAIPolicy(url, model, timeout_s=300, **options)
        pieces: list[str] = []
        return await ask(policy, [policy.prompt(text, text)], pieces, max_tokens=max_tokens), pieces

    for prompt, api in (("Repeat exactly: <search> cat ## dog </search>", "chat"), (few, "completions")):
        streamed, pieces = await say(prompt, api=api)
        assert streamed.text.endswith("</search>")
        assert streamed.text.count("</search>") == 1
        assert (streamed.finish, streamed.restored) == ("stop", None)  # this server keeps the stop string
        assert "".join(pieces) == streamed.text
        assert len(pieces) > 3
        assert streamed.num_tokens is not None
        assert len(pieces) <= streamed.num_tokens + 1
        if api == "chat":
            at_once, _ = await say(prompt, stream=False)
            assert (at_once.text, at_once.finish) == (streamed.text, "stop")  # greedy: the same both ways

    short, _ = await say("Tell me a long story about the sea.", max_tokens=8)
    assert (short.finish, short.num_tokens) == ("length", 8)
    brief, _ = await say("What is the capital of France? Answer with one word.", max_tokens=24)
    assert brief.finish == "eos"
    assert "Paris" in brief.text

    with pytest.raises(PolicyError, match=r"Unexpected fields in the request: {'return_token_ids'}"):
        await say("Hello", token_ids=True)
    with pytest.raises(PolicyError, match="Server is pinned to"):
        await ask(OpenAIPolicy(url, "another"))
