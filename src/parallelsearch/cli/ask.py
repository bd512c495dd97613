"""`ask`: a question to an agent, told live at a terminal and shown when it is done; without one a conversation, or the lines
of standard input."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Unpack

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
    LimitOptions,
    PolicyOption,
    RecordOption,
    SearchOption,
    SeedOption,
    WrittenOption,
    asked,
    chosen,
    console,
    limited,
    limits_of,
    searched,
)
from parallelsearch.errors import ParallelSearchError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from parallelsearch.agent import Agent
    from parallelsearch.cli.answers import Answers

QuestionsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUESTION",
        help="What you want to know, best in quotes. Left out: a conversation at a terminal, else a question a line from "
        "standard input.",
        show_default=False,
    ),
]


@limited
def ask(
    question: QuestionsArgument = None,
    policy: PolicyOption = AUTO,
    search: SearchOption = None,
    k: KOption = 3,
    dialect: DialectOption = None,
    answer_with: AnswerWithOption = None,
    written: WrittenOption = False,
    force_answer: ForceAnswerOption = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: SeedOption = 0,
    record: RecordOption = None,
    cache: CacheOption = None,
    cache_days: CacheDaysOption = None,
    as_json: JsonOption = False,
    **limits: Unpack[LimitOptions],
) -> None:
    """Ask a question and watch it split, searched and answered.

    Without a question it is a conversation: type one after the other, also some that lean on those before ("And Camille
    Pissarro?"). Without a terminal each line of standard input is a question (ask --json < FILE), and the answers come in
    the same order.

    Exit status: 0 with an answer, 3 without one, 1 where the model or every search failed; of several lines the worst (1,
    then 3). A conversation ends with 0.

    Example: parallelsearch ask "Who is older, Claude Monet or Camille Pissarro?"
    """
    from parallelsearch.dialects import open_dialect
    from parallelsearch.policy.base import Sampling
    from parallelsearch.rollout import writer_of

    words = None if question is None else asked(question, "ask")
    talks = words is None and sys.stdin is not None and sys.stdin.isatty()
    lines = _lines() if words is None and not talks else None
    open_dialect(dialect)  # what is wrong with it is said once, before anything is loaded
    kept = {"k": k, "record": record, "cache": cache, "cache_days": cache_days}
    settings: dict[str, Any] = {
        "limits": limits_of(limits),
        "sampling": Sampling(temperature=temperature, seed=seed),
        "dialect": dialect,
        "abstain": not force_answer,
        "answer_with": answer_with,
        "written": written,
    }
    with _opened(policy, search, kept, settings) as agent:
        if written and agent.reader is None:
            writer_of(open_dialect(dialect or agent.policy.dialect), agent.policy)  # said once, not of each question
        from parallelsearch.cli.answers import Answers
        from parallelsearch.cli.piped import answer_lines
        from parallelsearch.cli.talking import talk

        answers, live = Answers.of(settings["limits"].prices, as_json), console(stderr=True)
        if words is not None:
            _answer(words, agent, answers, live)
        elif lines is None:
            talk(agent, answers, live)
            return
        else:
            answer_lines(agent, lines, answers)
    if answers.status:
        raise typer.Exit(answers.status)


@contextmanager
def _opened(policy: str, search: str | None, kept: dict[str, Any], settings: dict[str, Any]) -> Iterator[Agent]:
    """The agent, and the search under it, which is open as long."""
    from parallelsearch.addresses import open_search
    from parallelsearch.agent import Agent

    address = chosen(policy)
    found = open_search(searched(search, address), **kept)
    agent = Agent(address, found, **settings)
    with agent:
        try:
            yield agent
        finally:
            agent.submit(found.aclose()).result(timeout=30)


def _lines() -> Iterator[Any]:
    """The questions of standard input. The first is waited for here: without one nothing needs to be opened."""
    from parallelsearch.cli.piped import questions_of

    lines = questions_of()
    first = next(lines, None)
    if first is None:
        raise UsageError(
            "there is no question, and nothing on standard input; type one, for example: parallelsearch ask "
            '"Who wrote Emma?"'
        )
    return itertools.chain([first], lines)


def _answer(question: str, agent: Agent, answers: Answers, live: Console) -> None:
    """One question, as it was typed. Its error is the command's."""
    from parallelsearch.cli.terminal import LiveNarrator

    with LiveNarrator(live) as narrator:
        done = agent.ask(question, on_event=narrator if live.is_terminal and not answers.as_json else None)
    answers.show(done, tells_error=False)
    if done.stop == "error":
        raise ParallelSearchError(done.error or "the policy failed")
