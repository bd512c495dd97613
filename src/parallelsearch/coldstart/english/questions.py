"""Reading an English question: which things it names, what it asks about them, and what kind of question it is.

Rules over the words, no model. `aspect_of` says what a comparison is about, `topic_words` gives the words worth
adding to a name in a query, `stem_of` and `asked_words` repeat what is asked in the question's own words,
`guess_kind` labels a question that comes without a kind. Which names a question sets side by side is read by
`data/alternatives.py`. All of it only proposes: the cold start searches for each proposal and keeps what the search
engine confirms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parallelsearch.answers import normalise
from parallelsearch.data.alternatives import EDGE, compared, names_in, trimmed, words_of
from parallelsearch.trajectory import Kind

Aspect = Literal[
    "birth", "death", "age", "date", "count", "nationality", "country", "year", "day", "same", "trait", "common"
]  # fmt: skip
"""What a comparison is about. `trait` asks which one, or whether both, are something; `same` whether they share it;
`common` what they share."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a comparison asks: the aspect, which end of it wins (-1 the lower or earlier, 1 the higher or later, 0 none),
    whether the answer is yes or no, and whether yes means that the two differ."""

    aspect: Aspect
    direction: int = 0
    is_polar: bool = False
    differs: bool = False


# ---- words -----------------------------------------------------------------------------------------------------------


STOP = words_of(
    "a an the and or of in on at by for from to with as is are was were be been being do does did have has had can "
    "could will would should which who whom whose what when where why how that this these those it its his her "
    "their them they he she there than then also both either neither each other two between among out one ones same "
    "different more most less least fewer first second last earlier later latest earliest older younger oldest "
    "youngest newer longer larger bigger higher greater further closer farther smaller shorter taller highest "
    "largest longest better following any not no yes whether share shared mutual common considered known called "
    "named type kind types kinds sort however while if so used such about currently still only into over under "
    "after before during more-than up s"
)


def content_words(text: str) -> list[str]:
    """The words that carry meaning, normalised, in order."""
    return [word for word in normalise(text).split() if word not in STOP]


# ---- names -----------------------------------------------------------------------------------------------------------


def base_title(title: str) -> str:
    """A page's title without the part in brackets that tells it from others."""
    return re.sub(r"\s*\([^()]*\)\s*$", "", title).strip() or title


def same_name(mention: str, title: str) -> bool:
    """The words of a question can mean the page: equal but for brackets, articles and case, or all words of one are in
    the other and they are at least two."""
    said, called = normalise(mention), normalise(base_title(title))
    if not said or not called:
        return False
    if said == called or said == normalise(title):
        return True
    short, long = sorted((said.split(), called.split()), key=len)
    return len(short) >= 2 and set(short) <= set(long) and len(long) <= len(short) + 2


def mention_of(title: str, question: str) -> str | None:
    """The stretch of the question that names the page, as it is written there; None if there is none."""
    wanted = normalise(base_title(title)).split()
    words = [(match[0], match.start(), match.end()) for match in re.finditer(r"[^\s]+", question)]
    if not wanted or not words:
        return None
    best: tuple[int, int, int] | None = None
    for length in range(1, min(len(wanted) + 3, len(words)) + 1):
        for start in range(len(words) - length + 1):
            begin, end = words[start][1], words[start + length - 1][2]
            said = normalise(question[begin:end]).split()
            if said == wanted:
                if start and words[start - 1][0] in ("The", "A", "An"):
                    begin = words[start - 1][1]
                return trimmed(question[begin:end])
            if (
                len(said) >= 2
                and said[0] in wanted
                and said[-1] in wanted
                and (set(said) <= set(wanted) or set(wanted) <= set(said))
                and (best is None or len(said) > best[0])
            ):
                best = (len(said), begin, end)
    return trimmed(question[best[1] : best[2]]) if best is not None else None


# ---- what is asked ---------------------------------------------------------------------------------------------------

_POLAR = re.compile(
    r"^(?:are|is|was|were|do|does|did|have|has|had|can|could)\b|,\s*(?:are|is|were|was|do|did|have)\s+(?:they\s+)?both\b",
    re.I,
)
_LATER = re.compile(
    r"\b(?:younger|youngest|later|latest|last|more recent(?:ly)?|most recent(?:ly)?|newer|newest|second|after)\b", re.I
)
_FEWER = re.compile(
    r"\b(?:less|least|fewer|fewest|smaller|smallest|shorter|shortest|lower|lowest|shallower|lighter)\b", re.I
)
_EVENT = (
    r"(?:born|birth|found(?:ed|ing)?|form(?:ed|ing)?|establish\w*|releas\w*|publish\w*|open\w*|start\w*|creat\w*|built|"
    r"build\w*|launch\w*|introduc\w*|debut\w*|made|produc\w*|written|premier\w*|air\w*|began|begin\w*|complet\w*|construct\w*|"
    r"invent\w*|develop\w*|organi[sz]ed|incorporated|came|come|came out|happen\w*|occur\w*|took place|take place|discover\w*|"
    r"recorded|issued|inaugurated|fought|die[ds]?|death|died|exist\w*|set up|around|active|appear\w*|printed|sold|designed)"
)
_FIRST = re.compile(
    rf"\b{_EVENT}\b[^?]*\b(?:first|earlier|earliest|later|latest|last|before|after|second|recently|more recent)\b"
    rf"|\b(?:first|earlier|earliest|later|latest|last|before|second|recently)\b[^?]*\b{_EVENT}\b|\bcame (?:out )?first\b"
    r"|\b(?:older|oldest|younger|newer|newest|longer established|longest|more recent)\b",
    re.I,
)
_COUNT = re.compile(
    r"\b(?:more|most|fewer|less|greater|greatest|higher|highest|larger|largest|bigger|taller|tallest|longer|smaller|shorter|fewest|deeper|shallower|heavier|lighter|lower)\b",
    re.I,
)


_MEASURES: dict[str, str] = {
    "long": "length long kilometres miles metres minutes",
    "short": "length long kilometres miles metres minutes height tall high",
    "high": "height high elevation metres feet",
    "low": "height high elevation metres feet",
    "tall": "height tall high metres feet",
    "deep": "depth deep metres feet",
    "shallow": "depth deep metres feet",
    "heav": "weight weighs mass tonnes kilograms",
    "light": "weight weighs mass tonnes kilograms",
    "populous": "population inhabitants residents people",
}
"""What a page says of that which is longer or higher, by the beginning of the adjective."""
_COMPARED = re.compile(
    rf"\b(?P<measure>{'|'.join(_MEASURES)})(?:i?er|i?est)\b|\b(?:more|most|less|least) (?P<other>populous)\b"
)


def measure_words(question: str) -> list[str]:
    """The words of the measure that a question compares by an adjective; none where it names what is counted."""
    found = _COMPARED.search(question.lower())
    return _MEASURES[found["measure"] or found["other"]].split() if found else []


def aspect_of(question: str) -> Ask:
    """What a comparison is about, by its words."""
    text = " ".join(question.split())
    low = text.lower()
    is_polar = bool(_POLAR.search(text)) and not re.search(r"\bor\b(?! not)", low)
    differs = bool(re.search(r"\bdifferent\b", low))
    if is_polar:
        if re.search(r"\bnationalit", low):
            return Ask("nationality", 0, True, differs)
        if re.search(
            r"\bsame (?:country|nation)\b|different (?:countr|nation)",
            low,
        ):
            return Ask("country", 0, True, differs)
        if re.search(r"\bsame year|\bdifferent years?\b", low):
            return Ask("year", 0, True, differs)
        if re.search(r"\bsame (?:day|date)\b|\bdifferent (?:days?|dates?)\b", low):
            return Ask("day", 0, True, differs)
        if re.search(r"\bsame\b|\bdifferent\b", low):
            return Ask("same", 0, True, differs)
        return Ask("trait", 0, True, differs)
    is_choice = (
        " or " in low or re.match(r"^(?:in |out of |of |from )?(?:between|among|the two|these)", low) is not None
    )
    if re.search(
        r"\b(?:older|oldest|younger|youngest)\b|\bborn\b[^?]*\b(?:first|earlier|later|last|before|after|second)\b|\b(?:first|earlier|later)\b[^?]*\bborn\b|\bbirth\b",
        low,
    ):
        return Ask("birth", 1 if _LATER.search(text) else -1)
    if re.search(r"\b(?:died|die|death)\b", low) and _FIRST.search(text):
        return Ask("death", 1 if _LATER.search(text) else -1)
    if re.search(r"\blived? (?:longer|longest)|longer li[fv]e", low):
        return Ask("age", 1)
    if _FIRST.search(text) and is_choice and not re.search(r"\b(?:longest|longer)\b(?! established)", low):
        return Ask("date", 1 if _LATER.search(text) else -1)
    if _COUNT.search(text) and is_choice:
        return Ask("count", -1 if _FEWER.search(text) else 1)
    if is_choice:
        return Ask("trait")
    if re.search(r"\bnationalit", low):
        return Ask("nationality")
    return Ask("common")


_RELATION: dict[Aspect, str] = {
    "birth": "born",
    "death": "died",
    "age": "born died",
    "nationality": "nationality",
    "country": "country",
}


def topic_words(question: str, names: Sequence[str], max_words: int = 4) -> list[str]:
    """The words of the question that say what is asked, the names left out, as they are written there."""
    rest = question
    for name in sorted(names, key=len, reverse=True):
        rest = re.sub(re.escape(name), " , ", rest, flags=re.IGNORECASE)
    words: list[str] = []
    for word in rest.split():
        bare = word.strip(EDGE)
        bare = re.sub(r"['’]s$", "", bare)
        if (
            bare
            and bare.lower() not in STOP
            and normalise(bare)
            and bare.lower() not in (seen.lower() for seen in words)
        ):
            words.append(bare)
    return words[:max_words]


_MONTHS = words_of("January February March April May June July August September October November December")


def relation_words(question: str, names: Sequence[str], ask: Ask, max_words: int = 4) -> str:
    """What to add to a name so that the query asks for the thing compared."""
    fixed = _RELATION.get(ask.aspect)
    topic = topic_words(question, names, max_words)
    if any(word.isdigit() for word in topic):  # "born on 23 November 1896": a query with the 23 asks for nothing
        topic = [word for word in topic_words(question, names, 99) if not word.isdigit() and word not in _MONTHS]
        topic = topic[:max_words]
    words = [word for word in topic if word.lower() not in ("born", "nationality", "country")]
    if ask.aspect in ("birth", "death", "age"):
        return " ".join([*words[:2], fixed or ""]).strip()
    if fixed is not None:
        return " ".join([*words[:2], fixed])
    return " ".join(words or topic)


def starting_point(question: str) -> str | None:
    """The longest name in the question. A single word tells too little: it may be a nationality, or begin the sentence."""
    names = [name for name in names_in(question) if len(name.split()) > 1 and len(name) <= 60]
    return max(names, key=len, default=None)


def words_asked_for(question: str, count: int) -> list[str]:
    """The first content words after the question word: what is asked for."""
    match = re.search(r"\b(?:what|which|who|whose|whom|when|where|how)\b(.*)", question, re.IGNORECASE)
    return topic_words(match[1] if match else question, [], count)


# ---- what is asked, in the question's own words ----------------------------------------------------------------------

_STEM_EDGE = ' ?.,;:!"“”'
_NAME = "\0"
_NAMES_TOGETHER = re.compile(
    r"(?:\b(?:both|between|either|out of|of the two)\b[\s,:]*)*(?:\bthe\s+)?\0"
    r"(?:[\s,]*(?:\b(?:and|or)\b|&)?[\s,]*(?:\bthe\s+)?\0)+",
    re.IGNORECASE,
)
_NAME_ALONE = re.compile(r"[\s,]*(?:\b(?:and|or|both)\b\s*)?\0")
_OPENING = re.compile(
    r"^(?:(?:are|is|was|were|do|does|did|ha(?:ve|s|d)(?! in common)|can|could|both|in(?! common)|they|which|who|what)\b"
    r"[\s,:]*(?=\S*\s*\w))+",
    re.IGNORECASE,
)


MAX_STEM_WORDS = 14


def stem_of(question: str, names: Sequence[str]) -> str:
    """What is asked about the names, in the question's own words: the names left out, and what only leads up to it. Empty
    where the question does not name them."""
    rest = question
    for name in sorted(names, key=len, reverse=True):
        rest, count = re.subn(rf'["“”]?(?<!\w){re.escape(name)}(?!\w)["“”]?', _NAME, rest, flags=re.IGNORECASE)
        if not count:
            return ""
    rest = _NAME_ALONE.sub(" ", _NAMES_TOGETHER.sub(" ", rest))
    rest = " ".join(re.sub(r"\s*[,;:]?\s+([,;:?!.])", r"\1", rest).split()).strip(_STEM_EDGE)
    shorter = _OPENING.sub("", rest)
    return " ".join((shorter or rest).split()[:MAX_STEM_WORDS]).strip(_STEM_EDGE)


MIN_ASKED_WORDS, MAX_ASKED_WORDS = 8, 12
_ASKING = re.compile(r"\b(?:what|which|how (?:many|much|long|old|far|often)|when|where)\b", re.IGNORECASE)
_PREPOSITION = r"(?:in|on|at|for|from|by|of|to|with|during|under|after|before)"
_ASKING_WHO = re.compile(r"\b(?:who|whom|whose)\b", re.IGNORECASE)


def asked_words(question: str) -> str:
    """The words that say what kind of answer is wanted, in the question's own wording; empty if there are none. Where the
    question word stands near the end, what it belongs to stands before it: "was founded on what date". Of several the last
    one asks ("the hospital at which he worked excels in which fields"), unless the question begins with one."""
    starts = re.match(
        rf"\W*(?:{_PREPOSITION}\s+)?(?=(?:who|whom|whose|what|which|how|when|where)\b)", question, re.IGNORECASE
    )
    asking = list(_ASKING.finditer(question))
    found = starts or (asking[-1] if asking else _ASKING_WHO.search(question))
    if found is None:
        return ""
    start = found.end() if starts else found.start()
    before, after = question[:start].split(), question[start:].split()[:MAX_ASKED_WORDS]
    missing = max(0, MIN_ASKED_WORDS - len(after))
    return " ".join([*before[len(before) - min(missing, len(before)) :], *after]).strip(' ?.,;:"')


# ---- kinds -----------------------------------------------------------------------------------------------------------

_COMPARES = re.compile(
    r"\b(?:older|younger|earlier|later|first|more|most|fewer|larger|longer|higher|taller|same|both|common|share[ds]?)\b"
    r"|^(?:which|who|what)\b.*\bor\b|^(?:are|is|were|was|do|did|does|have)\b.*\band\b",
    re.IGNORECASE,
)
_CHAINS = re.compile(
    r"\b(?:who|that|which|whose|where) (?:is|was|are|were|had|has|did|won|wrote|starred|played|born|founded|directed)\b"
    r"|\b(?:the|an?) \w+(?: \w+)? (?:of|who|that|whose|which|in which)\b|\bof the\b",
    re.IGNORECASE,
)


def guess_kind(question: str) -> Kind | None:
    """A kind by the words alone, for questions that come without one: two names set side by side are parallel, a
    description inside a description is a chain, a short question is single. None where none of these is clear."""
    names = next(iter(compared(question)), None)
    if names is not None and _COMPARES.search(question):
        return "parallel"
    num_links = len(_CHAINS.findall(question))
    num_words = len(question.split())
    if num_links >= 2 or (num_links == 1 and num_words > 11):
        return "sequential"
    return "single" if num_words <= 11 else None
