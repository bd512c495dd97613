"""Splits that nobody looks at: opened on purpose, once a release, and every opening is written down and said.

A development set that every change is measured on says less with every change. A sealed split is read for the published
numbers of a release and for nothing else: never for training, never by default. Who opens it says so in the call, a line
with the time goes into a log in the user's state folder, and the warning travels in the run's manifest with all times before.
`PUBLISHED` are the openings behind published numbers; it is part of the code, so that everyone sees how fresh the split is.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from parallelsearch import __version__
from parallelsearch.data.sources import Source
from parallelsearch.errors import UsageError
from parallelsearch.files import to_json

PUBLISHED: dict[str, tuple[str, ...]] = {"2wikimultihopqa test": ()}
"""By set and split: the releases whose published numbers it was opened for. Nobody has opened it yet."""


def open_sealed(source: Source, split: str, is_meant: bool) -> list[str]:
    """Nothing for an open split. For a sealed one: refuse it, or write down that it was opened, and say so."""
    if split not in source.sealed:
        return []
    name = f"{source.name} {split}"
    published = ", ".join(PUBLISHED.get(name, ())) or "none so far"
    if not is_meant:
        raise UsageError(
            f"'{name}' is sealed: it is opened once a release, for its published numbers (releases that have: {published}), "
            "and never trained on. If that is what you are doing, say --open-sealed (opens_sealed=True); otherwise take "
            f"--split {next(iter(source.splits))}"
        )
    before = openings(name)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # a machine without a home still says it in the manifest
        log = log_file()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(to_json({"split": name, "opened": now, "version": __version__}) + "\n")
    times = ", ".join(before) or "never on this machine"
    return [f"{name} is a sealed split, opened {now} by {__version__}; before: {times}; releases: {published}"]


def openings(name: str) -> list[str]:
    """When a split was opened on this machine."""
    try:
        lines = log_file().read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a torn line tells nothing
            record = json.loads(line)
            if record["split"] == name:
                found.append(str(record["opened"]))
    return found


def log_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "parallelsearch" / "sealed.jsonl"
