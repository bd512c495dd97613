"""`ask` without a question at a terminal: question after question, with the model loaded once.

Questions are typed at a prompt, with line editing and history where Python has readline; the history is that of this
conversation, and nothing of it is written to a file. Ctrl-C stops the question that is running, and no more.

What is pasted is one question, line breaks and all: a list of names, one a line, must not be taken for as many questions.
A terminal that marks what is pasted (bracketed paste) tells readline, which then takes the lines together and waits for
Enter. Elsewhere, and without readline, lines that are there at once are taken together: nobody types a line in a
twentieth of a second. What was typed ahead, while an answer was on its way, is then one question, too.
"""

from __future__ import annotations

import io
import os
import re
import select
import sys
from typing import TYPE_CHECKING, Any

import typer

from parallelsearch.cli.options import note, say
from parallelsearch.cli.terminal import LiveNarrator, safe
from parallelsearch.errors import ParallelSearchError

if TYPE_CHECKING:
    from rich.console import Console

    from parallelsearch.agent import Agent
    from parallelsearch.cli.answers import Answers
    from parallelsearch.conversing.conversation import Conversation

PROMPT, CONTINUED = "> ", "  "
PASTED_S = 0.05
"""Whoever pastes has the next line there by then."""
_LEAVING = ("/quit", "/exit", "quit", "exit")
_COMMAND = re.compile(r"/\w*")
_HELP = """\
/new   forget what was said before
/help  show this
/quit  leave, as Ctrl-D and an empty line do
A question may lean on those before it: "Where was he born?", "And Camille Pissarro?".
Ctrl-C stops the question that is running. What is pasted is one question, also over several lines."""


def talk(agent: Agent, answers: Answers, live: Console) -> None:
    """Answer what is typed until the person leaves."""
    typed = Typed()
    note("question after question; /help shows what there is, Ctrl-D or an empty line leaves")
    with agent.conversation() as conversation:
        while True:
            is_asked, num_shown = False, answers.num_shown
            try:
                text = typed.question()
                if text is None or text.lower() in _LEAVING:
                    break
                if _COMMAND.fullmatch(text):
                    _obey(text, conversation)
                    continue
                is_asked = True
                _answer(text, conversation, answers, live)
            except KeyboardInterrupt:
                answers.num_stopped += (
                    is_asked and answers.num_shown == num_shown
                )  # else it was stopped while it was shown
                say("\nstopped" if is_asked else "", err=True)
            except ParallelSearchError as error:
                say(f"parallelsearch: {error}", err=True)
    if total := answers.total:
        say(total, err=True)


def _obey(command: str, conversation: Conversation) -> None:
    if command == "/new":
        conversation.forget()
        say("what was said is forgotten", err=True)
    else:
        say(_HELP if command == "/help" else f"there is no {command}; there are:\n{_HELP}", err=True)


def _answer(text: str, conversation: Conversation, answers: Answers, live: Console) -> None:
    from rich.text import Text

    understood = conversation.understand(text)
    if understood.reply is not None and not answers.as_json:
        say(understood.reply)
        return
    is_rewritten = understood.question != text
    if is_rewritten:
        live.print(Text(f"understood as: {safe(understood.question)}", style="bold"))
    with LiveNarrator(live) as narrator:
        done = conversation.ask(text, narrator if live.is_terminal and not answers.as_json else None)
    answers.show(done, asked=text if is_rewritten else None)


class Typed:
    """What a person types at the terminal."""

    def __init__(self) -> None:
        self._is_edited = sys.stdout.isatty()
        self._readline = _editing() if self._is_edited else None
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a terminal with another encoding than it says

    def question(self) -> str | None:
        """The next question, or None where the person leaves. An empty line that was typed while an answer was on its way
        is impatience, and no farewell."""
        while True:
            is_early = _is_waiting(0)
            try:
                lines = [self._line(PROMPT)]
            except EOFError:
                say("", err=True)
                return None
            try:
                while _is_waiting(PASTED_S):
                    lines.append(self._line(CONTINUED))
            except EOFError:
                pass
            text = "\n".join(lines).strip()
            if text and self._readline is not None:
                self._readline.add_history(text)
            if text or not is_early:
                return text or None

    def _line(self, prompt: str) -> str:
        if self._is_edited:
            return input(prompt)
        typer.echo(prompt, nl=False, err=True)  # the answers go elsewhere, and nothing shall stand between them
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


def _is_waiting(seconds: float) -> bool:
    """Whether something is typed already, or within so many seconds."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def _editing() -> Any:
    """Python's readline, where there is one, set to take what is pasted together. Python turns that off for its own prompt.
    macOS often has libedit in its place, which does not know of it, and a dumb terminal would show the codes."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_auto_history(False)  # several lines are one question
    if "libedit" not in (readline.__doc__ or "") and os.environ.get("TERM", "dumb") != "dumb":
        readline.parse_and_bind("set enable-bracketed-paste on")
    return readline
