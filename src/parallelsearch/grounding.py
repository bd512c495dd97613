"""What an answer rests on, and when it rests on nothing: sources, citations, and the one rule by which an agent abstains.

A source is a passage the model was shown, under the number it saw. A citation is a source the answer names, `[2]`, or that
holds its words, or, where the answer is computed (yes, no, a count, one of the alternatives offered), one about a thing
asked. A number that names nothing is no citation: it is taken out of the answer and reported.

`abstention_of` reads a record and says why its answer should not be given: every search failed, there is none, the model
says itself that it found none, no passage was shown, none that has to do with the question holds the answer's words, or a
thing compared was not found. To do with the question: a passage mentions a name of the question, or one that leads on from
such a passage; where the question has no name in it, one of its words that say what it is about. Nor should it be given
where a policy of ours noted of a passage what does not stand there (`claims.py`). A written answer is given if it names a
passage, or one has what it states.
Nothing here judges whether a passage proves the answer; one that was read right and is about something else is not noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

from parallelsearch.answers import normalise, says_not_found
from parallelsearch.claims import Note, bearers, doubts, misread_notes
from parallelsearch.data.alternatives import EDGE, listed, names_in, offered, words_of
from parallelsearch.errors import stopped
from parallelsearch.grammar import NUMBERS, PromptMode, one_line, outside_code
from parallelsearch.retrieval.metadata import place_of
from parallelsearch.retrieval.terms import STOP_WORDS, fold, spaced
from parallelsearch.trajectory import Abstention, Trajectory
from parallelsearch.untrusted import web_url

_AROUND = EDGE + "*_"
_OWN_DIALECTS = frozenset(get_args(PromptMode))
_BETWEEN_PARTS = re.compile(r"[,;&]|\band\b", re.IGNORECASE)
_YES_OR_NO = ("yes", "no")
_SAYS_NOTHING = STOP_WORDS | words_of(
    "many much long old far tall those than them he she him her his me my you your we us our could should may please tell "
    "know name give find about"
)
"""Words of a question that say nothing about what it is about."""
_ASKED = words_of(
    "born birth died death year date first last older younger oldest youngest wrote made called same both today currently"
)
"""Words that say what is asked of a thing, and not of which."""
_LIST = 3
"""So many things side by side are a list, of which any may be the answer: `Where were A and B born?` asks for neither."""
_VERBS = words_of("is was are were has had")
_OF_THE_SENTENCE = words_of(
    "yes no based according answer both however therefore thus so hence although though while also overall finally "
    "unfortunately here born search found question passage passages source sources document documents text context results "
    "information provided"
)
"""Words of an answer in a sentence that are about the sentence, and found in no passage for that."""
_PRONOUNS = words_of("he she it they")
_DENIES = re.compile(
    r"\b(?:no(?!,)|not|none|nothing|neither|never|cannot|unknown|unclear|unable|without)\b|n['’]t\b", re.IGNORECASE
)
_APART = re.compile(r"[\n()]+|\*+|__+")
"""What stands between an answer and its reason: `**Giverny** (Monet died there)`. No name goes on behind it."""
_AT_A_STOP = re.compile(r"\.\W*\Z")
_POSSESSIVE = re.compile(r"(?<=\w)['’]s?(?!\w)")
_MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
_OF_DATES = frozenset(_MONTHS.split("|")) | {"and"}
_DATE = re.compile(rf"\b\d{{1,2}} (?:{_MONTHS})\b|\b(?P<month>{_MONTHS}) (?P<day>\d{{1,2}})\b")
_NONE_OR_ALL = re.compile(r"(?:none|neither|all|both)(?: of (?:them|these)| (?:three|four|five|six|seven|eight))?")
_ASKS_FOR_NUMBER = re.compile(
    r"\bhow (?:many|much|long|old|far|tall)\b|\bdifference\b|\b(?:years?|days|months|decades|centuries) "
    r"(?:apart|between|after|before|passed)\b|\bin total\b|\bcombined\b|\bsum of\b|\bnumber of\b",
    re.IGNORECASE,
)
_ASKS_FOR_NO_NAME = re.compile(
    r"(?:when|where|why|how)\b(?!.*\b(?:who|whom|whose|which|what|or)\b)|"
    r"(?:in|on|at) (?:what|which) (?:year|date|day|month|decade|century|age)\b(?!.*\bor\b)",
    re.IGNORECASE,
)
"""What a name of the question can be no answer to."""
_ASKS_FOR_NO_DATE = re.compile(
    r"(?:[a-z]+ )?(?:where|who|whose|whom|(?:which|what) (?:city|town|village|country|museum|state|river|sea|ocean|island|"
    r"continent))\b(?!.*\b(?:when|year|date|day|old|long|many|much)\b)",
    re.IGNORECASE,
)
"""What a date or a year can be no answer to."""
_ASKS_WHETHER = re.compile(r"(?:is|are|was|were|do|does|did|has|have|had|can|could)\b(?!.*\bor\b)", re.IGNORECASE)
_IS_NUMBER = re.compile(
    r"(?:about |around |nearly )?(?:\d[\d ]*|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)(?: [a-z]+)?"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A passage the model was shown, under the number it saw. `place` says in words where it stands (`a.pdf, page 3`), as far
    as its `metadata` tells."""

    number: int
    id: str
    title: str
    text: str
    url: str | None
    queries: list[str]
    place: str | None = None
    metadata: dict[str, Any] | None = None


Basis = Literal["cited", "contains_answer", "about_part"]


@dataclass(frozen=True, slots=True)
class Citation:
    """A source the answer rests on, and how one knows: the answer names it, it holds the answer's words, or it is about one
    of the things a computed answer was computed from."""

    number: int
    id: str
    title: str
    url: str | None
    basis: Basis
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Cited:
    """An answer's text without dead numbers, and what it rests on. A number in a thought says only what the model looked
    at."""

    text: str
    citations: list[Citation] = field(default_factory=list)
    invalid_numbers: list[int] = field(default_factory=list)
    doubts: list[Note] = field(default_factory=list)
    """Of a written answer: what it states with a number that the passages it names there have not got."""


def sources_of(trajectory: Trajectory) -> list[Source]:
    """Every passage that the model was shown, once, in that order: where passages are numbered through a trajectory, the
    number of a source is the one the model saw."""
    finders: dict[str, list[str]] = {}
    for query in trajectory.queries:
        for hit in query.hits:
            finders.setdefault(hit.id, []).append(query.text)
    return [
        Source(
            number,
            hit.id,
            hit.title,
            hit.text,
            web_url(hit.url),
            finders[hit.id],
            place_of(hit),
            hit.metadata,
        )
        for number, hit in enumerate(trajectory.shown_hits, start=1)
    ]


# ---- what the answer rests on ----------------------------------------------------------------------------------------


def cite(trajectory: Trajectory, sources: Sequence[Source] | None = None) -> Cited:
    """What the answer of a record rests on, among what the model was shown."""
    answer = trajectory.answer or ""
    sources = sources_of(trajectory) if sources is None else sources
    known = {source.number: source for source in sources}
    texts = [answer, *(segment.text for segment in trajectory.segments if segment.author == "model")]
    written = dict.fromkeys(number for text in texts for number in _numbers_in(text))
    basis: dict[int, Basis] = {number: "cited" for number in _numbers_in(answer) if number in known}
    doubtful: list[Note] = []
    if trajectory.written:
        doubtful = doubts(answer, _texts_of(sources), trajectory.question)
        for number in [] if basis else bearers(answer, _texts_of(sources)):
            basis[number] = "contains_answer"
    else:
        plain = NUMBERS.sub("", answer)
        evidence = _Evidence(trajectory, sources)
        holders = evidence.holders(plain)
        about = evidence.about_parts() if is_computed(evidence.question, plain) else []
        for number in about or holders:
            basis.setdefault(number, "contains_answer" if number in holders else "about_part")
    return Cited(
        outside_code(NUMBERS, lambda match: _living(match, known), answer),
        [_citation(known[number], basis[number]) for number in sorted(basis)],
        [number for number in written if number not in known],
        doubtful,
    )


def _texts_of(sources: Sequence[Source]) -> dict[int, str]:
    return {source.number: f"{source.title} {source.text}" for source in sources}


def is_computed(question: str, answer: str) -> bool:
    """The answer is worked out from what was found, so that no passage need hold it: yes or no, some, none or all of the
    alternatives that the question offers, a number where it asks for a count or a difference."""
    plain = _plain(answer)
    if plain in _YES_OR_NO or (_IS_NUMBER.fullmatch(plain) and _ASKS_FOR_NUMBER.search(question)):
        return True
    if _ASKS_WHETHER.match(question) and _repeats(question, plain):
        return True  # `Is it larger than Rome?` `It is larger than Rome`
    names = listed(question)
    choices = [*offered(question), *(names if len(names) >= _LIST else [])]
    return any(_is_same(plain, _plain(one)) for one in choices) or (
        bool(choices) and _NONE_OR_ALL.fullmatch(plain) is not None
    )


def _repeats(question: str, plain: str) -> bool:
    """The answer has words of the question, and none that would have to stand in a passage."""
    asked = set(_plain(question).split())
    told = [word for word in plain.split() if word not in _SAYS_NOTHING | _VERBS | _OF_THE_SENTENCE]
    return len(told) > 1 and asked.issuperset(told)


def _plain(text: str) -> str:
    """The form in which words are looked for in passages: that of answers, without accents, with the words that the search
    itself sees (`Paul Cezanne` finds the page `Paul Cézanne`) and with the day before its month (`July 4, 1776`)."""
    return _DATE.sub(_day_first, " ".join(spaced(normalise(fold(text))).split()))


def _is_date(plain: str) -> bool:
    """Years and dates, and nothing else: `17 august 1838`, `1917 and 1918`."""
    words = plain.split()
    numbers = {word for word in words if word.isdigit() and len(word) <= 4}  # without one, `May` is somebody
    return bool(numbers) and all(word in _OF_DATES or word in numbers for word in words)


def _day_first(date: re.Match[str]) -> str:
    """What follows a date that is so already may be a number, too: `15 March 44 BC`."""
    return date[0] if date["month"] is None else f"{date['day']} {date['month']}"


def _is_same(answer: str, alternative: str) -> bool:
    """The answer names this alternative, if only by a part of it (`Pissarro` for `Camille Pissarro`). Yes and no begin or end
    it: `there is no information` says neither."""
    if alternative in _YES_OR_NO:
        return alternative in (answer.partition(" ")[0], answer.rpartition(" ")[2])
    return bool(answer) and (f" {answer} " in f" {alternative} " or f" {alternative} " in f" {answer} ")


def _numbers_in(text: str) -> list[int]:
    return [int(number) for match in NUMBERS.finditer(text) for number in match[1].split(",")]


def places_of(text: str, citations: Iterable[Citation]) -> list[tuple[Citation, int, int]]:
    """Where a text names its citations: each number in brackets, from where to where, in order; and behind them those that
    it does not name, each for the whole text."""
    left = {one.number: one for one in citations}
    known, found = dict(left), []
    for match in NUMBERS.finditer(text):
        for number in map(int, match[1].split(",")):
            if number in known:
                left.pop(number, None)
                found.append((known[number], match.start(1) - 1, match.end()))
    return found + [(one, 0, len(text)) for one in left.values()]


def _living(match: re.Match[str], known: dict[int, Source]) -> str:
    """A bracket with the numbers that exist, or nothing. In a trajectory without sources brackets mean something else."""
    if not known:
        return match[0]
    numbers = [number.strip() for number in match[1].split(",") if int(number) in known]
    space = match[0][: match[0].index("[")]
    if not numbers and "\n" in space:
        return space  # the line begins here all the same
    return f"{space}[{', '.join(numbers)}]" if numbers else ""


def _citation(source: Source, basis: Basis) -> Citation:
    return Citation(source.number, source.id, source.title, source.url, basis, source.place)


# ---- when to abstain -------------------------------------------------------------------------------------------------

_NO_ANSWER, _SEARCH_FAILED, _NOT_FOUND = "No answer was found", "The search failed", "Not found in the corpus"
_MISREAD = "A passage was misread"
INSTEAD_OF_AN_ANSWER = _NO_ANSWER, _SEARCH_FAILED, _NOT_FOUND, _MISREAD
"""How a sentence begins that stands in place of an answer. A chat hands it back as what was answered before."""


def sentence_of(trajectory: Trajectory) -> str:
    """What a person is told in place of an answer that was taken back."""
    abstained = trajectory.abstained
    if abstained is None:
        return ""
    if abstained.reason == "no_answer" and trajectory.stop != "answer":
        return f"{_NO_ANSWER}: {stopped(trajectory.why_no_answer)}"
    if abstained.reason == "search_failed":
        errors = [query.error for query in trajectory.queries if query.error]
        return f"{_SEARCH_FAILED}: {errors[0]}" if errors else f"{_SEARCH_FAILED}."
    if abstained.reason == "no_evidence" and not trajectory.queries:
        return f"{_NOT_FOUND}: the model did not search for anything."
    if abstained.reason == "misread" and (notes := misread_in(trajectory)):
        return f"{_MISREAD}: {_told_of(notes[0])}."
    if abstained.reason == "parts_missing" and (
        missing := _Evidence(trajectory, sources_of(trajectory)).missing_parts()
    ):
        return f"{_NOT_FOUND}: there is no passage about {_named(missing)}."
    return f"{_NOT_FOUND}: {abstained.words}."


def _told_of(note: Note) -> str:
    """`of [2] the model noted "died 15 November 1946", and there is no "1946" in it`."""
    missing = ", ".join(f'"{word}"' for word in note.missing[:3])
    return f'of [{note.number}] the model noted "{note.text}", and there is no {missing} in it'


def _named(parts: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`; of more the first three, and how many more."""
    shown = list(parts) if len(parts) <= 3 else [*parts[:3], f"{len(parts) - 3} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def take_back(trajectory: Trajectory) -> Trajectory:
    """Take the answer of a record back where it rests on nothing; the record says so and keeps what the model said."""
    abstained = abstention_of(trajectory)
    if abstained is not None:
        trajectory.abstained, trajectory.answer = abstained, None
    return trajectory


def abstention_of(trajectory: Trajectory) -> Abstention | None:
    """Why the answer of a record should not be given; None if it may be. A failure of the policy is no matter of evidence."""
    answer = trajectory.answer
    if trajectory.stop == "error":
        return None
    plain = NUMBERS.sub("", answer or "").strip()
    sources = sources_of(trajectory)
    if not sources and trajectory.queries and all(query.error is not None for query in trajectory.queries):
        return Abstention("search_failed", answer)
    if not plain:
        return Abstention("no_answer", answer)
    if says_not_found(plain):
        return Abstention("not_found", answer)
    if not sources:
        return Abstention("no_evidence", answer)
    if trajectory.written:
        return None if cite(trajectory, sources).citations else Abstention("uncited", answer)
    evidence = _Evidence(trajectory, sources)
    if is_computed(evidence.question, plain):
        # A number may stand in a passage; how many of a list it is does not.
        is_number = _ASKS_FOR_NUMBER.search(evidence.question) is not None and not evidence.is_list
        if not (is_number and evidence.holders(plain)) and not evidence.has_basis():
            return Abstention("parts_missing", answer)
    elif not any(1 <= number <= len(sources) for number in _numbers_in(answer or "")) and not evidence.holders(plain):
        return Abstention("unsupported", answer)
    return Abstention("misread", answer) if misread_in(trajectory, sources) else None


def misread_in(trajectory: Trajectory, sources: Sequence[Source] | None = None) -> list[Note]:
    """What the policy noted, before it answered, of passages that do not say so. Of policies in our own dialects alone: they
    are taught to note what stands there, word for word, where others tell it in words of their own. Where another model read
    and answered, the policy's notes do not matter."""
    read_by_another = trajectory.reading is not None and trajectory.reading.error is None
    thought = trajectory.turns[-1].thought if trajectory.turns else None
    if thought is None or read_by_another or trajectory.dialect not in _OWN_DIALECTS:
        return []
    shown = sources_of(trajectory) if sources is None else sources
    return misread_notes(thought, _texts_of(shown))


class _Evidence:
    """What was shown, read for one question."""

    def __init__(self, trajectory: Trajectory, sources: Sequence[Source]) -> None:
        self.question, self.sources = one_line(trajectory.question), sources
        self._texts = {source.number: f" {_plain(f'{source.title} {source.text}')} " for source in sources}
        self._links = {name for query in trajectory.queries for name in names_in(query.text)}
        self._links |= {source.title for source in sources if source.title}
        # What a computed answer is computed from: all that stands side by side; else one name is enough, for the others say
        # what is asked of it ("Is Cairo in Africa?").
        self._parts = listed(self.question)
        self.is_list = len(self._parts) >= _LIST
        self._compares = bool(self._parts)
        self._parts = self._parts or names_in(self.question)
        self._asked = {_plain(name) for name in names_in(self.question)}

    def holders(self, answer: str) -> list[int]:
        """The sources to do with the question that hold the answer word for word, or else each a part of it (`Paris and
        Rome`) or of what a sentence tells (`He was born in Paris in 1840`), if none is missing."""
        related = self._related()
        parts = [_plain(part) for part in _BETWEEN_PARTS.split(answer)]
        if _ASKS_FOR_NO_NAME.match(self.question) and all(part in self._asked for part in parts if part):
            return []  # `When was Leo Tolstoy born?` `Leo Tolstoy`
        if _ASKS_FOR_NO_DATE.match(self.question) and _is_date(_plain(answer)):
            return []  # `Where did Paul Gauguin die?` `8 May 1903`
        if len(parts) > 1 and any(" " in part and part in self._asked for part in parts):
            parts = []  # `Prague and Sigmund Freud`: who was asked about is no answer
        for wanted in ([_plain(answer)], [part for part in parts if part], self._told(answer)):
            found = {want: [n for n in related if want and f" {want} " in self._texts[n]] for want in wanted}
            if wanted and all(found.values()) and not any(want in _YES_OR_NO for want in wanted):
                return sorted({number for numbers in found.values() for number in numbers})
        return []

    def _told(self, answer: str) -> list[str]:
        """What a sentence tells that the question does not have: its names and numbers, or else its other words, unless it
        denies (`It is not known where he was born`). A model that answers in a sentence says with them what another says in
        so many words; the rest stands in no passage."""
        asked = {word for text in (self.question, _POSSESSIVE.sub("", self.question)) for word in _plain(text).split()}
        names: list[list[str]] = [[]]
        others: list[list[str]] = [[]]
        tokens = _APART.sub(" ; ", answer).split()
        has_pronoun, has_verb = _plain(answer).partition(" ")[0] in _PRONOUNS, False
        roots = tuple(
            word for word in asked - _SAYS_NOTHING if len(word) > 2
        )  # of `died`, where the question has `die`
        repeats = has_pronoun or _AT_A_STOP.search(answer) is not None
        for token in tokens:
            word, first = _plain(token), token.strip(_AROUND)[:1]
            is_name = first.isupper() or first.isdigit()
            says_nothing = not word or word in _SAYS_NOTHING
            is_asked = word in asked or _plain(_POSSESSIVE.sub("", token)) in asked
            is_new = not says_nothing and not is_asked and word not in _OF_THE_SENTENCE
            is_counted = bool(names[-1]) and names[-1][-1].isdigit()  # a number, and of what
            repeats = repeats or (not says_nothing and (is_asked or word.startswith(roots))) or word in _VERBS
            has_verb = has_verb or (not is_name and (word in _VERBS or not says_nothing))
            for runs, belongs in ((names, is_new and (is_name or is_counted)), (others, is_new and not is_name)):
                if belongs:
                    runs[-1].append(word)
                if runs[-1] and (not belongs or token[-1:] in ",;:."):
                    runs.append([])
        told = names if any(names) or _DENIES.search(answer) else others
        is_sentence = len(answer.split()) > (2 if has_pronoun else 3) and repeats and has_verb
        return [_plain(" ".join(run)) for run in told if run] if is_sentence else []

    def _related(self) -> list[int]:
        """The sources that mention a name asked for: one of the question, or one that a source which is itself related
        mentions, and that a sub-query asked for or a source is about. Where the question has no name in it, its words are
        what is asked for; where these say nothing either (`Who is he?`), every source may be meant."""
        # `Qui`, `Wer` and `Tell` have their capital from their place.
        first = self.question.partition(" ")[0].strip(EDGE)
        names = {name for name in names_in(self.question) if name != first}
        words = {word for word in _plain(self.question).split() if word not in _SAYS_NOTHING}
        names = names or words - _ASKED or words
        if not names:
            return [source.number for source in self.sources]
        related: set[int] = set()
        leads: set[str] = set()
        while True:
            more = {number for number in self._texts if any(self._mentions(number, name) for name in names)}
            more |= {number for number in self._texts if any(self._mentions(number, lead, False) for lead in leads)}
            further = {
                lead
                for lead in self._links - names - leads
                if any(self._mentions(number, lead, False) for number in more)
            }
            if more == related and not further:
                return sorted(related)
            related, leads = more, leads | further

    def missing_parts(self) -> list[str]:
        """The things compared that no source mentions."""
        missing = [part for part in self._parts if not any(self._mentions(n, part) for n in self._texts)]
        return missing if self._compares or len(missing) == len(self._parts) else []

    def has_basis(self) -> bool:
        """Whether something was found of what a computed answer is computed from: all things compared, or, where the
        question names nothing, a passage to do with it."""
        return not self.missing_parts() if self._parts else bool(self._related())

    def about_parts(self) -> list[int]:
        """For each part the sources under its name, or else all that mention it."""
        chosen: set[int] = set()
        for part in self._parts:
            wanted = _plain(part)
            titled = {source.number for source in self.sources if f"{_plain(source.title)} ".startswith(f"{wanted} ")}
            chosen |= titled or {number for number in self._texts if self._mentions(number, part)}
        return sorted(chosen)

    def _mentions(self, number: int, name: str, with_numbers: bool = True) -> bool:
        """Two words of a name must both be there, of more two thirds: `the first modern Olympic Games` is `1896 Summer
        Olympics`. A number asked for must be there, since the World Cup of 1930 is not that of 2022; one that only tells a
        title from others need not: `The American (2010 film)`."""
        text, stems = self._texts[number], _stems(name)
        found = [stem for stem in stems if (f" {stem} " if stem.isdigit() else f" {stem}") in text]
        if with_numbers and any(stem.isdigit() and stem not in found for stem in stems):
            return False
        return len(found) == len(stems) or (len(found) >= 2 and 3 * len(found) >= 2 * len(stems))


def _is_telling(word: str) -> bool:
    return len(word) > 3 or word.isdigit()


@lru_cache(maxsize=4096)
def _stems(name: str) -> tuple[str, ...]:
    """The words of a name, each without its last letters: `Australian` is found in `Australia`, `Titanic` not in `Titan`."""
    words = [word for word in _plain(name).split() if _is_telling(word)] or _plain(name).split()
    return tuple(word if len(word) < 6 or word.isdigit() else word[: -1 if len(word) < 8 else -2] for word in words)


def nearest(sources: Iterable[Source], least: int = 3, most: int = 8) -> list[Source]:
    """The passages that came nearest, where no answer rests on any: the first of each query, and where that gives fewer than
    `least`, the next ones."""
    asked: set[str] = set()
    first: list[Source] = []
    others: list[Source] = []
    for source in sources:
        (others if asked.issuperset(source.queries) else first).append(source)
        asked.update(source.queries)
    return [*first[:most], *others[: max(0, least - len(first))]]


def thoughts_of(trajectory: Trajectory) -> list[str]:
    """What the model thought, turn by turn."""
    return [turn.thought for turn in trajectory.turns if turn.thought]
