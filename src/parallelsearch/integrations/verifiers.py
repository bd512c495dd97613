"""Questions, search, grammar and rewards as an environment of `verifiers`: for `vf-eval`, and for trainers that are built
on it (prime-rl).

verifiers takes an environment apart: a taskset has the questions and scores them, a harness plays them. A harness may run
its loop in the process, so long as every call of the model goes to the endpoint it is given. So ours is the core's
`rollout`, with that endpoint as its policy: limits, grammar, parallel searches and the record are those of every other
engine here, and verifiers keeps the calls, in training with the ids of their tokens. The record stands in
`trace.info["trajectory"]`. Rewards and metrics read it and nothing else, so that `vf-replay` scores without a model.

verifiers looks for an environment by the name of a top-level module, which is `parallelsearch_env`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import ModelWrapValidatorHandler, model_validator

from parallelsearch import rewards
from parallelsearch.addresses import open_search
from parallelsearch.data import load_questions, training_pool
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import UsageError, require
from parallelsearch.http import Credentials, Sent
from parallelsearch.http.credentials import bearer
from parallelsearch.limits import Limits
from parallelsearch.policy.openai import OpenAIPolicy
from parallelsearch.policy.server import THINKING_TOKENS
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Question, Trajectory, trajectory_from_dict

require("verifiers.v1", "verifiers")
import verifiers.v1 as vf  # noqa: E402 - a kind word first

ID = "parallelsearch-env"
"""What verifiers calls the environment: the module that it imports, with a hyphen."""
RECORD = "trajectory"
"""Where in `trace.info` the record of the rollout stands, as in `trajectories.jsonl`."""
_log = logging.getLogger(__name__)


class _Settings(vf.BaseConfig):  # type: ignore[misc]  # verifiers is not among what types are checked with
    """Settings whose mistakes verifiers shows as it shows its own."""

    def check(self) -> None:
        """Raises for values that cannot be."""

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, data: Any, make: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            made = make(data)
            made.check()
        except UsageError as error:
            raise ValueError(str(error)) from error
        return made


# ---- questions and rewards -------------------------------------------------------------------------------------------


class SearchTaskConfig(vf.TaskConfig, _Settings):  # type: ignore[misc]
    """How a rollout is scored (`--env.taskset.task.*`)."""

    reward: str = rewards.DEFAULT_PRESET
    """A preset, or `module:function`, one of your own."""

    def check(self) -> None:
        rewards.check(self.reward)


class SearchTasksetConfig(vf.TasksetConfig, _Settings):  # type: ignore[misc]
    """Which questions (`--env.taskset.*`)."""

    data: str = "demo"
    """A file or a named set; several with commas."""
    split: str | None = None
    subset: str | None = None
    train: bool = False
    """To train on: the train split, less every question that stands in a dev or test file this machine knows."""
    task: SearchTaskConfig = SearchTaskConfig()


class SearchTaskData(vf.TaskData):  # type: ignore[misc]
    question: Question


class SearchTask(vf.Task[SearchTaskData, vf.State, SearchTaskConfig]):  # type: ignore[misc]
    """A question. The components of its reward are rewards of verifiers, whose sum is the total."""

    @property
    def key(self) -> str:
        return str(self.data.id)

    @vf.reward  # type: ignore[untyped-decorator]
    async def components(self, trace: vf.Trace) -> dict[str, float]:
        found = rewards.reward(_record(trace), self.config.reward)
        return {name: getattr(found, name) for name in rewards.COMPONENTS}

    @vf.metric  # type: ignore[untyped-decorator]
    async def behaviour(self, trace: vf.Trace) -> dict[str, float]:
        record = _record(trace)
        return {name: float(getattr(record, name)) for name in ("is_right", *rewards.BEHAVIOUR)}


class SearchTaskset(vf.Taskset[SearchTask, SearchTasksetConfig]):  # type: ignore[misc]
    """Questions of a file or a named set."""

    def load(self) -> Iterator[SearchTask]:
        settings = self.config
        if settings.train:
            found = training_pool(settings.data, split=settings.split or "train", subset=settings.subset)
        else:
            found = load_questions(settings.data, split=settings.split, subset=settings.subset)
        for warning in found.warnings:
            _log.warning("%s", warning)
        for question in found:
            if not rewards.is_own(settings.task.reward):
                rewards.reward(Trajectory.of(question), settings.task.reward)  # one that needs a kind says so now
            data = SearchTaskData(id=question.id, prompt=question.question, question=question)
            yield SearchTask(data, settings.task)


def _record(trace: vf.Trace) -> Trajectory:
    if RECORD not in trace.info:
        raise UsageError(
            f"there is no record of the rollout to score; it is written by the harness of this environment, not by "
            f"'{trace.agent.config.harness.id}': leave env.agent.harness.id out"
        )
    return trajectory_from_dict(trace.info[RECORD], f"trace {trace.id}")


# ---- the rollout -----------------------------------------------------------------------------------------------------


class SearchHarnessConfig(vf.HarnessConfig, _Settings):  # type: ignore[misc]
    """Where queries go, how the model talks, where it ends (`--env.agent.harness.*`)."""

    search: str = "demo"
    k: int = 3
    cache: str | None = None
    dialect: str | None = None
    """Left out, native tool calls; tags for a model whose name says that it was trained on them."""
    limits: Limits = Limits()

    def check(self) -> None:
        open_dialect(self.dialect)


class _Secret(Credentials):
    """What verifiers' endpoint is shown: it comes with the rollout, and from no variable."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._sent = Sent(secret, bearer(secret))

    def read(self) -> Sent:
        return self._sent


class EndpointPolicy(OpenAIPolicy):
    """The model behind verifiers' endpoint for one rollout. How it samples is for verifiers to say; what that leaves open is
    for the server. What is streamed is read to its end there, so nothing is."""

    name = "verifiers"

    def __init__(self, ctx: vf.ModelContext, endpoint: str, secret: str, dialect: str | None) -> None:
        self.trains = isinstance(ctx.client, vf.TrainClientConfig)
        super().__init__(
            endpoint,
            ctx.model,
            api="chat",
            dialect=dialect,
            stream=False,
            # A turn that was all thought is not asked for twice where each call is trained on.
            thinking_tokens=0 if self.trains else THINKING_TOKENS,
            extra_body={"temperature": None, "top_p": None, "seed": None},
        )
        self._credentials = _Secret(secret)
        self._sends_reasoning = self.trains  # a turn that comes back without its thought would be taken for another one

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "model": self.model}


class SearchHarness(vf.Harness[SearchHarnessConfig]):  # type: ignore[misc]
    """Plays a question by `rollout`, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: SearchTaskData,
    ) -> vf.ProgramResult:
        settings = self.config
        if data.system_prompt is not None:
            raise UsageError("the prompt is the dialect's, so a system prompt would not be read: leave it out")
        cut_off = Trajectory.of(data.question)
        cut_off.stop = "timeout"  # unless the rollout comes to its end before verifiers' deadline
        trace.info[RECORD] = cut_off.to_dict()
        policy = EndpointPolicy(ctx, endpoint, secret, settings.dialect)
        dialect = open_dialect(settings.dialect or policy.dialect)
        if policy.trains and not dialect.tools:
            raise UsageError(
                "verifiers trains on messages as its renderer reads them, and takes no stop strings from a harness, so "
                f"the dialect '{dialect.name}' cannot be trained in it: set env.agent.harness.dialect to 'tools'"
            )
        try:
            trajectory = await rollout(
                data.question,
                policy,
                _search_of(settings),
                settings.limits,
                dialect=settings.dialect,  # left out, a server that takes no tools may still be asked in tags
                streaming_dispatch=False,
                session=trace.id,
            )
        finally:
            await policy.aclose()
        trajectory.sampling = ctx.sampling.model_dump(mode="json", exclude_none=True)
        trace.info[RECORD] = trajectory.to_dict()
        failed = trajectory.stop == "error"
        return vf.ProgramResult(exit_code=int(failed), stdout=trajectory.answer or "", stderr=trajectory.error or "")


@dataclass
class _Opened:
    """The searches of one event loop, and how many environments use them."""

    searches: dict[tuple[Any, ...], Search] = field(default_factory=dict)
    num_envs: int = 0


_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()


def _search_of(settings: SearchHarnessConfig) -> Search:
    """The one search of all rollouts of this loop: their queries meet in it, whatever harness object plays them."""
    known = _opened.setdefault(asyncio.get_running_loop(), _Opened()).searches
    key = (settings.search, settings.k, settings.cache)
    if key not in known:
        known[key] = open_search(settings.search, k=settings.k, cache=settings.cache)
    return known[key]


# ---- both ------------------------------------------------------------------------------------------------------------


class SearchEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """The harness is named here, so that its settings may be given without its name. It runs in the process, and so needs no
    sandbox, which would else be one of a cloud."""

    # Validated, it would be looked for by its name, in the module that is being imported.
    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig()).model_copy(
        update={"harness": SearchHarnessConfig(id=ID)}
    )


class SearchEnv(vf.SingleAgentEnv, vf.Env[SearchEnvConfig]):  # type: ignore[misc]
    """One agent, which searches. Its search is opened before the first rollout and closed after the last, unless another
    environment of the same loop goes on with it."""

    async def start(self) -> None:
        _opened.setdefault(asyncio.get_running_loop(), _Opened()).num_envs += 1
        for harness in self.config.agent_harnesses().values():
            if isinstance(harness, SearchHarnessConfig):
                _search_of(harness)

    async def stop(self) -> None:
        loop = asyncio.get_running_loop()
        _opened[loop].num_envs -= 1
        if not _opened[loop].num_envs:
            for search in _opened.pop(loop).searches.values():
                await search.aclose()


__all__ = ["SearchEnv", "SearchHarness", "SearchTaskset"]
