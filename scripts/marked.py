"""Tables of a page that are written from data: each stands between a mark with its name and an end mark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def filled(text: str, word: str, made: Callable[[str], str]) -> str:
    """The page with what `made` says for the name of each `<!-- word: name -->` mark."""
    marked = re.compile(rf"(<!-- {word}: (\w+) -->\n)(.*?)(<!-- end of {word} -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}{made(found[2])}\n{found[4]}", text)


def write(pages: Iterable[Path], new_text: Callable[[str], str], *, only_checks: bool) -> int:
    """Write the pages anew, or only look: 1 if one of them is not as it should be."""
    for page in pages:
        old = page.read_text(encoding="utf-8")
        new = new_text(old)
        if only_checks and old != new:
            return 1
        if not only_checks:
            page.write_text(new, encoding="utf-8")
    return 0
