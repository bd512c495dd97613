"""The tags, the prompt, and how a turn of the model is read: whole, or while it is still being written.

A turn is a thought followed by one action, a search or an answer. This is the only module that knows how the tags are
spelt. Reading never raises: whatever a model writes becomes a `ParsedTurn` with the list of what is wrong with it.

Two rules decide what counts. Inside a closed thought nothing is an action. A search block that meets another tag before
its own closing tag is given up, and reading goes on at that tag. `StreamParser` applies the same rules to a text that
arrives in pieces and hands out each sub-query the moment its end is seen.

What models write that were never trained on this is read too, so that no query is lost: several searches in a row are one
search, numbered or bulleted lines are sub-queries, and tags in capitals are tags. The first and the last are problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from parallelsearch.errors import UsageError
from parallelsearch.untrusted import Disarmer

THINK, SEARCH, INFORMATION, ANSWER = "think", "search", "information", "answer"
TAGS = (THINK, SEARCH, INFORMATION, ANSWER)
SEPARATOR = "##"
MAX_SUBQUERIES = 10

PromptMode = Literal["parallel", "sequential"]


def opening(tag: str) -> str:
    return f"<{tag}>"


def closing(tag: str) -> str:
    return f"</{tag}>"


def wrap(tag: str, content: str) -> str:
    return f"{opening(tag)} {content} {closing(tag)}"


STOP_STRINGS = (closing(SEARCH), closing(ANSWER))
"""Where a turn ends. An engine stops with the token that completes one of these."""

_TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")
_LONGEST_TAG = max(len(closing(tag)) for tag in TAGS)
_TAG_IN_ANY_CASE = re.compile(_TAG.pattern, re.IGNORECASE)
# Single characters, because a stream may be cut between any two.
_BETWEEN_SEARCHES = re.compile(r"[\s\d#,;:.&)*\u2022\u2013-]*+")
_ITEM = re.compile(r"\s*(?:\(?\d{1,2}[.):]|[-*+\u2022\u2013])\s+(?=\S)")
_BULLET = re.compile(r"[-*+\u2022\u2013]\s")
_ENDINGS = ".,;:!?"
_MAX_ITEM_WORDS = 8

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


HOW_TO_WRITE = (
    "as long as the question needs and no longer, in Markdown, with a table where several things are compared. Behind each "
    "statement put the number of the passage it rests on in brackets, like this: [2]. State nothing that no passage says, "
    "and say what was not found"
)
"""What a model is told that writes a text for an answer."""


def tidy_question(question: str, may_be_order: bool = False) -> str:
    """Stripped, on one line, harmless, and with a question mark at the end, as policies were trained. `may_be_order`: who was
    not is told "Compare A and B." as it stands."""
    text = defuse(one_line(question))
    return text if text.endswith("?") or (may_be_order and text.endswith((".", "!", ":"))) else text + "?"


def one_line(question: str) -> str:
    """The question as it is read, on one line. A list that was typed on lines of its own gets commas, numbered or not: with
    blanks alone nobody can tell where one name ends and the next begins. A bullet says so by itself."""
    lines = [" ".join(line.split()) for line in question.splitlines() if line.strip()]
    pieces = lines[:1]
    for before, after in pairwise(lines):
        is_list = len(lines) > 2 and _is_item(before) and _is_item(after.rstrip(_ENDINGS)) and not _BULLET.match(after)
        pieces.append(f", {after}" if is_list else f" {after}")
    return "".join(pieces)


def _is_item(line: str) -> bool:
    return not line.endswith(tuple(_ENDINGS)) and len(line.split()) <= _MAX_ITEM_WORDS


NUMBERS = re.compile(r"(?<!\s)\s*+\[(\d{1,4}(?:\s*+,\s*+\d{1,4})*)\]")
"""How an answer names passages: `[2]`, `[1, 3]`, with the blank before it."""
_CODE = re.compile(r"```(?s:.*?)```|`[^`\n]*`")
_OTHER_MARKS = re.compile(
    r"[【［]\s*+(?P<many>\d{1,4}(?>(?:\s*+[,，、]\s*+\d{1,4})*))\s*+(?:†[^】\n]{0,80})?[】］]|\[\^(?P<note>\d{1,4})\]|"
    r"\[(?P<first>\d{1,2})\s*+[-–]\s*+(?P<last>\d{1,2})\]"
)
"""How models name passages that were taught another way to: `【1】`, `【1†source】`, `[^1]`, `[1-3]`."""


def outside_code(pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], text: str) -> str:
    """What `pattern.sub` makes of a Markdown text; in code, brackets mean something else."""
    parts, at = [], 0
    for code in _CODE.finditer(text):
        parts += [pattern.sub(change, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, pattern.sub(change, text[at:])])


def _as_asked(mark: re.Match[str]) -> str:
    if mark["first"]:
        numbers = [str(number) for number in range(int(mark["first"]), int(mark["last"]) + 1)]
    else:
        numbers = re.findall(r"\d+", mark["many"] or mark["note"])
    return f"[{', '.join(numbers)}]" if numbers else mark[0]


def written_answer(text: str) -> str:
    """A text with its lines as they are, out of the tags or the fence that a model may put the whole of it in, and with the
    numbers of passages in brackets, as it was told to write them."""
    text = text.strip()
    if text.startswith(opening(ANSWER)):
        text = text.removeprefix(opening(ANSWER)).removesuffix(closing(ANSWER)).strip()
    lines = text.splitlines()
    if len(lines) > 2 and re.fullmatch(r"```(?:markdown|md)?", lines[0].strip()) and lines[-1].strip() == "```":
        lines = lines[1:-1]
    return outside_code(_OTHER_MARKS, _as_asked, defuse("\n".join(line.rstrip() for line in lines))).strip()


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
    "several_searches": f"sub-queries go into one {opening(SEARCH)}, separated by {SEPARATOR}",
    "capital_tags": "tags are written in small letters",
    "untagged_answer": f"the answer stands outside {opening(ANSWER)}",
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
    parts = content.split(SEPARATOR)
    return collect_queries(_lines_of_list(content) if len(parts) == 1 else parts, max_subqueries)


def _lines_of_list(content: str) -> list[str]:
    """The lines of a numbered or bulleted list without their marks; any other text whole, however many lines it has."""
    lines = [line for line in content.splitlines() if line.strip()]
    marks = [_ITEM.match(line) for line in lines]
    if len(lines) < 2:
        return [content]
    items = [line[mark.end() :] for line, mark in zip(lines, marks, strict=True) if mark is not None]
    return items if len(items) == len(lines) else [content]


def collect_queries(parts: Iterable[str], max_subqueries: int = MAX_SUBQUERIES) -> SubQueries:
    """The same for queries that come apart, as a tool call's do."""
    collector = _Collector(max_subqueries)
    for part in parts:
        collector.add(part)
    return collector.result()


TurnPart = Literal["thought", "search", "answer", "other"]
"""What a stretch of a turn is: reasoning, sub-queries, the answer, or text that is none of these."""
_PARTS: dict[str, TurnPart] = {THINK: "thought", SEARCH: "search", ANSWER: "answer"}


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

    def copy(self) -> _Collector:
        twin = _Collector(self.max_subqueries)
        twin.asked, twin.dropped, twin.seen = list(self.asked), list(self.dropped), set(self.seen)
        twin.num_duplicates, twin.num_empty = self.num_duplicates, self.num_empty
        return twin

    def result(self) -> SubQueries:
        return SubQueries(tuple(self.asked), tuple(self.dropped), self.num_duplicates, self.num_empty)


def parse_turn(text: str, max_subqueries: int = MAX_SUBQUERIES) -> ParsedTurn:
    """Read a whole turn. Whitespace after the closing tag is legal; everything else that is off becomes a problem."""
    parser = StreamParser(max_subqueries=max_subqueries)
    parser.feed(text)
    return parser.finish()


class StreamParser:
    """Reads a turn piece by piece. `on_query` is called with each sub-query as soon as its end is certain.

    A sub-query handed out early is a guess in two cases: if the search block is never closed, or if the turn proves to have
    tags in capitals. The turn is invalid then, and the caller withdraws what is not asked after all. How the text is cut into
    pieces never changes what is handed out, nor the result of `finish`.

    `on_part` is told the text itself, each stretch with the part it belongs to and without the tags around it, as soon as
    that is certain.
    """

    def __init__(
        self,
        on_query: Callable[[str], None] | None = None,
        max_subqueries: int = MAX_SUBQUERIES,
        on_part: Callable[[TurnPart, str], None] | None = None,
    ) -> None:
        self._on_query, self._on_part = on_query, on_part
        self._told = 0  # everything before this offset went to `on_part`, or is a tag
        self._max_subqueries = max_subqueries
        self._text = ""
        self._at = 0  # everything before this offset has been read
        self._seen = 0  # no tag begins, and no separator, between `_at` and this offset
        self._state: Literal["outside", "think", "search", "answer", "after", "done"] = "outside"
        self._open_at = 0  # where the content of the open block starts
        self._codes: list[str] = []
        self._thoughts: list[str] = []
        self._collector = _Collector(max_subqueries)
        self._before: tuple[_Collector, int] | None = None  # what the closed searches ask, and where the last one ends
        self._content: str | None = None
        self._answer: str | None = None
        self._action: Literal["search", "answer"] | None = None

    def feed(self, piece: str) -> None:
        self._text += piece
        self._read(final=False)
        if self._on_part is not None:
            self._tell(len(self._text) if self._state == "done" else _safe_end(self._text, self._told))

    def flush(self) -> None:
        """The turn is over, and nobody asks what it says: what was held back was no tag."""
        self._tell(len(self._text))

    def feed_call(self, number: int, name: str, piece: str) -> None:
        """Tags are in the text; a call is none of this grammar's actions."""

    def finish(self) -> ParsedTurn:
        """The turn is over: read what is left and give the verdict."""
        parsed = self._finish()
        text = _TAG_IN_ANY_CASE.sub(lambda tag: tag[0].lower(), self._text)
        if parsed.is_valid or text == self._text:
            return parsed
        again = StreamParser(self._on_query, self._max_subqueries)
        again.feed(text)
        lenient = again._finish()
        if lenient.action is None:
            return parsed
        return replace(lenient, problems=(*lenient.problems, _problem("capital_tags")))

    def _finish(self) -> ParsedTurn:
        self._read(final=True)
        if self._state == "think":
            return self._finish_unclosed_thought()
        if self._state in ("search", "answer"):
            self._give_up(len(self._text))
        if self._state in ("after", "done"):
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
        inner = rest._finish()
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
            if self._state == "think":
                has_moved = self._read_think()
            elif self._state == "after":
                has_moved = self._read_after(final)
            else:
                has_moved = self._read_tag(final)
            if not has_moved:
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
        self._tell(end, self._at)
        self._state = "outside"
        return True

    def _read_tag(self, final: bool) -> bool:
        """Read up to the next tag. True if one was found."""
        tag = _TAG.search(self._text, max(self._at, self._seen))
        if tag is None:
            if self._state == "search":
                self._hand_out(len(self._text))
            elif self._state == "outside":
                safe = len(self._text) if final else _safe_end(self._text, self._at)
                self._outside(self._text[self._at : safe])
                self._at = safe
            self._seen = max(0, len(self._text) - _LONGEST_TAG + 1)
            return False
        is_closing, name = tag[1] == "/", tag[2]
        if self._state == "search":
            self._hand_out(tag.start())
        elif self._state == "outside":
            self._outside(self._text[self._at : tag.start()])
        if self._state in ("search", "answer") and is_closing and name == self._state:
            self._close(tag)
        elif self._state in ("search", "answer"):
            self._give_up(tag.start())  # another tag inside
        else:
            self._open(tag, is_closing, name)
        return True

    def _give_up(self, end: int) -> None:
        """The open block will not be closed: read on where the tag stands that ended it. After a search that was closed
        nothing more is read."""
        self._flag(f"unclosed_{self._state}")
        self._tell(end)
        self._state, self._at = "outside", end
        self._collector = _Collector(self._max_subqueries)
        if self._before is not None:
            self._collector, self._at = self._before
            self._state = "done"

    def _read_after(self, final: bool) -> bool:
        """A search was closed. Another one right behind it belongs to it; anything else is text after the action."""
        between = _BETWEEN_SEARCHES.match(self._text, self._at)
        assert between is not None  # it matches the empty text too
        at = between.end()
        rest = self._text[at : at + len(opening(SEARCH))]
        if rest == opening(SEARCH):
            self._flag("several_searches")
            self._before = self._collector.copy(), self._at
            self._tell(at, at + len(rest))
            self._state, self._at = "search", at + len(rest)
            self._open_at = self._at
            return True
        if final or not opening(SEARCH).startswith(rest):
            self._state = "done"
        return False

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
        self._tell(tag.start(), tag.end())
        self._state = name  # type: ignore[assignment]  # THINK, SEARCH or ANSWER by the pattern

    def _close(self, tag: re.Match[str]) -> None:
        content = self._text[self._open_at : tag.start()]
        self._at, last = tag.end(), self._text[self._at : tag.start()]
        self._tell(tag.start(), tag.end())
        if self._state == "search":
            for part in [last] if SEPARATOR in content else _lines_of_list(content):
                self._emit(part)
            self._content = content if self._content is None else self._content
            self._action, self._state = "search", "after"
        else:
            self._answer, self._action, self._state = content.strip(), "answer", "done"

    def _outside(self, text: str) -> None:
        if text.strip():
            self._flag("text_outside")

    def _hand_out(self, end: int) -> None:
        """Emit every sub-query that a separator has completed before `end`."""
        while (cut := self._text.find(SEPARATOR, max(self._at, self._seen), end)) >= 0:
            self._emit(self._text[self._at : cut])
            self._at = cut + len(SEPARATOR)

    def _tell(self, end: int, go_on_at: int | None = None) -> None:
        """The text up to `end` belongs to the part that is open now."""
        if self._on_part is not None and self._told < end:
            self._on_part(_PARTS.get(self._state, "other"), self._text[self._told : end])
        self._told = max(self._told, end if go_on_at is None else go_on_at)

    def _emit(self, part: str) -> None:
        query = self._collector.add(part)
        if query is not None and self._on_query is not None:
            self._on_query(query)


class TurnParts:
    """Says of each piece of a turn being written to which part it belongs; the tags themselves are left out."""

    def __init__(self) -> None:
        # Held by the parser too, which so needs no way back to here: a server makes one for each turn, and what refers to
        # itself is left to the garbage collector.
        self._found = found = list[tuple[TurnPart, str]]()
        self._parser = StreamParser(on_part=lambda part, text: found.append((part, text)))

    def feed(self, piece: str) -> list[tuple[TurnPart, str]]:
        """All that is certain by now, in order."""
        self._parser.feed(piece)
        return self._taken()

    def flush(self) -> list[tuple[TurnPart, str]]:
        """What was held back because it might have begun a tag: the turn is over."""
        self._parser.flush()
        return self._taken()

    def _taken(self) -> list[tuple[TurnPart, str]]:
        found = self._found.copy()
        self._found.clear()
        return found


def search_behind(text: str) -> int | None:
    """What stands behind a search that is closed: how much of it is another search that belongs to it, closed as well. 0 if
    that is still to come, None if something else stands there."""
    between = _BETWEEN_SEARCHES.match(text)
    assert between is not None  # it matches the empty text too
    tag, at = opening(SEARCH), between.end()
    if not text.startswith(tag, at):
        return 0 if tag.startswith(text[at:]) else None
    end = text.find(closing(SEARCH), at)
    return 0 if end < 0 else end + len(closing(SEARCH))


def _safe_end(text: str, start: int) -> int:
    """Up to where `text` cannot be the beginning of a tag: only its last angle bracket may begin one."""
    at = text.rfind("<", max(start, len(text) - _LONGEST_TAG + 1))
    rest = text[at:] if at >= 0 else ""
    if rest and any(opening(tag).startswith(rest) or closing(tag).startswith(rest) for tag in TAGS):
        return at
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
    """What an answer that was cut off says so far (a deadline keeps it). Inside an open thought there is none."""
    parser = StreamParser()
    parser.feed(text)
    content = text[parser._open_at :] if parser._state == "answer" else ""
    if not content and parser._state != "think":
        return parser.finish().answer
    # The closing tag may have begun.
    return content[: _safe_end(content, 0)].strip() or None


def has_tag(text: str) -> bool:
    """Whether any of the tags stands in it."""
    return _TAG_IN_ANY_CASE.search(text) is not None


def opened_thought(before: str) -> str:
    """The opening tag, where what stands before a turn ends with it, as the chat templates of models that think write it."""
    return opening(THINK) if before.rstrip().endswith(opening(THINK)) else ""


def without_thought(text: str) -> str:
    """A turn without the thought that it begins with."""
    head, mark, rest = text.partition(closing(THINK))
    return rest.lstrip() if mark and head.startswith(opening(THINK)) else text


def outside_tags(text: str) -> str:
    """What a turn says that is neither thought nor search nor answer."""
    reader = TurnParts()
    parts = reader.feed(text) + reader.flush()
    return _TAG_IN_ANY_CASE.sub(" ", " ".join(said for part, said in parts if part == "other")).strip()


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


def defuse(text: str, special: frozenset[str] = frozenset()) -> str:
    """Text from outside, with the grammar's tags, chat-template control tokens and invisible characters made harmless.

    `special` are the special tokens of the tokenizer in use. Look-alikes (full-width letters, soft hyphens inside a tag) are
    caught too; the characters stay readable.
    """
    return _disarmer(special)(text)


@lru_cache(maxsize=32)
def _disarmer(special: frozenset[str]) -> Disarmer:
    return Disarmer(TAGS, special)
