"""What the servers promise, as OpenAPI documents: every status with its body, and the limits of the running server.

A request that its document allows is served, and one that it forbids is refused; only what a schema cannot say (the last
message is the user's) is left to the text. The tests hold a running server to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parallelsearch import __version__
from parallelsearch.server import chat_api
from parallelsearch.server.limits import ServerSettings

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


def search_openapi(settings: ServerSettings) -> Schema:
    """The document of a search server."""
    texts = {"type": "string", "maxLength": settings.max_query_chars}
    asked = {
        "type": "object",
        "required": ["queries"],
        "properties": {
            "queries": {"type": "array", "items": texts, "maxItems": settings.max_queries},
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
    document = _record({"id": _TEXT, "title": _TEXT, "text": _TEXT, "contents": _TEXT}, url=_TEXT, date=_TEXT)
    scored = _record({"document": document, "score": _or_null(_NUMBER)})
    failure = _record({"kind": {"enum": ["transient", "timeout", "failed"]}, "message": _TEXT})
    found = _record(
        {"result": _list(_list({"anyOf": [scored, document]}))},
        errors={"type": "object", "additionalProperties": failure, "description": "failed queries by their position"},
    )
    full = {**_BODY_REFUSED, 503: "too many queries are waiting; see Retry-After"}
    refusal = _record({"detail": _TEXT})
    return _document(
        "parallelsearch search",
        settings,
        refusal,
        {
            "/retrieve": {"post": {"summary": "hits for each query", "requestBody": _json_body(asked),
                                   "responses": _answers(found, full)}},
            **_watching({"pending_queries": _COUNT, "search": _OBJECT, "version": _TEXT}),
        },
    )  # fmt: skip


def agent_openapi(settings: AgentSettings, model_names: Sequence[str]) -> Schema:
    """The document of an agent server. The chat endpoint is OpenAI's, with one more field in request and answer."""
    model = _record({"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT})
    models = _record({"object": {"const": "list"}, "data": _list(model)})
    error = _record({"message": _TEXT, "type": _TEXT, "param": {"type": "null"}, "code": _COUNT})
    chat = _answers(_completion(), {
        **_BODY_REFUSED, 404: "no such model", 415: "not application/json", 429: "full; see Retry-After",
        500: "the policy broke", 502: "the policy failed", 504: "the policy did not come back",
    })  # fmt: skip
    # As a reader of server-sent events has it: each event's data is a chunk as JSON, an error as JSON, or "[DONE]".
    chat["200"]["content"]["text/event-stream"] = {"schema": {"type": "object", "required": ["data"]}}
    name = {"name": "model", "in": "path", "required": True, "schema": {"enum": list(model_names)}}
    parts = _chat_request(settings, model_names)
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


# ---- the chat endpoint -----------------------------------------------------------------------------------------------


def _chat_request(settings: AgentSettings, model_names: Sequence[str]) -> Schema:
    """The schemas of a request, with what this server allows."""
    body = chat_api.ChatBody.model_json_schema(ref_template="#/components/schemas/{model}")
    parts: Schema = body.pop("$defs")
    fields, options = body["properties"], parts["AskOptions"]["properties"]
    fields["model"]["enum"] = list(model_names)
    fields["messages"]["maxItems"] = settings.chat.max_messages
    fields |= {field: {"enum": list(harmless)} for field, harmless in chat_api.CANNOT.items()}
    for option, most in (("k", settings.max_k), ("max_turns", settings.max_turns), ("timeout_s", settings.timeout_s)):
        options[option]["anyOf"][0]["maximum"] = most
    question = "Who is older, Claude Monet or Camille Pissarro?"
    body["example"] = {"model": model_names[0], "messages": [{"role": "user", "content": question}]}
    return {**parts, "ChatBody": body}


def _completion() -> Schema:
    """An answer that is not streamed."""
    query = _record({
        "text": _TEXT, "start_s": _NUMBER, "end_s": _NUMBER, "cached": {"type": "boolean"}, "error": _or_null(_TEXT),
        "sources": _list(_COUNT),
    })  # fmt: skip
    turn = _record({"start_s": _NUMBER, "generate_s": _NUMBER, "num_tokens": _or_null(_COUNT), "queries": _list(query)})
    named = {"number": _COUNT, "id": _TEXT, "title": _TEXT, "url": _or_null(_TEXT)}
    beside = _record({
        "answer": _or_null(_TEXT), "abstained": {"enum": [None, "no_answer", "no_evidence", "unsupported"]},
        "stop": {"enum": ["answer", "max_turns", "max_tokens", "timeout"]}, "elapsed_s": _NUMBER,
        "num_llm_calls": _COUNT, "num_searches": _COUNT, "num_subqueries": _COUNT, "turns": _list(turn),
        "sources": _list(_record({**named, "text": _TEXT, "queries": _list(_TEXT)})),
        "citations": _list(_record({**named, "basis": {"enum": ["cited", "contains_answer"]}})),
        "invalid_citations": _list(_COUNT), "ignored": _list(_TEXT),
    })  # fmt: skip
    message = _record(
        {"role": {"const": "assistant"}, "content": _TEXT, "refusal": {"type": "null"}, "reasoning_content": _TEXT,
         chat_api.EXTRA: beside},
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
