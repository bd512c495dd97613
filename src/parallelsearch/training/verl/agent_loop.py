"""verl's agent loop around the core's `rollout`. The only file that runs inside verl's agent workers.

verl makes one object for every trajectory and runs all of a worker's trajectories in one event loop. Policy and search are
shared by them: queries of all trajectories meet in one queue, as everywhere else. Settings come with verl's configuration
(section `parallelsearch`, written by `overrides.py`). A search that fails is text in an observation, never an exception, so
no retriever can stop a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from parallelsearch.addresses import open_search
from parallelsearch.dialects import open_dialect
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.named import look_in
from parallelsearch.policy.encoding import Template
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.training.collect import token_row
from parallelsearch.training.recipe import SearchSettings, TrajectorySettings
from parallelsearch.training.verl.overrides import OWN
from parallelsearch.training.verl.policy import Calls, VerlPolicy
from parallelsearch.training.verl.reward import record_of
from parallelsearch.training.verl.rows import question_of_row
from parallelsearch.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Shared:
    """What all trajectories of one worker use together."""

    policy: VerlPolicy
    search: Search
    rollout: TrajectorySettings
    max_prompt_tokens: int
    max_response_tokens: int
    is_repeatable: bool
    """verl asks for request ids that are the same in every run. These three are read once: a look-up in verl's configuration
    costs as much as a turn of the loop."""
    has_own_reward: bool
    config: Any
    """Kept alive, because its identity is part of the key this is found by."""


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, ...], Shared]] = WeakKeyDictionary()


class ParallelSearchAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no type information
    """Answers one question with verl's servers and our search."""

    def __init__(self, *args: Any, tools: Any = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.shared = self._find_shared()

    def _find_shared(self) -> Shared:
        known = _shared.setdefault(self.loop, {})
        key = (id(self.server_manager), id(self.tokenizer), id(self.config))
        if key not in known:
            known[key] = self._open()
        return known[key]

    def _open(self) -> Shared:
        own = self.config.get(OWN)
        if own is None:
            raise UsageError(
                f"verl's configuration has no section '{OWN}', which says where to search; start the run with: "
                "parallelsearch train RECIPE.toml"
            )
        values: dict[str, Any] = OmegaConf.to_container(own, resolve=True)
        if values.get("folder") is not None:  # where a search of the caller's own is
            look_in(values["folder"])
        search = SearchSettings.model_validate(values["search"])
        template: Template = values["template"]
        model = str(self.config.actor_rollout_ref.model.path)
        verl = self.rollout_config
        return Shared(
            VerlPolicy(self.server_manager, self.tokenizer, str(verl.name), template, model),
            open_search(
                search.address, k=search.k, cache=search.cache, timeout_s=search.timeout_s, cache_size=search.cache_size
            ),
            TrajectorySettings.model_validate(values["rollout"]),
            int(verl.prompt_length),
            int(verl.response_length),
            bool(verl.full_determinism),
            bool(values.get("has_own_reward")),
            self.config,
        )

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> AgentLoopOutput:
        """One trajectory, as the ids verl trains on. `row` is the question's row of the Parquet file."""
        shared, policy, settings = self.shared, self.shared.policy, self.shared.rollout
        question = question_of_row(row)
        dialect = open_dialect(settings.dialect)
        prompt = policy.prompt(dialect.prompt(question.question), question.question, dialect.tools)
        num_prompt = len(prompt.token_ids or ())
        if num_prompt > shared.max_prompt_tokens:
            raise UsageError(
                f"the prompt of question '{question.id}' has {num_prompt} tokens, and verl was told of at most "
                f"{shared.max_prompt_tokens}; raise verl.max_prompt_tokens in the recipe"
            )
        limits = settings.limits
        room = min(limits.max_tokens, num_prompt + shared.max_response_tokens)
        # One id for all turns: it keeps them on the server that has their prefix.
        request_id = f"det-{int(priority)}" if shared.is_repeatable else uuid4().hex
        with policy.calls(request_id, sampling_params, int(priority)) as calls:
            trajectory = await rollout(
                question,
                policy,
                shared.search,
                replace(limits, max_tokens=room),
                dialect=dialect,
                streaming_dispatch=False,
                session=request_id,
            )
        if trajectory.stop == "error":
            raise PolicyError(str(trajectory.error))
        trajectory.sampling = dict(sampling_params)
        trajectory.step = _step_of(row, calls)
        return self._output(trajectory, calls)

    def _output(self, trajectory: Trajectory, calls: Calls) -> AgentLoopOutput:
        ids = token_row(trajectory, self.tokenizer.eos_token_id)
        generate_s = [turn.generate_s for turn in trajectory.turns]
        search_s = [_search_s(turn) for turn in trajectory.turns]
        return AgentLoopOutput(
            prompt_ids=ids.prompt_ids,
            response_ids=ids.completion_ids,
            response_mask=ids.mask,
            response_logprobs=ids.logprobs if calls.has_logprobs else None,
            num_turns=trajectory.num_llm_calls,
            metrics={
                "generate_sequences": sum(generate_s),
                "tool_calls": sum(search_s),
                "num_preempted": calls.num_preempted,
            },
            extra_fields={
                **calls.extra_fields,
                "turn_scores": [],
                "tool_rewards": [],
                "generate_s": generate_s,
                "search_s": search_s,
                "trajectory": record_of(trajectory, is_whole=self.shared.has_own_reward),
            },
        )


def _step_of(row: Mapping[str, Any], calls: Calls) -> int | None:
    """The step the question was drawn for, or, where verl does not say, that of the weights which answered."""
    step = row.get("global_steps", calls.extra_fields.get("min_global_steps"))
    return None if step is None else int(step)


def _search_s(turn: Turn) -> float:
    """From the first search of a turn to the end of the last; they run at once."""
    if not turn.queries:
        return 0.0
    return max(query.end_s for query in turn.queries) - min(query.start_s for query in turn.queries)
