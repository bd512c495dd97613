"""`split` and `retrieve`: the sub-queries of a question, and the passages for all of them in one list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from parallelsearch.cli.options import (
    AUTO,
    DialectOption,
    JsonOption,
    PolicyOption,
    QuestionArgument,
    SearchOption,
    asked,
    chosen,
    console,
    given,
    say,
    searched,
)
from parallelsearch.errors import ParallelSearchError

if TYPE_CHECKING:
    from parallelsearch.retrieving import Retrieval

TimeoutOption = Annotated[float | None, typer.Option(help="Seconds until what was found so far is given.")]


def split(
    question: QuestionArgument,
    policy: PolicyOption = AUTO,
    dialect: DialectOption = None,
    timeout_s: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the sub-queries of a question, one a line.

    Only the policy's first turn is written, and nothing is searched.

    Example: parallelsearch split "Who is older, Claude Monet or Camille Pissarro?"
    """
    import asyncio
    import json

    from parallelsearch.addresses import open_policy
    from parallelsearch.limits import Limits
    from parallelsearch.retrieving import Split
    from parallelsearch.retrieving import split as split_question

    words = asked(question, "split")
    opened = open_policy(chosen(policy))

    async def found() -> Split:
        try:
            return await split_question(words, opened, limits=Limits(**given(timeout_s=timeout_s)), dialect=dialect)
        finally:
            await opened.aclose()

    queries = asyncio.run(found())
    if queries.error is not None:
        raise ParallelSearchError(queries.error)
    if as_json:
        elapsed_s = round(queries.trajectory.elapsed_s or 0.0, 4)
        record = {"question": words, "queries": list(queries), "note": queries.note, "elapsed_s": elapsed_s}
        say(json.dumps(record, ensure_ascii=False))
        return
    for query in queries:
        say(query)
    if queries.note is not None:
        say(queries.note, err=True)


def retrieve(
    question: QuestionArgument,
    policy: PolicyOption = AUTO,
    search: SearchOption = None,
    k: Annotated[int, typer.Option("--k", help="Passages in all.")] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds of search; from the second on the policy has read results.")] = 1,
    rerank: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A cross-encoder puts each sub-query's hits in order.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of passages in all, as the policy counts them.")
    ] = None,
    dialect: DialectOption = None,
    timeout_s: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find passages for all parts of a question, in one list.

    They are for whatever model answers it. The policy splits the question, all sub-queries run at once, and every part is
    represented before any has its second passage. Each passage says which sub-query found it.

    Example: parallelsearch retrieve "Who is older, Claude Monet or Camille Pissarro?" --k 4
    """
    import json

    from parallelsearch.agent import Agent
    from parallelsearch.cli.terminal import LiveNarrator, retrieval_view
    from parallelsearch.limits import Limits

    words = asked(question, "retrieve")
    opened = chosen(policy)
    address = searched(search, opened)
    address = address if rerank is None else f"rerank:{rerank}+{address}"
    live = console(stderr=True)
    agent = Agent(opened, address, limits=Limits(**given(timeout_s=timeout_s)), dialect=dialect)
    with agent, LiveNarrator(live) as narrator:
        on_event = narrator if live.is_terminal and not as_json else None
        found = agent.retrieve(words, k, rounds=rounds, max_tokens=max_tokens, on_event=on_event)
    if as_json:
        say(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        console().print(retrieval_view(found))
        for word in (*found.notes, *found.failures):
            say(word, err=True)
    if _is_failed(found):
        raise ParallelSearchError("every search failed" if not as_json else "; ".join(found.failures))


def _is_failed(found: Retrieval) -> bool:
    return all(query.error is not None for query in found.queries)
