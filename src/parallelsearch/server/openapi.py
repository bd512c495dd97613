"""What the servers promise, as OpenAPI documents: every status with its body, and the limits of the running server.

A request that its document allows is served, and one that it forbids is refused; only what a schema cannot say (the last
message is the user's) is left to the text. The tests hold a running server to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from parallelsearch import __version__
from parallelsearch.grounding import Basis
from parallelsearch.server import chat_api, responses_api
from parallelsearch.server.asking import EXTRA
from parallelsearch.server.limits import ServerSettings
from parallelsearch.trajectory import AbstainReason

if TYPE_CHECKING:
    from parallelsearch.server.answering import AgentSettings

Schema = dict[str, Any]
_BODY_REFUSED = {
    400: "not JSON",
    408: "the body did not arrive in time",
    413: "the body is too long",
    422: "refused, and why",
}
_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_OBJECT: Schema = {"type": "object"}


def search_openapi(settings: ServerSettings, splits: bool = False) -> Schema:
    """The document of a search server; `splits`: it takes whole questions."""
    what = (
        "Find passages of text for whole questions. Each question is split into independent parts, all are looked up at the "
        "same time, and the passages of all parts come back in one list, best first."
        if splits
        else "Find passages of text. Split a question into independent queries and send them together: they run at the same "
        "time and come back in order, each with its passages, best first."
    )
    texts = {"type": "string", "maxLength": settings.max_query_chars}
    asked = {
        "type": "object",
        "required": ["queries"],
        "properties": {
            "queries": {
                "type": "array",
                "items": texts,
                "maxItems": settings.max_queries,
                "description": "whole questions" if splits else "what to look for, all at once",
            },
            "topk": {
                "type": ["integer", "null"],
                "minimum": 0,
                "maximum": settings.max_k,
                "description": "hits for each query; null or 0: the server's default",
            },
            "return_scores": {"type": ["boolean", "null"], "default": False},
        },
        "example": {"queries": ["capital of France", "capital of Italy"], "topk": 3, "return_scores": True},
    }
    document = _record(
        {"id": _TEXT, "title": _TEXT, "text": _TEXT, "contents": _TEXT},
        url=_TEXT,
        date=_TEXT,
        metadata=_OBJECT,
        queries=_list(_TEXT),
    )
    scored = _record({"document": document, "score": _or_null(_NUMBER)})
    failure = _record({"kind": {"enum": ["transient", "timeout", "failed"]}, "message": _TEXT})
    found = _record(
        {"result": _list(_list({"anyOf": [scored, document]}))},
        errors={"type": "object", "additionalProperties": failure, "description": "failed queries by their position"},
        degraded={
            "type": "object",
            "additionalProperties": _list(_TEXT),
            "description": "by position, queries that were answered in part, and what was missing",
        },
    )
    full = {**_BODY_REFUSED, 503: "too many queries are waiting; see Retry-After"}
    refusal = _record({"detail": _TEXT})
    return _document(
        "parallelsearch search",
        settings,
        refusal,
        {
            # Tool servers, such as Open WebUI's, take what has an operationId for a tool: this one, and not what is watched.
            "/retrieve": {"post": {"operationId": "retrieve", "summary": "hits for each query", "description": what,
                                   "requestBody": _json_body(asked), "responses": _answers(found, full)}},
            **_watching({"pending_queries": _COUNT, "search": _OBJECT, "version": _TEXT}),
        },
    )  # fmt: skip


def agent_openapi(
    settings: AgentSettings, model_names: Sequence[str], dialects: Sequence[str], writers: Sequence[bool]
) -> Schema:
    """The document of an agent server. The endpoints that answer are OpenAI's, with one more field in request and answer.
    `writers` are the values of `read` with which a text can be had."""
    model = _record({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT})
    models = _record({"object": {"const": "list"}, "data": _list(model)})
    error = _record({"message": _TEXT, "type": _TEXT, "param": _or_null(_TEXT), "code": _TEXT})
    asked = {
        **_BODY_REFUSED, 404: "no such model", 415: "not application/json", 429: "full; see Retry-After",
        500: "the policy broke", 502: "the policy failed", 504: "the policy did not come back",
    }  # fmt: skip
    chat, responses = _answers(_completion(), asked), _answers(_response(), asked)
    # As a reader of server-sent events has it: each event's data is JSON, or "[DONE]" at the end of a chat.
    for answers in (chat, responses):
        answers["200"]["content"]["text/event-stream"] = {"schema": {"type": "object", "required": ["data"]}}
    name = {"name": "model", "in": "path", "required": True, "schema": {"enum": list(model_names)}}
    parts = _requests(settings, model_names, dialects, writers)
    document = _document(
        "parallelsearch agent",
        settings,
        _record({"error": error}),
        {
            "/v1/chat/completions": {
                "post": {
                    "summary": "answer a question; the last message is the user's",
                    "requestBody": _json_body({"$ref": "#/components/schemas/ChatBody"}),
                    "responses": chat,
                }
            },
            "/v1/responses": {
                "post": {
                    "summary": "the same, with searches and thoughts as items; the last message is the user's",
                    "requestBody": _json_body({"$ref": "#/components/schemas/ResponsesBody"}),
                    "responses": responses,
                }
            },
            "/v1/models": {"get": {"summary": "both ways of searching", "responses": _answers(models, {})}},
            "/v1/models/{model}": {
                "parameters": [name],
                "get": {"summary": "one of them", "responses": _answers(model, {404: "no such model"})},
            },
            **_watching({"pending_questions": _COUNT, "policy": _OBJECT, "search": _OBJECT, "version": _TEXT}),
        },
    )
    document["components"]["schemas"] |= parts
    return document


# ---- the endpoints that answer ---------------------------------------------------------------------------------------


def _requests(
    settings: AgentSettings, model_names: Sequence[str], dialects: Sequence[str], writers: Sequence[bool]
) -> Schema:
    """The schemas of requests, with what this server allows."""
    question = "Who is older, Claude Monet or Camille Pissarro?"
    parts: Schema = {}
    for kind, cannot, example in (
        (chat_api.ChatBody, chat_api.CANNOT, {"messages": [{"role": "user", "content": question}]}),
        (responses_api.ResponsesBody, responses_api.CANNOT, {"input": question}),
    ):
        body = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        parts |= body.pop("$defs")
        body["properties"]["model"]["enum"] = list(model_names)
        body["properties"] |= {field: {"enum": list(harmless)} for field, harmless in cannot.items()}
        body["example"] = {"model": model_names[0], **example}
        parts[kind.__name__] = body
    text, items = parts["ResponsesBody"]["properties"]["input"]["anyOf"]
    text["maxLength"] = settings.chat.max_question_chars
    for messages in (parts["ChatBody"]["properties"]["messages"], items):
        messages["maxItems"] = settings.chat.max_messages
    options = parts["AskOptions"]["properties"]
    options["dialect"]["enum"] = [*dialects, None]
    if not writers:
        options["written"]["enum"] = [False, None]
    elif False not in writers:
        only_read = {"read": {"const": False}, "written": {"const": True}}
        parts["AskOptions"]["not"] = {"required": list(only_read), "properties": only_read}
    for option, most in (("k", settings.max_k), ("max_turns", settings.max_turns), ("timeout_s", settings.timeout_s)):
        options[option]["anyOf"][0]["maximum"] = most
    return parts


def _beside() -> Schema:
    """The extra field of an answer."""
    query = _record({
        "text": _TEXT, "start_s": _NUMBER, "end_s": _NUMBER, "cached": {"type": "boolean"}, "error": _or_null(_TEXT),
        "sources": _list(_COUNT),
    })  # fmt: skip
    turn = _record({"start_s": _NUMBER, "generate_s": _NUMBER, "num_tokens": _or_null(_COUNT), "queries": _list(query)})
    named = {"number": _COUNT, "id": _TEXT, "title": _TEXT, "url": _or_null(_TEXT), "place": _or_null(_TEXT)}
    return _record({
        "answer": _or_null(_TEXT), "abstained": {"enum": [None, *get_args(AbstainReason)]},
        "question": _TEXT, "reading": _or_null(_record({
            "model": _or_null(_TEXT), "own_answer": _or_null(_TEXT), "error": _or_null(_TEXT), "start_s": _NUMBER,
            "generate_s": _NUMBER,
        })),
        "stop": {"enum": ["answer", "max_turns", "max_tokens", "timeout"]}, "elapsed_s": _NUMBER,
        "num_llm_calls": _COUNT, "num_searches": _COUNT, "num_subqueries": _COUNT, "num_input_tokens": _COUNT,
        "num_output_tokens": _COUNT, "cost": _or_null(_NUMBER), "turns": _list(turn),
        "sources": _list(_record({**named, "text": _TEXT, "queries": _list(_TEXT), "metadata": _or_null(_OBJECT)})),
        "nearest": _list(_COUNT), "citations": _list(_record({**named, "basis": {"enum": list(get_args(Basis))}})),
        "invalid_citations": _list(_COUNT), "written": {"type": "boolean"},
        "doubts": _list(_record({"number": _COUNT, "text": _TEXT, "missing": _list(_TEXT)})), "ignored": _list(_TEXT),
    })  # fmt: skip


def _completion() -> Schema:
    """A chat completion that is not streamed."""
    message = _record(
        {"role": {"const": "assistant"}, "content": _TEXT, "refusal": {"type": "null"}, "reasoning_content": _TEXT,
         EXTRA: _beside()},
        annotations=_list(_OBJECT),
    )  # fmt: skip
    choice = _record({
        "index": {"const": 0}, "message": message, "finish_reason": {"enum": ["stop", "length"]},
        "logprobs": {"type": "null"},
    })  # fmt: skip
    usage = _record({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
    return _record({
        "id": _TEXT, "object": {"const": "chat.completion"}, "created": _COUNT, "model": _TEXT,
        "choices": _list(choice), "usage": usage,
    })  # fmt: skip


def _response() -> Schema:
    """A response that is not streamed."""
    null: Schema = {"type": "null"}
    status: Schema = {"enum": ["completed", "incomplete"]}
    thought = _record({
        "id": _TEXT, "type": {"const": "reasoning"}, "status": {"const": "completed"},
        "summary": _list(_record({"type": {"const": "summary_text"}, "text": _TEXT})),
    })  # fmt: skip
    hit = _record({
        "file_id": _TEXT, "filename": _TEXT, "text": _TEXT, "score": _or_null(_NUMBER),
        "attributes": _record({"rank": _COUNT}, url=_TEXT, place=_TEXT),
    })  # fmt: skip
    search = _record({
        "id": _TEXT, "type": {"const": "file_search_call"}, "queries": _list(_TEXT), "results": _list(hit),
        "status": {"enum": ["completed", "failed"]},
    })  # fmt: skip
    web = _record({
        "type": {"const": "url_citation"}, "start_index": _COUNT, "end_index": _COUNT, "title": _TEXT, "url": _TEXT,
    })  # fmt: skip
    passage = _record({"type": {"const": "file_citation"}, "file_id": _TEXT, "filename": _TEXT, "index": _COUNT})
    text = _record({
        "type": {"const": "output_text"}, "text": _TEXT, "annotations": _list({"anyOf": [web, passage]}),
        "logprobs": _list(_OBJECT),
    })  # fmt: skip
    message = _record({
        "id": _TEXT, "type": {"const": "message"}, "role": {"const": "assistant"}, "status": status,
        "content": _list(text),
    })  # fmt: skip
    usage = _record({
        "input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT,
        "input_tokens_details": _record({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
        "output_tokens_details": _record({"reasoning_tokens": _COUNT}),
    })  # fmt: skip
    return _record({
        "id": _TEXT, "object": {"const": "response"}, "created_at": _COUNT, "completed_at": _COUNT, "status": status,
        "error": null, "incomplete_details": _or_null(_record({"reason": {"const": "max_output_tokens"}})),
        "model": _TEXT, "instructions": _or_null(_TEXT), "metadata": _OBJECT, "max_output_tokens": _or_null(_COUNT),
        "temperature": _or_null(_NUMBER), "top_p": _or_null(_NUMBER),
        "output": _list({"anyOf": [thought, search, message]}), "parallel_tool_calls": {"const": True},
        "tool_choice": {"const": "auto"}, "tools": _list(_OBJECT), "text": _OBJECT, "truncation": _TEXT,
        "background": {"const": False}, "store": {"const": False}, "previous_response_id": null, "usage": usage,
        EXTRA: _beside(),
    })  # fmt: skip


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _record(always: Schema, **sometimes: Schema) -> Schema:
    """An object with these fields and no others."""
    fields = {**always, **sometimes}
    return {"type": "object", "required": list(always), "properties": fields, "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _json_body(schema: Schema) -> Schema:
    return {"required": True, "content": _json(schema)}


def _answers(good: Schema, refused: dict[int, str], kind: str = "application/json") -> Schema:
    """The answers of an endpoint: what it is for, what it refuses, and what every guarded endpoint refuses."""
    answers: Schema = {"200": {"description": "as asked", "content": {kind: {"schema": good}}}}
    for status, what in sorted({**refused, 401: "a token is needed", 421: "not a name of this server"}.items()):
        answers[str(status)] = {"description": what, "content": _json({"$ref": "#/components/schemas/Refusal"})}
    text = {"schema": _TEXT}
    answers["401"]["headers"] = {"WWW-Authenticate": text}
    for full in {"429", "503"} & answers.keys():
        answers[full]["headers"] = {"Retry-After": text}
    return answers


def _watching(inside: Schema) -> Schema:
    """`/health` and `/metrics`. Who has no token learns only that the server lives."""
    state = _record({"status": {"const": "ok"}, "uptime_s": _NUMBER}, **inside)
    alive = {"200": {"description": "alive", "content": _json(state)}}
    return {
        "/health": {"get": {"summary": "whether it lives", "security": [], "responses": alive}},
        "/metrics": {"get": {"summary": "Prometheus' form", "responses": _answers(_TEXT, {}, "text/plain")}},
    }


def _document(title: str, settings: ServerSettings, refusal: Schema, paths: Schema) -> Schema:
    components: Schema = {"schemas": {"Refusal": refusal}}
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": components,
    }
    if settings.token is not None:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document
