"""Keeping evaluation questions out of training: by their text, and by what they are about.

A question leaks if its normalised text stands in a dev or test file that this machine knows, in a sealed split, or in a set
that comes with the package; or if it sets the same things side by side as such a question does, or is answered from the
same pages: whoever was trained on "Who is older, A or B?" has read both pages for "Which of A and B died first?".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parallelsearch.answers import normalise
from parallelsearch.data.alternatives import compared, offered
from parallelsearch.data.place import SUFFIXES, data_file, data_folder
from parallelsearch.data.questions import read_records, shipped
from parallelsearch.data.sources import SHIPPED, SOURCES, kind_of
from parallelsearch.errors import ParallelSearchError
from parallelsearch.trajectory import NEEDS, Kind, Question


@dataclass(frozen=True, slots=True)
class Leak:
    """A training question that stands in an evaluation file, with the same text or about the same things."""

    question: Question
    file: str
    by: Literal["text", "names"] = "text"


class LeakError(ParallelSearchError):
    """Training questions stand in an evaluation set."""


_HELD_OUT = re.compile(r"(^|_)(dev|test)(_|$)")
_IN_BRACKETS = re.compile(r"(?<!\s)\s*+\([^()]*+\)\s*+$")
_BETWEEN = "\x1f"
"""Stands between the names of a key, and in no normalised text."""


def held_out() -> dict[str, str]:
    """Normalised text -> file, for every dev and test question this machine knows (files under the data folder and the
    sets that come with the package); and likewise for the things that they are about (`names_key`)."""
    known: dict[str, str] = {}
    for path, record in _held_out_records():
        file = f"{path.parent.name}/{path.name}"
        known.setdefault(normalise(record["question"]), file)
        titles = record.get("supporting_titles")
        kind = record.get("kind") or kind_of(record.get("dataset"), record.get("type"))
        for key in names_keys(record["question"], titles if isinstance(titles, list) else None, kind):
            known.setdefault(key, file)
    return known


def held_out_texts() -> set[str]:
    """The normalised texts alone."""
    return {normalise(record["question"]) for _, record in _held_out_records()}


def held_out_titles() -> set[str]:
    """The pages that those questions are answered from, as far as their files say."""
    return {title for _, record in _held_out_records() for title in record.get("supporting_titles") or () if title}


def _held_out_records() -> Iterator[tuple[Path, dict[str, Any]]]:
    paths = [(shipped(next(iter(SOURCES[name].splits.values()))), True) for name in SHIPPED]
    sealed = [data_file(source.stems[split]) for source in SOURCES.values() for split in source.sealed]
    folder = data_folder()
    if folder is not None:
        files = sorted(path for path in folder.glob("*/*") if path.name.endswith(SUFFIXES) and path.is_file())
        paths += [(path, path in sealed or _HELD_OUT.search(path.name.partition(".")[0]) is not None) for path in files]
    for path, is_held_out in paths:
        if not is_held_out and not path.name.startswith("questions"):  # these say it row by row
            continue
        for _, record in read_records(path):
            is_question = isinstance(record, dict) and isinstance(record.get("question"), str)
            if is_question and (is_held_out or record.get("split") in ("dev", "test")):
                yield path, record


def names_keys(question: str, titles: Sequence[str] | None, kind: Kind | None) -> set[str]:
    """What a question is about, as keys: its gold pages where there are several, and the names it sets side by side."""
    keys = {names_key([_IN_BRACKETS.sub("", title) for title in titles or ()])}
    if kind is not None and NEEDS[kind].should_split:
        names = offered(question)
        is_choice = len(names) > 1 and set(names) != {"yes", "no"}
        keys.add(names_key(next(compared(question), ())))
        if is_choice:
            keys.add(names_key(names))
    return keys - {""}


def names_key(names: Iterable[str]) -> str:
    """One key for the same things in any order; empty for fewer than two."""
    plain = sorted({normalise(name) for name in names} - {""})
    return _BETWEEN.join(plain) if len(plain) > 1 else ""


def find_leaks(train_questions: Iterable[Question], known: Mapping[str, str] | None = None) -> list[Leak]:
    """The training questions whose normalised text stands in a dev or test file, or that are about the same things."""
    evaluated = held_out() if known is None else known
    found: list[Leak] = []
    for question in train_questions:
        file = evaluated.get(normalise(question.question))
        if file is not None:
            found.append(Leak(question, file))
            continue
        keys = names_keys(question.question, question.supporting_titles, question.kind)
        file = next((evaluated[key] for key in sorted(keys) if key in evaluated), None)
        if file is not None:
            found.append(Leak(question, file, "names"))
    return found


def refuse_leaks(train_questions: Sequence[Question], known: Mapping[str, str] | None = None) -> None:
    """Raise if a training question is an evaluation question, or is about the same things as one."""
    leaks = find_leaks(train_questions, known)
    if leaks:
        examples = "; ".join(f"'{leak.question.question}' ({leak.file}, same {leak.by})" for leak in leaks[:3])
        raise LeakError(
            f"{len(leaks)} of {len(train_questions)} training questions stand in an evaluation file: {examples}. "
            "Leave them out (parallelsearch.data.sets.training_pool does) or train on another file"
        )
