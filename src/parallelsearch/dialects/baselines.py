"""Methods to compare with, as dialects: from memory, one retrieval, retrieval and reasoning in turns, Search-o1.

Each goes through the same loop with the same search, k and limits, so that a baseline differs from the trained agent in its
prompt and format and in nothing else. The prompts are worded here; `prompt_template` takes another wording.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallelsearch import grammar
from parallelsearch.dialect import Part
from parallelsearch.dialects.free_text import inside, read_answer, write_turn
from parallelsearch.dialects.tags import Translated
from parallelsearch.grammar import ANSWER
from parallelsearch.observation import Observation
from parallelsearch.trajectory import Segment

_TAGS = f"{grammar.opening(ANSWER)} and {grammar.closing(ANSWER)}"
_BRIEF = f"Give the answer itself, short and without explanation, between {_TAGS}."


class Direct(Translated):
    """One call, no search."""

    name, summary = "direct", "answer from memory, no search"
    max_turns: int | None = 1
    stop: tuple[str, ...] = (grammar.closing(ANSWER),)

    def own_prompt(self, question: str, context: str = "") -> str:
        asked = f"{grammar.defuse(context)}Question: {grammar.tidy_question(question)}"
        return f"Answer the question from what you know. {_BRIEF}\n{asked}\n"

    def translate(self, text: str, is_last: bool) -> str:
        return write_turn("", answer=read_answer(text, may_be_bare=True))


class ChainOfThought(Direct):
    name, summary = "cot", "reason step by step from memory, no search"

    def own_prompt(self, question: str, context: str = "") -> str:
        return (
            f"Answer the question from what you know. Reason step by step first. Then: {_BRIEF}\n"
            f"{grammar.defuse(context)}Question: {grammar.tidy_question(question)}\n"
        )

    def translate(self, text: str, is_last: bool) -> str:
        return write_turn(text.partition(grammar.opening(ANSWER))[0], answer=read_answer(text, may_be_bare=True))


class Rag(Direct):
    """The question is the query; its passages stand in the prompt; one call."""

    name, summary = "rag", "one retrieval with the question itself, then one call"
    is_trainable = False

    def queries_before(self, question: str) -> tuple[str, ...]:
        return (grammar.tidy_question(question),)

    def own_prompt(self, question: str, context: str = "") -> str:
        asked = f"{grammar.defuse(context)}Question: {grammar.tidy_question(question)}"
        return f"Answer the question with the help of the passages. {_BRIEF}\n{asked}\n"

    def whole_prompt(self, prompt: str, segments: Sequence[Segment], is_last: bool) -> str | None:
        passages = "\n".join(inside(segment.text) for segment in segments if segment.author == "search")
        return f"Passages:\n{passages}\n\n{prompt}"


class IRCoT(Rag):
    """Retrieval and one sentence of reasoning take turns; each sentence is the next query."""

    name, summary = "ircot", "retrieval and one sentence of reasoning in turns"
    max_turns = None
    stop = ("\n",)

    def own_prompt(self, question: str, context: str = "") -> str:
        return (
            "Reason towards the answer with the help of the passages. Write one sentence at a time. When you know it, write: "
            f"So the answer is: X.\n{grammar.defuse(context)}Question: {grammar.tidy_question(question)}\nReasoning:"
        )

    def whole_prompt(self, prompt: str, segments: Sequence[Segment], is_last: bool) -> str | None:
        # Two spaces before the first sentence, as in the runs whose figures are published.
        said = " ".join(["", *(" ".join(one.text.split()) for one in segments if one.author == "model")])
        push = " So the answer is:" if is_last else ""
        return f"{super().whole_prompt(prompt, segments, is_last)} {said}{push}".rstrip(" ")

    def translate(self, text: str, is_last: bool) -> str:
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip(), maxsplit=1)[0].strip()
        answer = read_answer(text) or (read_answer(sentence, may_be_bare=True) if is_last else None)
        return write_turn(sentence, () if answer else [sentence], answer)


# ---- Search-o1 -------------------------------------------------------------------------------------------------------

_QUERY, _QUERY_END = "<|begin_search_query|>", "<|end_search_query|>"
_RESULT, _RESULT_END = "<|begin_search_result|>", "<|end_search_result|>"


class SearchO1(Translated):
    """One stream of reasoning; each query's results are condensed by a call of their own before they go in."""

    name, summary = "search-o1", "reasoning with marked queries; results are condensed by an extra call"
    stop = (_QUERY_END, grammar.closing(ANSWER))

    def own_prompt(self, question: str, context: str = "") -> str:
        return (
            f"Reason step by step about the question. To look something up, write {_QUERY} your query {_QUERY_END}; what was "
            f"found follows between {_RESULT} and {_RESULT_END}. You may do so several times. At the end, give the answer "
            f"itself, short, between {grammar.opening(ANSWER)} and {grammar.closing(ANSWER)}.\n"
            f"{grammar.defuse(context)}Question: {grammar.tidy_question(question)}\n"
        )

    def translate(self, text: str, is_last: bool) -> str:
        before, mark, rest = text.partition(_QUERY)
        if mark and not is_last:
            return write_turn(before, [rest.partition(_QUERY_END)[0]])
        return write_turn(before, answer=read_answer(text))

    def show(self, observation: Observation) -> tuple[Part, ...]:
        return (Part(f"\n{_RESULT}\n{inside(observation.text)}\n{_RESULT_END}\n"),)

    def digest_prompt(self, question: str, queries: Sequence[str], results: str) -> str | None:
        return (
            f"Someone works on this question: {grammar.tidy_question(question)}\nThey looked up: {' '.join(queries)}\n"
            f"This was found:\n{inside(results)}\n\nWrite down, in a few sentences, only what helps with the question. "
            "If nothing does, say so.\n"
        )
