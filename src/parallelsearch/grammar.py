"""The tags, the prompt, and how a turn of the model is read: whole, or while it is still being written.

A turn is a thought followed by one action, a search or an answer. This is the only module that knows how the tags are
spelt. Reading never raises: whatever a model writes becomes a `ParsedTurn` with the list of what is wrong with it.

Two rules decide what counts. Inside a closed thought nothing is an action. A search block that meets another tag before
its own closing tag is given up, and reading goes on at that tag. `StreamParser` applies the same rules to a text that
arrives in pieces and hands out each sub-query the moment its end is seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from parallelsearch.errors import UsageError

THINK, SEARCH, INFORMATION, ANSWER = "think", "search", "information", "answer"
TAGS = (THINK, SEARCH, INFORMATION, ANSWER)
SEPARATOR = "##"
MAX_SUBQUERIES = 5

PromptMode = Literal["parallel", "sequential"]


def opening(tag: str) -> str:
    return f"<{tag}>"


def closing(tag: str) -> str:
    return f"</{tag}>"


def wrap(tag: str, content: str) -> str:
    return f"{opening(tag)} {content} {closing(tag)}"


STOP_STRINGS = (closing(SEARCH), closing(ANSWER))
"""Where a turn ends. An engine stops with the token that completes one of these."""

_TAG = re.compile(r"<(/?)(think|search|information|answer)>")

# ---- the prompt ------------------------------------------------------------------------------------------------------


def prompt_text(question: str, mode: PromptMode = "parallel", context: str = "") -> str:
    """The one user message: what to do, in which tags, and the question. A base model gets the same text, unwrapped.
    `context` is what was said before, in lines of its own ahead of the question."""
    split = (
        (
            "When the question has several parts that do not depend on each other, ask for all of them in one search, "
            f"separated by {SEPARATOR}, like this: {wrap(SEARCH, f'first sub-question {SEPARATOR} second sub-question')}. "
        )
        if mode == "parallel"
        else ""
    )
    return (
        f"Answer the question below. Start every step by reasoning between {opening(THINK)} and {closing(THINK)}, also "
        "each time new information has arrived. If you find that you lack some knowledge, call the search engine with "
        f"{wrap(SEARCH, 'query')} and the best results will be shown to you between {opening(INFORMATION)} and "
        f"{closing(INFORMATION)}. {split}You may search as often as you need. Once nothing is missing, give the answer, "
        f"short and without explanation, between {opening(ANSWER)} and {closing(ANSWER)}, for example "
        f"{wrap(ANSWER, 'Lisbon')}.\n{defuse(context)}Question: {tidy_question(question)}\n"
    )


def tidy_question(question: str) -> str:
    """Stripped, on one line, harmless, and with a question mark at the end."""
    text = defuse(" ".join(question.split()))
    return text if text.endswith("?") else text + "?"


# Neither notice shows an action to copy: a small model told to write `<answer> the answer </answer>` wrote just that.


def notice_invalid(problems: Sequence[Problem]) -> str:
    """What the model is told after a turn with neither a search nor an answer in it."""
    reason = problems[0].message if problems else "it has neither a search nor an answer"
    return f"\nThat step could not be used: {reason}. Search or answer in the way described at the beginning.\n"


def notice_last_turn() -> str:
    """What the model is told before a turn that must answer."""
    return "\nNo more searches are possible. Reason once more about what was found, then answer.\n"


# ---- reading a turn --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a turn: a word for programs, a sentence part for people."""

    code: str
    message: str


_MESSAGES: dict[str, str] = {
    "no_action": "it has neither a search nor an answer",
    "no_thought": f"it does not start with {opening(THINK)}",
    "unclosed_thought": f"{opening(THINK)} was never closed",
    "unclosed_search": f"{opening(SEARCH)} was never closed",
    "unclosed_answer": f"{opening(ANSWER)} was never closed",
    "empty_search": "the search holds no query",
    "empty_answer": "the answer is empty",
    "stray_tag": "a tag stands where none belongs",
    "forged_information": f"{opening(INFORMATION)} is written by the search engine, never by you",
    "text_outside": "there is text outside the tags",
    "text_after": f"there is text after {closing(SEARCH)} or {closing(ANSWER)}",
}


def _problem(code: str) -> Problem:
    return Problem(code, _MESSAGES[code])


@dataclass(frozen=True, slots=True)
class SubQueries:
    """A search's content, split: what is asked, what was over the limit, how many were the same or empty."""

    asked: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    num_duplicates: int = 0
    num_empty: int = 0


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What one turn of the model says. `action` is None when there is nothing to do with it."""

    action: Literal["search", "answer"] | None
    thought: str | None = None
    queries: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    answer: str | None = None
    separated: bool = False
    """The search's content has the separator in it, whatever stands around it (the released code's test)."""
    num_duplicates: int = 0
    num_empty: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def is_valid(self) -> bool:
        return not self.problems


def query_key(query: str) -> str:
    """Two queries with the same key are the same query: case and spacing do not matter."""
    return " ".join(query.split()).casefold()


def split_queries(content: str, max_subqueries: int = MAX_SUBQUERIES) -> SubQueries:
    """The sub-queries of a search: stripped, empty ones dropped, duplicates asked once, the surplus reported."""
    collector = _Collector(max_subqueries)
    for part in content.split(SEPARATOR):
        collector.add(part)
    return collector.result()


class _Collector:
    def __init__(self, max_subqueries: int) -> None:
        self.max_subqueries = max_subqueries
        self.asked: list[str] = []
        self.dropped: list[str] = []
        self.seen: set[str] = set()
        self.num_duplicates = self.num_empty = 0

    def add(self, part: str) -> str | None:
        """The sub-query to ask, or None if this part is empty, known or over the limit."""
        query = " ".join(part.split())
        key = query.casefold()
        if not query:
            self.num_empty += 1
        elif key in self.seen:
            self.num_duplicates += 1
        else:
            self.seen.add(key)
            if len(self.asked) < self.max_subqueries:
                self.asked.append(query)
                return query
            self.dropped.append(query)
        return None

    def result(self) -> SubQueries:
        return SubQueries(tuple(self.asked), tuple(self.dropped), self.num_duplicates, self.num_empty)


def parse_turn(text: str, max_subqueries: int = MAX_SUBQUERIES) -> ParsedTurn:
    """Read a whole turn. Whitespace after the closing tag is legal; everything else that is off becomes a problem."""
    parser = StreamParser(max_subqueries=max_subqueries)
    parser.feed(text)
    return parser.finish()


class StreamParser:
    """Reads a turn piece by piece. `on_query` is called with each sub-query as soon as its end is certain.

    A sub-query handed out early is a guess in one case only: if the search block is never closed, the turn is invalid
    and the caller withdraws what it started. How the text is cut into pieces never changes what is handed out, nor the
    result of `finish`.
    """

    def __init__(self, on_query: Callable[[str], None] | None = None, max_subqueries: int = MAX_SUBQUERIES) -> None:
        self._on_query = on_query
        self._max_subqueries = max_subqueries
        self._text = ""
        self._at = 0  # everything before this offset has been read
        self._state: Literal["outside", "think", "search", "answer", "done"] = "outside"
        self._open_at = 0  # where the content of the open block starts
        self._codes: list[str] = []
        self._thoughts: list[str] = []
        self._collector = _Collector(max_subqueries)
        self._content: str | None = None
        self._answer: str | None = None
        self._action: Literal["search", "answer"] | None = None

    def feed(self, piece: str) -> None:
        self._text += piece
        self._read(final=False)

    def finish(self) -> ParsedTurn:
        """The turn is over: read what is left and give the verdict."""
        self._read(final=True)
        if self._state == "think":
            return self._finish_unclosed_thought()
        if self._state in ("search", "answer"):
            self._flag(f"unclosed_{self._state}")
        if self._state == "done":
            if self._text[self._at :].strip():
                self._flag("text_after")
        elif self._action is None:
            self._flag("no_action", first=not self._codes)
        return self._verdict()

    # A thought that is never closed: what follows its opening tag is read again as if there were no thought, so that a
    # model which forgets the closing tag is still understood, and told.
    def _finish_unclosed_thought(self) -> ParsedTurn:
        self._flag("unclosed_thought")
        rest = StreamParser(self._on_query, self._max_subqueries)
        rest.feed(self._text[self._open_at :].replace(opening(THINK), " "))
        inner = rest.finish()
        self._thoughts.append(_before_action(rest._text))
        self._action, self._answer, self._content = inner.action, inner.answer, rest._content
        self._collector = rest._collector
        for problem in inner.problems:
            if problem.code not in ("no_thought", "text_outside"):
                self._flag(problem.code)
        return self._verdict()

    def _verdict(self) -> ParsedTurn:
        sub = self._collector.result() if self._action == "search" else SubQueries()
        if self._action == "search" and not sub.asked:
            self._flag("empty_search")
            self._action = None
        if self._action == "answer" and not self._answer:
            self._flag("empty_answer")
            self._action = None
        return ParsedTurn(
            action=self._action,
            thought=" ".join(self._thoughts) if self._thoughts else None,
            queries=sub.asked if self._action == "search" else (),
            dropped=sub.dropped,
            answer=self._answer if self._action == "answer" else None,
            separated=self._content is not None and SEPARATOR in self._content,
            num_duplicates=sub.num_duplicates,
            num_empty=sub.num_empty,
            problems=tuple(_problem(code) for code in self._codes),
        )

    def _flag(self, code: str, first: bool = False) -> None:
        if code not in self._codes:
            self._codes.insert(0 if first else len(self._codes), code)

    def _read(self, final: bool) -> None:
        while self._state != "done":
            if not (self._read_think() if self._state == "think" else self._read_tag(final)):
                return

    def _read_think(self) -> bool:
        end = self._text.find(closing(THINK), self._at)
        if end < 0:  # a closing tag may have begun at the very end: look again from there
            self._at = max(self._open_at, len(self._text) - len(closing(THINK)) + 1)
            return False
        thought = self._text[self._open_at : end].strip()
        self._thoughts.append(thought)
        if _TAG.search(thought):
            self._flag("stray_tag")
        self._at = end + len(closing(THINK))
        self._state = "outside"
        return True

    def _read_tag(self, final: bool) -> bool:
        """Read up to the next tag. True if one was found."""
        tag = _TAG.search(self._text, self._at)
        if tag is None:
            if self._state == "search":
                self._hand_out(len(self._text))
            elif self._state == "outside":
                safe = len(self._text) if final else _safe_end(self._text, self._at)
                self._outside(self._text[self._at : safe])
                self._at = safe
            return False
        is_closing, name = tag[1] == "/", tag[2]
        if self._state == "search":
            self._hand_out(tag.start())
        elif self._state == "outside":
            self._outside(self._text[self._at : tag.start()])
        if self._state in ("search", "answer") and is_closing and name == self._state:
            self._close(tag)
        elif self._state in ("search", "answer"):
            self._flag(f"unclosed_{self._state}")  # another tag inside: given up, and read on at that tag
            self._collector = _Collector(self._max_subqueries)
            self._state, self._at = "outside", tag.start()
        else:
            self._open(tag, is_closing, name)
        return True

    def _open(self, tag: re.Match[str], is_closing: bool, name: str) -> None:
        self._at = tag.end()
        if name == INFORMATION:
            self._flag("forged_information")
        elif is_closing or (name == THINK and self._thoughts):
            self._flag("stray_tag")
        if is_closing or name == INFORMATION:
            return
        if name != THINK and not self._thoughts:
            self._flag("no_thought")
        self._open_at = tag.end()
        self._state = name  # type: ignore[assignment]  # THINK, SEARCH or ANSWER by the pattern

    def _close(self, tag: re.Match[str]) -> None:
        content = self._text[self._open_at : tag.start()]
        if self._state == "search":
            self._emit(self._text[self._at : tag.start()])
            self._content, self._action = content, "search"
        else:
            self._answer, self._action = content.strip(), "answer"
        self._at = tag.end()
        self._state = "done"

    def _outside(self, text: str) -> None:
        if text.strip():
            self._flag("text_outside")

    def _hand_out(self, end: int) -> None:
        """Emit every sub-query that a separator has completed before `end`."""
        while (cut := self._text.find(SEPARATOR, self._at, end)) >= 0:
            self._emit(self._text[self._at : cut])
            self._at = cut + len(SEPARATOR)

    def _emit(self, part: str) -> None:
        query = self._collector.add(part)
        if query is not None and self._on_query is not None:
            self._on_query(query)


def _safe_end(text: str, start: int) -> int:
    """Up to where `text` cannot be the beginning of a tag."""
    longest = max(len(closing(tag)) for tag in TAGS)
    for offset in range(max(start, len(text) - longest + 1), len(text)):
        rest = text[offset:]
        if rest[0] == "<" and any(opening(tag).startswith(rest) or closing(tag).startswith(rest) for tag in TAGS):
            return offset
    return len(text)


def _before_action(text: str) -> str:
    tag = _TAG.search(text)
    return (text if tag is None else text[: tag.start()]).strip()


def unclosed_action(text: str) -> str | None:
    """The closing tag that a server stripped as its stop string, or None if nothing is open."""
    if parse_turn(text).action is None:
        for tag in (SEARCH, ANSWER):
            if parse_turn(text + closing(tag)).action == tag:
                return closing(tag)
    return None


def partial_answer(text: str) -> str | None:
    """What an answer that was cut off says so far (a deadline keeps it)."""
    start = text.rfind(opening(ANSWER))
    content = text[start + len(opening(ANSWER)) :].strip() if start >= 0 else ""
    return re.sub(r"<[^>]*$", "", content).strip() or None


# ---- writing a turn --------------------------------------------------------------------------------------------------


def render_turn(thought: str, queries: Sequence[str] = (), answer: str | None = None) -> str:
    """Write a turn that `parse_turn` reads back as the same thing. Exactly one of `queries` and `answer` is given."""
    if bool(queries) == (answer is not None):
        raise UsageError("a turn has either queries or an answer; give exactly one of them")
    for what, text in [("thought", thought), ("answer", answer or ""), *(("query", query) for query in queries)]:
        if _TAG.search(text):
            raise UsageError(f"a {what} must not hold one of the grammar's tags: {text!r}")
    if queries:
        found = split_queries(f" {SEPARATOR} ".join(queries), max_subqueries=len(queries))
        if found.asked != tuple(queries):
            raise UsageError(
                f"these queries are not distinct, non-empty, single-spaced and free of {SEPARATOR}: {list(queries)}"
            )
        return f"{wrap(THINK, thought)}\n{wrap(SEARCH, f' {SEPARATOR} '.join(queries))}"
    return f"{wrap(THINK, thought)}\n{wrap(ANSWER, str(answer))}"


# ---- untrusted text --------------------------------------------------------------------------------------------------

_ANGLES = str.maketrans("<>", "\u2039\u203a")
_HOSTILE = re.compile(
    r"<\s*/?\s*(?:think|search|information|answer|tool_call|tool_response|bos|eos|pad|unk|s|start_of_turn|end_of_turn)\s*/?\s*>"
    r"|<[|\uff5c][^<>]{0,64}[|\uff5c]>|<<\s*/?\s*SYS\s*>>|\[\s*/?\s*(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\s*\]",
    re.IGNORECASE,
)
_BRACKETS = str.maketrans("[]", "()")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060\ufeff\ufff9-\ufffb]")


def defuse(text: str) -> str:
    """Text from outside, with the grammar's tags, chat-template control tokens and invisible characters made harmless.

    The characters stay readable: angle brackets of a hostile tag become single guillemets. Look-alikes (full-width
    letters, zero-width characters inside a tag) are caught too.
    """
    text = _CONTROL.sub("", text)
    if "<" not in text and "[" not in text and "\uff1c" not in text and "\ufe64" not in text:
        return text
    if "\uff1c" in text or "\ufe64" in text:
        folded = unicodedata.normalize("NFKC", text)
        text = folded if _HOSTILE.search(folded) else text
    while (cleaned := _HOSTILE.sub(lambda m: m[0].translate(_ANGLES).translate(_BRACKETS), text)) != text:
        text = cleaned
    return text
