"""What a type checker must see of the front door. `make types` reads this file, and nothing runs it: an `ignore` that is not
needed is an error there, so each one says that the line is refused."""

from __future__ import annotations

from collections.abc import Sequence

from parallelsearch import Agent, Hit, Limits, Search, Trajectory


class Own:
    async def search_many(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[] for _ in queries]


def find(queries: list[str], k: int) -> list[list[str]]:
    return [[] for _ in queries]


async def accepted() -> Trajectory:
    async with Agent("demo", Own(), limits=Limits(max_turns=2)) as agent:
        await agent.ask_many_async(["Who?"], session=lambda number: f"{number}")
        with agent.conversation(system="In short.") as talk:
            await talk.ask_async("Who?", k=3)
        return await agent.ask_async("Who?", limits=Limits(), k=3, context="before")


def refused(agent: Agent) -> None:
    Agent("demo", find, serach="demo")  # type: ignore[arg-type]
    Agent("demo", 3)  # type: ignore[arg-type]
    Search(3)  # type: ignore[arg-type]
    agent.ask("Who?", limit=Limits())  # type: ignore[call-arg]
    agent.ask("Who?", k="three")  # type: ignore[arg-type]
    agent.ask_many(["Who?"], contxt="")  # type: ignore[call-arg]
    agent.stream("Who?", dialekt="parallel")  # type: ignore[call-arg]
    agent.conversation().ask("Who?", limit=Limits())  # type: ignore[call-arg]
