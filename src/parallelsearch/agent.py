"""The Python front door: an agent that answers questions, blocking or async.

    agent = Agent(policy="openai:http://localhost:8000/v1#MODEL", search="bm25:my-index")
    print(agent.ask("Who is older, Claude Monet or Camille Pissarro?").answer)

Blocking calls run in an event loop of the agent's own thread, so they also work in a notebook, and connections are kept
between questions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.policy.base import Policy, Sampling
from parallelsearch.rollout import Event, Limits, rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory

T = TypeVar("T")


class Agent:
    """Answers questions with a policy and a search, given as addresses or as objects."""

    def __init__(
        self,
        policy: Policy | str = "demo",
        search: Search | str = "demo",
        *,
        limits: Limits | None = None,
        sampling: Sampling | None = None,
        k: int = 3,
        **rollout_options: Any,
    ) -> None:
        """`rollout_options` are those of `rollout`: mode, layout, streaming_dispatch."""
        self.policy = open_policy(policy) if isinstance(policy, str) else policy
        self.search = open_search(search, k=k) if isinstance(search, str) else search
        self.limits, self.sampling = limits or Limits(), sampling or Sampling()
        self._options = rollout_options
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask_async(
        self, question: Question | str, on_event: Callable[[Event], None] | None = None, **options: Any
    ) -> Trajectory:
        """Answer one question in the running event loop."""
        settings: dict[str, Any] = {"sampling": self.sampling, **self._options, **options}
        return await rollout(question, self.policy, self.search, self.limits, on_event=on_event, **settings)

    async def ask_many_async(
        self, questions: Iterable[Question | str], max_concurrent: int = 64, **options: Any
    ) -> list[Trajectory]:
        """Answer many questions at once; the order is kept. Each gets a seed of its own."""
        gate = asyncio.Semaphore(max_concurrent)

        async def one(number: int, question: Question | str) -> Trajectory:
            async with gate:
                sampling = replace(self.sampling, seed=self.sampling.seed + number)
                return await self.ask_async(question, **{"sampling": sampling, **options})

        return list(await asyncio.gather(*(one(number, question) for number, question in enumerate(questions))))

    def ask(
        self, question: Question | str, on_event: Callable[[Event], None] | None = None, **options: Any
    ) -> Trajectory:
        """Answer one question."""
        return self._run(self.ask_async(question, on_event, **options))

    def ask_many(
        self, questions: Iterable[Question | str], max_concurrent: int = 64, **options: Any
    ) -> list[Trajectory]:
        """Answer many questions at once; the order is kept."""
        return self._run(self.ask_many_async(questions, max_concurrent, **options))

    # ---- the agent's own event loop ----------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="parallelsearch-agent", daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def close(self) -> None:
        """Release connections, threads and memory. An agent used in a `with` block closes itself."""
        if self._loop is None or self._thread is None:
            return
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        asyncio.run_coroutine_threadsafe(self.aclose(), loop).result(timeout=30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=30)
        loop.close()

    async def aclose(self) -> None:
        await self.search.aclose()
        await self.policy.aclose()

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
