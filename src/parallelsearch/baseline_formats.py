"""Methods that write in another project's format, and the list of all methods by name.

Search-o1's special marks with its step that condenses the results; the formats of the released Search-R1 (one query),
ParallelSearch (`##`), RAG-R1 (a JSON list, or queries between commas) and Ferret (tool-call JSON) checkpoints. Only the
format is theirs: the prompts are worded here, and the exact one a checkpoint was trained on is given as `prompt_template`.
Results of Ferret's tool are inserted as text, without the chat turn its own trainer puts around them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from parallelsearch import grammar
from parallelsearch.baselines import (
    ChainOfThought,
    Direct,
    IRCoT,
    Method,
    MethodPolicy,
    Rag,
    Sequential,
    Step,
    inside,
    read_answer,
    write_turn,
)
from parallelsearch.errors import UsageError, nearest
from parallelsearch.grammar import ANSWER, SEARCH, THINK
from parallelsearch.policy.base import Policy

# ---- Search-o1 -------------------------------------------------------------------------------------------------------

_QUERY, _QUERY_END = "<|begin_search_query|>", "<|end_search_query|>"
_RESULT, _RESULT_END = "<|begin_search_result|>", "<|end_search_result|>"


class SearchO1(Method):
    """One stream of reasoning; each query's results are condensed by a call of their own before they go in."""

    name, summary, translates = (
        "search-o1",
        "reasoning with marked queries; results are condensed by an extra call",
        True,
    )
    stop = (_QUERY_END, grammar.closing(ANSWER))

    def default_prompt(self, question: str) -> str:
        return (
            f"Reason step by step about the question. To look something up, write {_QUERY} your query {_QUERY_END}; what was "
            f"found follows between {_RESULT} and {_RESULT_END}. You may do so several times. At the end, give the answer "
            f"itself, short, between {grammar.opening(ANSWER)} and {grammar.closing(ANSWER)}.\n"
            f"Question: {grammar.tidy_question(question)}\n"
        )

    def read(self, text: str, is_last: bool) -> str:
        before, mark, rest = text.partition(_QUERY)
        if mark and not is_last:
            return write_turn(before, [rest.partition(_QUERY_END)[0]])
        return write_turn(before, answer=read_answer(text))

    def observation(self, text: str) -> str:
        return f"\n{_RESULT}\n{inside(text)}\n{_RESULT_END}\n"

    def digest_prompt(self, question: str, steps: Sequence[Step], results: str) -> str | None:
        said = [step.text for step in steps if step.author == "model"]
        query = said[-1].rpartition(_QUERY)[2].replace(_QUERY_END, "").strip() if said else ""
        found = results.replace(_RESULT, "").replace(_RESULT_END, "").strip()
        return (
            f"Someone works on this question: {grammar.tidy_question(question)}\nThey looked up: {query}\n"
            f"This was found:\n{found}\n\nWrite down, in a few sentences, only what helps with the question. "
            "If nothing does, say so.\n"
        )


# ---- released checkpoints --------------------------------------------------------------------------------------------


class SearchR1(Method):
    """One query a search: a separator in it means nothing."""

    name, summary = "search-r1", "format of the released Search-R1 checkpoints"
    mode, layout, translates = "sequential", "paper", True

    def read(self, text: str, is_last: bool) -> str:
        content = _between(text, SEARCH)
        parsed = grammar.parse_turn(text)
        if parsed.action != "search" or content is None:
            return text
        return write_turn(parsed.thought or "", [content])


class ParallelSearchFormat(Method):
    name, summary, layout = "parallelsearch", "format of the released ParallelSearch checkpoints (##)", "paper"


class RagR1(Method):
    """Several queries a search, as a JSON list or between commas."""

    name, summary, translates = "rag-r1", "format of the released RAG-R1 checkpoints (JSON list, or commas)", True
    layout = "paper"

    def default_prompt(self, question: str) -> str:
        return grammar.prompt_text(question, "sequential").replace(
            grammar.wrap(SEARCH, "query"), grammar.wrap(SEARCH, '["first query", "second query"]')
        )

    def read(self, text: str, is_last: bool) -> str:
        content = _between(text, SEARCH)
        parsed = grammar.parse_turn(text)
        if parsed.action != "search" or content is None:
            return text
        return write_turn(parsed.thought or "", _json_list(content) or content.split(","))


_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_TOOL_RESULT = "<tool_response>", "</tool_response>"


class Ferret(Method):
    """A tool call with a list of queries."""

    name, summary, translates = "ferret", "format of the released Ferret checkpoints (tool-call JSON)", True
    layout = "paper"
    stop = (_CALL_END, grammar.closing(ANSWER))

    def default_prompt(self, question: str) -> str:
        call = json.dumps({"name": "search", "arguments": {"query_list": ["first query", "second query"]}})
        return (
            f"Answer the question below. Reason between {grammar.opening(THINK)} and {grammar.closing(THINK)} before every "
            f"step. To search, call the tool: {_CALL}{call}{_CALL_END}. The results follow between {_TOOL_RESULT[0]} and "
            f"{_TOOL_RESULT[1]}. Once nothing is missing, give the answer, short and without explanation, between "
            f"{grammar.opening(ANSWER)} and {grammar.closing(ANSWER)}.\nQuestion: {grammar.tidy_question(question)}\n"
        )

    def read(self, text: str, is_last: bool) -> str:
        before, mark, rest = text.partition(_CALL)
        thought = before.replace(grammar.opening(THINK), " ").replace(grammar.closing(THINK), " ")
        if mark and grammar.opening(ANSWER) not in before:
            return write_turn(thought, _called_queries(rest.partition(_CALL_END)[0]))
        return write_turn(thought.partition(grammar.opening(ANSWER))[0], answer=read_answer(text))

    def observation(self, text: str) -> str:
        return f"\n{_TOOL_RESULT[0]}\n{inside(text)}\n{_TOOL_RESULT[1]}\n"


def _between(text: str, tag: str) -> str | None:
    """The content of the last closed block of this tag."""
    end = text.rfind(grammar.closing(tag))
    start = text.rfind(grammar.opening(tag), 0, end) if end >= 0 else -1
    return text[start + len(grammar.opening(tag)) : end].strip() if start >= 0 else None


def _json_list(content: str) -> list[str]:
    try:
        value = json.loads(content)
    except ValueError:
        return []
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _called_queries(call: str) -> list[str]:
    """The queries of a tool call; also of one that was cut short or spells its arguments otherwise."""
    try:
        record = json.loads(call)
    except ValueError:
        found = re.search(r"\"quer(?:y_list|ies|y)\"\s*:\s*(\[.*?\]|\"(?:[^\"\\]|\\.)*\")", call, re.DOTALL)
        record = {"arguments": {"query_list": _loads(found[1])}} if found else {}
    arguments = record.get("arguments", record) if isinstance(record, dict) else {}
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    if not isinstance(arguments, dict):
        return []
    value: object = next((arguments[key] for key in ("query_list", "queries", "query") if key in arguments), [])
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


# ---- by name ---------------------------------------------------------------------------------------------------------

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Method,
        Sequential,
        Direct,
        ChainOfThought,
        Rag,
        IRCoT,
        SearchO1,
        SearchR1,
        ParallelSearchFormat,
        RagR1,
        Ferret,
    )
}


def open_method(name: str, prompt_template: str | None = None) -> Method:
    """The method of this name."""
    method = METHODS.get(name)
    if method is None:
        raise UsageError(f"there is no method '{name}'; choose one of {', '.join(METHODS)}.{nearest(name, METHODS)}")
    return method(prompt_template)


def wrap_policy(policy: Policy, method: Method) -> Policy:
    """The policy that follows this method: itself where the rollout alone does it."""
    return policy if method.is_plain else MethodPolicy(policy, method)
