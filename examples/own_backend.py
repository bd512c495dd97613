"""A search backend of your own: a function, an object, or a class that says more about itself. Here, a dictionary.

python examples/own_backend.py
"""

from __future__ import annotations

from collections.abc import Sequence

from parallelsearch import Agent, Hit, Retriever, SearchError
from parallelsearch.retrieval import Result

QUESTION = "Who is older, Claude Monet or Camille Pissarro?"
FACTS = {
    "monet": "Claude Monet was born on 14 November 1840.",
    "pissarro": "Camille Pissarro was born on 10 July 1830.",
}


def look_up(query: str, k: int) -> list[tuple[str, str]]:
    """The shortest form: one query, pairs of title and text. Blocking: it runs in threads, all queries at once."""
    return [(word.title(), text) for word, text in FACTS.items() if word in query.lower()][:k]


class Shelf:
    """Any object with `search_many`, async or not, that takes all queries of a turn."""

    async def search_many(self, queries: list[str], k: int) -> list[list[tuple[str, str]]]:
        return [look_up(query, k) for query in queries]


class Dictionary(Retriever):
    """The whole form: hits with ids and scores, and a query that fails is a value, so that the others still count."""

    name = "dictionary"
    max_batch = 16

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return [self._search(query.lower(), k) for query in queries]

    def _search(self, query: str, k: int) -> Result:
        found = [word for word in FACTS if word in query]
        if not found:
            return SearchError("no entry")
        return [Hit(word, word.title(), FACTS[word], score=1.0, rank=rank) for rank, word in enumerate(found[:k], 1)]


for backend in (look_up, Shelf(), Dictionary()):
    with Agent(policy="demo", search=backend) as agent:
        trajectory = agent.ask(QUESTION)
    for query in trajectory.turns[0].queries:
        print(f"{query.text:<40} {query.hits[0].text if query.hits else query.error}")
    print("answer:", trajectory.answer)
