"""The rules for English questions and pages, as the cold start asks for them: a lesson for each kind, and new questions.

Nothing is decided here: each answer comes from a module beside this one. `coldstart/rules.py` says what is promised.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from parallelsearch.coldstart.english import thoughts
from parallelsearch.coldstart.english.evidence import best_clause
from parallelsearch.coldstart.english.from_pages import unseen, wordings
from parallelsearch.coldstart.english.from_pages.changed import make_changed
from parallelsearch.coldstart.english.from_pages.comparisons import make_comparisons
from parallelsearch.coldstart.english.from_pages.contrasts import make_chain_contrasts, make_single_contrasts
from parallelsearch.coldstart.english.from_pages.dates import make_dates
from parallelsearch.coldstart.english.from_pages.described import make_described
from parallelsearch.coldstart.english.from_pages.facts_and_chains import (
    links_of_works,
    make_chains,
    make_facts,
    read_links,
)
from parallelsearch.coldstart.english.from_pages.pages import is_somebody, is_thing, read_pages
from parallelsearch.coldstart.english.from_pages.told import read_things, sure_enough, with_whole_places
from parallelsearch.coldstart.english.from_pages.two_rounds import make_two_rounds
from parallelsearch.coldstart.english.from_pages.wide import make_wide, make_wide_mixed
from parallelsearch.coldstart.english.from_pages.works import read_works
from parallelsearch.coldstart.english.from_pages.yes_or_no import make_yes_or_no
from parallelsearch.coldstart.english.lessons.chain import SingleLesson, plan_chain
from parallelsearch.coldstart.english.lessons.comparison import plan_comparison
from parallelsearch.coldstart.english.lessons.dates import dates_of, plan_date
from parallelsearch.coldstart.english.lessons.implicit import plan_implicit
from parallelsearch.coldstart.english.lessons.two_rounds import plan_two_rounds
from parallelsearch.coldstart.english.lessons.wide import plan_wide
from parallelsearch.coldstart.english.questions import content_words, guess_kind
from parallelsearch.coldstart.english.recombined import recombine
from parallelsearch.coldstart.english.wide import wide_of
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop, Lesson, Seen, as_query
from parallelsearch.coldstart.rules import Rules
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Passage
from parallelsearch.search import Search
from parallelsearch.trajectory import Kind, Question

MAX_USES_OF_A_WORK = 10
"""In so many mixed questions of several parts a work is: works whose makers have a biography are few, and the widest
questions come last."""
CONTRAST_SHARE = 0.3
"""Of the made facts and chains so many look like questions of several parts, and are none."""
_NO_WIDE: Mapping[Kind, Mapping[int, int]] = MappingProxyType({})
_NOTHING_TYPED: Mapping[Kind, int] = MappingProxyType({})


class EnglishWording:
    """The thoughts of a written decomposition."""

    def plan_round(self, rng: random.Random, queries: Sequence[str], number: int, num_rounds: int) -> str:
        if len(queries) > 1:
            return thoughts.plan_parallel(rng, queries, "an answer")
        if num_rounds == 1:
            return thoughts.plan_single(rng)
        return thoughts.plan_chain(rng, None) if number == 0 else thoughts.next_link(rng, queries[0], "")

    def finding(self, query: str, answer: str, shown: Sequence[Seen], max_words: int) -> str | None:
        found = best_clause(shown, [answer], content_words(query), max_words)
        return thoughts.quote(found[0].title, found[1]) if found is not None else None

    def conclusion(self, rng: random.Random, answer: str) -> str:
        return thoughts.gives(rng, answer)

    def missing(self, rng: random.Random, queries: Sequence[str]) -> str:
        return thoughts.missing(rng, queries)


class EnglishRules:
    """Encyclopedia pages and questions in the style of HotpotQA and NQ."""

    wording = EnglishWording()
    undecided = frozenset(
        {
            "evidence_disagrees",
            "no_date_found",
            "no_number_found",
            "numbers_equal",
            "no_nation_found",
            "no_place_found",
            "no_difference_found",
            "nothing_to_quote",
            "dates_not_told_apart",
            "no_trait",
            "bridge_not_shown",
            "answer_beside_link",
        }
    )

    async def plan(self, question: Question, rng: random.Random, search: Search, settings: ColdStartSettings) -> Lesson:
        wide = wide_of(question)
        if wide is not None:
            at_once = settings.mode == "parallel"
            return plan_wide(question, wide, rng, at_once, settings.limits.max_turns)
        steps = (question.metadata or {}).get("decomposition")
        if isinstance(steps, list) and steps and all(isinstance(step, str) for step in steps):
            at_once = settings.mode == "parallel"
            return plan_implicit(question, steps, rng, settings.max_quote_words, at_once)
        dates = dates_of(question)
        if dates is not None:
            return plan_date(question, dates, rng, settings.max_quote_words)
        if question.kind == "parallel":
            return await plan_comparison(question, rng, search, settings)
        if question.kind == "sequential":
            return await plan_chain(question, rng, search, settings)
        if question.kind == "single":
            return SingleLesson(question, rng, settings.max_quote_words, as_query(question.question))
        if question.kind == "mixed":
            return plan_two_rounds(question, rng, settings.max_quote_words, at_once=settings.mode == "parallel")
        raise Drop("kind_needs_decomposition")

    def guess_kind(self, question: str) -> Kind | None:
        return guess_kind(question)

    def make(
        self,
        passages: Sequence[Passage],
        counts: Mapping[Kind, int],
        *,
        seed: int = 0,
        forbidden: Collection[str] = (),
        needed: Collection[str] = (),
        kept_back: Collection[str] = (),
        wide: Mapping[Kind, Mapping[int, int]] = _NO_WIDE,
        num_changed: int = 0,
        num_described: Mapping[Kind, int] = MappingProxyType({}),
        typed: Mapping[Kind, int] = _NOTHING_TYPED,
    ) -> list[Question]:
        """Facts, then chains, then comparisons, then questions of several parts, from one reading of the passages; then what
        people type; then two rounds, which do not keep `needed` pages apart (docs/coldstart.md says what that means)."""
        num_facts, num_chains, num_comparisons, num_mixed = (
            counts.get(kind, 0) for kind in ("single", "sequential", "parallel", "mixed")
        )
        made: list[Question] = []
        unused = {*needed, *kept_back}
        if num_facts or num_chains or num_comparisons or num_changed or num_described:
            pages = {
                title: replace(page, is_person=page.is_person and is_somebody(page.text))
                for title, page in read_pages(passages, forbidden, unused).items()
                if is_thing(title)
            }
        if num_facts or num_chains or num_comparisons:
            works = read_works(passages, forbidden)
            links = [*links_of_works(works, pages), *read_links(passages, pages)]
            unlike = make_single_contrasts(
                pages, works, int(CONTRAST_SHARE * num_facts), seed=seed, forbidden=forbidden
            )
            made += _spread(unlike, make_facts(pages, num_facts, seed=seed, forbidden=forbidden), num_facts)
            unlike = make_chain_contrasts(
                pages, works, int(CONTRAST_SHARE * num_chains), seed=seed, forbidden=forbidden
            )
            made += _spread(unlike, make_chains(pages, links, num_chains, seed=seed, forbidden=forbidden), num_chains)
            made += make_comparisons(pages, num_comparisons, seed=seed, forbidden=forbidden)
        if num_changed:
            people = with_whole_places(sure_enough(read_things(passages, forbidden, unused))).all
            made += make_changed(people, pages, passages, num_changed, seed=seed, forbidden=forbidden)
        if num_described:
            things = with_whole_places(sure_enough(read_things(passages, forbidden, unused)))
            made += make_described(things, pages, passages, num_described, seed=seed, forbidden=forbidden)
        if any(wide.values()):
            things = with_whole_places(sure_enough(read_things(passages, forbidden, unused)))
            ways = wordings.TRAINED
            made += make_wide(things, wide.get("parallel", {}), seed=seed, forbidden=forbidden, ways=ways)
            made += make_wide_mixed(
                things, wide.get("mixed", {}), seed=seed, forbidden=forbidden, ways=ways, max_uses=MAX_USES_OF_A_WORK
            )
        if any(typed.values()):
            things = with_whole_places(sure_enough(read_things(passages, forbidden, unused)))
            made += make_yes_or_no(things, typed.get("parallel", 0), seed=seed, forbidden=forbidden)
            made += make_dates(things.all, typed.get("single", 0), seed=seed, forbidden=forbidden)
        if num_mixed:
            made += make_two_rounds(passages, num_mixed, seed=seed, forbidden=forbidden, kept_back=kept_back)
        return made

    def kept_back(self, passages: Sequence[Passage]) -> frozenset[str]:
        return unseen.kept_back(passages)

    async def recombine(
        self,
        questions: Sequence[Question],
        search: Search,
        encoder: Policy,
        settings: ColdStartSettings,
        max_new: int,
        forbidden: Collection[str] = (),
    ) -> list[Question]:
        return await recombine(questions, search, encoder, settings, max_new, forbidden)


def _spread(some: Sequence[Question], others: Sequence[Question], count: int) -> list[Question]:
    """So many questions, `some` of them evenly among the others: whoever takes the first few gets as large a share."""
    if not some:
        return list(others[:count])
    num_others = min(len(others), count - len(some))
    places = {place * (num_others + len(some)) // len(some) for place in range(len(some))}
    left, rest = iter(some), iter(others)
    return [next(left) if place in places else next(rest) for place in range(num_others + len(some))]


ENGLISH: Rules = EnglishRules()
