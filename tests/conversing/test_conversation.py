"""A conversation in Python: follow-ups over a real search, what is kept, and that the server means the same by it."""

import asyncio
import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from parallelsearch import Agent, Conversation, Limits, Search, grammar
from parallelsearch.conversing.conversation import Understood
from parallelsearch.data import demo
from parallelsearch.errors import UsageError
from parallelsearch.policy.scripted import ScriptedPolicy
from parallelsearch.server.answering import AgentSettings, Answering
from parallelsearch.server.asking import AskOptions
from parallelsearch.server.limits import RefusalError

DIALOGUES = json.loads((Path(__file__).parent / "dialogues.json").read_text(encoding="utf-8"))
MONET, PISSARRO = "When was Claude Monet born?", "When was Camille Pissarro born?"
LASTING = "Who was the youngest of all?"


def turns(query: str, answer: str) -> list[str]:
    return [grammar.render_turn("I look it up.", queries=[query]), grammar.render_turn("Found.", answer=answer)]


SCRIPT = {
    MONET: turns("Claude Monet born", "14 November 1840"),
    PISSARRO: turns("Camille Pissarro born", "10 July 1830"),
    "Who painted Impression, Sunrise?": turns("Impression, Sunrise painter", "Claude Monet [1]"),
    "Who painted Nympheas?": turns("Nympheas painter", "Somebody Else"),
    "And what of him?": turns("him", "nobody"),
    LASTING: ["<think> " + "still thinking " * 4000],
}


class Watched(ScriptedPolicy):
    """Keeps the prompt of each question, and whether a turn has begun."""

    def __init__(self, tokens_per_s=None, takes_tools=False):
        super().__init__(SCRIPT, tokens_per_s=tokens_per_s)
        self.prompts, self.began, self.takes_tools = [], threading.Event(), takes_tools

    async def generate(self, segments, **options):
        if len(segments) == 1:
            self.prompts.append(segments[0].text)
        self.began.set()
        return await super().generate(segments, **options)


@pytest.fixture
def policy():
    return Watched()


@pytest.fixture
def agent(policy):
    with Agent(policy, "demo") as opened:
        yield opened


def test_a_follow_up_is_asked_as_it_was_meant(agent):
    with agent.conversation() as talk:
        assert talk.ask(MONET).answer == "14 November 1840"
        assert talk.understand("And Camille Pissarro?") == Understood(PISSARRO)
        then = talk.ask("And Camille Pissarro?")
        assert (then.question, then.answer) == (PISSARRO, "10 July 1830")
        assert "Camille Pissarro" in [hit.title for hit in then.shown_hits]
        assert talk.ask("And Claude Monet?").question == MONET  # of the question as it was understood
        assert [asked for asked, _ in talk.said] == [MONET, "And Camille Pissarro?", "And Claude Monet?"]
        assert isinstance(talk, Conversation)


def test_what_was_answered_is_what_was_told(agent):
    """As a chat has it: the answer without numbers that name nothing, or the sentence in its place."""
    talk = agent.conversation()
    assert talk.ask("Who painted Impression, Sunrise?").answer == "Claude Monet [1]"
    assert talk.ask("When was he born?").question == MONET
    assert talk.ask("Who painted Nympheas?").abstained is not None
    (_, sunrise), _, (_, nympheas) = talk.said
    assert sunrise == "Claude Monet [1]"
    assert nympheas.startswith("Not found in the corpus: ")


def test_what_cannot_be_resolved_has_what_was_said_before_it(agent, policy):
    talk = agent.conversation(system="Answer in French.")
    talk.ask("Who painted Nympheas?")
    talk.ask("And what of him?", context="Once more. ")
    assert "Instructions: Answer in French.\nQuestion: Who painted Nympheas?" in policy.prompts[0]
    told = (
        "Instructions: Answer in French.\nAsked and answered before, for context only:\n- Who painted Nympheas? -> Not"
    )
    assert f"Once more. {told}" in policy.prompts[-1]
    talk.forget()
    talk.ask("And what of him?")
    assert "for context only" not in policy.prompts[-1]
    assert "Instructions: " in policy.prompts[-1]


def test_a_greeting_needs_no_model_and_is_not_what_a_follow_up_leans_on(agent, policy):
    talk = agent.conversation()
    talk.ask(MONET)
    num_calls = len(policy.prompts)
    thanks = talk.ask("Thank you!")
    assert (thanks.answer, thanks.num_llm_calls, len(policy.prompts)) == ("You are welcome.", 0, num_calls)
    assert talk.ask("And Camille Pissarro?").question == PISSARRO


def test_a_question_that_failed_is_kept_and_wrong_use_is_not(agent):
    talk = agent.conversation()
    assert talk.ask("When was Edgar Degas born?").stop == "error"  # the script has no such question
    for wrong in (" ", None, ["a"]):
        with pytest.raises(UsageError):
            talk.ask(wrong)
    with pytest.raises(UsageError, match="no option 'limit'"):
        talk.ask(MONET, limit=Limits())
    assert talk.said == [("When was Edgar Degas born?", "")]
    assert talk.ask("And Claude Monet?").question == MONET


async def test_who_was_stopped_can_ask_again_at_once():
    policy = Watched(tokens_per_s=60)
    async with Agent(policy, "demo") as agent:
        talk = agent.conversation()
        asking = asyncio.create_task(talk.ask_async(LASTING))
        assert await asyncio.to_thread(policy.began.wait, 120)
        with pytest.raises(UsageError, match="ask the next one when it is done"):
            await talk.ask_async(MONET)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        policy.tokens_per_s = None
        assert (await talk.ask_async(MONET)).answer == "14 November 1840"
    assert talk.said == [(LASTING, ""), (MONET, "14 November 1840")]


def test_after_its_block_a_conversation_is_over_and_its_agent_is_not(agent):
    with agent.conversation() as talk:
        talk.ask(MONET)
    with pytest.raises(UsageError, match="conversation was closed"):
        talk.ask("And Camille Pissarro?")
    assert [asked for asked, _ in talk.said] == [MONET]
    assert agent.conversation().ask(PISSARRO).answer == "10 July 1830"


@pytest.mark.parametrize("takes_tools", [False, True])
def test_the_server_and_a_conversation_ask_the_same(takes_tools):
    """One implementation: with the same history the policy gets the same prompt, letter by letter."""

    async def prompts(dialogues) -> tuple[list[str], list[str]]:
        policy = Watched(takes_tools=takes_tools)
        search = Search(demo.retriever())
        served = Answering(policy, search, AgentSettings(dialect="parallel"))
        async with Agent(policy, search, dialect="parallel") as agent:
            for earlier, asked in dialogues:
                talk = Conversation(agent, earlier)
                await talk.ask_async(asked)
                with suppress(RefusalError):  # the script has no turns for most of them
                    await served.answer(asked, AskOptions(), earlier=earlier)
        await served.aclose()
        return policy.prompts[::2], policy.prompts[1::2]

    dialogues = [([tuple(pair) for pair in one["earlier"]], one["asked"]) for one in DIALOGUES]
    dialogues.append(([("Who wrote Hamlet?", "Not found in the corpus.")], "When was he born?"))  # nobody knows who
    talked, served = asyncio.run(prompts(dialogues))
    assert talked == served
    assert len(talked) == len(dialogues)
    assert sum("for context only" in prompt for prompt in talked) == (len(dialogues) if takes_tools else 1)
