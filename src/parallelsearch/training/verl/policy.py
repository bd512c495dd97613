"""The policy over verl's servers: token in, token out, through the client every agent loop is given.

One object serves all trajectories of a process, so that prompts and passages are encoded once for all samples of a question.
What belongs to one trajectory (verl's sampling parameters, the request id that keeps it on the server with its prefix in the
cache, what the server said beside the tokens) is a `Calls` object, found by the rollout's session. An engine that fails
ends the rollout, and the loop raises: verl then counts the group as failed, and a broken engine is never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from parallelsearch.dialect import Tool
from parallelsearch.errors import UsageError
from parallelsearch.policy.base import Finish, Generation, OnCall, OnText, Sampling
from parallelsearch.policy.encoding import EncodingPolicy, Template
from parallelsearch.policy.openai_wire import first_stop_end
from parallelsearch.trajectory import Segment

MAX_PROMPTS = 20_000
_ADDED_UP = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")
"""Counts of speculative decoding, which verl wants summed over the turns."""


@dataclass(slots=True)
class Calls:
    """One trajectory's calls of the server: what goes with each, and what came back beside the tokens."""

    sampling_params: Mapping[str, Any]
    priority: int = 0
    num_preempted: int = -1
    """-1: the engine does not say."""
    has_logprobs: bool = True
    extra_fields: dict[str, Any] = field(default_factory=dict)

    def note(self, output: Any) -> None:
        """Of several turns verl wants the oldest and the newest weights that were used."""
        if output.num_preempted is not None:
            self.num_preempted = max(self.num_preempted, 0) + output.num_preempted
        self.has_logprobs = self.has_logprobs and bool(output.log_probs)
        fresh = dict(output.extra_fields)
        if self.extra_fields:
            for name in _ADDED_UP:
                if name in fresh and name in self.extra_fields:
                    fresh[name] += self.extra_fields[name]
            fresh["min_global_steps"] = self.extra_fields.get("min_global_steps")
        self.extra_fields.update(fresh)


class VerlPolicy(EncodingPolicy):
    """Continues segments by asking verl's server client."""

    name = "verl"

    def __init__(
        self,
        server_manager: Any,
        tokenizer: Any,
        engine: str = "vllm",
        template: Template = "auto",
        label: str = "verl",
    ) -> None:
        super().__init__(tokenizer, label, template)
        if engine not in _WITH_STOP_STRINGS:
            raise UsageError(
                f"the agent loop knows how {' and '.join(_WITH_STOP_STRINGS)} take stop strings, not '{engine}'; set "
                "verl.engine in the recipe (actor_rollout_ref.rollout.name)"
            )
        self.server_manager, self.engine = server_manager, engine
        self._calls: dict[str, Calls] = {}
        self._prompts: dict[str, Segment] = {}

    @contextmanager
    def calls(self, request_id: str, sampling_params: Mapping[str, Any], priority: int = 0) -> Iterator[Calls]:
        """The calls of the trajectory whose rollout has `request_id` as its session."""
        self._calls[request_id] = calls = Calls(sampling_params, priority)
        try:
            yield calls
        finally:
            del self._calls[request_id]

    def prompt(self, text: str, question: str, tools: Sequence[Tool] = ()) -> Segment:
        found = self._prompts.get(text)
        if found is None:
            if len(self._prompts) >= MAX_PROMPTS:
                self._prompts.clear()
            found = self._prompts[text] = super().prompt(text, question, tools)
        return Segment(found.author, found.text, found.token_ids)

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
        on_text: OnText | None = None,
        tools: Sequence[Tool] = (),
        on_call: OnCall | None = None,
    ) -> Generation:
        calls = self._calls[session]
        params = {
            **calls.sampling_params,
            "max_tokens": max_tokens,
            "stop": list(stop),
            **_WITH_STOP_STRINGS[self.engine],
        }
        output = await self.server_manager.generate(
            session,
            prompt_ids=self.ids_of(segments),
            sampling_params=params,
            priority=calls.priority,
        )
        calls.note(output)
        ids = [int(i) for i in output.token_ids]
        text = self.decode(ids)
        logprobs = [float(value) for value in output.log_probs] if output.log_probs else None
        return Generation(text, self._finish(text, ids, stop), ids, logprobs, len(ids))

    def _finish(self, text: str, ids: Sequence[int], stop: Sequence[str]) -> Finish:
        """verl says only that a turn is complete, not why."""
        if first_stop_end(text, stop) is not None:
            return "stop"
        return "eos" if ids and ids[-1] in self.tokenizer.all_special_ids else "length"

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "model": self.label, "engine": self.engine}


# Both keep the stop string in the text; the tokens are whole either way.
_WITH_STOP_STRINGS: dict[str, dict[str, Any]] = {
    "vllm": {"include_stop_str_in_output": True},
    "sglang": {"no_stop_trim": True},
}
