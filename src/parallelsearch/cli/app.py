"""The command line: names to objects, nothing else. Heavy modules are imported by the command that needs them.

Each command is a function of a module beside this one; `COMMANDS` puts them together, in the order a person meets them.
Exit status: 0 done, 1 failed, 2 used wrongly, 3 asked and not answered, 130 stopped by Ctrl-C. A user's
mistake prints one message and no traceback.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from parallelsearch.cli import ask, data, doctor, index, retrieve, serve, teach, train, view
from parallelsearch.cli import eval as evaluating
from parallelsearch.cli import judge as judging
from parallelsearch.cli.options import say
from parallelsearch.errors import ParallelSearchError

COMMANDS: dict[str, dict[str, Callable[..., None] | typer.Typer]] = {
    "Ask": {
        "ask": ask.ask,
        "retrieve": retrieve.retrieve,
        "split": retrieve.split,
        "index": index.index,
        "serve": serve.app,
    },
    "Evaluate": {
        "eval": evaluating.evaluate_command,
        "judge": judging.judge_command,
        "compare": evaluating.compare_command,
        "budget": evaluating.budget_command,
        "score": view.score,
        "view": view.view,
        "data": data.app,
    },
    "Train": {
        "teach": teach.teach,
        "coldstart": train.coldstart,
        "train": train.train,
        "sweep": train.sweep,
        "export": train.export,
    },
    "Check": {"doctor": doctor.doctor},
}


STOPPED = 130
"""The exit status after Ctrl-C, as shells have it."""
GO_ON = frozenset(("eval", "judge", "teach", "train", "sweep"))
"""Commands that take up what they left."""


class _InGroups(TyperGroup):
    """Lists the commands under headings, in the order of `COMMANDS`; each with its first sentence, whole. Says that
    Ctrl-C was heard: typer ends without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            pass
        except RuntimeError as error:
            # Before Python 3.12 one that comes while a class is made, as in an import, is wrapped.
            if not isinstance(error.__cause__, KeyboardInterrupt):
                raise
        also = "; the same command goes on from what is saved" if ctx.invoked_subcommand in GO_ON else ""
        say(f"parallelsearch: stopped{also}", err=True)
        raise typer.Exit(STOPPED)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for commands in COMMANDS.values() for name in commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:9}", self.commands[name].get_short_help_str(200)) for name in commands])


app = typer.Typer(
    cls=_InGroups,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Search agents that split a question and look up all its parts at once.",
)
for _commands in COMMANDS.values():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name)
        else:
            app.command(_name, cls=evaluating.GroupedCommand if _name == "compare" else None)(_command)


def main() -> NoReturn:
    """Entry point of the `parallelsearch` command."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no é still shows the answer
    try:
        app()
    except ParallelSearchError as error:
        say(f"parallelsearch: {error}", err=True)
        sys.exit(error.exit_status)
    except OSError as error:
        # A folder that is read-only or full, a file that is gone: the user's to mend, and nothing that a traceback explains.
        # An output that nobody reads (`parallelsearch ... | head`) is none of these: typer ends without a word, with 1.
        where = f" '{error.filename}'" if error.filename is not None else ""
        say(
            f"parallelsearch: the system refused{where}: {error.strerror or str(error) or type(error).__name__}",
            err=True,
        )
        sys.exit(1)
    sys.exit(0)


def _version(value: bool) -> None:
    if value:
        from parallelsearch import __version__

        say(f"parallelsearch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass
