"""`ask` without a question and without a terminal: one question a line from standard input, answers in the same order.

A line is asked as soon as it is there, and its answer is printed once it and all before it are done, so that a file is
answered at full pace, and a program that writes a line and waits gets its answer. As with `Agent.ask_many`, each question
has a seed of its own and leans on no other, and a line that fails costs no other: it is answered with a record that says
what was wrong.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from parallelsearch.cli.options import progress, say
from parallelsearch.errors import DataError
from parallelsearch.files import lines_of
from parallelsearch.rollouts import MAX_CONCURRENT, failed

if TYPE_CHECKING:
    from parallelsearch.agent import Agent
    from parallelsearch.cli.answers import Answers
    from parallelsearch.trajectory import Trajectory

_INPUT = Path("standard input")
_MAX_HELD = 16 * MAX_CONCURRENT
"""Answers that wait for one before them."""
Line = str | DataError
"""A question, or what is wrong with its line."""


def questions_of() -> Iterator[Line]:
    """The lines of standard input with something on them; none where there is no input."""
    if sys.stdin is None:  # `<&-`
        return
    for _, line in lines_of(sys.stdin.buffer, _INPUT):
        if isinstance(line, DataError):
            yield line
        elif text := line.strip():
            yield text


def answer_lines(agent: Agent, lines: Iterable[Line], answers: Answers) -> None:
    """Answer each line and print the answers in order."""
    with progress("questions", show=not answers.screen.is_terminal) as update:
        _Pipe(agent, answers, lambda: update(answers.num_shown, None, "")).run(lines)
    if total := answers.total:
        say(total, err=True)


class _Pipe:
    """Questions under way. The caller's thread reads, so that Ctrl-C ends it while it waits for a line; another prints."""

    def __init__(self, agent: Agent, answers: Answers, on_shown: Callable[[], None]) -> None:
        self._agent, self._answers, self._on_shown = agent, answers, on_shown
        self._places = threading.BoundedSemaphore(MAX_CONCURRENT)
        self._asked: queue.Queue[Future[Trajectory] | None] = queue.Queue(_MAX_HELD)
        self._error: BaseException | None = None
        self._is_stopped = False

    def run(self, lines: Iterable[Line]) -> None:
        printer = threading.Thread(target=self._print_all, name="parallelsearch-answers", daemon=True)
        printer.start()
        under_way: set[Future[Trajectory]] = set()

        def ended(one: Future[Trajectory]) -> None:
            under_way.discard(one)
            self._places.release()

        try:
            for number, line in enumerate(lines):
                self._places.acquire()
                if self._error is not None:
                    break
                future = self._agent.submit(self._answer(number, line))
                under_way.add(future)
                future.add_done_callback(ended)
                self._asked.put(future)
            else:
                self._asked.put(None)
                printer.join()  # here Ctrl-C comes where all lines are read
        except BaseException:
            self._is_stopped = True
            raise
        finally:
            if self._is_stopped or self._error is not None:
                for future in list(under_way):
                    future.cancel()
            self._asked.put(None)
            printer.join()
        if self._error is not None:
            raise self._error

    async def _answer(self, number: int, line: Line) -> Trajectory:
        if isinstance(line, DataError):
            return failed("", line)
        sampling = replace(self._agent.sampling, seed=self._agent.sampling.seed + number)
        return (await self._agent.ask_many_async([line], sampling=sampling))[0]

    def _print_all(self) -> None:
        """After a failure what comes is still taken, so that nobody waits for room."""
        while (future := self._asked.get()) is not None:
            if self._is_stopped or self._error is not None:
                future.cancel()
                continue
            try:
                trajectory = future.result()
                if not self._is_stopped:
                    self._answers.show(trajectory)
                    self._on_shown()
            except CancelledError:
                pass
            except BaseException as error:  # raised again where it is told
                self._error = error
