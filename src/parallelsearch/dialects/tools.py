"""Native tool calls: one tool `search(queries: string[])`, for models that were trained to call tools and not on our tags.

The calls of one message are one turn. What cannot be used (another tool, broken JSON, no query) gets an answer that the model
can act on, as the tool message of that very call. A message without calls is the answer; `tools-answer` has a second tool for
it, which gives short answers for scoring; `tools-written` asks for a text with its sources. Calls that leak into the text,
because a server has no parser for a model's form, are read there: between `<tool_call>` tags, in a fence, or bare; brackets
that are missing at the end are added.

`CallReader` follows the arguments while they are written: a query is handed out the moment its JSON string closes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from parallelsearch import grammar
from parallelsearch.dialect import Dialect, Group, OnQuery, PartsReader, Tool, TurnReader
from parallelsearch.dialects.free_text import inside, read_answer
from parallelsearch.grammar import ParsedTurn, Problem, SubQueries, TurnParts, collect_queries
from parallelsearch.observation import Observation
from parallelsearch.trajectory import Call, Segment

# A long description is copied by a small model in place of a call, and without an example it asks for bare names.
SEARCH_TOOL = Tool(
    "search",
    "Search for passages. Takes several queries and runs them at the same time.",
    {
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Search queries, one for each thing to look up. For example, to compare the heights of two "
                'towers: ["height of the Eiffel Tower", "height of the Tokyo Tower"]',
            }
        },
        "required": ["queries"],
    },
)
ANSWER_TOOL = Tool(
    "answer",
    "Give the final answer.",
    {
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "the answer itself, short, without explanation"}},
        "required": ["answer"],
    },
)
_ALL_AT_ONCE = (
    "If it is about several things, ask for all of them in one call, with a query for each. A query names the thing and what "
    "you want to know of it. What you can only ask once you know a result comes in a later call."
)
_HOW = 'call search with {"queries": ["...", "..."]}'

_PROBLEMS = {
    "unknown_tool": f"there is no such tool; {_HOW}",
    "bad_arguments": f"the arguments could not be read; {_HOW}",
    "empty_search": f"the call has no query; {_HOW}",
    "empty_answer": "the message is empty; search or answer",
}


class Tools(Dialect):
    """Asks for native calls; the message without a call is the answer."""

    name = "tools"
    summary = "native tool calls: search(queries=[...]), for models that were not trained on tags"
    tools: tuple[Tool, ...] = (SEARCH_TOOL,)
    has_messages = True
    how_to_answer = "give the answer, short and without explanation"
    answer_start = "The answer is:"
    written = "tools-written"
    how = _HOW
    idle = "Nothing new was asked; see the other results."

    def own_prompt(self, question: str, context: str = "") -> str:
        return (
            f"Answer the question with the help of the tool search. {_ALL_AT_ONCE} Rely on what was found. Once nothing is "
            f"missing, {self.how_to_answer}.\n{grammar.defuse(context)}"
            f"Question: {grammar.tidy_question(question, may_be_order=True)}\n"
        )

    def answer_in(self, text: str) -> str:
        """The answer that a message without a call gives."""
        return read_answer(text) or _lines(text)

    def read(self, segment: Segment, max_subqueries: int, is_last: bool = False) -> ParsedTurn:
        calls = calls_of(segment)
        thought = _thought(segment)
        if not calls:
            answer = self.answer_in(_without_thoughts(segment.text))
            return (
                _parsed("answer", thought, answer=answer) if answer else _parsed(None, thought, codes=["empty_answer"])
            )
        answers = [said for call in calls if call.name == ANSWER_TOOL.name and (said := _answer(call))]
        asked = collect_queries([query for call in calls for query in _queries(call)[0]], max_subqueries)
        codes = [code for call in calls if (code := self.problem_of(call)) is not None]
        if asked.asked and not (is_last and answers):
            return _parsed("search", thought, asked, codes=codes)
        if answers:
            return _parsed("answer", thought, answer=answers[-1], codes=codes)
        return _parsed(None, thought, codes=codes or ["empty_search"])

    def problem_of(self, call: Call) -> str | None:
        """What is wrong with a call, as a code."""
        if call.name not in {tool.name for tool in self.tools}:
            return "unknown_tool"
        return _queries(call)[1] if call.name == SEARCH_TOOL.name else (None if _answer(call) else "empty_answer")

    def reader(self, on_query: OnQuery, max_subqueries: int) -> TurnReader | None:
        return CallReader(on_query, max_subqueries)

    def parts(self) -> PartsReader:
        """Thoughts may stand in tags; whether other text is the answer or goes with a call shows at its end."""
        return TurnParts()

    # ---- what it is told -----------------------------------------------------------------------------------------------

    def groups(self, segment: Segment, queries: Sequence[str]) -> list[Group]:
        """One tool message for each call. A query that an earlier call asked stands with that one."""
        place = {grammar.query_key(query): number for number, query in enumerate(queries)}
        groups: list[Group] = []
        for call in calls_of(segment):
            wanted = dict.fromkeys(grammar.query_key(query) for query in _queries(call)[0])
            own = [place.pop(key) for key in wanted if key in place]
            code = self.problem_of(call)
            word = "" if own else f"{_PROBLEMS[code].replace(_HOW, self.how)}." if code else self.idle
            groups.append(Group(own, call.id if segment.calls else None, word))
        return groups

    def show_text(self, observation: Observation) -> str:
        return inside(observation.text)

    def notice_invalid(self, problems: Sequence[Problem]) -> str:
        said = (problems[0].message if problems else _PROBLEMS["empty_search"]).replace(_HOW, self.how)
        return f"{said[:1].upper()}{said[1:]}."

    def notice_last_turn(self) -> str | None:
        return "No more searches are possible. Answer from what was found."

    def partial_answer(self, text: str) -> str | None:
        return None  # half a message may be anything


class ToolsWithAnswer(Tools):
    """Answers through a second tool."""

    name = "tools-answer"
    summary = "as tools, with a tool for the answer: short answers for scoring"
    tools = (SEARCH_TOOL, ANSWER_TOOL)
    last_tool = ANSWER_TOOL.name
    how_to_answer = "call the tool answer"


class WrittenTools(Tools):
    """Answers in a text with its sources: paragraphs, lists and tables, for people rather than for scoring. How to write it
    is said with the results: told at the beginning, a small model writes at once and searches for nothing."""

    name = "tools-written"
    summary = "as tools, with a text that names its sources for an answer (--written)"
    how_to_answer = "answer"
    after_results = (
        "\n\nIf something is still missing, search again, for all of it in one call. If nothing is, write the answer, "
        f"{grammar.HOW_TO_WRITE}."
    )
    answer_start = ""
    is_written = True

    def answer_in(self, text: str) -> str:
        return grammar.written_answer(text)

    def partial_answer(self, text: str) -> str | None:
        """What names a passage is neither a plan nor a call."""
        begun = self.answer_in(_without_thoughts(text))
        return begun if _NAMES_PASSAGE.search(begun) and not _BEGINS.search(begun) else None

    def notice_last_turn(self) -> str | None:
        return f"No more searches are possible. Write the answer from what was found, {grammar.HOW_TO_WRITE}."


class ToolsOneAtATime(Tools):
    """Takes one query a turn: what `tools` is compared with. With tags two ways to talk would stand side by side, and not two
    ways to search."""

    name = "tools-sequential"
    summary = "as tools, one query a turn: the baseline of tools"
    tools = (
        Tool(
            SEARCH_TOOL.name,
            "Look one thing up.",
            {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "what to look up"}},
                "required": ["query"],
            },
            one_at_a_time=True,
        ),
    )
    may_split = False
    written = ""
    how = 'call search with {"query": "..."}'
    idle = "Only one query is looked up at a time. Ask for this again if it is still needed."

    def own_prompt(self, question: str, context: str = "") -> str:
        return super().own_prompt(question, context).replace(_ALL_AT_ONCE, "Look up one thing at a time.")

    def read(self, segment: Segment, max_subqueries: int, is_last: bool = False) -> ParsedTurn:
        return super().read(segment, min(1, max_subqueries), is_last)

    def reader(self, on_query: OnQuery, max_subqueries: int) -> TurnReader | None:
        return super().reader(on_query, min(1, max_subqueries))


def _parsed(
    action: Literal["search", "answer"] | None,
    thought: str | None,
    asked: SubQueries | None = None,
    *,
    answer: str | None = None,
    codes: Sequence[str] = (),
) -> ParsedTurn:
    asked = asked or SubQueries()
    return ParsedTurn(
        action=action,
        thought=thought,
        queries=asked.asked if action == "search" else (),
        dropped=asked.dropped if action == "search" else (),
        answer=answer,
        separated=action == "search" and len(asked.asked) > 1,
        num_duplicates=asked.num_duplicates,
        num_empty=asked.num_empty,
        problems=tuple(Problem(code, _PROBLEMS[code]) for code in dict.fromkeys(codes)),
    )


# ---- reading calls ---------------------------------------------------------------------------------------------------

_THINK, _THOUGHT_END = grammar.opening(grammar.THINK), grammar.closing(grammar.THINK)
_QUERY_KEYS = ("queries", "query", "query_list", "q")
_ARGUMENT_KEYS = ("arguments", "parameters")
_BEGINS = re.compile(rf'\{{\s*"(?:name|type|function|{"|".join((*_ARGUMENT_KEYS, *_QUERY_KEYS))})"\s*:')
"""The beginning of a call in a text, whatever stands around it."""
_LISTS = re.compile(rf'"(?:{"|".join(_QUERY_KEYS)})"\s*:\s*(?=\[)')
_MARKS = re.compile(r"</?(?:tool_call|tools)>|```(?:json|tool_call)?")
"""What may stand around it, and belongs to no thought."""
_NAMES_PASSAGE = re.compile(r"\[\d{1,4}[],]")
_MANY_BREAKS = re.compile(r"\n{3,}")
_DECODER = json.JSONDecoder()


def calls_of(segment: Segment) -> list[Call]:
    """The calls of a turn: those the server read, or else those that stand in its text."""
    return segment.calls or _leaks(_without_thoughts(segment.text))[0]


def _leaks(text: str) -> tuple[list[Call], str]:
    """The calls that stand in a text, and the text without them."""
    calls: list[Call] = []
    beside, at = "", 0
    while (begin := _BEGINS.search(text, at)) is not None:
        start = begin.start()
        beside += text[at:start]
        try:
            record, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):  # cut off, or not JSON: no answer, but a call that went wrong
            mark = _MARKS.search(text, start)
            at = mark.start() if mark else len(text)
            record = _completed(text[start:at])
        call = _leaked(f"leaked-{len(calls)}", record, text[start:at])
        if call is None:
            beside += text[start:at]
        else:
            calls.append(call)
    return (calls, _MARKS.sub(" ", beside + text[at:])) if calls else ([], text)


def _completed(text: str) -> object:
    """A call whose brackets are not right at its end: small models leave some out, or write one too many behind a list of
    queries that is whole."""
    reader = StringsOf(())
    reader.feed(text)
    record = _loads(text + reader.closing())
    if record is None and (key := _LISTS.search(text)) is not None:
        try:
            record = {"queries": _DECODER.raw_decode(text, key.end())[0]}
        except (ValueError, RecursionError):
            return None
    return record


def _leaked(call_id: str, record: Any, raw: str) -> Call | None:
    """What was read of a call in a text, as a call; None for other JSON. One that could not be read is a search whose
    arguments cannot be read either."""
    if not isinstance(record, dict):
        return Call(call_id, SEARCH_TOOL.name, raw)
    inner = record.get("function")
    record = inner if isinstance(inner, dict) else record
    name = record.get("name", inner)
    if not isinstance(name, str):  # the arguments alone
        known = {key: value for key, value in record.items() if key in _QUERY_KEYS}
        return Call(call_id, SEARCH_TOOL.name, json.dumps(known, ensure_ascii=False)) if known else None
    arguments = next((record[key] for key in _ARGUMENT_KEYS if key in record), None)
    if arguments is None:
        if name not in (SEARCH_TOOL.name, ANSWER_TOOL.name):
            return None
        arguments = {key: value for key, value in record.items() if key != "name"}
    return Call(call_id, name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _queries(call: Call) -> tuple[list[str], str | None]:
    """The queries of a search call, and what is wrong with it where there are none."""
    if call.name != SEARCH_TOOL.name:
        return [], None
    record = _loads(call.arguments)
    if isinstance(record, str):  # some servers encode twice
        record = _loads(record)
    if isinstance(record, dict):
        record = next((record[key] for key in _QUERY_KEYS if key in record), [])
    if isinstance(record, str):
        record = [record]
    if not isinstance(record, list):
        return [], "bad_arguments"
    # One without a word is the `...` of what it was told to call.
    queries = [item for item in _items(record) if isinstance(item, str) and any(map(str.isalnum, item))]
    return queries, None if queries else "empty_search"


def _items(record: list[object]) -> Iterator[object]:
    """What a list of queries holds, where a model puts lists or objects into it: `[["a", "b"]]`, `[{"query": "a"}]`."""
    for item in record:
        if isinstance(item, dict):
            item = next((item[key] for key in _QUERY_KEYS if key in item), None)
        if isinstance(item, list):
            yield from item
        else:
            yield item


def _answer(call: Call) -> str | None:
    record = _loads(call.arguments)
    said = record.get("answer") if isinstance(record, dict) else record
    text = " ".join(str(said).split()) if isinstance(said, str | int | float) and not isinstance(said, bool) else ""
    return grammar.defuse(text) or None


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _thought(segment: Segment) -> str | None:
    thoughts, text = _apart(segment.text)
    beside = _leaks(text)[1] if calls_of(segment) else ""
    return " ".join(" ".join([segment.reasoning or "", *thoughts, beside]).split()) or None


def _lines(text: str) -> str:
    """A message as the answer. It keeps its lines: a list or a table on one line can be read by nobody."""
    return _MANY_BREAKS.sub("\n\n", "\n".join(line.expandtabs(4).rstrip() for line in text.strip().splitlines()))


def _without_thoughts(text: str) -> str:
    return _apart(text)[1]


def _apart(text: str) -> tuple[list[str], str]:
    """Thoughts that stand in the text, where a server does not give them apart, and the rest. The opening tag of the first
    may have been part of the prompt."""
    head, mark, rest = text.partition(_THOUGHT_END)
    thoughts = [head] if mark and _THINK not in head else []
    first, *blocks = (rest if thoughts else text).split(_THINK)
    parts = [block.partition(_THOUGHT_END) for block in blocks]
    return thoughts + [inner for inner, _, _ in parts], " ".join([first, *(after for _, _, after in parts)]).strip()


# ---- while it is written ---------------------------------------------------------------------------------------------


class CallReader:
    """Hands out each query of the calls being written as soon as its JSON string closes, however the pieces are cut."""

    def __init__(self, on_query: OnQuery, max_subqueries: int) -> None:
        self._on_query = on_query
        self._left = max_subqueries
        self._seen: set[str] = set()
        self._calls: dict[int, StringsOf] = {}

    def feed(self, piece: str) -> None:
        """Text beside the calls starts nothing: whether it holds a call is certain only when it is whole."""

    def feed_call(self, number: int, name: str, piece: str) -> None:
        if name == SEARCH_TOOL.name:
            reader = self._calls.setdefault(number, StringsOf(_QUERY_KEYS))
            for text in reader.feed(piece):
                self._hand_out(text)

    def _hand_out(self, text: str) -> None:
        query = " ".join(text.split())
        key = grammar.query_key(query)
        if any(map(str.isalnum, query)) and key not in self._seen and self._left > 0:
            self._seen.add(key)
            self._left -= 1
            self._on_query(query)


class StringsOf:
    """The strings under one of these keys of a JSON object that arrives in pieces: a string alone, or those of a list.

    It follows the text character by character and knows where it is by the open brackets. What is not JSON gives nothing
    more; the whole turn is read again at its end, by a real parser.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = frozenset(keys)
        self._stack = ""  # the brackets that are open
        self._raw: list[str] | None = None  # of the string being read, quotes left out
        self._is_escaped = False
        self._expects_key = False
        self._key: str | None = None

    def feed(self, piece: str) -> list[str]:
        found: list[str] = []
        for character in piece:
            if self._raw is not None:
                self._inside(character, found)
            elif character == '"':
                self._raw = []
            elif character in "{[":
                self._stack += character
                self._expects_key = character == "{"
            elif character in "}]":
                self._stack, self._expects_key = self._stack[:-1], False
            elif character == ",":
                self._expects_key = self._stack.endswith("{")
        return found

    def closing(self) -> str:
        """The brackets that would close what is open."""
        return "".join("}" if bracket == "{" else "]" for bracket in reversed(self._stack))

    def _inside(self, character: str, found: list[str]) -> None:
        assert self._raw is not None
        if character != '"' or self._is_escaped:
            self._raw.append(character)
            self._is_escaped = character == "\\" and not self._is_escaped
            return
        text = _loads(f'"{"".join(self._raw)}"')
        self._raw = None
        if not isinstance(text, str):
            return
        if self._expects_key:
            self._expects_key = False
            self._key = text if self._stack == "{" else self._key
        elif self._key in self._keys and self._stack in ("{", "{["):
            found.append(text)
