"""Answers as `ask` prints them, for people or as JSON; what they came to, and with which status to end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from parallelsearch.cli.options import console, say
from parallelsearch.cli.terminal import trajectory_view
from parallelsearch.files import to_json
from parallelsearch.grounding import cite, sources_of

if TYPE_CHECKING:
    from rich.console import Console

    from parallelsearch.limits import Prices
    from parallelsearch.trajectory import Trajectory

FAILED, NO_ANSWER = 1, 3
"""The exit status where the model or every search failed, and of a question that has no answer, also where one was taken
back."""


@dataclass(slots=True)
class Answers:
    """Prints each record and adds them up."""

    prices: Prices | None
    as_json: bool
    screen: Console
    num_shown: int = 0
    num_failed: int = 0
    num_unanswered: int = 0
    num_stopped: int = 0
    cost: float = 0.0

    @classmethod
    def of(cls, prices: Prices | None, as_json: bool) -> Answers:
        return cls(prices, as_json, console())

    def show(self, trajectory: Trajectory, *, asked: str | None = None, tells_error: bool = True) -> None:
        """Print a record. `asked` is what was typed, where that was understood as something else; who tells the error
        elsewhere says so."""
        cost = None if self.prices is None else trajectory.cost(self.prices)
        self.num_shown += 1
        self.cost += cost or 0.0
        status = status_of(trajectory)
        self.num_failed += status == FAILED
        self.num_unanswered += status == NO_ANSWER
        if self.as_json:
            say(to_json(_shown(trajectory, cost, asked)))
            return
        if self.num_shown > 1:
            self.screen.print()
        self.screen.print(trajectory_view(trajectory, self.screen.width, tells_error=tells_error))
        if cost is not None:
            self.screen.print(f"cost {cost:.6g}")

    @property
    def status(self) -> int:
        """Of all together: the worst that happened."""
        return FAILED if self.num_failed else NO_ANSWER if self.num_unanswered else 0

    @property
    def total(self) -> str:
        """What they came to; empty where there is nothing to say that was not said of each."""
        counts = {"failed": self.num_failed, "without an answer": self.num_unanswered, "stopped": self.num_stopped}
        told = [f"{number} {what}" for what, number in counts.items() if number]
        asked = self.num_shown + self.num_stopped
        if self.prices is not None and asked:
            not_known = ", without what was stopped" if self.num_stopped else ""
            told.append(f"cost {self.cost:.6g} in all{not_known}")
        return f"{asked} question{'' if asked == 1 else 's'}: {', '.join(told)}" if told else ""


def status_of(trajectory: Trajectory) -> int:
    """The exit status of one question."""
    if trajectory.stop == "error":
        return FAILED
    if trajectory.answer is not None:
        return 0
    failed = trajectory.abstained is not None and trajectory.abstained.reason == "search_failed"
    return FAILED if failed else NO_ANSWER


def _shown(trajectory: Trajectory, cost: float | None, asked: str | None) -> dict[str, Any]:
    sources = sources_of(trajectory)
    cited = cite(trajectory, sources)
    return {
        **({} if asked is None else {"asked": asked}),
        **trajectory.to_dict(),
        "sources": [asdict(source) for source in sources],
        "citations": [asdict(citation) for citation in cited.citations],
        "invalid_citations": cited.invalid_numbers,
        **({"doubts": [asdict(doubt) for doubt in cited.doubts]} if trajectory.written else {}),
        **({} if cost is None else {"cost": cost}),
    }
