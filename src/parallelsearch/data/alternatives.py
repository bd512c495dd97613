"""Reading a question that sets things side by side: "A or B", "A and B", "which of A, B and C". One place for all who ask.

Three readings, because three kinds of reader need them. `offered` says what one would choose from, or nothing: a guesser
must not be given names that are no answers. `compared` proposes every pair of names that the question may compare,
the likeliest first: the cold start has the search engine confirm one. `listed` says which names stand side by side, whatever
is asked of them: all must be found. `names_in` finds what looks like a name at all.
`offered` and `listed` read one row of names, by what parts them and by the words before and after them, in small letters,
too. `compared` and `names_in` do not: the cold start and the sets made from pages hang on them, letter by letter.
Rules over the words of an English question, no model; in another language they find names by their capitals and
little else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from parallelsearch.answers import normalise
from parallelsearch.grammar import one_line

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


# ---- what stands side by side ----------------------------------------------------------------------------------------

_COMPARES_TWO = "earlier|later|older|younger|newer|more|longer|larger|bigger|higher|closer|farther|further|fewer|less"
_UPPER = "".join(filter(str.isupper, map(chr, range(0x250))))
_CAPITAL = re.compile(rf"[\"'“‘(]*[0-9{_UPPER}]|[\"“]")
_QUOTED = re.compile(r"\"[^\"]+\"|“[^”]+”")
_SENTENCE_END = re.compile(r"(?:[?!]|(?<=[^\s.]{3})(?<!Mrs)\.)[\"”]?\s+(?!(?:or|and|&)\s)")
"""Not after a letter or two: `St. Barnabas` and `J. P. McGowan` go on, and so does `Auntie Roo? or ...`."""
_MARK = r"(?:\(?[a-z0-9]\)|•)"
_JOINT = re.compile(r",?\s+(and|or|nor|&)\s+")
_COMMA = re.compile(rf",?\s+{_MARK}\s+|\s+[+|]\s+|[,;]\s+|\s+against\s+")
_ARTICLE = re.compile(r"^(?:the|a|an)\s+", re.IGNORECASE)
_SAID = (
    "both|born|dies?|died|come|came|belongs?|belonged|released|directed|written|made|founded|formed|published|built|located|"
    "lived|launched|recorded|invented|established"
)
_SAYS = re.compile(rf"\b(?:{_VERBS}|{_ASKING}|{_SAID}|first|last|most|fewest|{_COMPARES_TWO})\b")
"""A clause has such a word in small letters, and a name hardly ever."""
_END = re.compile(
    rf"[?!;](?:\s|\Z)|\.{{2,}}(?!\s[{_UPPER}])|:\s(?![{_UPPER}0-9])|:\sI\s|\s[-–—]\s(?![{_UPPER}])|,?\s(?:{_VERBS}|am|{_ASKING}|{_SAID}|each|all|"
    r"either|got|closer|older|younger|larger|longer|higher|please|in mind|"
    r"that (?:is|are|was|were|has|have|had|died|belongs?)|"
    r"(?:of|from|in|to|for|on|at) (?:the |a )?(?:same|different))\b"
)
"""Where the last name of a row ends, and what is said of them all begins."""
_PLACES = re.compile(r"\s(?:in|on|from|of|with|by|at|to|for|as|an?)(?=\s)")
_KINDS = (
    "films?|movies?|books?|novels?|songs?|albums?|bands?|games?|city|cities|towns?|villages?|settlements?|country|countries|rivers?|"
    "lakes?|mountains?|islands?|compan(?:y|ies)|magazines?|people|persons?|writers?|poets?|painters?|composers?|singers?|actors?|"
    "actress(?:es)?|directors?|authors?|artists?|genus|genera|species|planets?"
)
_MAKERS = "one|directors?|authors?|artists?|painters?|composers?|writers?"
_LEAD = words_of(
    f"{_VERBS} {_ASKING} am i it true right correct that to say be each every one ones all none neither both any not a "
    "single of the these those following among between out compare take look at consider how many number name list give "
    "tell me find please whether given with only keep year years population nationality birth death release named called "
    "if line up go down make hello".replace("|", " ")
)
"""Words that stand before the first name of a row: in small letters nothing else tells where it begins."""
_OPENERS = words_of(
    f"{_VERBS} {_ASKING} am of out one between among both neither either compare take look name list give tell find say keep "
    "with given please consider if make hello".replace("|", " ")
)
_LEAD_IN = re.compile(rf"(?:(?:{'|'.join(sorted(_LEAD))})\s+(?:(?:{_KINDS})\s+)?)+", re.IGNORECASE)
_EACH_OF = re.compile(
    r".*\b(?:each|all|none|neither|either|any|ones?|both|many|which|some|out|\w{2,}est)\s+of\s+", re.IGNORECASE
)
_INTRODUCES = re.compile(
    r".*?\b(?:each|all|none|neither|either|any|ones?|both|many|which|who|some|out|number|population|nationality|birth|death|"
    rf"release|among|between|{_MAKERS})(?:\s+of\b)?\s+",
    re.IGNORECASE,
)
_LEADS = (_EACH_OF, _INTRODUCES, _LEAD_IN, re.compile(rf"{_MARK}\s"))
_KIND = re.compile(rf"(?:(?:the|these|those|both|two|three|board)\s+)*(?:{_KINDS})", re.IGNORECASE)
_ITS_KIND = re.compile(
    rf"(?:the\s+)?(?:{_MAKERS})\s+of\s+(?:the\s+(?:{_KINDS})\s+)?|the\s+(?:{_KINDS})\s+(?:(?:called|named)\s+)?(?!of\b)",
    re.IGNORECASE,
)
_IS_SUBJECT = re.compile(
    rf"(?:.*[\s,:])?(?:{_VERBS}|am|how many of|which of|who of)"
    rf"(?:\s+(?:both|each|all|none|neither|either|every|any|one|not|of|the|these|two|a|single|{_KINDS}))*(?:\s+the \w+)?\s*",
    re.IGNORECASE,
)
_WANTS_PREDICATE = re.compile(
    rf"(?:(?:{_VERBS})\b|(?:how many|which|who)\b(?!.*\b(?:{_VERBS})\b))[^,:]*\Z", re.IGNORECASE
)
"""Before a row: what is said of it must come after it."""
_OPENS_ROW = re.compile(
    r"(?:[,:](?:\s+the(?: [\w-]+){0,2})?|\b(?:which|who|ones?|\w+est|first|last)(?: \w+)? of(?: \w+){0,3}|"
    r"\b(?:among(?:st)?|between|out of|these|whether)(?: \w+){0,3})\s*\Z",
    re.IGNORECASE,
)
_ENDS_ROW = re.compile(rf"\Z|[?:.]|\s[-–—]\s|,?\s(?:{_ASKING}|are|is|were|was)\b")
_BOUNDS = words_of("after before since until in by than from to")
_INSIDE = _LINKS | words_of("o' is v.")
_NO_NAME = _INSIDE | words_of("into one ones then")
_SHORT_WORDS, _MOST_WORDS, _MOST_NAMES, _MOST_CHARS = 4, 9, 50, 2_000
"""What is longer is no name; more names in a row, and what follows so many characters, are not read."""


@dataclass(frozen=True, slots=True)
class _Row:
    """Things side by side, and where they stand in their sentence."""

    names: list[str]
    called: list[str]
    """The names as they stand there, with what they are: `the director of Psycho`."""
    written: str
    """All but the last, with what parts them."""
    joint: str
    """`and`, `or`, or what else stands before the last, with its comma."""
    before: str
    after: str
    is_cased: bool
    """Told by their capitals."""
    is_name_next: bool
    """Behind the joint there is a name at once: of `A and the B and C` the second one."""

    @property
    def word(self) -> str:
        return self.joint.strip(" ,")


def listed(question: str) -> list[str]:
    """Two or more things that stand side by side, whatever is asked of them; empty where none do. A comma inside a name
    parts it, unless two things are compared."""
    row = _longest_row(_plain(question))
    return [] if row is None else row.names


def _plain(question: str) -> str:
    return re.sub(r",\s+yes or no\b", "", one_line(question)[:_MOST_CHARS], flags=re.IGNORECASE)


def _longest_row(text: str) -> _Row | None:
    rows = [row for sentence in _sentences(text) for row in _rows(sentence)]
    return max(rows, key=lambda row: (len(row.names), row.word == "or", row.is_name_next), default=None)


def _masked(text: str) -> str:
    """What stands in quotes is one name: nothing in it parts anything."""
    return _QUOTED.sub(lambda quoted: f'"{"Q" * (len(quoted[0]) - 2)}"', text)


def _sentences(text: str) -> list[str]:
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(_masked(text))), len(text)]
    return [text[start:end].strip() for start, end in pairwise(ends) if text[start:end].strip()]


def _rows(sentence: str) -> list[_Row]:
    """A row for each word or comma that may stand before its last name. Names are told by their capitals or, where there are
    none, by the words around them."""
    masked = _masked(sentence)
    joints = list(_JOINT.finditer(masked))
    if any(joint[1] != "&" for joint in joints):  # "Machete Kills or Mummy & Me"
        joints = [joint for joint in joints if joint[1] != "&"]
    inside = {place for joint in joints for place in range(*joint.span())}
    commas = [comma for comma in _COMMA.finditer(masked) if comma.start() not in inside]
    has_capitals = any(word[0].isupper() and word != "I" for word in re.findall(r"\w+", sentence)[1:])
    for is_cased in (True, False) if has_capitals else (False,):
        for ways in (joints, commas):
            found = [_row(sentence, way, joints, commas, is_cased) for way in ways[: -_MOST_NAMES - 1 : -1]]
            rows = [row for row in found if row is not None and (row.is_cased or not has_capitals or _is_short(row))]
            if rows:
                return rows
    return []


def _is_short(row: _Row) -> bool:
    """In a sentence with names in it, things in small letters are short: "Which metal melts first in Bonn, iron or gold"."""
    return all(len(_ARTICLE.sub("", name).split()) <= _SHORT_WORDS for name in row.names)


def _row(
    sentence: str,
    joint: re.Match[str],
    joints: Sequence[re.Match[str]],
    commas: Sequence[re.Match[str]],
    is_cased: bool,
) -> _Row | None:
    """The names before the joint, as far back as they go, and the one after it."""
    word = joint[0].strip(" ,")
    is_comma = joint[0][0] in ",;" and word in ("", ";")
    again = [] if commas else [one for one in joints if one[1] == word]
    if word == "and":  # "Buck and the Preacher and Tom and Jerry": only a longer chain is a row
        again = [one for one in again if is_cased and _CAPITAL.match(sentence, one.end())]
        again = again if len(again) > 2 else []
    cuts = sorted((one.span() for one in (*commas, *again) if one.end() <= joint.start()), reverse=True)
    names: list[str] = []
    starts: list[int] = []
    end = joint.start()
    for cut_start, begin in (*cuts[:_MOST_NAMES], (0, 0)):
        piece = sentence[begin:end]
        name = piece if begin and _is_name(piece, is_cased) else _without_lead(piece, is_cased, word == "or")
        if name:
            names.insert(0, name)
            starts.insert(0, end - len(name))
        if name != piece or not begin:
            break
        end = cut_start
    if len(names) > 1 and word == "or" and is_cased and _is_asked(sentence[: starts[0]]):
        del names[0], starts[0]  # "Which is native to Asia, A or B"
    if not names:
        return None
    before = re.sub(rf"^{_MARK}\s+", "", sentence[: starts[0]])
    last, after = _last_name(sentence[joint.end() :], before, is_cased)
    if not last or (word != "or" and " or " in last) or (is_comma and (len(names) < 2 or not _ENDS_ROW.match(after))):
        return None
    written = sentence[starts[0] : joint.start()]
    if len(names) > 1 and ", " in written and _wants_two(before, joint[0], after):
        names = [written]
    called = [*names, last]
    bare = [_bare(name, is_cased) for name in called]
    is_name_next = _CAPITAL.match(sentence, joint.end()) is not None
    return _Row(bare, called, written, joint[0], before, after, is_cased, is_name_next) if all(bare) else None


def _is_asked(before: str) -> bool:
    """All is asked here, and what follows a comma may be the answer."""
    return _OPENS_ROW.search(before) is None and _QUESTION_WORD.search(before) is not None


def _wants_two(before: str, joint: str, after: str) -> bool:
    """A comma stands inside a name: "Which came out earlier, Murder, She Said or Story Of Barbara"."""
    if joint.startswith(","):
        return False
    if re.search(r"\btwo\b", before, re.IGNORECASE):
        return True
    if before.rstrip().endswith((",", ":")):
        return re.search(rf"\b(?:{_COMPARES_TWO})\b", before) is not None
    opens = re.match(r"(?:of|between|in between)\b", before, re.IGNORECASE)
    return opens is not None and re.search(rf"\b(?:{_COMPARES_TWO})\b(?! than)", after) is not None


def _first_capital(words: Sequence[str]) -> int:
    return next((number for number, word in enumerate(words) if _CAPITAL.match(word)), -1)


def _is_name(piece: str, is_cased: bool) -> bool:
    """Whether a piece between two commas is one of the row."""
    words = piece.split()
    if not words or len(words) > _MOST_WORDS * (1 + is_cased) or re.match(rf"(?:{_VERBS}|{_ASKING})\b", piece):
        return False
    if not is_cased:
        return ": " not in piece and not piece.startswith(("out of ", "given ", "among "))
    first = _first_capital(words)
    has_article = words[0] in ("the", "a", "an")
    if first < 0:  # "the giraffe, the blue whale or the African elephant"
        return has_article and len(words) <= _SHORT_WORDS and not _SAYS.search(piece)
    return first <= 3 and (first == 0 or has_article) and not _SAYS.search(" ".join(words[:first]))


def _without_lead(piece: str, is_cased: bool, is_or: bool) -> str:
    """The name that a piece ends in: "Which of the films Foo Bar" -> "Foo Bar"; empty if it ends in none."""
    if not is_cased:
        return _small_end(piece)
    last = piece.rpartition(": ")[2]
    return _cased_end(piece, is_or) or (last if last != piece and _is_name(last, is_cased) else "")


def _cased_end(piece: str, is_or: bool) -> str:
    words = piece.split(" ")
    opens = words[0].lower() in _OPENERS or words[:2] == ["In", "between"]
    capitals = [number for number, word in enumerate(words) if _CAPITAL.match(word) and (number or not opens)]
    if (
        not capitals
        or len(words) - capitals[-1] > (2 if is_or else 4)
        or _SAYS.search(" ".join(words[capitals[-1] + 1 :]))
    ):
        return ""
    start = capitals[0]
    lead, name = words[opens:start], words[start:]
    is_led = all(word.lower() in _LEAD or _KIND.fullmatch(word) for word in lead)
    is_clause = opens and is_or and _VERB.match(words[0].lower())  # "Did Foo sing with Bar or Baz"
    has_more = any(word in _LEAD - _INSIDE or word[-1] in ":;" for word in name if word)
    if not is_led or is_clause or has_more or _SAYS.search(" ".join(name)):  # else "Las aventuras de Foo" is one
        start = capitals[-1]
        for number in reversed(range(opens, start)):
            if words[number][-1:] in (":", ";"):
                break
            if number in capitals:
                start = number
            elif words[number].lower() not in _INSIDE:
                break
    if start > 0 and words[start].isdigit() and words[start - 1].lower() in _BOUNDS:  # "born after 1960, A or B"
        start += 1
    return " ".join(words[start:])


def _small_end(piece: str) -> str:
    text = re.split(r"[:?!]\s|\s[-–—]\s", piece)[-1]
    asks = re.match(rf"(?:{_ASKING})\b", text, re.IGNORECASE)
    if asks and not re.search(r"\b(?:of|among|between|did|does|do|were|are)\s", text):
        return ""
    for lead in _LEADS:
        found = lead.match(text)
        text = text[found.end() :] if found is not None else text
    is_none = not text or _KIND.fullmatch(text) or _SAYS.search(text) or len(text.split()) > _MOST_WORDS
    return "" if is_none else text


def _last_name(rest: str, before: str, is_cased: bool) -> tuple[str, str]:
    """The name that a text begins with, and what follows it."""
    quoted = _QUOTED.match(rest)
    if quoted is not None:
        return quoted[0], rest[quoted.end() :]
    words = rest.split(" ")
    first = _first_capital(words) if is_cased else 0
    if not 0 <= first <= 3 or _SAYS.search(" ".join(words[:first])):
        return "", ""
    kind = "".join(f"{word} " for word in words[:first])  # "the skier "
    rest = rest[len(kind) :]
    comma = re.compile(rf",\s(?![{_UPPER}\"“0-9])" if is_cased else r",\s")
    ends = [match.start() for match in (_END.search(rest, 1), comma.search(rest, 1)) if match is not None]
    end = min(ends, default=len(rest))
    name, after = rest[:end].rstrip(" ?."), rest[end:]
    clause = before.rpartition(": ")[2]
    if _WANTS_PREDICATE.match(clause):
        name = _without_predicate(name, clause, after, is_cased)
        after = rest[len(name) :]
    is_clause = not is_cased and (_SAYS.search(name) or len(name.split()) > _MOST_WORDS)
    is_nothing = all(word in _NO_NAME for word in name.split())
    return ("", "") if is_clause or is_nothing else (kind + name, after)


def _without_predicate(name: str, before: str, after: str, is_cased: bool) -> str:
    """What is said of the row has to come after it: where nothing else marks it, it stands at the last name."""
    is_marked = re.match(rf",?\s*(?:{_VERBS}|{_SAID}|all|each|that)\b", after) is not None
    if is_marked or (not is_cased and after.strip(" ?.!")):
        return name
    start = _cased_start(name)
    if is_cased and start != name and (_IS_SUBJECT.fullmatch(before) or not _CAPITAL.match(name.split(" ")[-1])):
        return start
    if after.strip(" ?.!") or not _IS_SUBJECT.fullmatch(before):
        return name
    places = list(_PLACES.finditer(name))
    return name[: places[-1].start()] if places else name.rpartition(" ")[0] or name


def _cased_start(name: str) -> str:
    """As far as it has capitals, with small linking words between them."""
    end = 0
    words = name.split(" ")
    for number, word in enumerate(words):
        if _CAPITAL.match(word):
            end = number + 1
        elif word.lower() not in _INSIDE:
            break
    return " ".join(words[:end])


def _bare(name: str, is_cased: bool) -> str:
    """Without what it is: "the skier Foo Bar" -> "Foo Bar"."""
    if _QUOTED.fullmatch(name.strip(" ,")):
        return _unquoted(name)
    name = trimmed(name)
    if not is_cased:
        its_kind = _ITS_KIND.match(name)
        return name[its_kind.end() :] if its_kind is not None and its_kind.end() < len(name) else name
    words = name.split()
    first = max(0, _first_capital(words))
    kind = words[first + 1 : first + 2]
    if words[first : first + 1] in (["The"], ["A"], ["An"]) and kind and kind[0] not in _INSIDE:
        later = _first_capital(words[first + 1 :])  # "The skier Foo Bar" opens the sentence
        first += later + 1 if later > 0 else 0
    return trimmed(" ".join(words[first:]))


def _unquoted(name: str) -> str:
    return name.strip(" ,\"'“”‘’")


# ---- what is offered -------------------------------------------------------------------------------------------------

_REQUEST = re.compile(
    r"(?:can|could|would|will) you\b[^?]*\?\s+|(?:hello|hi|please)\b[^:?.]*[:,]\s+(?:a question:\s+)?", re.IGNORECASE
)
_ORDER = re.compile(
    r"(?:please )?(?:name|list|find|tell|say|give|keep|compare|look|take|make|write|here)\b", re.IGNORECASE
)
_ASKS_IF = re.compile(rf":\s(?:{_VERBS}|am|every|each|all|both|none|neither|not)\b")
_COUNTS = re.compile(r"\bhow (?:many|much)\b|\bwhat number\b|\beach\b|\bevery\b", re.IGNORECASE)
_ASKS_WHICH = re.compile(r"\b(?:which|who|whose|those)\b|\bthe (?:\w{2,}est|newer|older|most|less)\b", re.IGNORECASE)
_ASKS_OF = re.compile(
    r"(?:one of|of|out of|(?:in )?between|among(?:st)?|compare|take|consider|given|with|if i)\b[^,:?]*,?\s*|"
    r"(?:.*\s)?(?:(?:which|who|those|ones|one|\w+est)(?: \w+)? of|out of|among(?:st)?|between|whether)(?: [\w-]+){0,4},?\s+|"
    r".*:\s*(?:the(?: [\w-]+){1,2}\s+)?",
    re.IGNORECASE,
)
_DESCRIBES = re.compile(r"\b(?:of|that|who|whose|which|where)\b")
_COMPARES = re.compile(rf"\b(first|most|{_COMPARES_TWO})\b")
_IS_LIST = re.compile(r"\bof these\b|\bthe \w+est\b")
_OF_SEVERAL = re.compile(r"\b(?:first|last|most)\b")
_RANK = re.compile(
    r"\d|(?:the|Jr|Sr|Lord|Lady|King|Queen|Emperor|Empress|Elector|Prince|Princess|Duke|Duchess|Marquis|Marquess|Earl|Count"
    r"|Countess|Viscount|Viscountess|Baron|Baroness|Baronet)\b"
)
"""What stands after a comma in a person's name."""


def offered(question: str) -> list[str]:
    """What the question lets one choose from: its alternatives, or yes and no; empty if it offers nothing."""
    text = _plain(question).rstrip("?. ")
    request = _REQUEST.match(text)
    text = text[request.end() :] if request is not None else text
    row = _longest_row(text)
    verb = _OPENING_VERB.match(text)
    if verb is not None:  # "Was A or B born first?" offers two names, "Are A and B both cities?" a yes and a no
        asks_for_both = text[verb.end() :].startswith((" either ", " both ", " neither "))
        return ["yes", "no"] if row is None or row.word != "or" or asks_for_both else _choices(row)
    if row is not None and not _ASKS_IF.match(row.after) and _is_choice(row, text):
        return _choices(row)
    asks_if = _VERB.search(text) and not _QUESTION_WORD.search(text) and not _ORDER.match(text)
    return ["yes", "no"] if asks_if or _ASKS_IF.search(text) else []


def _is_choice(row: _Row, text: str) -> bool:
    """One of the row is wanted."""
    before = row.before.strip()
    if row.word == "or":
        return row.is_cased or not _VERB.match(row.after.strip(" ,"))
    asked = text.replace(row.written, "").replace(row.called[-1], "")
    if _COUNTS.search(asked) or not _ASKS_WHICH.search(asked):
        return False
    if before.endswith(" between") and not re.search(r"\b(?:in|which|who|one) between$", before, re.IGNORECASE):
        return not row.after and _cased_start(row.names[-1]) == row.names[-1]
    is_compared = _COMPARES.search(before) if before.endswith(",") else before.endswith(" first")
    return not before or bool(is_compared) or _ASKS_OF.fullmatch(row.before) is not None


def _choices(row: _Row) -> list[str]:
    """ "Which came out first, A, B or C" is left at two: of films and places, most are "Murder, She Said" or "Tumen, Jilin".
    A person's name has a comma only before a rank, and hardly any name has three."""
    names = [
        _unquoted(called) if _DESCRIBES.search(called.removesuffix(name)) else name
        for name, called in zip(row.names, row.called, strict=True)
    ]
    before, inner = row.before.rstrip(), row.written.split(", ")[1:]
    may_be_two = row.joint.startswith(" or ") and before.endswith(",") and inner and not _QUOTED.search(row.written)
    are_people = before.lower().startswith("who ") and not any(map(_RANK.match, inner))
    are_several = _IS_LIST.search(before) or (_OF_SEVERAL.search(before) and (are_people or len(inner) > 2))
    return [_unquoted(row.written), names[-1]] if len(names) > 2 and may_be_two and not are_several else names


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
