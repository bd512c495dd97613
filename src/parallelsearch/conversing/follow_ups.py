"""Questions that lean on earlier ones: "Where was he born?", "And Pissarro?".

`standalone` rewrites a follow-up by rule, so that the policy gets a question such as it was trained on: a pronoun, "the
author" or "the other one" becomes the name it stands for, "And Pissarro?" becomes the earlier question about Pissarro.
English words and rules; what they do not understand stays as it is, and the earlier turns stand before it in the prompt
(`framing.py`). A model that knows conversations (one that takes tools) is shown those instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallelsearch.answers import normalise, says_not_found
from parallelsearch.data.alternatives import EDGE, compared, names_in, offered, words_of
from parallelsearch.grammar import NUMBERS
from parallelsearch.grounding import INSTEAD_OF_AN_ANSWER

Pair = tuple[str, str]
"""An earlier question, and what was answered."""

_PEOPLE = (
    "man|woman|person|author|writer|poet|novelist|playwright|painter|artist|sculptor|composer|singer|musician|band|actor|actress|"
    "director|architect|scientist|physicist|chemist|mathematician|inventor|philosopher|president|king|queen|emperor|founder|"
    "explorer|player|footballer|politician|winner"
)
_THINGS = (
    "city|town|village|country|state|river|lake|mountain|island|place|region|capital|continent|planet|moon|element|metal|language|"
    "company|club|team|university|school|museum|building|bridge|tower|film|movie|book|novel|play|opera|song|album|painting|work|"
    "series|game|prize|award|war|battle|treaty"
)
_NOT_OF = r"(?!\s+(?:of|who|whom|whose|which|that|where|in|from|behind|by|called|named|with|for|on|at)\b)"
_PERSON = re.compile(rf"\b(he|him|she|(?:the|that|this)\s+(?:same\s+)?(?:{_PEOPLE})){_NOT_OF}\b(?!')", re.IGNORECASE)
_PERSONS = re.compile(rf"\b(his|(?:the|that|this)\s+(?:{_PEOPLE})'s)\b", re.IGNORECASE)
_HER = re.compile(r"\bher\b(?=(\s+[a-z]+)?)", re.IGNORECASE)
_AFTER_OBJECT = words_of("and or in at on by to from before after during with for when first")
_THING = re.compile(rf"\b(it|(?:the|that|this|the same|that same)\s+(?:{_THINGS})){_NOT_OF}\b(?!')", re.IGNORECASE)
_THING_AFTER_OF = re.compile(
    rf"\b(that|this)\s+(?:{_THINGS}|one)\b|\b(?:of|in|to|from|about)\s+(that|this)(?=[\s?.!,]*$)", re.IGNORECASE
)
_THINGS_OWN = re.compile(rf"\b(its|(?:the|that|this)\s+(?:{_THINGS})'s)\b", re.IGNORECASE)
_THERE = re.compile(r"\bthere\b(?!\s+(?:is|are|was|were|any|a|an|more|another)\b)", re.IGNORECASE)
_BOTH = re.compile(r"\b(both of them|both|they|them|the two)\b", re.IGNORECASE)
_THEIR = re.compile(r"\btheir\b", re.IGNORECASE)
_OTHER = re.compile(r"\bthe (other(?: one)?|former|latter|first one|second one|last one)\b", re.IGNORECASE)
_INSTEAD = re.compile(
    r"^(?:and|or|but)?\s*+(?:what about|how about|and|or)\s++(?:(in|of|for|from|with|on|at|by)\s++)?(.*[^\s?.!])[\s?.!]*+$",
    re.IGNORECASE,
)
_BARE = re.compile(r"^(?:and\s+)?(when|where|why|how|who)(?:\s+(?:was|is)\s+(?:that|it))?\s*[?.!]*$", re.IGNORECASE)
_QUESTION_WORD = re.compile(r"(?:who|whose|what|when|where|why|how|which)\b", re.IGNORECASE)
_YES_NO_VERB = re.compile(r"^(is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b", re.IGNORECASE)
_ASKS_WHO = re.compile(
    rf"\b(?:who|whom)\b|\b(?:which|what)\s+(?:(?:\w+\s+){{0,2}}|(?:is|was)\s+the\s+name\s+of\s+the\s+)(?:{_PEOPLE})\b",
    re.IGNORECASE,
)
_ASKS_WHAT = re.compile(r"\b(?:what|which|where)\b", re.IGNORECASE)
_MARKS = re.compile(r"(?<!\w)[*_`]++|[*_`]++(?!\w)")
_MARK_OF_LINE = re.compile(r"^\s*+(?:[-*+|]|\d{1,2}[.)])\s")
_SENTENCE_END = re.compile(r"(?<=[^\s.][^\s.])[.!?](?=\s|$)|;")
_MAX_ANSWER_WORDS, _MAX_SENTENCE_WORDS = 8, 60
_MAX_NAME_CHARS, _MAX_NAMES = 100, 12
"""More is no name. Without a limit one that stands for four pronouns in a message is four times as long in the next."""
_EARLIER, _EARLIER_CHARS = 12, 1_000
"""So many earlier questions, and so much of each, are read: each is read with those before it."""


def standalone(question: str, earlier: Sequence[Pair]) -> str:
    """The question as one would ask it of somebody who heard nothing before; itself where it leans on nothing, or where what
    it leans on is not known."""
    known: list[Pair] = []
    for asked, answer in earlier[-_EARLIER:]:
        known.append((_resolved(asked[:_EARLIER_CHARS], known), _unmarked(answer[:_EARLIER_CHARS])))
    return _resolved(question, known)


def _unmarked(answer: str) -> str:
    """An answer without Markdown, which would stick to the names in it: no name goes on in the next line or cell."""
    lines = [line for line in answer.splitlines() if any(map(str.isalnum, line)) and not line.lstrip().startswith("#")]
    if len(lines) > 1:
        lines = [_MARK_OF_LINE.sub("", line) for line in lines]
    return _MARKS.sub("", "; ".join(lines).replace("|", ";")).strip()


def leans(question: str) -> bool:
    """Whether the question has something in it that only the conversation explains."""
    text = " ".join(question.split())
    patterns = (_PERSON, _PERSONS, _HER, _THING, _THING_AFTER_OF, _THINGS_OWN, _THERE, _BOTH, _THEIR, _OTHER)
    is_short = _INSTEAD.match(text) is not None or _BARE.match(text) is not None
    return is_short or any(pattern.search(text) for pattern in patterns)


def _resolved(question: str, earlier: Sequence[Pair]) -> str:
    text = " ".join(question.split())
    if not earlier or not leans(text):
        return question
    last, _ = earlier[-1]
    bare = _BARE.match(text)
    if bare is not None and (verb := _YES_NO_VERB.match(last)) is not None:
        return f"{bare[1].capitalize()} {verb[1].lower()}{last[verb.end() :]}"
    text = _without_others(text, earlier)
    instead = _INSTEAD.match(text)
    if instead is not None and (asked := _asked_of_another(last, instead[1], instead[2])) is not None:
        return asked
    text = _with_people(text, earlier)
    text = _with_many(text, earlier)
    text = _with_things(text, earlier)
    return text if text != " ".join(question.split()) else question


def _asked_of_another(last: str, preposition: str | None, other: str) -> str | None:
    """The earlier question with another name in it: "And Pissarro?" after "When was Claude Monet born?"."""
    if len(other.split()) > 6 or _YES_NO_VERB.match(other) or _QUESTION_WORD.match(other):
        return None
    places = [match for name in names_in(last) for match in re.finditer(re.escape(name), last)]
    if preposition:
        ends = (f" {preposition.lower()} ", f" {preposition.lower()} the ")
        places = [one for one in places if last[: one.start()].lower().endswith(ends)]
    if not places:
        return None
    where = places[0] if not offered(last) or offered(last) == ["yes", "no"] else places[-1]
    named = re.sub(r"^the\s+", "", other) if last[: where.start()].endswith("the ") else other
    return last[: where.start()] + named + last[where.end() :]


def _with_people(text: str, earlier: Sequence[Pair]) -> str:
    if not (_PERSON.search(text) or _PERSONS.search(text) or _HER.search(text)) or not (name := _person(earlier)):
        return text
    text = _PERSONS.sub(lambda _: _own(name), text)
    text = _PERSON.sub(lambda match: _fit(match, name), text)
    return _HER.sub(lambda match: name if not match[1] or match[1].strip() in _AFTER_OBJECT else _own(name), text)


def _with_things(text: str, earlier: Sequence[Pair]) -> str:
    patterns = (_THING, _THING_AFTER_OF, _THINGS_OWN, _THERE)
    if not any(pattern.search(text) for pattern in patterns) or not (name := _thing(earlier)):
        return text
    text = _THINGS_OWN.sub(lambda _: _own(name), text)
    text = _THING.sub(lambda match: _fit(match, name), text)
    text = _THING_AFTER_OF.sub(lambda match: name if match[1] else match[0].replace(match[2], name), text)
    return _THERE.sub(f"in {name}", text)


def _with_many(text: str, earlier: Sequence[Pair]) -> str:
    if not (_BOTH.search(text) or _THEIR.search(text)):
        return text
    names = _several(earlier)
    if len(names) < 2:
        last_asked, last_answer = earlier[-1]
        is_sought = _ASKS_WHO.search(last_asked) is not None and _is_not_found(last_answer)
        name = "" if is_sought else _person(earlier) or _thing(earlier)
        names = [name] if name else []
    if not names:
        return text
    named = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    is_plain = not any(name in text for name in names)
    text = _THEIR.sub(_own(named), text)
    return _BOTH.sub(named, text, count=1) if is_plain else text


def _without_others(text: str, earlier: Sequence[Pair]) -> str:
    """ "The other one", "the former": of the alternatives that were offered last."""
    match = _OTHER.search(text)
    if match is None:
        return text
    for asked, answer in reversed(earlier):
        names = [one for one in offered(asked) if one.lower() not in ("yes", "no")] or [*next(compared(asked), ())]
        if len(names) < 2:
            continue
        word = match[1].lower()
        if word.startswith("other"):
            wanted = normalise(NUMBERS.sub("", answer))
            left = [
                one for one in names if not wanted or (wanted not in normalise(one) and normalise(one) not in wanted)
            ]
            chosen = left[0] if len(left) == 1 else None
        else:
            chosen = names[-1] if word.startswith(("latter", "second", "last")) else names[0]
        if chosen:
            return text[: match.start()] + chosen + text[match.end() :]
    return text


# ---- what a word may stand for ---------------------------------------------------------------------------------------


def _person(earlier: Sequence[Pair]) -> str:
    """Who was spoken of last: the answer to "who", or else the first name of the question. Where "who" was asked and not
    found, nobody: "he" is then the one who was asked for, and not the work in the question."""
    for asked, answer in reversed(earlier):
        if _ASKS_WHO.search(asked) and ((name := _name_of(answer, asked)) or _is_not_found(answer)):
            return name
        if names := _names(asked):
            return names[0]
    return ""


def _thing(earlier: Sequence[Pair]) -> str:
    """What was spoken of last: the answer to "what", "which" or "where", or else the name in the question."""
    for asked, answer in reversed(earlier):
        asks_what = _ASKS_WHAT.search(asked) is not None and not _ASKS_WHO.search(asked)
        if asks_what and (name := _name_of(answer, asked)):
            return name
        if names := _names(asked):
            return names[-1] if _ASKS_WHO.search(asked) else names[0]
    return ""


def _several(earlier: Sequence[Pair]) -> list[str]:
    for asked, answer in reversed(earlier):
        listed = [part.strip() for part in re.split(r",|\band\b", NUMBERS.sub("", answer)) if part.strip()]
        if (
            len(listed) > 1
            and _are_names(listed)
            and all(part[0].isupper() and len(part.split()) <= 5 for part in listed)
        ):
            return listed
        names = [one for one in offered(asked) if one.lower() not in ("yes", "no")] or _names(asked)
        if len(names) > 1 and _are_names(names):
            return names
    return []


def _names(text: str) -> list[str]:
    """The names of a question, with the article they stand with."""
    names = [name for name in names_in(text) if _are_names([name])]
    return [f"the {name}" if re.search(rf"\bthe {re.escape(name)}", text) else name for name in names]


def _are_names(found: Sequence[str]) -> bool:
    return len(found) <= _MAX_NAMES and all(len(one) <= _MAX_NAME_CHARS for one in found)


def _name_of(answer: str, asked: str) -> str:
    """The name an answer gives: itself if it is short and no number, or the name in its sentence that the question lacks."""
    text = NUMBERS.sub("", answer).strip().strip(EDGE)
    if _is_not_found(answer) or text.lower() in ("yes", "no"):
        return ""
    if ";" in text or len(text.split()) > _MAX_SENTENCE_WORDS:
        # Of a text the first: there it says what was asked, and what it goes on to tell of others comes later.
        said = _SENTENCE_END.split(NUMBERS.sub(",", answer))
        names = (re.split(r" in (?=\d)", name)[0] for sentence in said for name in names_in(sentence))
        return next((name for name in names if name not in asked and _are_names([name])), "")
    is_sentence = len(text.split()) > _MAX_ANSWER_WORDS or re.search(r"\b(?:is|was|are|were)\b", text) is not None
    if not is_sentence:
        return text if _are_names([text]) and not text[0].isdigit() else ""
    said = [name for name in names_in(text) if name not in asked and not name[0].isdigit() and _are_names([name])]
    return said[-1] if said else ""


def _is_not_found(answer: str) -> bool:
    text = NUMBERS.sub("", answer).strip().strip(EDGE)
    return not text or says_not_found(text) or text.startswith(INSTEAD_OF_AN_ANSWER)


def _own(name: str) -> str:
    return f"{name}'" if name.endswith("s") else f"{name}'s"


def _fit(match: re.Match[str], name: str) -> str:
    """The name in the place of a word, with a capital where the word began the question."""
    return name[:1].upper() + name[1:] if match.start() == 0 else name
