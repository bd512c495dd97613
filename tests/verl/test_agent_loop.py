"""The agent loop inside verl's own worker: ids, masks, log-probabilities, limits, and a retriever that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cluster_runs import MONET, TURNS, ModelServer, ScriptServer, batch_of, tiny_recipe, worker_of
from fastapi import FastAPI, HTTPException, Request

from parallelsearch.data import demo
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.policy.base import Generation
from parallelsearch.policy.encoding import EncodingPolicy
from parallelsearch.search import Search
from parallelsearch.training import smoke
from parallelsearch.training.collect import Collector, TokenRow, token_row
from parallelsearch.training.recipe import RolloutSettings
from parallelsearch.trajectory import Question, Segment

GOLDEN = json.loads((Path(__file__).parent / "trl_rows.json").read_text(encoding="utf-8"))


def rows_of(output: Any, prompt_length: int, response_length: int) -> list[TokenRow]:
    """verl's padded batch as plain rows."""
    rows = []
    for number in range(len(output)):
        attention = output.batch["attention_mask"][number].bool()
        prompt = output.batch["prompts"][number][attention[:prompt_length]].tolist()
        inside = attention[prompt_length:]
        rows.append(
            TokenRow(
                prompt,
                output.batch["responses"][number][inside].tolist(),
                output.batch["response_mask"][number][inside].tolist(),
                output.batch["rollout_log_probs"][number][inside].tolist(),
            )
        )
        assert output.batch["response_mask"][number][~inside].sum() == 0
        assert attention.shape == (prompt_length + response_length,)
    return rows


async def run(
    recipe: Any, server: Any, questions: Sequence[Question], validate: bool = False
) -> tuple[Any, list[TokenRow]]:
    output = await worker_of(recipe, server).generate_sequences(batch_of(questions, validate=validate))
    return output, rows_of(output, recipe.verl.max_prompt_tokens, recipe.rollout.max_tokens)


# ---- one trajectory --------------------------------------------------------------------------------------------------


async def test_a_trajectory_as_verl_trains_on_it(tiny: Path, tokenizer: Any) -> None:
    server = ScriptServer(tokenizer)
    output, (row,) = await run(tiny_recipe(tiny), server, [MONET])
    sampled = [i for i, mask in zip(row.completion_ids, row.mask, strict=True) if mask]
    assert sampled == server.ids[0] + server.ids[1], "the ids are those the server drew, not a second encoding"
    shown = tokenizer.decode([i for i, mask in zip(row.completion_ids, row.mask, strict=True) if not mask])
    assert "<information>" in shown
    assert "Pissarro" in shown
    assert row.mask[-1] == 1, "the reward lies on the last token, which must be the model's"
    assert [lp for lp, mask in zip(row.logprobs, row.mask, strict=True) if mask] == [-0.5] * len(sampled)
    assert {lp for lp, mask in zip(row.logprobs, row.mask, strict=True) if not mask} == {0.0}
    assert output.non_tensor_batch["__num_turns__"].tolist() == [2]
    # Oldest and newest weights of the trajectory: verl's asynchronous trainers cannot do without them.
    assert output.non_tensor_batch["min_global_steps"].tolist() == [7]
    assert output.non_tensor_batch["max_global_steps"].tolist() == [8]
    record = json.loads(output.non_tensor_batch["trajectory"][0])
    assert record["answer"] == "Camille Pissarro"
    assert record["num_subqueries"] == 2
    assert len(output.non_tensor_batch["generate_s"][0]) == len(output.non_tensor_batch["search_s"][0]) == 2
    metrics = output.meta_info["metrics"][0]
    assert metrics["tool_calls"] == pytest.approx(sum(output.non_tensor_batch["search_s"][0]))
    assert metrics["num_preempted"] == 0


async def test_what_the_server_is_asked(tiny: Path, tokenizer: Any) -> None:
    server = ScriptServer(tokenizer)
    _, rows = await run(tiny_recipe(tiny), server, [MONET, MONET])
    assert len({request_id for request_id, _, _ in server.requests}) == 2, "one id a trajectory, kept for all its turns"
    first, second = [request for request in server.requests if request[0] == server.requests[0][0]]
    assert second[1][: len(first[1])] == first[1], "the second turn continues the first: its prefix is in the cache"
    assert second[1][len(first[1]) :][: len(server.ids[0])] == server.ids[0]
    assert first[1] == rows[0].prompt_ids
    for params in (first[2], second[2]):
        assert params["stop"] == ["</search>", "</answer>"]
        assert params["include_stop_str_in_output"] is True
        assert params["max_tokens"] == 64
        assert params["logprobs"] is True
        assert params["temperature"] == 1.0


async def test_sglang_gets_its_own_words(tiny: Path, tokenizer: Any) -> None:
    server = ScriptServer(tokenizer)
    await run(tiny_recipe(tiny, {"verl.engine": "sglang"}), server, [MONET])
    params = server.requests[0][2]
    assert params["no_stop_trim"] is True
    assert "include_stop_str_in_output" not in params


async def test_a_response_never_outgrows_what_verl_reserved(tiny: Path, tokenizer: Any) -> None:
    server = ScriptServer(tokenizer, [TURNS[0]])  # it searches for ever
    recipe = tiny_recipe(tiny, {"rollout.max_turns": 8, "rollout.max_tokens": 600})
    output, (row,) = await run(recipe, server, [MONET])
    assert len(row.prompt_ids) + len(row.completion_ids) <= 600
    assert row.mask[-1] == 1
    assert json.loads(output.non_tensor_batch["trajectory"][0])["stop"] == "max_tokens"


async def test_a_prompt_that_is_too_long_is_named(tiny: Path, tokenizer: Any) -> None:
    long = replace(MONET, question="Who was " + "very " * 400 + "old?", id="q-long")
    with pytest.raises(UsageError, match=r"q-long.*max_prompt_tokens"):
        await run(tiny_recipe(tiny), ScriptServer(tokenizer), [long])


async def test_an_engine_that_fails_is_not_a_wrong_answer(tiny: Path) -> None:
    class Broken:
        async def generate(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("the engine is gone")

    with pytest.raises(PolicyError, match="the engine is gone"):
        await run(tiny_recipe(tiny), Broken(), [MONET])


async def test_a_worker_without_our_settings_says_how_to_start(tiny: Path, tokenizer: Any) -> None:
    worker = worker_of(tiny_recipe(tiny), ScriptServer(tokenizer))
    from omegaconf import open_dict

    with open_dict(worker.config):
        del worker.config["parallelsearch"]
    with pytest.raises(Exception, match="parallelsearch train RECIPE"):
        await worker.generate_sequences(batch_of([MONET]))


# ---- golden: the path through TRL and the path through verl ----------------------------------------------------------


class ScriptTokens(EncodingPolicy):
    """The script as the one-machine path would sample it."""

    name = "script"

    async def generate(self, segments: Sequence[Segment], **_: Any) -> Generation:
        number = sum(segment.author == "model" for segment in segments)
        ids = self.tokenizer.encode(TURNS[number], add_special_tokens=False)
        return Generation(self.decode(ids), "stop", ids, [-0.5] * len(ids), len(ids))


def collector_settings(recipe: Any) -> RolloutSettings:
    return RolloutSettings.model_validate({**recipe.rollout.model_dump(), "temperature": 1e-4})


def in_a_thread(function: Any) -> Any:
    """The one-machine path has an event loop of its own."""
    return asyncio.get_running_loop().run_in_executor(None, function)


async def test_golden_script(tiny: Path, tokenizer: Any) -> None:
    recipe = tiny_recipe(tiny)
    _, (verl_row,) = await run(recipe, ScriptServer(tokenizer), [MONET])

    def one_machine() -> TokenRow:
        collector = Collector(
            ScriptTokens(tokenizer, "script"), Search(demo.retriever(), k=1), collector_settings(recipe)
        )
        try:
            (trajectory,) = collector.sample([MONET], seed=1, step=0)
        finally:
            collector.close()
        return token_row(trajectory, tokenizer.eos_token_id)

    assert await in_a_thread(one_machine) == verl_row


@pytest.mark.parametrize("golden", GOLDEN["models"], ids=lambda golden: golden["name"])
async def test_golden_model_through_trl_and_through_verl(
    request: pytest.FixtureRequest, golden: dict[str, Any]
) -> None:
    """Real weights, greedy: verl's worker with plain `generate` makes the rows that TRL's trainer made with the package's
    engine. They are in a file, because the two cannot be installed together; `tests/training` holds TRL to it."""
    folder: Path = request.getfixturevalue(golden["name"])
    recipe = tiny_recipe(folder, {f"rollout.{name}": value for name, value in GOLDEN["rollout"].items()})
    questions = [Question(**values) for values in GOLDEN["questions"]]
    _, rows = await run(recipe, ModelServer(folder), questions, validate=True)
    assert [(row.prompt_ids, row.completion_ids, row.mask) for row in rows] == [
        (row["prompt_ids"], row["completion_ids"], row["env_mask"]) for row in golden["rows"]
    ]
    assert any(0 in row.mask for row in rows), "there is something to mask"


async def test_golden_native_calls_through_trl_and_through_verl(tmp_path: Path) -> None:
    """The same with the dialect `tools`: framing of calls and results, ids and masks are those that TRL's trainer got."""
    calls, tokenizer = GOLDEN["calls"], smoke.make_tokenizer()
    smoke.make_model(tokenizer, seed=1).save_pretrained(tmp_path)
    tokenizer.chat_template = calls["template"]
    tokenizer.save_pretrained(tmp_path)
    settings = {f"rollout.{name}": value for name, value in calls["rollout"].items()}
    recipe = tiny_recipe(tmp_path, {**settings, "verl.max_prompt_tokens": 1024})
    questions = [Question(**values) for values in GOLDEN["questions"]]
    _, rows = await run(recipe, ScriptServer(tokenizer, calls["turns"]), questions)
    assert [(row.prompt_ids, row.completion_ids, row.mask) for row in rows] == [
        (row["prompt_ids"], row["completion_ids"], row["env_mask"]) for row in calls["rows"]
    ]


# ---- 256 trajectories and a retriever that fails, hangs and recovers -------------------------------------------------


@contextlib.asynccontextmanager
async def shaky_retriever() -> AsyncIterator[tuple[str, dict[str, int]]]:
    """A real server on loopback. Its first eight requests fail, the next eight hang, then it answers."""
    app = FastAPI()
    seen = {"failed": 0, "hung": 0, "answered": 0}

    @app.post("/retrieve")
    async def retrieve(request: Request) -> dict[str, Any]:
        body = await request.json()
        if seen["failed"] < 8:
            seen["failed"] += 1
            raise HTTPException(500, "out of order")
        if seen["hung"] < 8:
            seen["hung"] += 1
            await asyncio.sleep(600)
        seen["answered"] += 1
        document = {"id": "1", "title": "Found", "text": "something", "contents": '"Found"\nsomething'}
        return {"result": [[{"document": document, "score": 1.0}] for _ in body["queries"]]}

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve", seen
        finally:
            server.should_exit = True
            await task


class NumberedServer(ScriptServer):
    """Searches in three turns, for something else in every trajectory, so that no two share a query."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.numbers: dict[str, int] = {}

    async def generate(self, request_id: str, **options: Any) -> Any:
        number = self.numbers.setdefault(request_id, len(self.numbers))
        turn = f"<think> t </think>\n<search> a{number} ## b{number} </search>"
        self.ids = [self.tokenizer.encode(text, add_special_tokens=False) for text in (turn, turn, turn, TURNS[1])]
        return await super().generate(request_id, **options)


async def test_256_trajectories_over_a_retriever_that_fails_hangs_and_recovers(tiny: Path, tokenizer: Any) -> None:
    async with shaky_retriever() as (url, seen):
        recipe = tiny_recipe(
            tiny,
            {
                "search.address": url,
                "search.timeout_s": 5.0,
                "search.cache_size": 0,
                "rollout.max_turns": 4,
                "rollout.max_observation_tokens": 160,
            },
        )
        server = NumberedServer(tokenizer)
        questions = [replace(MONET, id=f"q{number}") for number in range(256)]
        started_s = time.monotonic()
        output, rows = await run(recipe, server, questions)
        elapsed_s = time.monotonic() - started_s
    assert len(rows) == 256
    records = [json.loads(record) for record in output.non_tensor_batch["trajectory"]]
    assert {record["stop"] for record in records} == {"answer"}
    assert all(row.mask[-1] == 1 for row in rows)
    queries = [query for record in records for turn in record["turns"] for query in turn["queries"]]
    num_failed = sum(query["error"] is not None for query in queries)
    assert len(queries) == 256 * 3 * 2
    assert 0 < num_failed < len(queries), "some failed, and it recovered"
    assert (seen["failed"], seen["hung"]) == (8, 8)
    # Three rounds with a time-out of 5 s each are the worst case; a step that waits for the hanging server takes ten minutes.
    assert elapsed_s < 300
