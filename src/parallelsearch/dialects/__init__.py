"""Ways a model talks, by name. `tags` has the package's own, `released` those of other projects' checkpoints, `baselines`
methods to compare with. To add one: a class in one of these modules, or a module of its own, and a line here."""

from __future__ import annotations

from parallelsearch.dialect import Dialect
from parallelsearch.dialects.baselines import ChainOfThought, Direct, IRCoT, Rag, SearchO1
from parallelsearch.dialects.released import Ferret, ParallelSearchFormat, RagR1, SearchR1
from parallelsearch.dialects.tags import Parallel, Sequential
from parallelsearch.dialects.tools import Tools, ToolsOneAtATime, ToolsWithAnswer, WrittenTools
from parallelsearch.errors import UsageError, nearest

DEFAULT = "parallel"
DIALECTS: dict[str, type[Dialect]] = {
    kind.name: kind
    for kind in (
        Parallel,
        Sequential,
        Tools,
        ToolsWithAnswer,
        WrittenTools,
        ToolsOneAtATime,
        Direct,
        ChainOfThought,
        Rag,
        IRCoT,
        SearchO1,
        SearchR1,
        ParallelSearchFormat,
        RagR1,
        Ferret,
    )
}

__all__ = ["DEFAULT", "DIALECTS", "Dialect", "open_dialect"]


def open_dialect(dialect: Dialect | str | None, prompt_template: str | None = None) -> Dialect:
    """The dialect of this name; one that is an object already is itself, and None is the default."""
    if isinstance(dialect, Dialect):
        return dialect
    kind = DIALECTS.get(dialect or DEFAULT)
    if kind is None:
        raise UsageError(
            f"there is no dialect '{dialect}'; choose one of {', '.join(DIALECTS)}.{nearest(str(dialect), DIALECTS)}"
        )
    return kind(prompt_template)
