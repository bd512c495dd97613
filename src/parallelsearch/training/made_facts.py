"""Questions of one fact and of two links, made from the pages of a corpus: practice in finding the sentence that answers.

A small model quotes the head of a page, because that is where most answers of its few training questions stand. Here any
sentence about a page's subject gives a *fact*: a year, a date, a number or a name in it is taken out, and "what year" or
"what city" stands in its place. "X was built in 1931" becomes "In what year was X built?", or, when another page leads to
X, the second link of a chain: "A was designed by an architect who was born in what city?". The words are the pages' own,
the answer is what was taken out. Pages that a forbidden question names, or needs, are not used.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from parallelsearch.answers import normalise
from parallelsearch.grammar import SEPARATOR
from parallelsearch.retrieval.base import Passage
from parallelsearch.training.decompose import base_title
from parallelsearch.training.evidence import dates_in, find_phrase, sentences
from parallelsearch.training.mixed import CRAFTS
from parallelsearch.training.mixed_questions import Work, names_in_texts, read_works
from parallelsearch.trajectory import Question

MADE_CHAIN = "made-chain"
MADE_FACT = "made-fact"
"""The `dataset` of the questions made here."""
MAX_PAGE_CHARS = 900
"""How much of a page is read: what a search shows of it."""
MAX_CLAUSE_WORDS = 16
MAX_QUESTION_WORDS = 42
MAX_FACTS_PER_PAGE = 4
"""In this many questions a page is the one that answers, at most."""
MIN_OF_A_KIND = 5
PREFERS_NAMES = 0.75
FACTS_PER_LINK = 2
MAX_SAME_ANSWER = 20
"""A place that everything is in would be guessed without reading."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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


# ---- pages -----------------------------------------------------------------------------------------------------------

_PARTICIPLE = re.compile(r"\w+ed|\w+en|born|built|made|held|set|found|known|sold|shot|led|lost|spent|first|originally")
_FRONTED = _words("in at by for from on near with during to")
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
_BRACKETS = re.compile(r"\s*\([^()]*\)|\s*\[[^\[\]]*\]")
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
_PLACES = _words(
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
    first = _BRACKETS.sub("", sentences(text[:MAX_PAGE_CHARS])[0] if text else "")
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
        plain = " ".join(_BRACKETS.sub("", sentence).split())
        clause = _predicate(plain, name, number)
        if clause is not None:
            found += _taken_out(title, name, clause, kinds)
    return found


def _predicate(sentence: str, name: str, number: int) -> str | None:
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
        if len(answer) < 3 or answer in _MONTHS or re.search(r"\d", answer):
            continue
        kind = match["words"].strip() or kinds.nouns.get(answer, "")
        if not match["words"] and kind and kind.split()[-1] in _PLACES:
            kind = kind.split()[-1]
        if _is_kind(kind, kinds) and _IS_WHOLE.match(clause[match.end("thing") - 1 :]):
            yield match.end("lead") + 1, f"what {kind}", answer
    for match in _QUOTED.finditer(clause):
        said = match["words"].split()
        cut = next((n for n in range(len(said), 0, -1) if said[n - 1] in _STOPS), 0)
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
    return bool(said) and said[-1] in kinds.heads and not any(word in _STOPS for word in said)


_MONTHS = _words("January February March April May June July August September October November December")
_STOPS = _words(
    "the a an in at by for from with of to on and as is was called titled named entitled his her their "
    "its one former into through or near over about between are were this that these such other some many "
    "several each both all"
)


# ---- links -----------------------------------------------------------------------------------------------------------

_LEADS = _words("by in for from at of near with to starring featuring on under")


@dataclass(frozen=True, slots=True)
class Link:
    """How one page leads to another: "Rage is the second album by a metalcore band", or "the director of the film A"."""

    first: str
    second: str
    opening: str = ""
    """The first page's words up to the second's name, for a question that begins with them."""
    role: str = ""
    """The second page's subject by what it did for the first, for a question that asks for it directly."""


def read_links(passages: Iterable[Passage], pages: Mapping[str, Page]) -> list[Link]:
    """Sentences of one page's subject that name another page."""
    heads = frozenset(page.noun.split()[-1] for page in pages.values())
    by_name = {
        page.name: title
        for title, page in pages.items()
        if (page.name == title or " " in page.name) and page.name not in _MONTHS
    }
    found: list[Link] = []
    seen: set[str] = set()
    for passage in passages:
        page = pages.get(passage.title)
        if page is None or not page.is_open or passage.title in seen:
            continue
        seen.add(passage.title)
        for number, sentence in enumerate(sentences(passage.text[:MAX_PAGE_CHARS])):
            clause = _predicate(" ".join(_BRACKETS.sub("", sentence).split()), page.name, number)
            for start, name in _named(clause, by_name) if clause else ():
                opening = _opening(page, clause[:start], pages[by_name[name]], heads) if clause else None
                if opening is not None and by_name[name] != passage.title:
                    found.append(Link(passage.title, by_name[name], opening))
    return found


def _named(clause: str, by_name: Mapping[str, str]) -> Iterable[tuple[int, str]]:
    """The names of pages in a clause, the longest where several begin at one place."""
    words = [(match.start(), match.end()) for match in re.finditer(r"[^\s,;:\"]+", clause)]
    for first, (start, _) in enumerate(words):
        if not clause[start].isupper() or (first and clause[words[first - 1][0]].isupper()):
            continue
        for last in range(min(len(words), first + 6) - 1, first - 1, -1):
            name = clause[start : words[last][1]].rstrip(".")
            if name in by_name:
                is_whole = last + 1 == len(words) or not clause[words[last + 1][0]].isupper()
                if is_whole:
                    yield start, name
                break


def _opening(page: Page, before: str, second: Page, heads: Collection[str]) -> str | None:
    """The words up to the other page's name, which a description takes the place of."""
    words = before.split()
    if not 2 <= len(words) <= MAX_CLAUSE_WORDS or before.count('"') % 2 or re.search(r"[;:]|\band\b", before):
        return None
    place = next((n for n in range(len(words) - 1, max(-1, len(words) - 7), -1) if words[n] in _LEADS), None)
    if place is None or set(normalise(second.name).split()) & set(normalise(page.name).split()):
        return None
    described = [word for word in words[place + 1 :] if word not in ("the", "The", "a", "an", "its", "his", "her")]
    if any(word.endswith((",", "'s", "’s")) for word in described):
        return None
    noun = " ".join(described)
    if not noun or noun.split()[-1] not in heads or set(described) & _STOPS:
        noun = second.noun
    article = "an" if noun[0].lower() in "aeiou" else "a"
    return f"{page.name} {' '.join(words[: place + 1])} {article} {noun}"


def links_of_works(works: Iterable[Work], pages: Mapping[str, Page]) -> list[Link]:
    """ "the director of the film A", for films, records and books and the people who made them."""
    return [
        Link(work.title, work.maker.name, role=f"the {CRAFTS[work.noun].role} of the {work.noun} {work.name}")
        for work in works
        if work.maker.name in pages and work.title in pages and pages[work.title].is_open
    ]


# ---- questions -------------------------------------------------------------------------------------------------------


def make_facts(
    pages: Mapping[str, Page], max_questions: int, *, seed: int = 0, forbidden: Collection[str] = ()
) -> list[Question]:
    """Questions of one fact that begin with the question word. With it in its place ("X was built in what year?") they would
    look like chains, and a policy taught with them answers chains after one search (docs/results.md)."""
    rng = random.Random(f"facts/{seed}")
    made = _Made(max_questions, forbidden)
    for page, fact in _shuffled(pages, rng):
        text = fact.fronted(page.name)
        made.add(Question(f"{text}?", [fact.answer], dataset=MADE_FACT, kind="single", supporting_titles=[page.title]))
    return made.questions


def make_chains(
    pages: Mapping[str, Page],
    links: Sequence[Link],
    max_questions: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
) -> list[Question]:
    """Questions of two links, as many that ask for the maker of a thing as there are, up to a third."""
    rng = random.Random(f"chains/{seed}")
    made = _Made(max_questions, forbidden)
    roles = [link for link in links if link.role]
    others = [link for link in links if link.opening]
    rng.shuffle(roles)
    rng.shuffle(others)
    for number in range(len(roles) + len(others)):
        if not others:
            break
        link = roles.pop() if roles and number % 3 == 0 else others.pop()
        second = pages[link.second]
        known = f"{pages[link.first].text} {link.opening} {link.role}"
        facts = [fact for fact in second.facts if not find_phrase(known, fact.answer) and _is_new(fact, second)]
        if not facts:
            continue
        for fact in _drawn(facts, FACTS_PER_LINK, rng):
            made.add(_chain(link, fact, pages))
    return made.questions


def _chain(link: Link, fact: Fact, pages: Mapping[str, Page]) -> Question:
    if link.role:
        text = fact.fronted(link.role) or f"{link.role[0].upper()}{link.role[1:]} {fact.in_place}"
    else:
        text = f"{link.opening} {_told(fact, pages[link.second])}"
    titles = [link.first, link.second]
    return Question(f"{text}?", [fact.answer], dataset=MADE_CHAIN, kind="sequential", supporting_titles=titles)


def _told(fact: Fact, page: Page) -> str:
    """The fact as a clause behind a description; what only repeats the description is left away."""
    for article in ("a", "an", "the"):
        rest = fact.before.removeprefix(f"{article} {page.noun} ")
        if rest != fact.before and _GOES_ON.match(rest):
            return f"{rest} {fact.asked}"
    return f"{'who' if page.is_person else 'that'} {fact.in_place}"


_GOES_ON = re.compile(
    r"(?:who|that|which|born|based|located|founded|formed|known|from|in|of|directed|written|published|released)\b"
)


def _is_new(fact: Fact, page: Page) -> bool:
    """The clause says more than what the subject is, or is told so that it does."""
    if fact.verb in ("is", "was", "are", "were") and re.match(r"(?:a|an|the|one)\b", fact.before):
        return _told(fact, page).split()[0] not in ("who", "that") or "who" in fact.before.split()
    return True


def _drawn(facts: Sequence[Fact], count: int, rng: random.Random) -> list[Fact]:
    """Some of the facts, names before years and numbers in most draws: most sentences have one of the latter."""
    order = rng.sample(facts, len(facts))
    if rng.random() < PREFERS_NAMES:
        order.sort(key=lambda fact: bool(re.search(r"\d", fact.answer)) or fact.asked.startswith("how many"))
    return order[:count]


def _shuffled(pages: Mapping[str, Page], rng: random.Random) -> list[tuple[Page, Fact]]:
    """Each page that may be named, and one of its facts that can be asked for up front."""
    drawn: list[tuple[Page, Fact]] = []
    for title in sorted(pages):
        page = pages[title]
        facts = [fact for fact in page.facts if fact.fronted(page.name)] if page.is_open else []
        if facts:
            drawn.append((page, _drawn(facts, 1, rng)[0]))
    rng.shuffle(drawn)
    return drawn


class _Made:
    """Questions as they come: each once, no forbidden one, no answer or page too often."""

    def __init__(self, max_questions: int, forbidden: Collection[str]) -> None:
        self.max_questions = max_questions
        self.questions: list[Question] = []
        self._seen = set(forbidden)
        self._answers: Counter[str] = Counter()
        self._pages: Counter[str] = Counter()

    def add(self, question: Question) -> None:
        key, answer = normalise(question.question), normalise(question.golden_answers[0])
        last = (question.supporting_titles or [""])[-1]
        too_often = self._answers[answer] >= MAX_SAME_ANSWER or self._pages[last] >= MAX_FACTS_PER_PAGE
        is_fit = answer and len(question.question.split()) <= MAX_QUESTION_WORDS
        if len(self.questions) >= self.max_questions or key in self._seen or too_often or not is_fit:
            return
        self._seen.add(key)
        self._answers[answer] += 1
        self._pages[last] += 1
        question.id = f"made-{hashlib.sha256(question.question.encode()).hexdigest()[:16]}"
        self.questions.append(question)


def make_all(
    passages: Sequence[Passage],
    num_facts: int,
    num_chains: int,
    *,
    seed: int = 0,
    forbidden: Collection[str] = (),
    needed: Collection[str] = (),
) -> list[Question]:
    """Facts, then chains, from one reading of the passages."""
    pages = read_pages(passages, forbidden, needed)
    links = [*links_of_works(read_works(passages, forbidden), pages), *read_links(passages, pages)]
    facts = make_facts(pages, num_facts, seed=seed, forbidden=forbidden)
    return facts + make_chains(pages, links, num_chains, seed=seed, forbidden=forbidden)
