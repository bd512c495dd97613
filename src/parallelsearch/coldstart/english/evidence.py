"""Evidence: the few words of a passage that decide a question, found by rule and quoted short.

The cold start teaches a small model to copy before it concludes. This module finds what to copy: the clause around an
answer, a date of birth or of founding, a nationality or country, a number, what a page says its subject is. Each finder
reads only the text that the model was shown, and returns None rather than guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.questions import STOP, content_words, same_name
from parallelsearch.coldstart.lesson import Seen

MIN_QUOTE_WORDS = 8
"""A clause that ends sooner is too little to tell what it is about."""
Date = tuple[int, int, int]
"""Year, month and day; 0 where unknown."""


@dataclass(frozen=True, slots=True)
class Quote:
    """Words taken from a passage, and the passage's number."""

    words: str
    number: int


def _listed(text: str) -> list[str]:
    """The words of a list written as one text; an underscore stands for a space inside a word."""
    return [word.replace("_", " ") for word in text.split()]


# ---- sentences and clauses -------------------------------------------------------------------------------------------

_ABBREVIATED = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|No|vs|v|c|ca|b|d|Inc|Ltd|Co|Corp|Mt|Ft|Col|Gen|Lt|Capt|Prof|approx|U\.S|U\.K|a\.k\.a|i\.e|e\.g))\.$"
)
_END = re.compile(r"(?<=[.!?])[\"”')\]]*\s+(?=[A-Z0-9\"“(\[])")


def sentences(text: str) -> list[str]:
    """The sentences of a text; a full stop after an abbreviation or an initial ends none."""
    parts: list[str] = []
    start = 0
    for match in _END.finditer(text):
        piece = text[start : match.start()]
        if _ABBREVIATED.search(piece):
            continue
        parts.append(text[start : match.end()].strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def shorten(sentence: str, start: int, end: int, max_words: int) -> str:
    """At most `max_words` words of the sentence, with the characters `start` to `end` among them; it begins at the
    sentence's or a clause's beginning where it can."""
    words = [(match.start(), match.end()) for match in re.finditer(r"\S+", sentence)]
    inside = [number for number, (a, b) in enumerate(words) if b > start and a < end]
    if not inside:
        return ""
    first, last = inside[0], inside[-1]
    if last - first + 1 > max_words:
        last = first + max_words - 1
    low = max(0, last - max_words + 1)
    begin = low
    if low > 0:
        clauses = [n for n in range(low, first + 1) if sentence[words[n - 1][1] - 1] in ",;:)–—"]
        # The last clause that still has a few words before what matters: the nearer, the shorter the quote.
        near = [n for n in clauses if last - n + 1 >= 4]
        begin = near[-1] if near else clauses[0] if clauses else low
    stop = min(len(words), begin + max_words)
    if stop < len(words):
        # End where a clause ends, if one does soon after what matters.
        ends = [n for n in range(max(last, begin + MIN_QUOTE_WORDS - 1), stop) if sentence[words[n][1] - 1] in ",;:.)"]
        stop = (ends[0] if ends else max(last, min(stop - 1, max(last + 3, begin + MIN_QUOTE_WORDS)))) + 1
    return sentence[words[begin][0] : words[stop - 1][1]].strip(" ,;:–—")


def find_phrase(text: str, phrase: str) -> tuple[int, int] | None:
    """Where the phrase stands in the text, on word boundaries, case and spacing aside."""
    words = [re.escape(word) for word in phrase.split()]
    if not words:
        return None
    match = re.search(r"(?<!\w)" + r"\s+".join(words) + r"(?!\w)", text, re.IGNORECASE)
    return match.span() if match else None


def overlap(text: str, words: Sequence[str]) -> int:
    """How many of the words the text has, endings aside."""
    stems = {_stem(word) for word in normalise(text).split()}
    return sum(_stem(word) in stems for word in dict.fromkeys(words))


def _stem(word: str) -> str:
    for ending in ("ies", "ing", "ers", "ors", "es", "ed", "er", "or", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word


def clause_with(passage: Seen, phrase: str, question_words: Sequence[str], max_words: int) -> tuple[Quote, int] | None:
    """The clause that holds the phrase, from the sentence that shares most words with the question, and that number."""
    best: tuple[int, str, tuple[int, int]] | None = None
    for sentence in sentences(passage.text):
        span = find_phrase(sentence, phrase)
        if span is not None:
            score = overlap(sentence, question_words)
            if best is None or score > best[0]:
                best = (score, sentence, span)
    if best is None:
        return None
    words = shorten(best[1], *best[2], max_words)
    return (Quote(words, passage.number), best[0]) if find_phrase(words, phrase) else None


def clause_about(passage: Seen, words: Sequence[str], max_words: int) -> tuple[Quote, int] | None:
    """The stretch of the passage that has most of the words, and how many of them."""
    wanted = {_stem(word) for word in words}
    best: tuple[int, int, Quote] | None = None
    for order, sentence in enumerate(sentences(passage.text)):
        places = [m.span() for m in re.finditer(r"\w+", sentence) if _stem(m[0].lower()) in wanted]
        if not places:
            continue
        start, end = places[0][0], places[-1][1]
        text = shorten(sentence, start, end, max_words)
        score = overlap(text, words)
        if text and (best is None or score > best[0]):
            best = (score, -order, Quote(text, passage.number))
    return (best[2], best[0]) if best else None


def stretch_with(text: str, words: Sequence[str], max_words: int) -> str:
    """The stretch of at most `max_words` words that has most of the words, endings aside; of several the shortest, then the
    first. Empty if it has none."""
    wanted = {_stem(word) for word in words}
    tokens = text.split()
    hits = [
        number for number, token in enumerate(tokens) if {_stem(word) for word in normalise(token).split()} & wanted
    ]
    spans = [(one, last) for one in hits for last in hits if one <= last < one + max_words]
    if not spans:
        return ""
    first, last = max(spans, key=lambda span: (sum(span[0] <= n <= span[1] for n in hits), span[0] - span[1], -span[0]))
    return " ".join(tokens[first : last + 1]).strip(' ,;:.!?()[]"“”')


def best_clause(
    passages: Sequence[Seen], answers: Sequence[str], words: Sequence[str], max_words: int, min_overlap: int = 0
) -> tuple[Seen, Quote, str] | None:
    """The clause with a golden answer in it that shares most words with the question; earlier passages win ties."""
    best: tuple[int, Seen, Quote, str] | None = None
    for passage in passages:
        for answer in answers:
            found = clause_with(passage, answer, words, max_words)
            if found is None:
                continue
            score = found[1] + overlap(passage.title, words)
            if score >= min_overlap and (best is None or score > best[0]):
                best = (score, passage, found[0], answer)
    return best[1:] if best else None


# ---- pages ----------------------------------------------------------------------------------------------------------


def page_of(name: str, passages: Sequence[Seen], titles: Sequence[str] = (), words: Sequence[str] = ()) -> Seen | None:
    """The passage about a name: a supporting title that means the name, else of all pages of that name the one with most
    of the question's words (a band, its album and its film may share a name)."""
    known = {normalise(title) for title in titles if same_name(name, title)}
    for passage in passages:
        if normalise(passage.title) in known:
            return passage
    named = [passage for passage in passages if same_name(name, passage.title)]
    return max(named, key=lambda one: overlap(f"{one.title} {one.text}", words), default=None)


_IS = re.compile(r"\b(?:is|was|are|were)\s+(?=(?:a|an|the|one|two|any)\b)", re.IGNORECASE)


def definition(passage: Seen, max_words: int) -> Quote | None:
    """What the page says its subject is: the words after the first "is a"."""
    for sentence in sentences(passage.text)[:2]:
        match = _IS.search(sentence)
        if match:
            rest = sentence[match.end() :]
            words = rest.split()
            cut = " ".join(words[:max_words])
            stop = re.search(
                r"[;]|,\s(?:and\s)?(?:who|which|whose|known|best|born|founded|located|based|published)\b|\.\s*$", cut
            )
            text = cut[: stop.start()] if stop else cut
            return Quote(text.strip(" ,;:.–—"), passage.number)
    return None


# ---- dates -----------------------------------------------------------------------------------------------------------

MONTHS = _listed("January February March April May June July August September October November December")
_MONTH = "|".join(MONTHS)
_YEAR = r"(?<![\d,.])(?:1[0-9]{3}|20[0-2][0-9])(?![\d,]\d|\d)"
_DATE = re.compile(
    rf"(?P<d1>\d{{1,2}})\s+(?P<m1>{_MONTH}),?\s+(?P<y1>{_YEAR})|(?P<m2>{_MONTH})\s+(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<y2>{_YEAR})"
    rf"|(?P<m3>{_MONTH}),?\s+(?:of\s+)?(?P<y3>{_YEAR})|(?P<y4>{_YEAR})"
)


def dates_in(text: str) -> list[tuple[Date, str, int]]:
    """Dates with the words they are written in and where they stand."""
    found = []
    for match in _DATE.finditer(text):
        year = int(match["y1"] or match["y2"] or match["y3"] or match["y4"])
        month = match["m1"] or match["m2"] or match["m3"]
        day = int(match["d1"] or match["d2"] or 0)
        found.append(((year, MONTHS.index(month) + 1 if month else 0, day), " ".join(match[0].split()), match.start()))
    return found


def has_day(words: str) -> bool:
    """Whether the words of a date say the day: not "May 1901"."""
    return dates_in(words)[0][0][2] > 0


def birth_date(text: str) -> tuple[Date, str] | None:
    """The first date after "born", or the first in the brackets that follow a name."""
    head = text[:600]
    born = re.search(r"\bborn\b|\bb\.\s", head, re.IGNORECASE)
    if born:
        near = dates_in(head[born.end() : born.end() + 120])
        if near:
            return near[0][0], near[0][1]
    bracket = re.search(r"\(([^()]*\d{3,4}[^()]*)\)", head[:250])
    if bracket and re.search(r"[–—-]", bracket[1]):
        dates = dates_in(bracket[1])
        if dates:
            return dates[0][0], dates[0][1]
    return None


def death_date(text: str) -> tuple[Date, str] | None:
    """The second date in the brackets that follow a name, or the first after "died"."""
    head = text[:600]
    bracket = re.search(r"\(([^()]*\d{3,4}[^()]*[–—-][^()]*\d{3,4}[^()]*)\)", head[:250])
    if bracket:
        dates = dates_in(bracket[1])
        if len(dates) >= 2:
            return dates[-1][0], dates[-1][1]
    died = re.search(r"\bdied\b", head)
    if died:
        dates = dates_in(head[died.end() : died.end() + 100])
        if dates:
            return dates[0][0], dates[0][1]
    return None


_BIRTHPLACE = re.compile(r"\bborn (?:on [\w ,]{6,20} )?in (?P<thing>[A-Z][a-zé]+(?: [A-Z][a-zé]+)?)(?=[,.;)]| and )")
_NO_PLACES = {*MONTHS, "Spring", "Summer", "Autumn", "Winter"}


def birthplace(text: str) -> str | None:
    """Where the one whom a page is about was born, if it says so once and of nobody else."""
    places = {match["thing"] for match in _BIRTHPLACE.finditer(text)}
    place = places.pop() if len(places) == 1 and text.count(" born ") <= 2 else None
    return place if place is not None and not set(place.split()) & _NO_PLACES else None


_BEGINNING = _listed(
    "found form establish releas publish open start creat built build launch introduc debut written premier air "
    "began begun construct invent develop organi incorporat discover record issu inaugurat fought complet produc "
    "design"
)


def event_date(text: str, verbs: Sequence[str]) -> tuple[Date, str, str] | None:
    """The date of the event that the verbs name, else of whatever beginning the text tells first, and the verb found."""
    found = dates_in(text)
    if not found:
        return None
    for stems in ([_stem(verb) for verb in verbs], _BEGINNING):
        best: tuple[int, int] | None = None
        for match in re.finditer(r"\w+", text):
            if not any(stem and match[0].lower().startswith(stem) for stem in stems):
                continue
            for number, (_, _, place) in enumerate(found):
                gap = place - match.end()
                distance = gap if gap >= 0 else 2 * (match.start() - place)
                between = text[min(match.start(), place) : max(match.end(), place)]
                is_near = distance <= 90 and not re.search(r"[.!?]\s+[A-Z]", between)
                if is_near and (best is None or distance < best[0]):
                    best = (distance, number)
            if best is not None:
                date, words, _ = found[best[1]]
                return date, words, match[0].lower()
    adjective = re.search(rf"\b(?:is|was|are)\s+(?:a|an|the)\s+(?:\w+\s+)?({_YEAR})\b", text)
    if adjective:
        return (int(adjective[1]), 0, 0), adjective[1], ""
    return None


def later_of(first: Date, second: Date) -> int:
    """-1 if the first date is the earlier one, 1 if it is the later one, 0 if that cannot be told."""
    for one, other in zip(first, second, strict=True):
        if one != other:
            return 0 if 0 in (one, other) else (1 if one > other else -1)
    return 0


# ---- numbers ---------------------------------------------------------------------------------------------------------

_WORDS = {
    word: number
    for number, word in enumerate(
        _listed(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen twenty"
        )
    )
}
_NUMBER = re.compile(
    r"(?<![\w.])(\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?![\w])|\b(" + "|".join(_WORDS) + r")\b", re.IGNORECASE
)


def number_near(passage: Seen, words: Sequence[str], max_words: int) -> tuple[float, Quote] | None:
    """The number nearest to one of the words (a few words before it at most), with the clause it stands in. A date has none:
    "born February 12, 1938, an American author" does not tell how many."""
    stems = {_stem(word) for word in words}
    for sentence in sentences(passage.text):
        dates = [match.span() for match in _DATE.finditer(sentence)]
        best: tuple[int, re.Match[str]] | None = None
        for match in _NUMBER.finditer(sentence):
            if any(start <= match.start() < end for start, end in dates):
                continue
            after = re.findall(r"\w+", sentence[match.end() : match.end() + 60])[:4]
            before = re.findall(r"\w+", sentence[max(0, match.start() - 30) : match.start()])[-2:]
            near = [place for place, word in enumerate(after) if _stem(word.lower()) in stems]
            near += [place for place, word in enumerate(reversed(before)) if _stem(word.lower()) in stems]
            if near and (best is None or min(near) < best[0]):
                best = min(near), match
        if best is not None:
            match = best[1]
            value = float(match[1].replace(",", "")) if match[1] else float(_WORDS[match[2].lower()])
            return value, Quote(shorten(sentence, *match.span(), max_words), passage.number)
    return None


# ---- nations ---------------------------------------------------------------------------------------------------------

_NATIONS = """
American:United States,U.S.,USA,US,America  British:United Kingdom,UK,Great Britain  English:England  Scottish:Scotland
Welsh:Wales  Irish:Ireland  Canadian:Canada  Australian:Australia  French:France  German:Germany  Italian:Italy
Spanish:Spain  Portuguese:Portugal  Dutch:Netherlands  Belgian:Belgium  Swiss:Switzerland  Austrian:Austria
Swedish:Sweden  Norwegian:Norway  Danish:Denmark  Finnish:Finland  Icelandic:Iceland  Polish:Poland  Czech:Czech Republic
Slovak:Slovakia  Hungarian:Hungary  Romanian:Romania  Bulgarian:Bulgaria  Greek:Greece  Turkish:Turkey  Russian:Russia
Soviet:Soviet Union  Ukrainian:Ukraine  Serbian:Serbia  Croatian:Croatia  Slovenian:Slovenia  Bosnian:Bosnia
Albanian:Albania  Estonian:Estonia  Latvian:Latvia  Lithuanian:Lithuania  Israeli:Israel  Iranian:Iran  Iraqi:Iraq
Egyptian:Egypt  Lebanese:Lebanon  Syrian:Syria  Indian:India  Pakistani:Pakistan  Bangladeshi:Bangladesh
Nepalese:Nepal  Chinese:China  Taiwanese:Taiwan  Japanese:Japan  Korean:Korea,South Korea  Filipino:Philippines
Vietnamese:Vietnam  Thai:Thailand  Indonesian:Indonesia  Malaysian:Malaysia  Singaporean:Singapore  Mexican:Mexico
Brazilian:Brazil  Argentine:Argentina  Chilean:Chile  Colombian:Colombia  Peruvian:Peru  Venezuelan:Venezuela
Cuban:Cuba  Jamaican:Jamaica  Uruguayan:Uruguay  Ecuadorian:Ecuador  Nigerian:Nigeria  Ghanaian:Ghana  Kenyan:Kenya
South African:South Africa  Ethiopian:Ethiopia  Algerian:Algeria  Moroccan:Morocco  Tunisian:Tunisia  New Zealand:New Zealand
Armenian:Armenia  Georgian:Georgia (country)  Kazakh:Kazakhstan  Sri Lankan:Sri Lanka  Icelandic:Iceland  Maltese:Malta
Puerto Rican:Puerto Rico  Dominican:Dominican Republic  Argentinian:Argentina  Danish:Denmark  Yugoslav:Yugoslavia
"""
_STATES = _listed(
    "Alabama Alaska Arizona Arkansas California Colorado Connecticut Delaware Florida Hawaii Idaho Illinois "
    "Indiana Iowa Kansas Kentucky Louisiana Maine Maryland Massachusetts Michigan Minnesota Mississippi Missouri "
    "Montana Nebraska Nevada Ohio Oklahoma Oregon Pennsylvania Tennessee Texas Utah Vermont Virginia Wisconsin "
    "Wyoming New_York New_Jersey New_Mexico New_Hampshire North_Carolina South_Carolina North_Dakota South_Dakota "
    "Rhode_Island West_Virginia Washington,_D.C."
)
_DEMONYM: dict[str, str] = {}
_PLACE: dict[str, str] = {}
for _entry in re.split(r"\s{2,}|\n", _NATIONS.strip()):
    _demonym, _, _places = _entry.partition(":")
    _country = _places.split(",")[0]
    _DEMONYM[_demonym] = _country
    for _place in _places.split(","):
        _PLACE[_place] = _country
_PLACE.update(dict.fromkeys(_STATES, "United States"))
_BY_DEMONYM = re.compile(r"\b(" + "|".join(sorted(map(re.escape, _DEMONYM), key=len, reverse=True)) + r")\b")
_BY_PLACE = re.compile(r"(?<!\w)(" + "|".join(sorted(map(re.escape, _PLACE), key=len, reverse=True)) + r")(?!\w)")


def nationality(passage: Seen) -> tuple[str, Quote] | None:
    """The nationality the first two sentences tell, and the words that tell it."""
    for sentence in sentences(passage.text)[:2]:
        match = _BY_DEMONYM.search(_without_brackets(sentence))
        if match:
            return match[1], Quote(shorten(sentence, *match.span(), 10), passage.number)
    return None


def nationalities(text: str) -> list[str]:
    """Every nationality a text names, brackets aside, each once."""
    return list(dict.fromkeys(_BY_DEMONYM.findall(_without_brackets(text))))


def without_nation(name: str) -> str:
    """A name without the nationality that a question puts behind it: "are A B and C D Norwegian painters?"."""
    words = name.split()
    while len(words) > 2 and words[-1] in _DEMONYM:
        words.pop()
    return " ".join(words)


def homeland(nationality: str) -> str:
    """The country of a nationality: Norway for Norwegian."""
    return _DEMONYM[nationality]


def is_of_another_nation(passage: Seen, question: str) -> bool:
    """The question names one nationality, and the passage tells of another one."""
    asked = set(_BY_DEMONYM.findall(question))
    told = nationality(passage)
    return len(asked) == 1 and told is not None and told[0] not in asked


def country(passage: Seen) -> tuple[str, Quote] | None:
    """The country the first three sentences name, by its own name, a people's, or a state of the United States."""
    for sentence in sentences(passage.text)[:3]:
        plain = _without_brackets(sentence)
        match = _BY_PLACE.search(plain) or _BY_DEMONYM.search(plain)
        if match:
            name = match[1]
            return _PLACE.get(name) or _DEMONYM[name], Quote(shorten(sentence, *match.span(), 12), passage.number)
    return None


def _without_brackets(text: str) -> str:
    """Brackets blanked out, places kept: how a name is said in "UK" or "US" is no nationality."""
    return re.sub(r"\([^()]*\)", lambda match: " " * len(match[0]), text)


def beginning_verbs(words: Sequence[str]) -> list[str]:
    """Those of the words that tell of a beginning."""
    return [word for word in words if any(word.startswith(stem) for stem in _BEGINNING)]


def trait_words(question: str, names: Sequence[str]) -> list[str]:
    """The content words of a comparison without the names it compares."""
    taken = {word for name in names for word in content_words(name)}
    return [word for word in content_words(question) if word not in taken and word not in STOP]
