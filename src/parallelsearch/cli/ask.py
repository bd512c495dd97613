"""`ask`: one question to an agent, told live at a terminal and shown when it is done."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from parallelsearch.cli.options import (
    AUTO,
    AnswerWithOption,
    CacheDaysOption,
    CacheOption,
    DialectOption,
    ForceAnswerOption,
    JsonOption,
    KOption,
    MaxCostOption,
    MaxObservationTokensOption,
    MaxTokensOption,
    MaxTokensPerTurnOption,
    MaxTurnsOption,
    PolicyOption,
    PricesOption,
    QuestionArgument,
    RecordOption,
    SearchOption,
    SeedOption,
    TokensPerSubqueryOption,
    asked,
    chosen,
    console,
    given,
    prices_of,
    say,
    searched,
)
from parallelsearch.errors import ParallelSearchError

NO_ANSWER = 3
"""The exit status of a question that has no answer, also where an answer was taken back."""


def ask(
    question: QuestionArgument,
    policy: PolicyOption = AUTO,
    search: SearchOption = None,
    k: KOption = 3,
    dialect: DialectOption = None,
    max_turns: MaxTurnsOption = None,
    max_tokens_per_turn: MaxTokensPerTurnOption = None,
    max_observation_tokens: MaxObservationTokensOption = None,
    tokens_per_subquery: TokensPerSubqueryOption = None,
    max_tokens: MaxTokensOption = None,
    timeout_s: Annotated[float | None, typer.Option(help="Seconds until the best answer so far is given.")] = None,
    answer_with: AnswerWithOption = None,
    force_answer: ForceAnswerOption = False,
    prices: PricesOption = None,
    max_cost: MaxCostOption = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: SeedOption = 0,
    record: RecordOption = None,
    cache: CacheOption = None,
    cache_days: CacheDaysOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a question and watch it split, searched and answered.

    Exit status: 0 with an answer, 3 without one, 1 where the model or every search failed.

    Example: parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?"
    """
    from parallelsearch.addresses import open_search
    from parallelsearch.agent import Agent
    from parallelsearch.cli.terminal import LiveNarrator, trajectory_view
    from parallelsearch.files import to_json
    from parallelsearch.grounding import cite, sources_of
    from parallelsearch.limits import Limits
    from parallelsearch.policy.base import Sampling

    words = asked(question, "ask")
    limits = Limits(
        prices=prices_of(prices),
        **given(
            max_turns=max_turns,
            max_tokens_per_turn=max_tokens_per_turn,
            max_observation_tokens=max_observation_tokens,
            tokens_per_subquery=tokens_per_subquery,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
            max_cost=max_cost,
        ),
    )
    address = chosen(policy)
    found = open_search(searched(search, address), k=k, record=record, cache=cache, cache_days=cache_days)
    sampling = Sampling(temperature=temperature, seed=seed)
    agent = Agent(
        address,
        found,
        limits=limits,
        sampling=sampling,
        dialect=dialect,
        abstain=not force_answer,
        answer_with=answer_with,
    )
    screen, live = console(), console(stderr=True)
    with agent, LiveNarrator(live) as narrator:
        try:
            trajectory = agent.ask(words, on_event=narrator if live.is_terminal and not as_json else None)
        finally:
            agent.submit(found.aclose()).result(timeout=30)
    cost = None if limits.prices is None else trajectory.cost(limits.prices)
    if as_json:
        sources = sources_of(trajectory)
        cited = cite(trajectory, sources)
        shown = {
            **trajectory.to_dict(),
            "sources": [asdict(source) for source in sources],
            "citations": [asdict(citation) for citation in cited.citations],
            "invalid_citations": cited.invalid_numbers,
        }
        say(to_json(shown if cost is None else {**shown, "cost": cost}))
    else:
        screen.print(trajectory_view(trajectory, screen.width, tells_error=False))  # the error comes below
        if cost is not None:
            screen.print(f"cost {cost:.6g}")
    if trajectory.stop == "error":
        raise ParallelSearchError(trajectory.error or "the policy failed")
    if trajectory.answer is None:
        failed = trajectory.abstained is not None and trajectory.abstained.reason == "search_failed"
        raise typer.Exit(1 if failed else NO_ANSWER)
