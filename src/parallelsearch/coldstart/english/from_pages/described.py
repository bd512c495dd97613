"""Questions about somebody who is not named but described: "where was the architect of the Blue House born?".

People ask so all the time, and pages give few such pairs: a house, and a page of its architect. So a sentence that says who
it was is written into a copy of a real page (`roles.py`), as `changed.py` does with numbers; the search finds both pages by
their own words, and the lesson reads the copy. Four kinds of question come of it:

- chains: a fact of the one described. The thing is looked up first, then whoever that is.
- mixed: two to four of them side by side ("Who died first, the painter of A or the teacher of B?"): all things in one round,
  then everyone in the next.
- single facts that look alike: "who designed A?", and a fact of A itself. Who learns to see chains must not see them here.

These questions are for lessons alone: to RL the corpus shows what the pages say. Who belongs to what is invented, so what a
policy learns here is when one thing must be known before the other, and no fact.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.coldstart.english.evidence import country, find_phrase, has_day, sentences
from parallelsearch.coldstart.english.from_pages.pages import Page
from parallelsearch.coldstart.english.from_pages.reworded import possessive
from parallelsearch.coldstart.english.from_pages.roles import KINDS_OF_THINGS, PEOPLE, PERSON, ROLES, Role
from parallelsearch.coldstart.english.from_pages.told import Thing, Things, is_known_date, one_name
from parallelsearch.coldstart.english.from_pages.two_rounds import same_nation
from parallelsearch.coldstart.english.from_pages.wide import golden_of
from parallelsearch.coldstart.english.from_pages.wordings import as_people_write, capital, listed
from parallelsearch.coldstart.english.wide import METADATA, Form, Step, Wide, answer_of
from parallelsearch.coldstart.lesson import CHANGED, Seen
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Kind, Question, QuestionPart

MADE_DESCRIBED = "made-described"
"""The `dataset` of the questions made here."""
MAX_USES = 6
"""A page is in this many questions at most."""
MIN_OF_A_ROLE = 5
WIDTHS = (2, 2, 2, 3, 3, 4)
OF_PEOPLE = 0.7
"""So often the ones compared are people."""
MAX_NAME_WORDS = 3
SMALL_LETTERS = 0.3
WITH_KIND = 0.3
"""So often a thing is named with what it is: "the film A"."""
OWN_FACTS = 0.35
"""Of the single ones so many ask for a fact of the thing itself."""
_DRAWS = 60
_ASKS: dict[str, tuple[str, ...]] = {
    "born": ("In what year was {p} born", "What year was {p} born", "In which year was {p} born",
             "What is the year of birth of {p}", "Which year saw the birth of {p}", "{P} was born in what year"),
    "born_on": ("When was {p} born", "When was {p} born", "What is the date of birth of {p}", "On what day was {p} born",
                "What is the birthday of {p}"),
    "died": ("In what year did {p} die", "What year did {p} die", "In which year did {p} die",
             "What is the year of death of {p}", "{P} died in what year"),
    "died_on": ("When did {p} die", "When did {p} die", "What is the date of death of {p}", "On what day did {p} die"),
    "birthplace": ("Where was {p} born", "Where was {p} born", "In which place was {p} born", "What is the birthplace of {p}",
                   "Where does {p} come from", "In which city or town was {p} born", "Which town is {p} from",
                   "What is the place of birth of {p}"),
    "nation": ("What nationality is {p}", "What is the nationality of {p}", "What was the nationality of {p}",
               "Of what nationality was {p}"),
    "country": ("In which country is {p}", "What country is {p} in", "In what country does {p} lie",
                "Which country is {p} in"),
    "population": ("What is the population of {p}", "How many people live in {p}", "How many inhabitants does {p} have"),
    "released": ("In what year did {p} come out", "What year was {p} released", "When did {p} come out",
                 "When was {p} released"),
    "published": ("In what year did {p} come out", "What year was {p} published", "When was {p} published"),
    "founded": ("In what year was {p} founded", "When was {p} founded", "What year was {p} established"),
    "formed": ("In what year was {p} formed", "When was {p} formed", "What year did {p} get together"),
    "opened": ("In what year was {p} opened", "When did {p} open"),
    "director": ("Who directed {p}", "Who is the director of {p}", "Who was {p} directed by"),
    "author": ("Who wrote {p}", "Who is the author of {p}", "Who was {p} written by"),
    "performer": ("Who recorded {p}", "Who is the performer of {p}", "Who made {p}"),
    "species": ("How many species are there in {p}", "How many species does {p} have"),
    "family": ("What family is {p} in", "Which family does {p} belong to"),
}  # fmt: skip
_FIRST: dict[tuple[str, str], tuple[str, str]] = {
    ("born", "first_of"): ("was born first|is older|was born earlier", "was born first|is the oldest|was born earliest"),
    ("born", "last_of"): ("was born later|is younger|was born last", "was born last|is the youngest|was born latest"),
    ("died", "first_of"): ("died first|died earlier", "died first|died earliest|was the first to die"),
    ("died", "last_of"): ("died later|died last", "died last|died latest|was the last to die"),
    **{
        (fact, form): (verbs[0], verbs[1])
        for fact, first, last in (
            ("released", ("came out first|was released earlier", "came out first|was released first"),
             ("came out later|was released last", "came out last|was released latest")),
            ("published", ("came out first|was published earlier", "was published first|came out earliest"),
             ("came out later|was published last", "was published last|came out latest")),
            ("founded", ("was founded first|is older", "was founded first|is the oldest"),
             ("was founded later|is younger", "was founded last|is the youngest")),
            ("formed", ("was formed first|got together earlier", "was formed first"),
             ("was formed later|got together later", "was formed last")),
        )
        for form, verbs in (("first_of", first), ("last_of", last))
    },
}  # fmt: skip
"""What is asked of two, and of more."""
_EACH: dict[str, tuple[str, ...]] = {
    "born": ("In which years were {all} born", "What years were {all} born in", "Give the year of birth of {each}"),
    "died": ("In which years did {all} die", "What years did {all} die in", "Give the year of death of {each}"),
    "birthplace": ("Where were {all} born", "What are the birthplaces of {all}", "Give the birthplace of {each}"),
    "nation": ("What are the nationalities of {all}", "What nationality are {all}", "Give the nationality of {each}"),
}
_FORMS: tuple[Form, ...] = ("first_of", "last_of", "first_of", "last_of", "all_of", "each", "how_many_of")
_HE, _SHE = re.compile(r"\b[Hh](?:e|is|im)\b"), re.compile(r"\b[Ss]he\b|\b[Hh]ers?\b")


def make_described(
    things: Things,
    pages: Mapping[str, Page],
    passages: Iterable[Passage],
    counts: Mapping[Kind, int],
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
) -> list[Question]:
    """Up to so many of each kind (single, sequential, mixed). The seed alone decides which come out."""
    maker = _Maker(things, pages, passages, seed, forbidden)
    ways: dict[Kind, Callable[[], Question | None]] = {
        "single": maker.single,
        "sequential": maker.chain,
        "mixed": maker.mixed,
    }
    made: list[Question] = []
    for kind, way in ways.items():
        found: list[Question] = []
        for _ in range(8 * counts.get(kind, 0)):
            if len(found) == counts.get(kind, 0):
                break
            question = way()
            if question is not None:
                found.append(question)
        made += found
    return made


@dataclass(frozen=True, slots=True)
class _Pair:
    """A thing, who belongs to it, and the copy of its page that says so."""

    role: Role
    page: Page
    passage_id: str
    text: str
    somebody: Thing
    described: str
    """ "the architect of the house A"."""


class _Maker:
    def __init__(
        self,
        things: Things,
        pages: Mapping[str, Page],
        passages: Iterable[Passage],
        seed: int,
        forbidden: Collection[str],
    ) -> None:
        self.rng = random.Random(f"described/{seed}")
        self.seen = set(forbidden)
        self.uses: Counter[str] = Counter()
        self.first: dict[str, Passage] = {}
        texts: dict[str, list[str]] = defaultdict(list)
        for passage in passages:
            self.first.setdefault(passage.title, passage)
            if passage.title in pages:
                texts[passage.title].append(passage.text)
        self.told = {thing.title: thing for thing in things.all}
        self.belonging: dict[str, list[Thing]] = defaultdict(list)
        for thing in things.all:
            for kind in _kinds_of(thing):
                self.belonging[kind].append(thing)
        by_head: dict[str, list[Page]] = defaultdict(list)
        for title in sorted(pages):
            page = pages[title]
            if not page.is_open or title not in self.first:
                continue
            if title in self.told and self.told[title].is_person:
                by_head[PERSON].append(page)
            elif not page.is_person and not _IS_BORN.search(page.text):
                by_head[page.noun.split()[-1]].append(page)
        self.fitting: dict[int, list[Page]] = {}
        for number, role in enumerate(ROLES):
            told = re.compile(role.told, re.IGNORECASE)
            # The copy is of the page's beginning; what the rest of it tells may be shown beside that.
            some = [
                page
                for head in sorted(role.heads)
                for page in by_head[head]
                if not any(told.search(text) for text in texts[page.title])
            ]
            if len(some) >= MIN_OF_A_ROLE and len(self.belonging[role.who]) >= MIN_OF_A_ROLE:
                self.fitting[number] = some

    # ---- the kinds ---------------------------------------------------------------------------------------------------

    def chain(self) -> Question | None:
        pair = self._pair()
        if pair is None:
            return None
        facts = sorted(set(_asked_of(pair.somebody)) - {_TELLS.get(pair.role.fact)})
        if not facts:
            return None
        fact = self.rng.choice(facts)
        step = _step(pair, fact)
        if find_phrase(pair.text, step.words):
            return None
        text = self._asking(fact, step.value).format(p=pair.described, P=capital(pair.described))
        wide = Wide("each", fact, None, (_of_the_thing(pair), step))
        answers = list(dict.fromkeys((step.value, *_other_forms(pair.somebody, fact))))
        return self._question(f"{text}?", answers, [pair], "sequential", wide)

    def mixed(self) -> Question | None:
        width = self.rng.choice(WIDTHS)
        kinds = PEOPLE if self.rng.random() < OF_PEOPLE else (self.rng.choice(_COMPARED),)
        pairs: list[_Pair] = []
        for _ in range(_DRAWS):
            pair = self._pair(kinds)
            if pair is not None:
                pairs.append(pair)
            if len(pairs) == width:
                break
        if len(pairs) < width or not one_name([pair.somebody for pair in pairs]) or not _are_apart(pairs):
            return None
        shared = set.intersection(*(set(_asked_of(pair.somebody)) for pair in pairs))
        form = self.rng.choice(_FORMS)
        if form in ("first_of", "last_of"):
            return self._first(pairs, form, sorted(fact for fact in shared if (fact, form) in _FIRST))
        if form == "each":
            return self._each(pairs, sorted(shared & set(_EACH)))
        return self._of_a_nation(pairs, form) if "nation" in shared else None

    def single(self) -> Question | None:
        pair = self._pair()
        if pair is None:
            return None
        if self.rng.random() < OWN_FACTS:
            return self._own_fact(pair)
        named = self._named(pair.page)
        text = self.rng.choice(pair.role.asks).format(**named)
        return self._question(f"{capital(text)}?", [pair.somebody.name], [pair], "single")

    # ---- mixed ones --------------------------------------------------------------------------------------------------

    def _first(self, pairs: Sequence[_Pair], form: Form, facts: Sequence[str]) -> Question | None:
        if not facts:
            return None
        fact = self.rng.choice(facts)
        wide = _compared(pairs, form, fact)
        if len({step.value for step in wide.steps if step.round == 2}) < len(pairs):
            return None
        asked = self.rng.choice(_FIRST[fact, form][len(pairs) > 2].split("|"))
        some = [pair.described for pair in pairs]
        either, all_of = listed(some, "or"), listed(some, "and")
        is_person = pairs[0].role.who in PEOPLE
        which = "who" if is_person else "which"
        texts = (
            f"{capital(which)} {asked}, {either}?",
            f"{capital(which)} {asked}, {either}?",
            f"{capital(which)} {asked}: {either}?",
            f"Of {all_of}, {which} {asked}?",
            f"{capital(either)}: {which} {asked}?",
            f"Which of these {'people ' if is_person else ''}{asked}: {either}?",
        )
        return self._question(self.rng.choice(texts), answer_of(wide), pairs, "mixed", wide)

    def _each(self, pairs: Sequence[_Pair], facts: Sequence[str]) -> Question | None:
        if not facts:
            return None
        fact = self.rng.choice(facts)
        wide = _compared(pairs, "each", fact)
        some = [pair.described for pair in pairs]
        asked = self.rng.choice(_EACH[fact])
        text = asked.format(all=listed(some, "and"), each=f"each of these: {listed(some, 'and')}")
        end = "." if asked.startswith("Give") else "?"
        return self._question(f"{text}{end}", golden_of(wide, answer_of(wide)), pairs, "mixed", wide)

    def _of_a_nation(self, pairs: Sequence[_Pair], form: Form) -> Question | None:
        target = self.rng.choice(pairs).somebody.told["nation"][0]
        holds = [same_nation(pair.somebody.told["nation"][0], target) for pair in pairs]
        if None in holds or (form == "all_of" and not all(holds) and self.rng.random() < 0.5):
            return None
        wide = _compared(pairs, form, "nation", target, holds)
        some = listed([pair.described for pair in pairs], "and")
        every = "both" if len(pairs) == 2 else "all"
        texts = (f"Are {some} {every} {target}?", f"Were {some} {every} {target}?",
                 f"Is it true that {some} are {every} {target}?")  # fmt: skip
        if form == "how_many_of":
            texts = (f"How many of {some} are {target}?", f"Of {some}, how many are {target}?",
                     f"How many of these people are {target}: {some}?")  # fmt: skip
        return self._question(self.rng.choice(texts), golden_of(wide, answer_of(wide)), pairs, "mixed", wide)

    # ---- single ones -------------------------------------------------------------------------------------------------

    def _own_fact(self, pair: _Pair) -> Question | None:
        """A fact of the thing itself, though its page names somebody else as well."""
        thing = self.told.get(pair.page.title)
        facts = sorted(set(_asked_of(thing)) & set(_ASKS)) if thing is not None else []
        if thing is None or not facts:
            return None
        fact = self.rng.choice(facts)
        value = _value(thing, fact)[0]
        named = self._named(pair.page)["x"]
        text = self._asking(fact, value).format(p=named, P=capital(named))
        answers = list(dict.fromkeys((value, *_other_forms(thing, fact))))
        return self._question(f"{text}?", answers, [pair], "single")

    # ---- drawing -----------------------------------------------------------------------------------------------------

    def _pair(self, kinds: Sequence[str] = (*PEOPLE, *KINDS_OF_THINGS)) -> _Pair | None:
        """A thing and what belongs to it, which is one of these kinds."""
        numbers = [number for number in sorted(self.fitting) if ROLES[number].who in kinds]
        if not numbers:
            return None
        number = self.rng.choice(numbers)
        role, page = ROLES[number], self.rng.choice(self.fitting[number])
        somebody = self.rng.choice(self.belonging[role.who])
        is_used = self.uses[page.title] >= MAX_USES or self.uses[somebody.title] >= MAX_USES
        if is_used or set(normalise(page.name).split()) & set(normalise(somebody.name).split()):
            return None
        if find_phrase(page.text, somebody.name) or find_phrase(somebody.text, page.name):
            return None
        is_long = len(page.name.split()) > MAX_NAME_WORDS  # a line has room for nine words
        it = "It" if is_long or self.rng.random() < 0.5 else page.name
        ways = [way for way in role.said if not is_long or "{x}" not in way]
        if not ways:
            return None
        said = self.rng.choice(ways).format(x=page.name, it=it, y=somebody.name)
        passage = self.first[page.title]
        parts = sentences(passage.text)
        text = " ".join([*parts[:1], said, *parts[1:]])
        described = self.rng.choice(role.phrases).format(**self._named(page))
        return _Pair(role, page, passage.id, text, somebody, described)

    def _asking(self, fact: str, value: str) -> str:
        """A way to ask for a fact: not for a town, where that is a country or a state."""
        is_land = fact == "birthplace" and country(Seen(1, "", value)) is not None
        return self.rng.choice([way for way in _ASKS[fact] if not (is_land and "town" in way)])

    def _named(self, page: Page) -> dict[str, str]:
        """The thing as a question names it. "The lake Lake Abitibi" nobody says."""
        kind = page.noun.split()[-1]
        may_have_kind = not page.is_person and kind not in page.name.lower().split()
        name = f"the {kind} {page.name}" if may_have_kind and self.rng.random() < WITH_KIND else page.name
        return {"x": name, "own": possessive(name)}

    def _question(
        self, text: str, answers: Sequence[str], pairs: Sequence[_Pair], kind: Kind, wide: Wide | None = None
    ) -> Question | None:
        if normalise(text) in self.seen:
            return None
        self.seen.add(normalise(text))
        self.uses.update(title for pair in pairs for title in (pair.page.title, pair.somebody.title))
        # A single fact is searched for in the words of its question: in those of a polite frame nobody finds it.
        if kind != "single":
            text = as_people_write(text, self.rng)
        elif self.rng.random() < SMALL_LETTERS:
            text = text.lower().rstrip("?")
        changed = {pair.passage_id: pair.text for pair in pairs}
        metadata = {CHANGED: changed, **({METADATA: wide.to_dict()} if wide is not None else {})}
        parts = [QuestionPart(_names(pair.page), 1) for pair in pairs]
        parts += [QuestionPart(pair.somebody.names, 2) for pair in pairs]
        people = [pair.somebody.title for pair in pairs]
        return Question(
            text,
            list(answers),
            id=f"described-{hashlib.sha256(f'{text}/{people}'.encode()).hexdigest()[:16]}",
            dataset=MADE_DESCRIBED,
            kind=kind,
            supporting_titles=[pair.page.title for pair in pairs] + ([] if kind == "single" else people),
            parts=parts if kind == "mixed" else None,
            metadata=metadata,
        )


_COMPARED = ("novel", "film", "album", "song", "band", "club", "company", "school")
"""Kinds of things that have a year."""
_IS_BORN = re.compile(r"\bborn\b")
"""A page that is not taken for a biography and has this is one all the same, or about one."""
_DATES = {"born_on": "born", "died_on": "died"}
"""Of a birth and a death one asks for the year or for the day."""
_TELLS = {"novel": "author"}
"""By role: what it says already of who or what belongs to the thing, and the page of that tells otherwise."""


def _asked_of(thing: Thing) -> list[str]:
    """What can be asked of it: of its dates those that are known."""
    years = [year for year in _DATES.values() if year in thing.told and is_known_date(thing.text, thing.told[year][1])]
    days = [fact for fact, year in _DATES.items() if year in years and has_day(thing.told[year][1])]
    others = [fact for fact in thing.told if fact not in _DATES.values()]
    return [fact for fact in (*years, *others, *days) if fact in _ASKS]


def _value(thing: Thing, fact: str) -> tuple[str, str]:
    """A value and the page's words for it, which of a day are one."""
    if fact in _DATES:
        words = thing.told[_DATES[fact]][1]
        return words, words
    return thing.told[fact]


def _other_forms(thing: Thing, fact: str) -> list[str]:
    return [thing.told[_DATES[fact]][0]] if fact in _DATES else []


def _of_the_thing(pair: _Pair) -> Step:
    return Step(pair.page.name, pair.page.title, pair.role.fact, pair.somebody.name, pair.somebody.name)


def _step(pair: _Pair, fact: str, holds: bool | None = None) -> Step:
    value, words = _value(pair.somebody, fact)
    return Step(pair.somebody.name, pair.somebody.title, fact, value, words, holds, round=2, of=pair.page.name)


def _compared(
    pairs: Sequence[_Pair], form: Form, fact: str, target: str | None = None, holds: Sequence[bool | None] = ()
) -> Wide:
    """The things, then those who belong to them, who are what is asked for."""
    fits = holds or [None] * len(pairs)
    steps = [_of_the_thing(pair) for pair in pairs] + [
        _step(pair, fact, one) for pair, one in zip(pairs, fits, strict=True)
    ]
    return Wide(form, fact, target, tuple(steps), asks_makers=True)


def _names(page: Page) -> list[str]:
    return list(dict.fromkeys((page.name, page.title)))


def _are_apart(pairs: Sequence[_Pair]) -> bool:
    """No two of the things or people share a word of their names."""
    words: set[str] = set()
    for pair in pairs:
        own = set(normalise(f"{pair.page.name} {pair.somebody.name}").split())
        if own & words:
            return False
        words |= own
    return True


def _kinds_of(thing: Thing) -> list[str]:
    """As what it may belong to something. Of somebody one fact is too little, and one word no name."""
    if not _asked_of(thing):
        return []
    if not thing.is_person:
        return [kind for kind, heads in KINDS_OF_THINGS.items() if thing.head in heads]
    if len(thing.told) < 2 or " " not in thing.name:
        return []
    he, she = len(_HE.findall(thing.text)), len(_SHE.findall(thing.text))
    return ["anyone", *(["man"] if he > 2 * she else ["woman"] if she > 2 * he else [])]
