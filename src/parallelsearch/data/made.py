"""Sets that are made on this machine from the corpus in the data folder, and are the same on every machine.

Such a set is never shipped: a `Source` names who makes it, and has the hash that its file must have. It is made once, which
takes a minute, and kept as JSON Lines under the user's cache folder; a kept file counts only if its hash is right. A data
folder with other passages gives other questions, and the set then carries a warning, because scores on it are other scores.
What makes a set is named as text and imported when it is needed: this module knows no language and no maker.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from parallelsearch.answers import normalise
from parallelsearch.data.place import DATA_VARIABLE, data_file
from parallelsearch.data.questions import question_from_dict, read_questions, read_records
from parallelsearch.data.sources import Source
from parallelsearch.errors import UsageError
from parallelsearch.files import to_json, write_whole
from parallelsearch.retrieval.base import Passage
from parallelsearch.trajectory import Question

Made = TypeVar("Made")
CORPUS = ("corpus/multihop_passages", "corpus/wiki_background_chunks")
"""The files of the corpus that sets are made from, in this order."""
GOLD = "corpus/questions_with_gold"
TRAINING = ("hotpotqa/train_qa", "nq/train_subset", "strategyqa/train", "musique/train", "webquestions/train", GOLD)
"""The files whose training questions the made sets keep clear of. A fixed list: another would make other sets."""


class Material:
    """What sets are made from, each part read when it is first asked for."""

    def __init__(self) -> None:
        self._worked_out: dict[Callable[[Material], Any], Any] = {}

    def worked_out(self, how: Callable[[Material], Made]) -> Made:
        """What `how` makes of this material, once for all the sets that need it."""
        if how not in self._worked_out:
            self._worked_out[how] = how(self)
        made: Made = self._worked_out[how]
        return made

    @cached_property
    def passages(self) -> list[Passage]:
        return [
            Passage(record["id"], record["title"], record["text"])
            for stem in CORPUS
            for _, record in read_records(_needed(stem))
        ]

    @cached_property
    def training_texts(self) -> list[str]:
        """The normalised texts of the training questions."""
        return [normalise(record["question"]) for record in self._training()]

    @cached_property
    def training_titles(self) -> set[str]:
        """The pages that those are answered from, as far as their files say."""
        return {title for record in self._training() for title in record.get("supporting_titles") or () if title}

    @cached_property
    def gold_questions(self) -> list[Question]:
        """The dev questions whose gold passages are all in the corpus."""
        found = read_questions(_needed(GOLD))
        return [
            question
            for question in found
            if (extra := question.metadata or {}).get("split") == "dev" and extra.get("all_gold_in_corpus")
        ]

    def questions_of(self, stem: str) -> list[Question]:
        return list(read_questions(_needed(stem)))

    def _training(self) -> Iterator[dict[str, Any]]:
        for stem in TRAINING:
            for _, record in read_records(_needed(stem)):
                if record.get("split") == "train":
                    yield record


def _needed(stem: str) -> Path:
    path = data_file(stem)
    if path is None:
        raise UsageError(
            f"this set is made from the data folder, and '{stem}' is not in it; set {DATA_VARIABLE} to a folder that has "
            f"{stem}.jsonl.zst (also .jsonl, .jsonl.gz, .parquet)"
        )
    return path


def made_set(source: Source, material: Material | None = None) -> tuple[list[Question], dict[str, Any], list[str]]:
    """The questions of a made set, what a manifest says of them, and warnings."""
    kept = cache_folder() / f"{source.name}-{source.sha256[:16]}.jsonl"
    if source.sha256 and kept.is_file() and hashlib.sha256(kept.read_bytes()).hexdigest() == source.sha256:
        return list(read_questions(kept)), {"made": source.maker, "sha256": source.sha256}, []
    module, _, name = source.maker.partition(":")
    make: Callable[[Material], list[Question]] = getattr(importlib.import_module(module), name)
    text = as_lines(make(material or Material()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    warnings = []
    if digest != source.sha256:
        warnings.append(
            f"{source.name}: made from other passages or training questions than the published set (sha256 {digest[:16]}, "
            f"published {source.sha256[:16] or 'none'}); scores on it are not comparable"
        )
    else:
        keep(kept, text)
    found = [question_from_dict(record, source.name, line) for line, record in _records(text)]
    return found, {"made": source.maker, "sha256": digest}, warnings


def as_lines(questions: list[Question]) -> str:
    """The questions as the file that is hashed: metadata beside the other fields, as in every question file."""
    lines = []
    for question in questions:
        record = {name: value for name, value in asdict(question).items() if value is not None}
        lines.append(to_json({**(record.pop("metadata", None) or {}), **record}))
    return "\n".join(lines) + "\n"


def _records(text: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line:  # a small corpus may give no question at all
            yield number, json.loads(line)


def keep(path: Path, text: str) -> None:
    """Best effort: without a place to keep it, it is made again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError:
        return


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "parallelsearch" / "sets"
