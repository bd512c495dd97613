"""The environment, played by verifiers itself against servers on loopback: what it records and pays is what `rollout` and
`reward` record and pay, and what its trainers get are the tokens that were drawn."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import calling_model
import pytest
import tiny_models
import torch
import trl
import verifiers.v1 as vf
from engines import ChatServer, Script, TokenServer, WrittenTurns, serving
from pydantic import ValidationError
from verifiers.v1.serve.client import EnvClient
from verifiers.v1.serve.server import EnvServer

from free_ports import free_port
from parallelsearch import grammar, rewards
from parallelsearch.addresses import open_search
from parallelsearch.data import load_questions
from parallelsearch.data.demo import demo_questions
from parallelsearch.errors import UsageError
from parallelsearch.integrations.verifiers import ID, RECORD
from parallelsearch.limits import Limits
from parallelsearch.policy.local import LocalPolicy
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.rollout import rollout
from parallelsearch.trajectory import Question, Trajectory, trajectory_from_dict

QUESTIONS = {question.question: question for question in demo_questions()}
OLDER = "Who is older, Claude Monet or Camille Pissarro?"
CHAIN = next(question.question for question in demo_questions() if question.kind == "sequential")
SINGLE, MIXED = (
    next(question.question for question in demo_questions() if question.kind == kind) for kind in ("single", "mixed")
)
LIMITS = {"max_turns": 3, "max_observation_tokens": 300}
MODEL = "a-model"
PATHS = {"chat": "/v1/chat/completions", "tokens": "/inference/v1/generate"}


def script(dialect: str) -> Script:
    """Right, right after two rounds, wrong after a turn that says nothing, and a server that refuses in the second turn."""

    def turn(*queries: str) -> Any:
        return list(queries) if dialect == "tools" else grammar.render_turn("Let me look.", queries=queries)

    def answer(text: str) -> str:
        return text if dialect == "tools" else grammar.render_turn("That is it.", answer=text)

    return {
        OLDER: [turn("Claude Monet born", "Camille Pissarro born"), answer("Camille Pissarro")],
        CHAIN: [turn("first"), turn("second", "third"), answer(QUESTIONS[CHAIN].golden_answers[0])],
        SINGLE: ["", turn("something else"), answer("nobody knows")],
        MIXED: [turn("one", "two"), 400],
    }


def config_of(data: str = "demo", reward: str = "gated", agent: dict[str, Any] | None = None, **harness: Any) -> Any:
    block = {"harness": {"limits": LIMITS, **harness}, **(agent or {})}
    return vf.resolve_env_config({"taskset": {"id": ID, "data": data, "task": {"reward": reward}}, "agent": block})


def context(url: str, **sampling: Any) -> vf.ModelContext:
    client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
    return vf.ModelContext(model=MODEL, client=client, sampling=vf.SamplingConfig(**sampling))


async def played(env: vf.Env, ctx: vf.ModelContext, asked: list[str]) -> dict[str, vf.Trace]:
    """The questions as verifiers' own evaluation runs them: all at once."""
    tasks = [task for task in env.taskset if task.data.question.question in asked]
    async with env.serving():
        slots = [slot for task in tasks for slot in env.slots(task)]
        episodes = await asyncio.gather(*(env.run_slot(slot, ctx) for slot in slots))
    assert not [error for episode in episodes for error in episode.errors]
    return {episode.traces[0].task.data.question.question: episode.traces[0] for episode in episodes}


def record_of(trace: vf.Trace) -> Trajectory:
    return trajectory_from_dict(trace.info[RECORD])


TIMES = {"start_s", "end_s", "generate_s", "elapsed_s", "cached"}


def timeless(value: Any) -> Any:
    """A record without its times, and without who found an answer in the cache."""
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if name not in TIMES}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def as_ours(trajectory: Trajectory) -> dict[str, Any]:
    """What must be equal: all but how the engine is called, and how a server that refused is."""
    record = timeless(trajectory.to_dict())
    for name in ("policy", "sampling", "error"):
        record.pop(name, None)
    return json.loads(json.dumps(record))


@pytest.mark.parametrize("dialect", ["tools", "parallel"])
async def test_record_and_reward_are_those_of_our_own_rollout(dialect: str) -> None:
    asked = [OLDER, CHAIN, SINGLE, MIXED]
    ours: dict[str, Trajectory] = {}
    async with serving(PATHS["chat"], ChatServer(script(dialect)).answer) as url:
        policy, search = OpenAIPolicy(url, MODEL, dialect=dialect, stream=False), open_search("demo")
        for question in asked:
            ours[question] = await rollout(
                QUESTIONS[question], policy, search, Limits(**LIMITS), streaming_dispatch=False
            )
        await policy.aclose()
        await search.aclose()
    server = ChatServer(script(dialect))
    async with serving(PATHS["chat"], server.answer) as url:
        traces = await played(
            vf.load_environment(config_of(dialect=dialect)), context(url, temperature=0.7, seed=5), asked
        )
    assert [ours[question].stop for question in asked] == ["answer", "answer", "answer", "error"]
    for question, trace in traces.items():
        assert as_ours(record_of(trace)) == as_ours(ours[question]), question
        if question == MIXED:
            continue
        assert trace.ok, trace.errors
        assert {name: one.value for name, one in trace.rewards.items()} == {
            name: getattr(rewards.reward(ours[question]), name) for name in rewards.COMPONENTS
        }
        assert trace.reward == rewards.reward(ours[question]).total
        assert trace.metrics["is_right"] == ours[question].is_right
        assert trace.metrics["num_subqueries"] == ours[question].num_subqueries
        assert len(trace.branches) == 1
        assert trace.num_turns == ours[question].num_llm_calls
    assert [traces[question].reward for question in asked[:3]] == [1.4, 1.4, traces[SINGLE].reward]
    assert traces[SINGLE].reward <= 0.4
    assert not traces[MIXED].ok
    assert "out of order" in traces[MIXED].errors[-1].message
    assert record_of(traces[OLDER]).sampling == {"temperature": 0.7, "seed": 5}
    assert {(body["temperature"], body["seed"], body["model"]) for body in server.bodies} == {(0.7, 5, MODEL)}


async def test_how_a_model_samples_is_left_to_verifiers_and_to_the_server() -> None:
    """A seed of ours would give every rollout of a group the same answer."""
    server = ChatServer(script("tools"))
    async with serving(PATHS["chat"], server.answer) as url:
        await played(vf.load_environment(config_of()), context(url), [OLDER])
    assert {name for body in server.bodies for name in body} == {
        "model",
        "messages",
        "max_tokens",
        "tools",
        "parallel_tool_calls",
        "stream",
    }


async def test_a_dead_search_is_text_in_the_results_and_stops_nothing() -> None:
    address = f"http://127.0.0.1:{free_port()}/retrieve"
    async with serving(PATHS["chat"], ChatServer(script("tools")).answer) as url:
        traces = await played(vf.load_environment(config_of(search=address)), context(url), [OLDER])
    trace, record = traces[OLDER], record_of(traces[OLDER])
    assert trace.ok
    assert trace.metrics["num_failed_queries"] == 2
    assert all(query.error for query in record.queries)
    assert "127.0.0.1" in record.queries[0].error
    assert trace.reward == rewards.reward(record).total


BACKEND = """
calls, closed = [], []

class Mine:
    max_batch = 64
    def __init__(self):
        calls.append("opened")
    async def search_many(self, queries, k):
        calls.append(len(queries))
        return [[{"id": query, "title": query, "text": query}] for query in queries]
    async def aclose(self):
        closed.append(True)
"""


async def test_all_rollouts_share_one_search_which_is_closed_after_the_last(own_folder: Path) -> None:
    (own_folder / "my_backend.py").write_text(BACKEND)
    async with serving(PATHS["chat"], ChatServer(script("tools")).answer) as url:
        env, other = (vf.load_environment(config_of(search="python:my_backend:Mine")) for _ in range(2))
        async with other.serving():
            await played(env, context(url), [OLDER, CHAIN, SINGLE])
            import my_backend  # type: ignore[import-not-found]

            assert not my_backend.closed  # the other may go on
    assert my_backend.calls.count("opened") == 1
    sizes = my_backend.calls[1:]
    assert sum(sizes) == 6  # each sub-query once
    assert max(sizes) >= 2  # those of a turn, at least, together
    assert my_backend.closed == [True]


async def test_a_deadline_of_verifiers_leaves_a_record_that_can_be_scored() -> None:
    async def never(_: Any) -> None:
        await asyncio.sleep(2)

    async with serving(PATHS["chat"], never) as url:
        config = config_of(agent={"timeout": {"rollout": 0.5}})
        trace = (await played(vf.load_environment(config), context(url), [OLDER]))[OLDER]
    assert trace.stop_condition == "agent_timeout"
    assert record_of(trace).stop == "timeout"
    assert trace.reward == 0
    assert trace.rewards.keys() == set(rewards.COMPONENTS)


async def test_limits_of_verifiers_end_a_rollout_which_is_scored_as_far_as_it_came() -> None:
    async with serving(PATHS["chat"], ChatServer(script("tools")).answer) as url:
        trace = (await played(vf.load_environment(config_of(agent={"max_turns": 1})), context(url), [OLDER]))[OLDER]
    assert trace.stop_condition == "max_turns"
    assert trace.ok
    assert record_of(trace).num_subqueries == 2
    assert trace.rewards["outcome"].value == 0
    assert trace.rewards["decomposition"].value > 0


async def test_what_the_environment_cannot_do_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Be brief.")
    config = config_of()
    config.taskset.system_prompt = tmp_path / "prompt.txt"
    async with serving(PATHS["chat"], ChatServer(script("tools")).answer) as url:
        trace = (await played(vf.load_environment(config), context(url), [OLDER]))[OLDER]
        whole = (await played(vf.load_environment(config_of()), context(url), [OLDER]))[OLDER]
    assert not trace.ok
    assert "the prompt is the dialect's" in trace.errors[-1].message
    (task,) = vf.load_environment(config_of()).taskset.include(ids=[QUESTIONS[OLDER].id])
    del whole.info[RECORD]
    with pytest.raises(vf.TaskError, match=r"leave env\.agent\.harness\.id out"):
        await task.score(whole)


def test_mistakes_in_the_settings_are_told_as_verifiers_tells_its_own(tmp_path: Path) -> None:
    for wrong, said in (
        ({"reward": "gatd"}, "Did you mean 'gated'"),
        ({"dialect": "tolls"}, "Did you mean 'tools'"),
        ({"limits": {"max_turns": 0}}, "max_turns must be at least 1"),
        ({"serach": "demo"}, "Extra inputs are not permitted"),
    ):
        with pytest.raises(ValidationError, match=said):
            config_of(**wrong)  # type: ignore[arg-type]
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"id": "a", "question": OLDER, "golden_answers": ["Camille Pissarro"]}))
    with pytest.raises(UsageError, match="use the preset 'label-free'"):
        list(vf.load_environment(config_of(data=str(questions))).taskset)
    assert len(list(vf.load_environment(config_of(data=str(questions), reward="label-free")).taskset)) == 1


def test_questions_are_those_of_the_package_and_survive_the_wire(data_dir: Path, tmp_path: Path) -> None:
    tasks = list(vf.load_environment(config_of()).taskset)
    assert [task.data.question for task in tasks] == load_questions("demo").questions
    assert [task.key for task in tasks] == [question.id for question in load_questions("demo")]
    for task in tasks:
        again = type(task.data).model_validate(json.loads(task.data.model_dump_json()))
        assert again.question == task.data.question
    known = load_questions("hotpotqa", split="dev", limit=1).questions[0]
    mine = Question("Which of two rivers that nobody asks about is longer?", ["the Memel"], kind="parallel")
    rows = [
        {"question": one.question, "golden_answers": one.golden_answers, "kind": "parallel"} for one in (known, mine)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = config_of(data=str(tmp_path / "train.jsonl"))
    assert len(list(vf.load_environment(config).taskset)) == 2
    config.taskset.train = True
    assert [task.data.question.question for task in vf.load_environment(config).taskset] == [mine.question]


# ---- the commands of the page ----------------------------------------------------------------------------------------

PAGE = (
    (Path(__file__).parents[2] / "docs" / "training.md").read_text().partition("## In other trainers: verifiers\n")[2]
)
COMMANDS = [
    line.removeprefix("$ ").partition(" #")[0].strip()
    for line in PAGE.partition("\n## ")[0].replace("\\\n", "").splitlines()
    if line.startswith("$ ")
]


async def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    evaluate, replay, gather, score = (line for line in COMMANDS if not line.startswith("pip"))
    (tmp_path / "search.toml").write_text(PAGE.partition("```toml\n")[2].partition("```")[0])

    async def run(line: str) -> str:
        command = line.replace("python -c", f"{sys.executable} -c")
        command = command.replace(
            "vf-eval", f'{sys.executable} -c "from verifiers.v1.cli.eval.main import main; main()"'
        )
        command = command.replace(
            "vf-replay", f'{sys.executable} -c "from verifiers.v1.cli.replay import main; main()"'
        ).replace("parallelsearch score", f"{sys.executable} -m parallelsearch score")
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    assert "http://localhost:8000/v1" in evaluate
    async with serving(PATHS["chat"], ChatServer(script("tools")).answer) as url:
        asked = f"--env.taskset.data {tmp_path / 'two.jsonl'}"
        rows = [QUESTIONS[OLDER], QUESTIONS[CHAIN]]
        (tmp_path / "two.jsonl").write_text(
            "\n".join(
                json.dumps(
                    {"id": one.id, "question": one.question, "golden_answers": one.golden_answers, "kind": one.kind}
                )
                for one in rows
            )
        )
        await run(f"{evaluate.replace('http://localhost:8000/v1', url)} {asked}")
    (traces,) = (tmp_path / "outputs" / "first").glob("traces.jsonl")
    paid = [json.loads(line)["traces"][0] for line in traces.read_text().splitlines()]
    assert {round(sum(one["score"] for one in trace["rewards"].values()), 9) for trace in paid} == {1.4}
    await run(replay)  # the server is gone
    (again,) = (tmp_path / "scored-again").rglob("traces.jsonl")
    rescored = [json.loads(line)["traces"][0] for line in again.read_text().splitlines()]
    for trace in rescored:
        expected = rewards.reward(trajectory_from_dict(trace["info"][RECORD]), "label-free")
        assert {name: one["score"] for name, one in trace["rewards"].items()} == {
            name: getattr(expected, name) for name in rewards.COMPONENTS
        }
    await run(gather)
    scores = [json.loads(line) for line in (await run(score)).splitlines()]
    assert [one["total"] for one in scores] == [1.4, 1.4]


# ---- training --------------------------------------------------------------------------------------------------------


def trainer(url: str, folder: Path, renderer: str | None, **sampling: Any) -> dict[str, Any]:
    """What prime-rl sends to an environment's server."""
    client = vf.TrainClientConfig(
        base_url=url,
        api_key_var="NO_KEY",
        renderer_model_name=str(folder),
        **({} if renderer is None else {"renderer": {"name": renderer}}),
    )
    return {"client": client, "model": str(folder), "sampling": vf.SamplingConfig(temperature=0.0, **sampling)}


async def trained_on(request: dict[str, Any], question: str, **harness: Any) -> vf.WireTrace:
    """The trace of a rollout that was asked for over the wire, as a trainer gets it."""
    server = EnvServer(config_of(**harness), "tcp://127.0.0.1:*")
    serves = asyncio.create_task(server.run())
    client = EnvClient(server.address)
    try:
        await client.wait_for_server_startup()
        (task,) = (task for task in server.env.taskset if task.data.question.question == question)
        episode = await client.run(**request, task_data=task.data.model_dump(mode="json"))
    finally:
        await client.close()
        serves.cancel()
        await asyncio.gather(serves, return_exceptions=True)
    (trace,) = episode.traces
    return trace


def qwen3(folder: Path) -> Any:
    """A tokenizer with what Qwen3's renderer wants, saved where the trainer's client reads it."""
    words = copy.deepcopy(tiny_models.tokenizer())
    words.add_tokens([f"<{end}{name}>" for name in ("tool_call", "tool_response", "think") for end in ("", "/")])
    words.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    words.save_pretrained(folder)
    return words


@pytest.mark.slow
async def test_a_trainer_gets_the_tokens_that_were_drawn_and_the_conversation_is_ours(tmp_path: Path) -> None:
    """Real weights behind the trainer's client, and the same weights in our own engine."""
    words = qwen3(tmp_path)
    torch.set_num_threads(1)
    model = calling_model.train(words, [OLDER])
    server = TokenServer(model, words)
    limits = {"max_turns": 2, "max_tokens_per_turn": 120, "max_tokens": 4096}
    async with serving(PATHS["tokens"], server.answer) as url:
        request = trainer(url, tmp_path, "qwen3", max_tokens=120)
        trace = await trained_on(request, OLDER, k=1, dialect="tools", limits=limits)
    policy, search = LocalPolicy(model, words, engine="batch"), open_search("demo", k=1)
    ours = await rollout(QUESTIONS[OLDER], policy, search, Limits(**limits), dialect="tools")
    await policy.aclose()
    await search.aclose()
    assert trace.ok, trace.errors
    (branch,) = trace.branches
    drawn = [one for ids in server.drawn for one in ids]
    assert len(server.drawn) == 2
    assert [one for one, is_drawn in zip(branch.token_ids, branch.sampled_mask, strict=True) if is_drawn] == drawn
    assert all(one < 0 for one, is_drawn in zip(branch.logprobs, branch.sampled_mask, strict=True) if is_drawn)
    record = trajectory_from_dict(trace.info[RECORD])
    assert [query.text for query in record.queries] == ["Monet", "Pissarro"]
    assert [timeless(query) for query in record.to_dict()["turns"][0]["queries"]] == [
        timeless(query) for query in ours.to_dict()["turns"][0]["queries"]
    ]
    # Up to what the model makes of the results, the text is that of our own engine, template and all.
    *before, _ = ours.segments
    said = words.decode([one for segment in before for one in segment.token_ids or ()])
    assert words.decode(branch.token_ids).startswith(said)
    assert trace.reward == rewards.reward(record).total


async def test_turns_with_thoughts_are_one_branch_too(tmp_path: Path) -> None:
    """A thought that did not come back would make every turn a sample of its own, each with the whole conversation."""
    call = json.dumps({"name": "search", "arguments": {"queries": ["Claude Monet", "Camille Pissarro"]}})
    turns = [
        f"<think>\nTwo people, at once.\n</think>\n\n<tool_call>\n{call}\n</tool_call><|im_end|>",
        "<think>\n1830 is before 1840.\n</think>\n\nCamille Pissarro<|im_end|>",
    ]
    server = WrittenTurns(qwen3(tmp_path), turns)
    async with serving(PATHS["tokens"], server.answer) as url:
        trace = await trained_on(trainer(url, tmp_path, "qwen3"), OLDER)
    assert trace.ok, trace.errors
    (branch,) = trace.branches
    drawn = [one for ids in server.drawn for one in ids]
    assert [one for one, is_drawn in zip(branch.token_ids, branch.sampled_mask, strict=True) if is_drawn] == drawn
    assert trajectory_from_dict(trace.info[RECORD]).answer == "Camille Pissarro"
    assert trace.reward == 1.4


async def test_a_dialect_of_tags_is_refused_in_training(tmp_path: Path) -> None:
    server = WrittenTurns(qwen3(tmp_path), [])
    async with serving(PATHS["tokens"], server.answer) as url:
        trace = await trained_on(trainer(url, tmp_path, "qwen3"), OLDER, dialect="parallel")
    assert not trace.ok
    assert "the dialect 'parallel' cannot be trained in it" in trace.errors[-1].message
    assert not server.requests
