"""The lesson of a comparison: all names at once, or one after the other for the sequential twin, and a verdict from evidence.

A comparison is decided by what its pages say: dates, ages, numbers, nationalities, or which page fits a description. The last
thought takes steps that a small model can take, each a copy or a look at two things that stand side by side. What the
evidence does not decide as the golden answer does is dropped.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from parallelsearch import grammar
from parallelsearch.answers import normalise
from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import (
    MONTHS,
    Date,
    Quote,
    beginning_verbs,
    birth_date,
    birthplace,
    clause_about,
    clause_with,
    country,
    death_date,
    definition,
    event_date,
    is_of_another_nation,
    later_of,
    nationality,
    number_near,
    overlap,
    page_of,
    stretch_with,
    trait_words,
    without_nation,
)
from parallelsearch.coldstart.english.questions import (
    Ask,
    aspect_of,
    content_words,
    measure_words,
    mention_of,
    relation_words,
    same_name,
    stem_of,
)
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen, as_query
from parallelsearch.data.alternatives import compared
from parallelsearch.grammar import render_turn
from parallelsearch.search import Search
from parallelsearch.trajectory import Question

MAX_TRAIT_WORDS = 6
TRAIT_SHARE = 0.6
"""A passage has a trait when it has this share of its words: with 0.6, two of three and both of two."""
MIN_LEAD_WITHOUT_NUMBERS = 2
"""So many more of the question's words decide a question of more or fewer whose pages give no numbers: in HotpotQA train they
agree with the answer in 29 of 33 cases; one word more does in 31 of 48, hardly better than a coin."""


@dataclass(slots=True)
class ComparisonLesson(Lesson):
    """Names that do not depend on each other; `queries` has one for each."""

    names: tuple[str, ...]
    queries: tuple[str, ...]
    ask: Ask
    relation: str
    at_once: bool

    def turn(self, number: int, shown: Sequence[Seen]) -> str:
        topic = thoughts.topic_of(self.ask, self.relation)
        if number == 0:
            plan = thoughts.plan_parallel if self.at_once else thoughts.plan_one_by_one
            return render_turn(plan(self.rng, self.names, topic), self.queries if self.at_once else self.queries[:1])
        pages = []
        for name in self.names:
            page = page_of(name, shown, self.question.supporting_titles or (), self.words)
            if page is not None:
                pages.append(page)
            elif self.at_once or len(pages) >= number:
                break
            else:
                raise Drop("page_not_found")
        if not self.at_once and number < len(self.names):
            if len(pages) < number:
                raise Drop("page_not_found")
            name = self.names[number - 1]
            seen = self.glimpse(pages[number - 1])
            lead = f"{thoughts.quote(name, seen)} " if seen else ""
            return render_turn(lead + thoughts.next_of(self.rng, self.names[number], topic), [self.queries[number]])
        if len(pages) < len(self.names):
            raise Drop("page_not_found")
        if len({page.number for page in pages}) < len(pages):
            raise Drop("same_page")
        return render_turn(self.conclude(pages), answer=self.answer)

    def glimpse(self, page: Seen) -> Quote | None:
        """What one page says on the thing compared, for the thought between two searches."""
        text, words = page.text, self.words
        date = (
            birth_date(text)
            if self.ask.aspect == "birth"
            else death_date(text)
            if self.ask.aspect == "death"
            else (event_date(text, beginning_verbs(words)) or (None, None))[:2]
            if self.ask.aspect == "date"
            else (self.date_of(text) or (None, None))[:2]
            if self.ask.aspect in ("year", "day")
            else None
        )
        if date is not None and date[1] is not None:
            return Quote(str(date[1]), page.number)
        if self.ask.aspect == "count":
            counted = number_near(page, self.words_of_a_number, self.max_quote_words)
            return counted[1] if counted else None
        return self.trait_quote(page)

    @property
    def words(self) -> list[str]:
        return trait_words(self.question.question, self.names)

    @property
    def words_of_a_number(self) -> list[str]:
        """The words beside which a number is looked for: "longer" is said of a length."""
        return [*self.words, *measure_words(self.question.question)]

    def conclude(self, pages: Sequence[Seen]) -> str:
        """The thought that decides, checked against the golden answer."""
        if len(pages) != 2:
            return self.conclude_common(pages)
        aspect = self.ask.aspect
        if aspect in ("birth", "death"):
            find = birth_date if aspect == "birth" else death_date
            dates = [find(page.text) for page in pages]
            verb = "was born" if aspect == "birth" else "died"
            return self.by_date([date if date is None else (*date, verb) for date in dates], pages)
        if aspect in ("year", "day"):
            return self.by_date([self.date_of(page.text) for page in pages], pages)
        if aspect == "date":
            verbs = beginning_verbs(self.words)
            return self.by_date([event_date(page.text, verbs) for page in pages], pages)
        if aspect == "age":
            return self.by_age(pages)
        if aspect == "count":
            return self.by_count(pages)
        if aspect in ("nationality", "country"):
            return self.by_nation(pages)
        if aspect == "same":
            return self.by_sameness(pages)
        if self.ask.is_polar:
            return self.by_trait(pages)
        return self.by_choice(pages) if aspect == "trait" else self.conclude_common(pages)

    def date_of(self, text: str) -> tuple[Date, str, str] | None:
        """The date of what the question says happened."""
        for find, verb, asked in (
            (birth_date, "was born", r"\bborn\b|\bbirth"),
            (death_date, "died", r"\bdied?\b|\bdeath"),
        ):
            if re.search(asked, self.question.question, re.IGNORECASE):
                found = find(text)
                return found if found is None else (*found, verb)
        return event_date(text, beginning_verbs(self.words))

    def winner(self, index: int) -> str:
        """The name that wins, if it is the golden answer."""
        name, other = self.names[index], self.names[1 - index]
        if normalise(name) == normalise(self.answer):
            return name
        raise Drop("evidence_disagrees" if normalise(other) == normalise(self.answer) else "answer_not_as_asked")

    def polar(self, is_yes: bool) -> str:
        if self.ask.differs:
            is_yes = not is_yes
        if normalise(self.answer) not in ("yes", "no"):
            raise Drop("answer_not_as_asked")
        if (normalise(self.answer) == "yes") != is_yes:
            raise Drop("evidence_disagrees")
        return self.answer

    def by_date(self, found: Sequence[tuple[Date, str, str] | None], pages: Sequence[Seen]) -> str:
        first, second = found
        if first is None or second is None:
            raise Drop("no_date_found")
        order = later_of(first[0], second[0])
        numbers = [page.number for page in pages]
        one, other = str(first[0][0]), str(second[0][0])
        if self.ask.aspect in ("year", "day"):
            if self.ask.aspect == "day":
                one, other = first[1], second[1]
            is_same = first[0][0] == second[0][0] if self.ask.aspect == "year" else order == 0 and 0 not in first[0]
            self.polar(is_same)
            told = thoughts.compare_values(self.names, (one, other), numbers, first[2] or "is from")
            same = f"{'the same' if is_same else 'not the same'} {self.ask.aspect}"
            return f"{self.asked_for('yes or no')} {told} {one} and {other}: {same}. So {self.answer}."
        if order == 0:
            raise Drop("dates_not_told_apart")
        winner = self.winner(0 if order == self.ask.direction else 1)
        if self.ask.aspect not in ("birth", "death"):
            quotes = [
                Quote(f"{date[2] or 'from'} {said}", page.number)
                for date, said, page in zip((first, second), (one, other), pages, strict=True)
            ]
            told = " ".join(thoughts.quote(name, quote) for name, quote in zip(self.names, quotes, strict=True))
        else:
            told = thoughts.compare_values(self.names, (one, other), numbers, first[2])
        if one == other:  # the years do not decide: the days of the year do
            told, one, other = self.within_a_year(told, (first[0], second[0]), numbers)
        early, late = (one, other) if order < 0 else (other, one)
        which, value = ("earlier", early) if self.ask.direction < 0 else ("later", late)
        return f"{thoughts.asked_for(f'the {which}')} {told} {thoughts.decide(late, early, which, value, winner)}"

    def within_a_year(self, told: str, dates: Sequence[Date], numbers: Sequence[int]) -> tuple[str, str, str]:
        """The same year twice, then each day of it as the page says it and in digits; and those."""
        if not all(month and day for _, month, day in dates):
            raise Drop("dates_not_told_apart")
        days = [thoughts.day_of(month, day) for _, month, day in dates]
        said = " ".join(
            f"[{number}] {day} {MONTHS[month - 1]}, {code}."
            for number, (_, month, day), code in zip(numbers, dates, days, strict=True)
        )
        return f"{told} Both {dates[0][0]}. {said}", days[0], days[1]

    def by_age(self, pages: Sequence[Seen]) -> str:
        spans = [(birth_date(page.text), death_date(page.text)) for page in pages]
        years = [(born[0][0], died[0][0]) for born, died in spans if born is not None and died is not None]
        if len(years) < len(pages):
            raise Drop("no_date_found")
        ages = [died - born for born, died in years]
        if abs(ages[0] - ages[1]) < 2:  # without days, a year may be one too many
            raise Drop("dates_not_told_apart")
        winner = self.winner(0 if (ages[0] > ages[1]) == (self.ask.direction > 0) else 1)
        told = " ".join(
            f"[{page.number}] {name} lived from {born} to {died}, {age} years."
            for page, name, (born, died), age in zip(pages, self.names, years, ages, strict=True)
        )
        verdict = thoughts.decide(f"{max(ages)}", f"{min(ages)}", "larger", f"{max(ages)}", winner, "more than")
        return f"{thoughts.asked_for('the larger')} {told} {verdict}"

    def by_count(self, pages: Sequence[Seen]) -> str:
        first, second = (number_near(page, self.words_of_a_number, self.max_quote_words) for page in pages)
        if first is None or second is None:
            # "Which peak is the third highest in the world?", "Who won more Oscars?" of someone who won any: words decide.
            return self.by_choice(pages, MIN_LEAD_WITHOUT_NUMBERS, otherwise="no_number_found")
        if first[0] == second[0]:
            raise Drop("numbers_equal")
        winner = self.winner(0 if (first[0] > second[0]) == (self.ask.direction > 0) else 1)
        one, other = (f"{number:,.12g}" for number, _ in (first, second))
        quotes = " ".join(
            f"{thoughts.quote(name, quote)} That is {number}."
            for name, (_, quote), number in zip(self.names, (first, second), (one, other), strict=True)
        )
        which = "larger" if self.ask.direction > 0 else "smaller"
        value = one if (first[0] > second[0]) == (self.ask.direction > 0) else other
        told = f"{thoughts.asked_for(f'the {which}')} {quotes} {thoughts.weigh(one, other)}"
        return f"{told} The {which} is {value}: {winner}."

    def asked_for(self, form: str = "") -> str:
        """The form of the answer, and the question's words without the names."""
        stem = stem_of(self.question.question, self.names)
        asked = ", ".join(part for part in (form, stem) if part)
        return thoughts.asked_for(asked) if asked else ""

    def by_nation(self, pages: Sequence[Seen]) -> str:
        find = nationality if self.ask.aspect == "nationality" else country
        first, second = (find(page) for page in pages)
        if first is None or second is None:
            raise Drop("no_nation_found")
        is_same = first[0] == second[0]
        quotes = (
            f"{thoughts.quote(self.names[0], first[1])} That is {first[0]}. "
            f"{thoughts.quote(self.names[1], second[1])} That is {second[0]}."
        )
        if self.ask.is_polar:
            self.polar(is_same)
            verdict = f"Both: {first[0]}." if is_same else f"{first[0]} and {second[0]} are different."
            return f"{self.asked_for('yes or no')} {quotes} {verdict} So {self.answer}."
        if not is_same or normalise(first[0]) != normalise(self.answer):
            raise Drop("evidence_disagrees")
        return f"{self.asked_for()} {quotes} Both are {first[0]}.".lstrip()

    def trait_quote(self, page: Seen) -> Quote | None:
        told = definition(page, self.max_quote_words)
        about = clause_about(page, self.words, self.max_quote_words)
        if about is not None and (told is None or about[1] > overlap(told.words, self.words)):
            return about[0]
        return told

    def by_trait(self, pages: Sequence[Seen]) -> str:
        """Whether both are something. Words that both pages have prove a yes, another nationality proves a no; words that
        are missing prove nothing (a novelist is a writer), so there the golden answer is believed."""
        words = self.words
        if not words:
            raise Drop("no_trait")
        shares = [overlap(f"{page.title} {page.text}", words) / len(words) for page in pages]
        quotes = [self.trait_quote(page) for page in pages]
        if quotes[0] is None or quotes[1] is None:
            raise Drop("nothing_to_quote")
        strangers = [number for number, page in enumerate(pages) if is_of_another_nation(page, self.question.question)]
        if strangers:
            self.polar(False)
        elif min(shares) >= TRAIT_SHARE:
            self.polar(True)
        if normalise(self.answer) not in ("yes", "no"):
            raise Drop("answer_not_as_asked")
        if (normalise(self.answer) == "yes") != self.ask.differs:
            holds = [True, True]
        elif strangers:
            holds = [number not in strangers for number in range(2)]
        elif shares[0] != shares[1]:
            holds = [share > min(shares) for share in shares]
        else:
            holds = [False, False]
        return f"{self.asked_for('yes or no')} {self.marked((quotes[0], quotes[1]), holds)} So {self.answer}."

    def marked(self, quotes: Sequence[Quote], holds: Sequence[bool]) -> str:
        """Each quote with what is asked and its own verdict behind it: a small model judges what stands side by side, not two
        things at once."""
        spelt = {normalise(word): word.strip(' ,;:?!."“”()') for word in self.question.question.split()}
        asked = " ".join(spelt.get(word, word) for word in self.words[:MAX_TRAIT_WORDS])
        return " ".join(
            f"{thoughts.quote(name, quote)} Is that {asked}? {'Yes' if fits else 'No'}."
            for name, quote, fits in zip(self.names, quotes, holds, strict=True)
        )

    def by_sameness(self, pages: Sequence[Seen]) -> str:
        """Whether two things share a state, a family, a maker: quoted side by side. Only a birthplace is checked by rule."""
        if re.search(r"\bborn in the same (?:city|town|village|place)\b", self.question.question, re.IGNORECASE):
            first, second = (birthplace(page.text) for page in pages)
            if first is None or second is None:
                raise Drop("no_place_found")
            self.polar(first == second)
            told = thoughts.compare_values(self.names, (first, second), [page.number for page in pages], "was born in")
            same = "the same" if first == second else "not the same"
            return f"{self.asked_for('yes or no')} {told} {first} and {second}: {same}. So {self.answer}."
        quotes = self.shared_quotes(pages) or [self.trait_quote(page) for page in pages]
        if quotes[0] is None or quotes[1] is None:
            raise Drop("nothing_to_quote")
        if normalise(self.answer) not in ("yes", "no"):
            raise Drop("answer_not_as_asked")
        is_same = (normalise(self.answer) == "yes") != self.ask.differs
        verdict = "These are the same." if is_same else "These are different."
        told = f"{thoughts.quote(self.names[0], quotes[0])} {thoughts.quote(self.names[1], quotes[1])}"
        return f"{self.asked_for('yes or no')} {told} {verdict} So {self.answer}."

    def shared_quotes(self, pages: Sequence[Seen]) -> list[Quote | None]:
        """What may be shared ("belong to the same section"), quoted from both pages; nothing where one does not name it. What
        the things are stands before their names, and to quote that from one and a section from the other proves nothing."""
        asked = self.question.question
        shared = re.search(r"\bsame ([\w-]+)", asked)
        behind = asked[max((asked.find(name) + len(name) for name in self.names if name in asked), default=0) :]
        if shared is None or shared[0] not in behind:
            return []
        found = [clause_about(page, content_words(behind), self.max_quote_words) for page in pages]
        quotes = [one[0] for one in found if one is not None and overlap(one[0].words, [shared[1].lower()])]
        return [*quotes] if len(quotes) == len(pages) else []

    def by_choice(self, pages: Sequence[Seen], min_lead: int = 1, otherwise: str = "no_difference_found") -> str:
        """Which of two fits: both quoted, then the words of the question that only one of the pages has, then whose they are.
        To say yes or no to the first before the second is read is a guess; to find a word again is not."""
        texts = [f"{page.title} {page.text}" for page in pages]
        has = [[bool(overlap(text, [word])) for text in texts] for word in self.words]
        own = [[word for word, had in zip(self.words, has, strict=True) if had[n] and not had[1 - n]] for n in range(2)]
        if abs(len(own[0]) - len(own[1])) < min_lead:
            raise Drop(otherwise)
        fits = 0 if len(own[0]) > len(own[1]) else 1
        winner = self.winner(fits)
        about = clause_about(pages[fits], own[fits], self.max_quote_words)
        other = self.trait_quote(pages[1 - fits])
        if about is None or other is None:
            raise Drop("nothing_to_quote")
        quotes = (about[0], other) if fits == 0 else (other, about[0])
        quoted = " ".join(thoughts.quote(name, quote) for name, quote in zip(self.names, quotes, strict=True))
        told = stretch_with(about[0].words, own[fits], MAX_TRAIT_WORDS)
        return f"{self.asked_for('one of the two')} {quoted} {thoughts.said_of(told, winner)}"

    def conclude_common(self, pages: Sequence[Seen]) -> str:
        """What they share: the answer quoted from each page that has it, and at least one must."""
        parts: list[str] = []
        num_with = 0
        for name, page in zip(self.names, pages, strict=True):
            found = clause_with(page, self.answer, self.words, self.max_quote_words)
            num_with += found is not None
            chosen = found[0] if found else self.trait_quote(page)
            if chosen is not None:
                parts.append(thoughts.quote(name, chosen))
        if num_with == 0:
            raise Drop("answer_not_shown")
        shared = f"In both: {self.answer}. " if num_with == len(pages) == 2 else ""
        return f"{self.asked_for()} {' '.join(parts)} {shared}{thoughts.gives(self.rng, self.answer)}".lstrip()


# ---- planning -------------------------------------------------------------------------------------------------------


async def plan_comparison(
    question: Question, rng: random.Random, search: Search, settings: ColdStartSettings
) -> ComparisonLesson:
    """Names from the supporting titles if they are known, else proposed by the words and confirmed by search."""
    titles = list(dict.fromkeys(question.supporting_titles or ()))
    ask = aspect_of(question.question)
    proposals: list[tuple[str, ...]] = []
    if len(titles) >= 2:
        mentions = [mention_of(title, question.question) for title in titles]
        known = [mention for mention in mentions if mention is not None]
        if len(known) == len(titles) and len({normalise(name) for name in known}) == len(known):
            # In the order in which the question names them.
            proposals.append(tuple(sorted(known, key=question.question.find)))
    if not proposals:
        found_names = list(dict.fromkeys(compared(question.question)))[:6]
        proposals += list(dict.fromkeys(tuple(map(without_nation, names)) for names in found_names))
        proposals += [names for names in found_names if names not in proposals]
    if not proposals:
        raise Drop("no_names_found")
    for names in proposals:
        relation = relation_words(question.question, names, ask, settings.max_relation_words)
        queries = tuple(as_query(f"{name} {relation}") for name in names)
        if len({grammar.query_key(query) for query in queries}) < len(queries):
            continue
        found = await search.search_many(queries)
        if all(
            any(same_name(name, hit.title) or hit.title in titles for hit in result.hits)
            for name, result in zip(names, found, strict=True)
        ):
            at_once = settings.mode == "parallel"
            return ComparisonLesson(
                question, rng, settings.max_quote_words, names, queries, ask, relation, at_once=at_once
            )
    raise Drop("names_not_confirmed")
