"""The formats of released checkpoints: Search-R1 (one query), ParallelSearch (`##`), RAG-R1 (a JSON list, or queries between
commas) and Ferret (tool-call JSON).

Only the format is theirs: the prompts are worded here, and the exact one a checkpoint was trained on is given as
`prompt_template`. Results of Ferret's tool are inserted as text, without the chat turn its own trainer puts around them.
"""

from __future__ import annotations

import json
import re

from parallelsearch import grammar
from parallelsearch.dialect import Part
from parallelsearch.dialects.free_text import inside, read_answer, write_turn
from parallelsearch.dialects.tags import Parallel, Translated
from parallelsearch.grammar import ANSWER, SEARCH, THINK
from parallelsearch.observation import Observation


class SearchR1(Translated):
    """One query a search: a separator in it means nothing."""

    name, summary = "search-r1", "format of the released Search-R1 checkpoints"
    layout = "paper"
    may_split = False

    def own_prompt(self, question: str, context: str = "") -> str:
        return grammar.prompt_text(question, "sequential", context)

    def translate(self, text: str, is_last: bool) -> str:
        content = _between(text, SEARCH)
        parsed = grammar.parse_turn(text)
        if parsed.action != "search" or content is None:
            return text
        return write_turn(parsed.thought or "", [content])


class ParallelSearchFormat(Parallel):
    name, summary, layout = "parallelsearch", "format of the released ParallelSearch checkpoints (##)", "paper"


class RagR1(Translated):
    """Several queries a search, as a JSON list or between commas."""

    name, summary = "rag-r1", "format of the released RAG-R1 checkpoints (JSON list, or commas)"
    layout = "paper"

    def own_prompt(self, question: str, context: str = "") -> str:
        return grammar.prompt_text(question, "sequential", context).replace(
            grammar.wrap(SEARCH, "query"), grammar.wrap(SEARCH, '["first query", "second query"]')
        )

    def translate(self, text: str, is_last: bool) -> str:
        content = _between(text, SEARCH)
        parsed = grammar.parse_turn(text)
        if parsed.action != "search" or content is None:
            return text
        return write_turn(parsed.thought or "", _json_list(content) or content.split(","))


_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_TOOL_RESULT = "<tool_response>", "</tool_response>"


class Ferret(Translated):
    """A tool call with a list of queries."""

    name, summary = "ferret", "format of the released Ferret checkpoints (tool-call JSON)"
    layout = "paper"
    stop = (_CALL_END, grammar.closing(ANSWER))

    def own_prompt(self, question: str, context: str = "") -> str:
        call = json.dumps({"name": "search", "arguments": {"query_list": ["first query", "second query"]}})
        return (
            f"Answer the question below. Reason between {grammar.opening(THINK)} and {grammar.closing(THINK)} before every "
            f"step. To search, call the tool: {_CALL}{call}{_CALL_END}. The results follow between {_TOOL_RESULT[0]} and "
            f"{_TOOL_RESULT[1]}. Once nothing is missing, give the answer, short and without explanation, between "
            f"{grammar.opening(ANSWER)} and {grammar.closing(ANSWER)}.\n"
            f"{grammar.defuse(context)}Question: {grammar.tidy_question(question)}\n"
        )

    def translate(self, text: str, is_last: bool) -> str:
        before, mark, rest = text.partition(_CALL)
        thought = before.replace(grammar.opening(THINK), " ").replace(grammar.closing(THINK), " ")
        if mark and grammar.opening(ANSWER) not in before:
            return write_turn(thought, _called_queries(rest.partition(_CALL_END)[0]))
        return write_turn(thought.partition(grammar.opening(ANSWER))[0], answer=read_answer(text))

    def show(self, observation: Observation) -> tuple[Part, ...]:
        return (Part(f"\n{_TOOL_RESULT[0]}\n{inside(observation.text)}\n{_TOOL_RESULT[1]}\n"),)


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
