"""`/v1/responses` of the agent server, asked by the official OpenAI client, whole and streamed, and by plain HTTP."""

from __future__ import annotations

import json

import httpx
import openai
import pytest
from agent_process import CAPITALS, GUESSED, NEVER, TITLE_TASK, TURNS, WEB, WRONG_NUMBERS, agent, root_url
from fault_server import DONE, FaultServer, chunk, events, policy_for, usage_chunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from search_process import PASSAGES, FewPassages, SearchProcess, holding

from parallelsearch import grammar
from parallelsearch.errors import SearchError
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Sampling
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.search import Search
from parallelsearch.server.agent_server import create_agent_app
from parallelsearch.server.answering import AgentSettings

SETTINGS = {"max_body_bytes": 20_000, "max_turns": 6, "max_k": 5, "limits": {"timeout_s": 60}}
MODEL = "parallelsearch"
EVENT = TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with agent(tmp_path_factory.mktemp("agent"), settings=SETTINGS, tokens_per_s=400, latency_s=0.5) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: SearchProcess):
    with openai.OpenAI(base_url=root_url(server) + "/v1", api_key="none", max_retries=0, timeout=400) as one:
        yield one


def post(server: SearchProcess, body) -> tuple[int, dict]:
    reply = httpx.post(
        root_url(server) + "/v1/responses",
        content=body if isinstance(body, bytes) else json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=400,
    )
    return reply.status_code, reply.json()


def without_ids(items) -> list[dict]:
    return [item.model_dump(exclude={"id"}) for item in items]


@pytest.mark.parametrize("stream", [True, False])
async def test_our_own_client_reads_what_our_own_server_says(server: SearchProcess, stream: bool):
    policy = OpenAIPolicy(root_url(server) + "/v1", MODEL, api="responses", stream=stream)
    try:
        said = await policy.generate(
            [policy.prompt(CAPITALS, CAPITALS)], stop=(), max_tokens=200, sampling=Sampling(), session="s"
        )
    finally:
        await policy.aclose()
    assert said.text.endswith("Paris and Rome")
    assert "Two things, independent." in said.text  # in a dialect of tags a thought is a part of the turn
    assert said.usage is not None
    assert said.usage["completion_tokens"] > 0


# ---- whole -----------------------------------------------------------------------------------------------------------


def test_the_client_gets_an_answer_with_its_thoughts_and_searches(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=CAPITALS)
    assert (response.output_text, response.status, response.error) == ("Paris and Rome", "completed", None)
    kinds = [item.type for item in response.output]
    assert kinds == ["reasoning", "file_search_call", "file_search_call", "reasoning", "message"]
    thought, first, second, last_thought, message = response.output
    assert [part.text for part in thought.summary] == ["Two things, independent."]
    assert [part.text for part in last_thought.summary] == ["Both are there [1]."]
    assert (first.queries, second.queries, first.status) == (["capital of France"], ["capital of Italy"], "completed")
    assert (first.results[0].filename, first.results[0].text) == ("Paris", PASSAGES[0].text)
    assert (message.role, message.status) == ("assistant", "completed")
    assert len({item.id for item in response.output}) == 5
    # Passages of the demo corpus have no address: they are cited as files.
    assert [(one.type, one.file_id) for one in message.content[0].annotations] == [
        ("file_citation", "paris"),
        ("file_citation", "rome"),
    ]
    assert response.parallelsearch["num_subqueries"] == 2


def test_tokens_are_those_of_a_completion(client: openai.OpenAI):
    usage = client.responses.create(model=MODEL, input=CAPITALS).usage
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": CAPITALS}]).usage
    assert (usage.input_tokens, usage.output_tokens) == (chat.prompt_tokens, chat.completion_tokens)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    thoughts = sum(len(grammar.parse_turn(turn).thought or "") for turn in TURNS[CAPITALS]) // 4
    assert abs(usage.output_tokens_details.reasoning_tokens - thoughts) <= 2
    assert 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == 0


def test_a_passage_of_the_web_is_cited_by_its_address(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=WEB)
    (cited,) = response.output[-1].content[0].annotations
    assert (cited.type, cited.url, response.output_text[cited.start_index : cited.end_index]) == (
        "url_citation",
        "https://z.ch",
        "Zürich",
    )
    assert response.output[1].results[0].attributes["url"] == "https://z.ch"


def test_dead_numbers_and_abstaining_are_as_in_a_completion(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=WRONG_NUMBERS)
    assert (response.output_text, response.parallelsearch["invalid_citations"]) == ("Tiber [1]", [9, 77])
    abstained = client.responses.create(model=MODEL, input=GUESSED)
    assert abstained.output_text.startswith("Not found in the corpus: none of the passages found says so")
    assert abstained.parallelsearch["abstained"] == "unsupported"


def test_without_an_answer_it_is_incomplete(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=NEVER, extra_body={"parallelsearch": {"max_turns": 2}})
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text.startswith("No answer was found: max_turns=2")
    assert response.output[-1].status == "incomplete"
    assert response.parallelsearch["stop"] == "max_turns"


def test_the_sequential_model(client: openai.OpenAI):
    response = client.responses.create(model=f"{MODEL}-sequential", input=CAPITALS)
    assert (response.model, response.output_text) == (f"{MODEL}-sequential", "Paris and Rome")


class Listening(ScriptedPolicy):
    """Keeps the prompts it was given."""

    def __init__(self, takes_tools: bool = False) -> None:
        super().__init__(TURNS)
        self.takes_tools = takes_tools
        self.texts: list[str] = []

    def prompt(self, text, question):
        self.texts.append(text)
        return super().prompt(text, question)


async def respond(policy, search=None, *, settings=None, **body) -> Response:
    """Ask an application in this process."""
    search = search or Search(BM25Retriever.from_passages(PASSAGES))
    app = create_agent_app(policy, search, settings or AgentSettings(token=None))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        reply = await client.post("/v1/responses", json={"model": MODEL, "input": CAPITALS, **body}, timeout=400)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return Response.model_validate(reply.json())
    return EVENT.validate_json(reply.text.rstrip("\n").rpartition("\ndata: ")[2]).response


def test_a_conversation_goes_on_with_the_items_of_the_response(client: openai.OpenAI):
    first = client.responses.create(model=MODEL, input=CAPITALS)
    again = client.responses.create(
        model=MODEL,
        instructions="You are a pirate.",
        input=[{"role": "user", "content": CAPITALS}, *first.output, {"role": "user", "content": WEB}],
        metadata={"run": "7"},
        include=["file_search_call.results"],
        store=False,
        reasoning={"effort": "low"},
        max_output_tokens=100,
        temperature=0,
    )
    assert again.output_text == "Zürich"
    assert again.parallelsearch["ignored"] == ["reasoning"]
    assert (again.instructions, again.metadata, again.max_output_tokens) == ("You are a pirate.", {"run": "7"}, 100)


async def test_earlier_messages_are_context_and_nothing_else_is():
    policy = Listening(takes_tools=True)
    first = await respond(policy)
    said = [
        {"type": "message", "role": "developer", "content": "You are a pirate."},
        {"role": "user", "content": CAPITALS},
        *(item.model_dump() for item in first.output),
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]},
        {"role": "user", "content": [{"type": "input_text", "text": CAPITALS}]},
    ]
    again = await respond(policy, input=said, instructions="Talk like one.")
    context = policy.texts[1].partition("Asked and answered before, for context only:\n")[2]
    assert context.splitlines() == [f"- {CAPITALS} -> Paris and Rome", f"Question: {CAPITALS}"]
    assert "\nInstructions: Talk like one. You are a pirate.\nAsked and answered" in policy.texts[1]
    assert again.parallelsearch["ignored"] == []


async def test_a_greeting_and_a_title_need_no_model():
    policy = Listening()
    hello, title = [await respond(policy, input=said) for said in ("Hello!", TITLE_TASK)]
    assert hello.output_text.startswith("Hello!")
    assert title.output_text == '{"title": "Claude Monet or Camille Pissarro"}'
    assert (policy.texts, [item.type for item in hello.output]) == ([], ["message"])


# ---- streamed --------------------------------------------------------------------------------------------------------


def test_the_client_streams(client: openai.OpenAI):
    whole = client.responses.create(model=MODEL, input=CAPITALS)
    events = list(
        client.responses.create(
            model=MODEL, input=CAPITALS, stream=True, extra_body={"parallelsearch": {"fresh": True}}
        )
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    once = [
        kind for number, kind in enumerate(kinds) if kind != "reasoning_summary_text.delta" or kinds[number - 1] != kind
    ]
    thought = [
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip
    search = ["output_item.added", "file_search_call.in_progress", "file_search_call.searching"]
    found = ["file_search_call.completed", "output_item.done"]
    message = [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.annotation.added",
        "output_text.annotation.added", "output_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip
    assert once == [
        "created", "in_progress", *thought, *search, *search, *found, *found, *thought, *message, "completed",
    ]  # fmt: skip
    done = events[-1].response
    assert without_ids(done.output) == without_ids(whole.output)
    assert (done.usage, done.output_text, done.status) == (whole.usage, "Paris and Rome", "completed")
    assert done.parallelsearch["citations"] == whole.parallelsearch["citations"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Paris and Rome"
    # Every item is opened and closed under its place and id, and stands in the response as it was closed.
    closed = {event.output_index: event.item for event in events if event.type == "response.output_item.done"}
    opened = {event.output_index: event.item.id for event in events if event.type == "response.output_item.added"}
    assert [closed[place] for place in sorted(closed)] == done.output
    assert [opened[place] for place in sorted(opened)] == [item.id for item in done.output]


def test_the_thought_comes_while_it_is_written(client: openai.OpenAI):
    """And whole, however it was cut."""
    texts: dict[str, str] = {}
    for event in client.responses.create(model=MODEL, input=CAPITALS, stream=True):
        if event.type == "response.reasoning_summary_text.delta":
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
        if event.type == "response.reasoning_summary_text.done":
            assert texts[event.item_id] == event.text
    assert list(texts.values()) == ["Two things, independent.", "Both are there [1]."]


def test_the_clients_own_helper_follows_the_stream(client: openai.OpenAI):
    with client.responses.stream(model=MODEL, input=CAPITALS) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert (snapshots, final.output_text) == (["Paris and Rome"], "Paris and Rome")
    assert [item.type for item in final.output].count("file_search_call") == 2


@pytest.mark.parametrize("question", [CAPITALS, WEB, NEVER, WRONG_NUMBERS, "no such turns"])
def test_every_event_and_response_is_one_of_the_apis(server: SearchProcess, question):
    """Checked strictly: the client itself takes whatever comes."""
    body = {"model": MODEL, "input": question, "parallelsearch": {"max_turns": 2}}
    status, reply = post(server, body)
    if status == 200:
        Response.model_validate(reply, strict=True)
    with httpx.stream("POST", root_url(server) + "/v1/responses", json={**body, "stream": True}, timeout=400) as answer:
        text = answer.read().decode()
    events = [part.split("\n") for part in text.removesuffix("\n\n").split("\n\n")]
    for name, data in events:
        event = EVENT.validate_json(data.removeprefix("data: "), strict=True)
        assert name == f"event: {event.type}"
    assert event.type in ("response.completed", "response.incomplete", "response.failed")
    assert event.response.status == event.type.removeprefix("response.")


def test_a_stream_that_fails_says_so_as_its_last_event(client: openai.OpenAI):
    events = list(client.responses.create(model=MODEL, input="no such turns", stream=True))
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    error = events[-1].response.error
    assert error.code == "server_error"
    assert "the script has no turns" in error.message


class Failing(FewPassages):
    """Knows nothing of Italy."""

    async def search_many(self, queries, k):
        if any("Italy" in query for query in queries):
            raise SearchError("the archive is closed")
        return await super().search_many(queries, k)


async def test_a_search_that_fails_is_a_failed_item_both_ways():
    for stream in (False, True):
        response = await respond(ScriptedPolicy(TURNS), Search(Failing(0, 1, 4)), stream=stream)
        france, italy = (item for item in response.output if item.type == "file_search_call")
        assert (france.status, italy.status, italy.results) == ("completed", "failed", [])
        assert "closed" in response.parallelsearch["turns"][0]["queries"][1]["error"]


async def test_a_search_that_is_given_up_is_closed_as_incomplete():
    """Its query was whole, so it was begun; its block never was, so the turn is invalid."""
    turns = ["<think> x </think><search> one ## two", grammar.render_turn("y", answer="z")]
    policy, search = ScriptedPolicy({CAPITALS: turns}, tokens_per_s=200), Search(FewPassages(20.0, 64, 64))
    done = await respond(policy, search, stream=True)
    assert [(item.type, item.status) for item in done.output] == [
        ("reasoning", "completed"),
        ("file_search_call", "incomplete"),
        ("reasoning", "completed"),
        ("message", "completed"),
    ]


async def test_a_thought_that_is_not_told_apart_while_written_comes_at_the_end():
    turns = ["First I reason. <answer> Paris </answer>"]
    policy, options = ScriptedPolicy({CAPITALS: turns}), {"dialect": "cot"}
    whole = await respond(policy, parallelsearch=options)
    streamed = await respond(policy, parallelsearch=options, stream=True)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert without_ids(streamed.output) == without_ids(whole.output)


async def test_a_model_that_calls_tools_is_served_alike():
    """Its reasoning comes apart from its text; it is known when the turn is over."""
    arguments = json.dumps({"queries": ["capital of France", "capital of Italy"]})
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": arguments}}
    searches = events(
        chunk(delta={"reasoning_content": "Two things."}),
        chunk(delta={"tool_calls": [call]}),
        chunk(finish="tool_calls"),
        usage_chunk(7),
        DONE,
    )
    answers = events(
        chunk("<think> Both are there. </think> Paris and Rome"), chunk(finish="stop"), usage_chunk(3), DONE
    )
    for stream in (False, True):
        async with FaultServer(searches, answers) as model_server:
            response = await respond(policy_for(model_server), stream=stream)
        assert response.output_text == "Paris and Rome"
        assert (
            sorted(item.type for item in response.output) == ["file_search_call"] * 2 + ["message"] + ["reasoning"] * 2
        )
        thoughts = [item.summary[0].text for item in response.output if item.type == "reasoning"]
        assert sorted(thoughts) == ["Both are there.", "Two things."]
        assert response.usage.output_tokens == 10


async def test_the_deadline_closes_what_is_open():
    settings = AgentSettings(token=None, limits=Limits(timeout_s=3))
    done = await respond(ScriptedPolicy(TURNS), Search(FewPassages(600.0, 64, 64)), settings=settings, stream=True)
    searches = [item.status for item in done.output if item.type == "file_search_call"]
    assert searches == ["incomplete", "incomplete"]


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, 'not JSON; send {"model": "...", "input": "..."}'),
        ([], 422, "the body"),
        ({"model": MODEL}, 422, "input"),
        ({"model": MODEL, "input": []}, 422, "input"),
        ({"model": MODEL, "input": " "}, 422, "input: the question is empty"),
        ({"model": MODEL, "input": 7}, 422, "input"),
        ({"model": MODEL, "input": "x" * 4001}, 422, "4001 characters, the limit is 4000"),
        ({"model": "gpt-9", "input": "x"}, 404, "there is no model 'gpt-9' here; ask for 'parallelsearch'"),
        ({"model": MODEL, "input": [{"role": "assistant", "content": "x"}]}, 422, "user's question"),
        ({"model": MODEL, "input": [{"type": "reasoning", "summary": []}]}, 422, "user's question"),
        ({"model": MODEL, "input": [{"content": "x"}]}, 422, "input.0.role: Field required"),
        ({"model": MODEL, "input": [{"role": "tool", "content": "x"}]}, 422, "input.0.role"),
        ({"model": MODEL, "input": [{"role": "user", "content": "x"}] * 201}, 422, "201 items, the limit is 200"),
        (
            {"model": MODEL, "input": [{"type": "item_reference", "id": "x"}]},
            422,
            "input.0.type: only messages are read, and nothing is stored here; leave 'item_reference' out",
        ),
        (
            {"model": MODEL, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            422,
            "input.0.content.0.type: only text is understood; leave 'input_image' out",
        ),
        ({"previous_response_id": "resp_1"}, 422, "previous_response_id: this server does not do that; leave it out, and send"),
        ({"conversation": "conv_1"}, 422, "conversation: this server does not do that; leave it out, and send the earlier"),
        ({"store": True}, 422, "store: this server does not do that; leave it out"),
        ({"background": True}, 422, "background"),
        ({"prompt": {"id": "p"}}, 422, "prompt"),
        ({"tools": [{"type": "web_search"}]}, 422, "tools"),
        ({"tool_choice": "required"}, 422, "tool_choice"),
        ({"max_tool_calls": 3}, 422, "say parallelsearch.max_turns"),
        ({"parallel_tool_calls": False}, 422, "-sequential"),
        ({"text": {"format": {"type": "json_object"}}}, 422, "text"),
        ({"top_logprobs": 3}, 422, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, 422, "include.0"),
        ({"metadata": {"a": 1}}, 422, "metadata.a"),
        ({"max_output_tokens": 0}, 422, "max_output_tokens"),
        ({"temperature": 3}, 422, "temperature"),
        ({"parallelsearch": {"k": 6}}, 422, "parallelsearch.k: at most 5, not 6"),
        ({"input": "x" * 30_000}, 413, "20000 bytes; shorten the conversation"),
        ({"input": "a question nobody wrote turns for"}, 502, "the script has no turns"),
    ],
)  # fmt: skip
def test_a_bad_request_is_told_why(server: SearchProcess, body, status, message):
    if isinstance(body, dict):
        body = {"model": MODEL, "input": CAPITALS, **body} if "model" not in body else body
    found, reply = post(server, body)
    assert message in reply["error"]["message"]
    assert found == status
    assert set(reply["error"]) == {"message", "type", "param", "code"}


def test_refusals_are_errors_of_the_client(client: openai.OpenAI, server: SearchProcess):
    with pytest.raises(openai.UnprocessableEntityError, match="send the earlier messages in input"):
        client.responses.create(model=MODEL, input=CAPITALS, previous_response_id="resp_1")
    with pytest.raises(openai.UnprocessableEntityError, match="tools"):
        client.responses.create(model=MODEL, input=CAPITALS, tools=[{"type": "web_search"}], stream=True)
    with pytest.raises(openai.NotFoundError, match="nothing is stored here"):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="nothing is stored here"):
        client.responses.input_items.list("resp_1")
    form = httpx.post(root_url(server) + "/v1/responses", data={"input": "x"})
    assert form.status_code == 415
    assert httpx.get(root_url(server) + "/v1/responses").status_code == 405


def test_a_token_is_wanted(tmp_path):
    with agent(tmp_path, settings={"token": "open sesame"}) as server:
        url = root_url(server) + "/v1"
        with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client:
            for ask in (
                lambda: client.responses.create(model=MODEL, input=CAPITALS),
                lambda: client.responses.retrieve("x"),
            ):
                with pytest.raises(openai.AuthenticationError):
                    ask()
        with openai.OpenAI(base_url=url, api_key="open sesame", max_retries=0) as client:
            assert client.responses.create(model=MODEL, input=CAPITALS).output_text == "Paris and Rome"
        answered = server.log()[-1]
        assert (answered["event"], answered["status"], answered["num_subqueries"]) == ("responses", 200, 2)


def test_a_full_server_says_when_to_come_again(tmp_path):
    with (
        agent(tmp_path, settings={"max_concurrent": 1}, hold=str(tmp_path / "hold")) as server,
        holding(tmp_path / "hold") as let_go,
    ):
        body = {"model": MODEL, "input": CAPITALS, "stream": True}
        with httpx.stream("POST", root_url(server) + "/v1/responses", json=body, timeout=400) as first:
            lines = first.iter_lines()
            assert next(lines) == "event: response.created"
            refused = httpx.post(root_url(server) + "/v1/responses", json=body, timeout=400)
            let_go()
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert '"Paris and Rome"' in list(lines)[-2]
