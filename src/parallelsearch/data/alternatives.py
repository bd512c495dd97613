"""Reading a question that sets things side by side: "A or B", "A and B", "which of A, B and C". One place for all who ask.

Three readings, because three kinds of reader need them. `offered` says what one would choose from, or nothing: a guesser
must not be given names that are no answers. `compared` proposes every pair of names that the question may compare,
the likeliest first: the cold start has the search engine confirm one. `listed` says which three or more names stand side
by side, whatever is asked of them: all must be found. `names_in` finds what looks like a name at all.
Rules over the words of an English question, no model; in another language they find names by their capitals and
little else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from parallelsearch.answers import normalise

_VERBS = "is|are|was|were|do|does|did|has|have|had|can|could|will|would"
_ASKING = "who|whom|whose|which|what|when|where|why|how"
_OPENING_VERB = re.compile(rf"[\"'“]?(?:{_VERBS}|should|may|might|am|isn't|aren't)\b", re.IGNORECASE)
_VERB = re.compile(rf"\b({_VERBS})\b")
_QUESTION_WORD = re.compile(rf"\b({_ASKING})\b", re.IGNORECASE)
_OPENS = frozenset(
    f"{_VERBS}|{_ASKING}|should|between|in|of|from|both|being|out|among|with|given|for|if|please|say|tell|compare".split(
        "|"
    )
)
"""Words that open a question, and are part of no name there."""


# ---- names -----------------------------------------------------------------------------------------------------------


def words_of(text: str) -> frozenset[str]:
    """The words of a list written as one text."""
    return frozenset(text.split())


_LINKS = words_of(
    "of the and in for de la le les el du des von van der den di da do dos y to on a an with from at by & vs vs. "
    "del al no und et ibn bin the's zu"
)
_TOKEN = re.compile(r"\"[^\"]+\"|“[^”]+”|[^\s]+")
EDGE = " \t,;:?!.'\"“”‘’()[]"
"""What may stand around a word and is no part of it."""


def trimmed(text: str) -> str:
    """A name without the punctuation around it; brackets stay where both are there."""
    text = text.strip(EDGE.replace("(", "").replace(")", ""))
    return text if text.count("(") == text.count(")") else text.strip("()")


def names_in(question: str) -> list[str]:
    """Stretches that look like names: quoted, or capitalised words with small linking words between them."""
    found: list[str] = []
    tokens = _tokens(question)
    position = 0
    while position < len(tokens):
        end = _name_end(tokens, position)
        if end > position:
            name = re.sub(r"['’]s$", "", trimmed(" ".join(token for token, _ in tokens[position:end])))
            if name and name != "I" and (len(name) > 2 or name.isupper()) and name not in found:
                found.append(name)
            position = end
        else:
            position += 1
    return found


def _tokens(question: str) -> list[tuple[str, bool]]:
    """Words with whether each can be part of a name. The question's own first words never can."""
    tokens: list[tuple[str, bool]] = []
    for number, match in enumerate(_TOKEN.finditer(question)):
        word = match[0]
        bare = word.strip(EDGE)
        is_name = bool(bare) and (word[0] in '"“' or bare[0].isupper() or bare[0].isdigit())
        if number == 0 and bare.lower() in _OPENS:
            is_name = False
        tokens.append((word, is_name))
    return tokens


def _name_end(tokens: Sequence[tuple[str, bool]], start: int) -> int:
    """One past the last word of the name that starts here; `start` itself if none does."""
    end = position = start
    while position < len(tokens):
        word, is_name = tokens[position]
        if is_name:
            position += 1
            end = position
            if word.rstrip("\"”'’")[-1:] in ",;:?" or (word[0] in '"“' and word[-1:] in '"”'):
                break
        elif position > start and word.lower() in _LINKS and word.lower() not in ("and", "from", "by", "at", "with"):
            position += 1
        else:
            break
    return end


# ---- what is offered -------------------------------------------------------------------------------------------------

_COMPARES_TWO = r"earlier|later|older|younger|more|longer|larger|bigger|higher|closer|farther|further|fewer|less"
_COMPARES = re.compile(rf"\b(first|most|{_COMPARES_TWO})\b")
_IS_LIST = re.compile(r"\bof these\b|\bthe \w+est\b")
_OF_SEVERAL = re.compile(r"\b(?:first|last|most)\b")
_RANK = re.compile(
    r"\d|(?:the|Jr|Sr|Lord|Lady|King|Queen|Emperor|Empress|Elector|Prince|Princess|Duke|Duchess|Marquis|Marquess|Earl|Count"
    r"|Countess|Viscount|Viscountess|Baron|Baroness|Baronet)\b"
)
"""What stands after a comma in a person's name."""

_CAPITAL = r"[\"'“‘(]?[A-Z0-9À-ÖØ-ÞĀ-Ž]"
_NAME = rf"(?:{_CAPITAL}[^\s,;?]*)"
_SMALL = r"(?:of|the|and|in|on|de|la|le|von|van|der|du|for|to|a|an|at|with|from|is|vs?\.?|&|y|et|no\.?)"
_SPAN = re.compile(rf"{_NAME}(?:,?\s+(?:{_SMALL}\s+)*{_NAME})*")
_QUOTED = re.compile(r"\"[^\"]+\"|“[^”]+”")
_QUOTED_LIST = re.compile(rf"(?:(?:{_QUOTED.pattern})(?:,\s|,?$))+")
_MARK = re.compile(r"[,:]\s+")
_NAMED_MARK = re.compile(rf"[,:]\s+(?=(?:the\s+)?{_CAPITAL})")
_LEAD = re.compile(
    r"(?P<of>\b(?:which|who) of|\bthe (?-i:[a-z]+est of)|^Of)\s+|\b(?:in between|between|among(?:st)?)\s+",
    re.IGNORECASE,
)
_ARTICLE = re.compile(r"^(?:the|a|an)\s+")
_NEXT = r"(?:who|whom|whose|which|what|is|are|was|were|do|does|did|has|have|had|can)\s"
_ENDS_LIST = re.compile(rf",?\s+(?={_NEXT})")
_ENDS_NAME = re.compile(rf",\s+(?=[a-z])|\s+(?={_NEXT})")
_MAX_WORDS = 4
"""An alternative in lower case has no more words than this: what is longer is a clause."""


def offered(question: str) -> list[str]:
    """What the question lets one choose from: its alternatives, or yes and no; empty if it offers nothing."""
    text = " ".join(question.split()).rstrip("?. ")
    verb = _OPENING_VERB.match(text)
    if verb is not None:  # "Was A or B born first?" offers two names, "Are A and B both cities?" a yes and a no
        asks_for_both = text[verb.end() :].startswith((" either ", " both ", " neither "))
        return ([] if asks_for_both or " or " not in text else _around(text, " or ")) or ["yes", "no"]
    has_question_word = _QUESTION_WORD.search(text)
    found = _alternatives(text) if has_question_word or " or " in text else []
    return found or (["yes", "no"] if not has_question_word and _VERB.search(text) else [])


def _alternatives(text: str) -> list[str]:
    """The alternatives of a question that wants one of them."""
    found = _after_lead(text)
    for word in (" or ", " and "):
        if not found and word in text and (word == " or " or _COMPARES.search(text) or _IS_LIST.search(text)):
            found = _after_mark(text, word) or _around(text, word)
    return found or _after_mark_in_lower_case(text)


def _after_lead(text: str) -> list[str]:
    """ "Which of A, B and C ...", "Between A and B, who ...", "Which is the largest among A, B and C"."""
    for lead in _LEAD.finditer(text):
        listed = text[lead.end() :]
        end = _ENDS_LIST.search(listed)
        listed = listed[: end.start()] if end is not None else listed
        head, found, tail = max(listed.rpartition(" and "), listed.rpartition(" or "), key=lambda cut: len(cut[0]))
        parts = [part for part in head.removesuffix(",").split(", ") if part]
        named = _SPAN.search(parts[0]) if parts else None
        if not found or not parts or ":" in listed:
            continue
        if named is not None:  # "the poets Lord Byron" -> "Lord Byron"
            parts = [parts[0][named.start() :], *parts[1:], tail if end is not None else _first_name(tail)]
        elif all(map(_is_short, [*parts, tail])):
            parts = [*parts, tail]
        else:
            continue
        # "The border between A and B" offers nothing: unless it opens the question, the list must close it.
        closes = text.startswith(("Which", "Who")) and text.endswith(parts[-1])
        if lead["of"] or lead.start() == 0 or closes:
            return _all(parts)
    return []


def _after_mark(text: str, word: str) -> list[str]:
    """ "Which came first, A or B", "Which canal, A or B, carries ...": what follows the first comma or colon is offered."""
    head, _, tail = text.rpartition(word)
    mark = _NAMED_MARK.search(head)
    if mark is None:
        return []
    before, listed = head[: mark.start()], head[mark.end() :]
    # A comma may stand inside a name. It parts several alternatives after a colon, before the last word, for "the oldest".
    is_list = text[mark.start()] == ":" and not re.search(rf"\b(?:{_COMPARES_TWO})\b", before)
    is_list = is_list or head.endswith(",") or _IS_LIST.search(text) is not None or _is_of_several(before, listed)
    left = listed.removesuffix(",").split(", ") if is_list else [listed]
    if _QUOTED_LIST.fullmatch(listed):  # "Which came out first, "A", "B, C" or "D"": quotes say where each ends
        left = _QUOTED.findall(listed)
    end = _ENDS_NAME.search(tail)
    if end is not None and not (_VERB.search(before) or _COMPARES.search(before)):  # the verb comes after the names
        tail = tail[: end.start()]
    return _all([*left, tail])


def _is_of_several(asked: str, listed: str) -> bool:
    """ "Who was born first, A, B or C": a person's name has a comma only before a rank, and hardly any name has three. Else
    "Which came out first, A, B or C" is left at two: of films and places, most are "Murder, She Said" or "Tumen, Jilin"."""
    inner = listed.split(", ")[1:]
    are_people = asked.lower().startswith("who ") and not any(map(_RANK.match, inner))
    return _OF_SEVERAL.search(asked) is not None and (are_people or len(inner) > 2)


def _after_mark_in_lower_case(text: str) -> list[str]:
    """ "Which metal is denser, iron or copper": short words alone between a comma or colon and the end."""
    head, found, tail = text.rpartition(" or ")
    mark = _MARK.search(head)
    if not found or mark is None:
        return []
    parts = [*head[mark.end() :].removesuffix(",").split(", "), tail]
    return _all(parts) if all(map(_is_short, parts)) else []


def _around(text: str, word: str) -> list[str]:
    """ "Was A or B born first", "who is older A or B": the names on both sides of the word."""
    head, _, tail = text.rpartition(word)
    return _all([_last_name(head), _first_name(tail)])


def _all(parts: Sequence[str]) -> list[str]:
    """The alternatives without quotes around them; none if one of them is nothing."""
    clean = [part.strip(" ,\"'“”‘’") for part in parts]
    return clean if all(clean) else []


def _is_short(text: str) -> bool:
    is_clause = _VERB.search(text) or _QUESTION_WORD.search(text)
    return not is_clause and 1 <= len(_ARTICLE.sub("", text).split()) <= _MAX_WORDS


def _last_name(text: str) -> str:
    """The named span a clause ends in: "which is older Foo Bar" -> "Foo Bar"."""
    spans = list(_SPAN.finditer(text))
    if not spans or spans[-1].end() < len(text.rstrip()) - 1:
        return ""
    name = spans[-1].group()
    first, _, rest = name.partition(" ")
    opens = spans[-1].start() == 0 and (_OPENING_VERB.fullmatch(first) or _QUESTION_WORD.fullmatch(first))
    return rest if opens else name


def _first_name(text: str) -> str:
    span = _SPAN.match(_ARTICLE.sub("", text))
    return span.group() if span else ""


# ---- what may be compared --------------------------------------------------------------------------------------------


def compared(question: str) -> Iterator[tuple[str, str]]:
    """Pairs of names that the question may compare, the likeliest first."""
    text = " ".join(question.split()).rstrip("?.!: ") + " ?"
    joints = [match for word in (" or ", " and ", " & ") for match in re.finditer(re.escape(word), text, re.IGNORECASE)]
    for joint in joints:
        lefts = list(_left_names(text[: joint.start()]))
        rights = list(_right_names(text[joint.end() :]))
        for left in lefts[:3]:
            for right in rights[:3]:
                if left and right and normalise(left) != normalise(right):
                    yield left, right


def _left_names(text: str) -> Iterator[str]:
    """Names that end where the text ends: quoted, capitalised as far back as it goes, or all after the last comma."""
    text = text.rstrip(" ,")
    if text.endswith(('"', "”")):
        quoted = re.search(r"[\"“]([^\"”“]+)[\"”]$", text)
        if quoted:
            yield quoted[1]
    tokens = _tokens(text)
    start = len(tokens)
    while start > 0:
        word, is_name = tokens[start - 1]
        if start < len(tokens) and word.rstrip("\"”'’")[-1:] in ",;:":
            break
        if not is_name and word.lower() not in _LINKS:
            break
        start -= 1
    while start < len(tokens) and not tokens[start][1]:
        start += 1
    if start < len(tokens):
        yield trimmed(" ".join(token for token, _ in tokens[start:]))
    tail = trimmed(re.split(r"[,:;]\s", text)[-1])
    if 0 < len(tail.split()) <= 6:
        yield tail
    if start < len(tokens):  # "Are the band Foo Bar": the last capitalised run alone
        run = start
        for number in range(len(tokens) - 1, start - 1, -1):
            if not tokens[number][1]:
                run = number + 1
                break
        if run != start and run < len(tokens):
            yield trimmed(" ".join(token for token, _ in tokens[run:]))


def _right_names(text: str) -> Iterator[str]:
    """Names that begin where the text begins."""
    quoted = re.match(r"\s*[\"“]([^\"”“]+)[\"”]", text)
    if quoted:
        yield quoted[1]
    text = re.sub(r"^\s*(?:the|a|an|is|was)\s+(?=[A-Z0-9\"“])", "", text)
    tokens = [
        (word, is_name or (number == 0 and word[:1].isupper())) for number, (word, is_name) in enumerate(_tokens(text))
    ]
    end = _name_end(tokens, 0)
    if end:
        yield trimmed(" ".join(token for token, _ in tokens[:end]))
    head = trimmed(re.split(r"[,:;?]\s?", text)[0])
    if 0 < len(head.split()) <= 6:
        yield head
    first_run = 0
    while first_run < end and tokens[first_run][1]:
        first_run += 1
    if 0 < first_run < end:
        yield trimmed(" ".join(token for token, _ in tokens[:first_run]))


# ---- what is listed --------------------------------------------------------------------------------------------------

_BETWEEN = re.compile(r"[\"”'’]?,?[\"”'’]?\s+(?:(?:and|or|&)\s+)?(?:the\s+)?[\"“'‘]?", re.IGNORECASE)
_PLACE = re.compile(r"\s(?:in|on|to|for)\s.*")
_BOUND = re.compile(r"\b(?:after|before|since|until|in|by|than|from|to)\s+\Z", re.IGNORECASE)


def listed(question: str) -> list[str]:
    """Three or more names in a row, "A, B and C"; empty where there is no such list. A comma inside a name parts it."""
    names: list[str] = []
    end = 0
    for name in names_in(question):
        start = max(question.find(name, end), end)
        is_year = name.isdigit() and _BOUND.search(question[:start]) is not None  # "born after 1960, A or B"
        if is_year or not _BETWEEN.fullmatch(question[end:start]):
            if len(names) > 2:
                break
            names = []
        end = start + len(name)
        if not is_year:
            names.append(name)
    # "Are Oslo, Cairo and Quito in Africa": where the last one is asked to be is no part of its name.
    return [*names[:-1], _PLACE.sub("", names[-1])] if len(names) > 2 else []
