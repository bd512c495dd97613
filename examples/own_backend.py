"""A search backend of your own: anything that answers a list of queries. Here, a dictionary.

python examples/own_backend.py
"""

from __future__ import annotations

from collections.abc import Sequence

from parallelsearch import Agent, Hit, Retriever, Search
from parallelsearch.errors import SearchError
from parallelsearch.retrieval.base import Result

FACTS = {
    "monet": "Claude Monet was born on 14 November 1840.",
    "pissarro": "Camille Pissarro was born on 10 July 1830.",
}


class Dictionary(Retriever):
    """Finds the entries whose word occurs in the query. One query that fails is a value; the others still count."""

    name = "dictionary"

    async def search_many(self, queries: Sequence[str], k: int) -> list[Result]:
        return [self._search(query.lower(), k) for query in queries]

    def _search(self, query: str, k: int) -> Result:
        found = [word for word in FACTS if word in query]
        if not found:
            return SearchError("no entry")
        return [Hit(word, word.title(), FACTS[word], score=1.0, rank=rank) for rank, word in enumerate(found[:k], 1)]


with Agent(policy="demo", search=Search(Dictionary())) as agent:
    trajectory = agent.ask("Who is older, Claude Monet or Camille Pissarro?")

for query in trajectory.turns[0].queries:
    print(f"{query.text:<40} {query.hits[0].text if query.hits else query.error}")
print("answer:", trajectory.answer)
