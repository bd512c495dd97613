"""Pages as stores of facts: what a page's subject is, and the clauses about it with one thing taken out of each.

Any sentence about the subject may give a *fact*: a year, a date, a number or a name in it is taken out, and "what year" or
"what city" stands in its place. What kind of thing a name is comes from the words before it or from that name's own page.
Rules for English encyclopedia text; what they are not sure of they leave out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import MONTHS, dates_in, sentences
from parallelsearch.coldstart.english.from_pages.works import names_in_texts
from parallelsearch.coldstart.english.questions import base_title
from parallelsearch.data.alternatives import words_of
from parallelsearch.grammar import SEPARATOR
from parallelsearch.retrieval.base import Passage

MAX_PAGE_CHARS = 900
"""How much of a page is read: what a search shows of it."""
MAX_CLAUSE_WORDS = 16
MIN_OF_A_KIND = 5
"""A word for what things are must be used of so many pages."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A clause about a page's subject with its answer taken out: `verb` "was", `before` "built in", `asked` "what year"."""

    title: str
    verb: str
    before: str
    asked: str
    answer: str

    @property
    def in_place(self) -> str:
        """ "was built in what year"."""
        return " ".join(f"{self.verb} {self.before} {self.asked}".split())

    def fronted(self, subject: str) -> str | None:
        """ "In what year was X built", where the words allow it."""
        *rest, last = self.before.split() or [""]
        is_plain = rest and _PARTICIPLE.fullmatch(rest[0]) and not re.search(r",|\b(?:and|that|as)\b", self.before)
        if self.verb not in ("was", "is", "were", "are") or last not in _FRONTED or not is_plain:
            return None
        return " ".join(f"{last.capitalize()} {self.asked} {self.verb} {subject} {' '.join(rest)}".split())


@dataclass(frozen=True, slots=True)
class Kinds:
    """What things are called in this corpus."""

    nouns: Mapping[str, str]
    """By title: what its page says it is."""
    heads: frozenset[str]
    """The last words of those, as far as they are not rare: "band", "city"."""


@dataclass(frozen=True, slots=True)
class Page:
    """A subject: its name, what it is in a few words ("American rock band"), and the facts its page tells."""

    title: str
    name: str
    noun: str
    is_person: bool
    facts: tuple[Fact, ...]
    text: str
    is_open: bool
    """No forbidden question names it, so a question may. Otherwise it can only be what a chain leads to."""


_ABOUT_PAGES = re.compile(r"(?:Lists?|Index|Outline|Timeline|Glossary|History|Geography|Economy|Politics) of\b")
"""A page of this name begins with what it is about, and is no such thing: "Indonesia is a unitary sovereign state"."""


def is_thing(title: str) -> bool:
    """Whether a page may be taken for what its first sentence says. The evaluation sets, which stay as they are, do not
    ask."""
    return _ABOUT_PAGES.match(title) is None


_THE = re.compile(r"The (?!(?:Very |Most |Right )?(?:Rev|Hon|Ven|Reverend|Honou?rable|Venerable)\b)")
_LIVED = re.compile(
    rf"\b(?:born|{'|'.join(MONTHS)}|[Hh]e|[Ss]he|[Hh]is|[Hh]er|[Hh]im|son|daughter|brother|sister|wife|husband)\b"
)


def is_somebody(text: str) -> bool:
    """Whether a page that begins as a biography, with two years in brackets, is one: so does "The Albigensian Crusade
    (1209-1229) was a military campaign". Somebody has a day of birth or death, or is a he or a she, and nobody is called The.
    The evaluation sets, which stay as they are, do not ask."""
    return _THE.match(text) is None and _LIVED.search(text) is not None


# ---- pages -----------------------------------------------------------------------------------------------------------

_PARTICIPLE = re.compile(r"\w+ed|\w+en|born|built|made|held|set|found|known|sold|shot|led|lost|spent|first|originally")
_FRONTED = words_of("in at by for from on near with during to")
_CALLED = re.compile(r"[\w.'’&-]+(?: [\w.'’&-]+){0,5}")
_IS_A = re.compile(r"^(?P<subject>.{2,160}?)\s(?:is|was|are|were)\s(?:a|an|the)\s")
_NOUN_ENDS = re.compile(
    r"[,.;:(]|\b(?:and|or|in|of|from|by|on|for|at|to|with|who|which|that|born|based|located|directed|written|founded|formed"
    r"|released|published|known|best|whose|as|near|about|set|starring|played|playing|active|currently|created|produced"
    r"|owned|operated|developed|featuring|recorded|built|situated|between|along|during|where)\b"
)
_OF_A_PERSON = re.compile(
    r"\((?:born\b|[^()]{0,60}\bborn\b|[^()]*\d{3,4} ?[–-] ?[^()]*\d{3,4}[^()]*\) was an? )|\b(?:He|She) (?:was|is|has|had)\b"
)
BRACKETS = re.compile(r"\s*\([^()]*\)|\s*\[[^\[\]]*\]")
_PRONOUN = re.compile(
    r"^(?:He|She|It|They|(?:The|This) (?:film|album|song|band|company|book|novel|series|show|city|town|village|group|team"
    r"|club|school|university|station|magazine|game|building|museum|river|church|species|single))\b"
)
_VERB = re.compile(
    r"^(?:was|is|were|are|has|had|won|played|released|began|became|stars|starred|wrote|served|attended|graduated|received"
    r"|features|featured|held|made|joined|worked|lived|studied|moved|died|reached|sold|lies|stands|runs|flows|opened|debuted"
    r"|consists|contains|covers|appeared|directed|produced|founded|represented|competed|peaked|premiered|aired|hosted|signed)\b"
)
_YEAR = re.compile(r"\b(?:in|since|until|around) (?P<thing>(?:1[5-9]|20)\d\d)(?![\d–-])")
_COUNT = re.compile(
    r"(?<![.,–\w-])(?P<thing>\d{1,3}(?:,\d{3})+|\d{1,4}|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
    r" (?P<noun>[a-z]{4,}s)\b(?! ago)"
)
_NAME = r"(?:(?:The )?[A-Z][\w.'’&-]*(?: (?:of|the|de|and|von|van|for)(?= [A-Z]))?(?: |(?=\W|$)))+"
_AFTER = re.compile(
    rf"\b(?P<lead>in|at|by|for|from|with|near|to|of) (?P<article>the )?(?P<words>(?:[a-z][a-z-]+ ){{0,4}})(?P<thing>{_NAME})"
)
_QUOTED = re.compile(r"(?<![\w'’-])(?P<words>(?:[A-Za-z-]+ ){1,4})[\"“](?P<thing>[^\"”]{3,50})[\"”]")
_PLACES = words_of(
    "city town village country state county municipality province district island suburb region borough capital"
)


def read_pages(
    passages: Iterable[Passage], forbidden: Collection[str], needed: Collection[str] = ()
) -> dict[str, Page]:
    """By title: the subjects that have a name of their own and say what they are. Left out are `needed` titles, those that
    forbidden questions are answered from."""
    openings: dict[str, Passage] = {}
    for passage in passages:
        openings.setdefault(passage.title, passage)
    num_called = Counter(normalise(base_title(title)) for title in openings)
    avoided = {normalise(title) for title in needed}
    nouns: dict[str, str] = {}
    for title, passage in openings.items():
        name = base_title(title)
        key = normalise(name)
        if num_called[key] != 1 or normalise(title) in avoided or len(key) < 4 or SEPARATOR in name:
            continue
        if not _CALLED.fullmatch(name) or not name[0].isupper():
            continue
        noun = _noun(name, passage.text)
        if noun is not None:
            nouns[title] = noun
    taken = names_in_texts(forbidden, {normalise(base_title(title)) for title in nouns})
    num_with = Counter(noun.split()[-1] for noun in nouns.values())
    kinds = Kinds(nouns, frozenset(head for head, count in num_with.items() if count >= MIN_OF_A_KIND))
    pages = {}
    for title, noun in nouns.items():
        name = base_title(title)
        is_open = normalise(name) not in taken
        is_person = bool(_OF_A_PERSON.search(openings[title].text[:MAX_PAGE_CHARS]))
        facts = _facts(title, name, openings[title].text, kinds)
        pages[title] = Page(title, name, noun, is_person, tuple(facts), openings[title].text[:MAX_PAGE_CHARS], is_open)
    return pages


def _noun(name: str, text: str) -> str | None:
    """What the first sentence says the subject is: "American rock band"."""
    first = BRACKETS.sub("", sentences(text[:MAX_PAGE_CHARS])[0] if text else "")
    found = _IS_A.match(first)
    if found is None or name.split()[-1].strip(".") not in found["subject"]:
        return None
    rest = first[found.end() :]
    end = _NOUN_ENDS.search(rest)
    noun = rest[: end.start()].strip() if end else ""
    words = noun.split()
    if not 1 <= len(words) <= 6 or not words[-1].islower() or not words[-1].isalpha() or _VAGUE.fullmatch(words[-1]):
        return None
    if '"' in noun or words[0] in ("first", "second", "third", "only", "largest", "most", "former"):
        return None
    return noun


_VAGUE = re.compile(
    r"private|public|large|small|popular|one|name|term|part|member|type|kind|form|title|version|set|group|list|series|place|son"
    r"|daughter|(?:larg|small|old|high|long|fast|great|short)est|founding|legendary|\w+tern|upper|lower|major"
)


def _facts(title: str, name: str, text: str, kinds: Kinds) -> list[Fact]:
    found: list[Fact] = []
    for number, sentence in enumerate(sentences(text[:MAX_PAGE_CHARS])):
        if not sentence.endswith((".", '."')):
            continue  # cut at the end
        plain = " ".join(BRACKETS.sub("", sentence).split())
        clause = predicate(plain, name, number)
        if clause is not None:
            found += _taken_out(title, name, clause, kinds)
    return found


def predicate(sentence: str, name: str, number: int) -> str | None:
    """The sentence without its subject, if that is the page's."""
    if number == 0:
        found = _IS_A.match(sentence)
        return sentence[found.end("subject") :].strip() if found else None
    for subject in (name, name.split()[-1]):
        if sentence.startswith(f"{subject} "):
            rest = sentence[len(subject) :].strip()
            return rest if _VERB.match(rest) else None
    pronoun = _PRONOUN.match(sentence)
    rest = sentence[pronoun.end() :].strip() if pronoun else ""
    return rest if _VERB.match(rest) else None


def _taken_out(title: str, name: str, clause: str, kinds: Kinds) -> list[Fact]:
    """Every way to take one thing out of a clause. What follows the thing is left away, and the clause is kept short."""
    own = set(normalise(name).split())
    found = []
    for start, asked, answer in _things(clause, kinds):
        words = clause[:start].split()
        if not 2 <= len(words) <= MAX_CLAUSE_WORDS or words[-1][-1] in "–-—'’" or own & set(normalise(answer).split()):
            continue
        before = " ".join(words[1:]).removesuffix(" the")
        if before.count('"') % 2 or re.search(r"[;:]|\b(?:he|she|they|his|her|which|who|whose)\b", before):
            continue
        if normalise(answer) in normalise(before):
            continue
        found.append(Fact(title, words[0], before, asked, answer))
    return found


def _things(clause: str, kinds: Kinds) -> Iterable[tuple[int, str, str]]:
    """Where a thing stands that can be asked for, the words that ask for it, and the thing."""
    whole = {place: words for (_, month, day), words, place in dates_in(clause) if month and day}
    for place, words in whole.items():
        yield place, "what date", words
    for match in _YEAR.finditer(clause):
        if not any(place <= match.start("thing") <= place + len(words) for place, words in whole.items()):
            yield match.start("thing"), "what year", match["thing"]
    for match in _COUNT.finditer(clause):
        yield match.start(), f"how many {match['noun']}", match["thing"]
    for match in _AFTER.finditer(clause):
        answer = match["thing"].strip(" .,")
        if len(answer) < 3 or answer in MONTHS or re.search(r"\d", answer):
            continue
        kind = match["words"].strip() or kinds.nouns.get(answer, "")
        if not match["words"] and kind and kind.split()[-1] in _PLACES:
            kind = kind.split()[-1]
        if _is_kind(kind, kinds) and _IS_WHOLE.match(clause[match.end("thing") - 1 :]):
            yield match.end("lead") + 1, f"what {kind}", answer
    for match in _QUOTED.finditer(clause):
        said = match["words"].split()
        cut = next((n for n in range(len(said), 0, -1) if said[n - 1] in STOPS), 0)
        kind = " ".join(said[cut:])
        if cut and _is_kind(kind, kinds):
            yield match.end("words") - len(f"{kind} "), f"what {kind}", match["thing"].strip(" ,.")


# What may follow a name that is over: not a noun that it belongs to ("the Ohio River basin").
_IS_WHOLE = re.compile(
    r"\S?\s*(?:[.,;]|$|(?:and|in|on|for|who|which|that|as|at|from|with|where|by|to|since|during|until|when|after|before)\b)"
)


def _is_kind(words: str, kinds: Kinds) -> bool:
    """A word or a few for what something is, and nothing else."""
    said = words.split()
    return bool(said) and said[-1] in kinds.heads and not any(word in STOPS for word in said)


STOPS = words_of(
    "the a an in at by for from with of to on and as is was called titled named entitled his her their "
    "its one former into through or near over about between are were this that these such other some many "
    "several each both all"
)
