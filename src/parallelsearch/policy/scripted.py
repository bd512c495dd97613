"""A policy that replays written turns: for tests, examples and benchmarks of everything around a model.

A script maps a question to its turns. Which turn is next follows from the number of model segments so far, so that the
policy keeps no state and any number of rollouts of one question may run at once. It behaves like an engine: the text ends
after the first stop string or at `max_tokens`, and with `tokens_per_s` it is written at that pace, a token at a time. It
has no tokenizer: a token is four characters, and there are no token ids.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallelsearch import grammar
from parallelsearch.errors import DataError, PolicyError, UsageError
from parallelsearch.policy.base import Finish, Generation, OnText, Policy, Sampling
from parallelsearch.policy.openai_wire import whole_end
from parallelsearch.trajectory import Segment

_CHARS_PER_TOKEN = 4
_MAX_PROMPTS = 65_536


class ScriptedPolicy(Policy):
    """Replays `turns[question][n]` as turn n. `tokens_per_s=None` writes a turn at once."""

    streams = True

    def __init__(
        self, turns: Mapping[str, Sequence[str]], tokens_per_s: float | None = None, name: str = "script"
    ) -> None:
        if tokens_per_s is not None and tokens_per_s <= 0:
            raise UsageError(f"tokens_per_s must be greater than zero, not {tokens_per_s:g}")
        self.name = name
        self.tokens_per_s = tokens_per_s
        self._questions = {grammar.query_key(question): question for question in turns}
        self._turns = {grammar.query_key(question): tuple(texts) for question, texts in turns.items()}
        # `generate` sees segments only: this is how it knows the question again. Bounded, the one used longest ago goes
        # first. Loops in several threads share it: a prompt that is known is never away, not even for an instant.
        self._prompts: OrderedDict[str, str] = OrderedDict()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], tokens_per_s: float | None = None) -> ScriptedPolicy:
        """Read a JSON object, question -> list of turns (text)."""
        return cls(_read_script(Path(path)), tokens_per_s)

    def prompt(self, text: str, question: str) -> Segment:
        self._prompts[text] = question
        self._prompts.move_to_end(text)
        if len(self._prompts) > _MAX_PROMPTS:
            self._prompts.popitem(last=False)
        return Segment("prompt", text)

    def count_tokens(self, text: str) -> int:
        return -(-len(text) // _CHARS_PER_TOKEN)

    @property
    def title(self) -> str:
        return f"{self.name} (written turns, no model)"

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "num_questions": len(self._turns), "tokens_per_s": self.tokens_per_s}

    async def generate(
        self,
        segments: Sequence[Segment],
        *,
        stop: Sequence[str],
        max_tokens: int,
        sampling: Sampling,
        session: str,
        on_text: OnText | None = None,
    ) -> Generation:
        text, finish = _cut(self._next_turn(segments), stop, max_tokens)
        await self._write(text, on_text)
        return Generation(text, finish, num_tokens=self.count_tokens(text))

    def _next_turn(self, segments: Sequence[Segment]) -> str:
        question = self._question(segments)
        turns = self._turns.get(grammar.query_key(question))
        if turns is None:
            near = difflib.get_close_matches(grammar.query_key(question), self._questions, n=3, cutoff=0.5)
            known = "; ".join(f"'{self._questions[key]}'" for key in near) or f"{len(self._questions)} others"
            raise PolicyError(f"the script has no turns for the question '{question}'. It has: {known}")
        number = sum(segment.author == "model" for segment in segments)
        if number >= len(turns):
            raise PolicyError(
                f"the script has {len(turns)} turns for the question '{question}', and turn {number + 1} was asked for"
            )
        return turns[number]

    def _question(self, segments: Sequence[Segment]) -> str:
        prompt = next((segment.text for segment in segments if segment.author == "prompt"), None)
        if prompt is None:
            raise PolicyError("a script is looked up by the question of its prompt, and there is no prompt segment")
        if prompt not in self._prompts:
            raise PolicyError(
                "this prompt is not known to the script: make the prompt segment with the policy's own prompt()"
            )
        return self._prompts[prompt]

    async def _write(self, text: str, on_text: OnText | None) -> None:
        if self.tokens_per_s is None:
            if on_text is not None and text:
                on_text(text)
            await asyncio.sleep(0)  # others get their turn, as they would with an engine
            return
        # Each piece has its own time on the clock: a late one is not followed by a late next one.
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for number, offset in enumerate(range(0, len(text), _CHARS_PER_TOKEN), start=1):
            await asyncio.sleep(max(0.0, start_s + number / self.tokens_per_s - loop.time()))
            if on_text is not None:
                on_text(text[offset : offset + _CHARS_PER_TOKEN])


def _cut(text: str, stop: Sequence[str], max_tokens: int) -> tuple[str, Finish]:
    """What a server would have written of this text."""
    limit = max_tokens * _CHARS_PER_TOKEN
    end = whole_end(text[:limit], stop)
    if end is not None:
        return text[:end], "stop"
    return (text[:limit], "length") if len(text) > limit else (text, "eos")


def _read_script(path: Path) -> dict[str, list[str]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no script '{path}' (looked in {Path.cwd()})") from None
    except OSError as error:
        raise DataError(str(path), None, f"cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(str(path), None, f"is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise DataError(str(path), error.lineno, f"is not JSON ({error.msg})") from error
    if not isinstance(record, dict):
        raise DataError(str(path), None, f"a script is an object, question -> list of turns; found {_kind(record)}")
    seen: dict[str, str] = {}
    for question, turns in record.items():
        if not isinstance(turns, list) or not turns:
            raise DataError(str(path), None, f"expected a list of turns, found {_kind(turns)}", field=question)
        for number, turn in enumerate(turns, start=1):
            if not isinstance(turn, str):
                raise DataError(str(path), None, f"turn {number} is not text, found {_kind(turn)}", field=question)
        other = seen.setdefault(grammar.query_key(question), question)
        if other != question:
            raise DataError(str(path), None, f"is the same question as '{other}'", field=question)
    return record


def _kind(value: object) -> str:
    return "an empty list" if value == [] else type(value).__name__
