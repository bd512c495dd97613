"""Question sets by name: found, read, counted, and cut into subsets. `sources.py` is the table of them.

A name is looked up under `$PARALLELSEARCH_DATA` (FOLDER/FILE.jsonl.zst and its plain, gzip and Parquet forms) and then,
if the `datasets` package is there, on the Hugging Face hub. A subset is cut by the question's kind: `hotpotqa-par`,
`2wikimultihopqa-seq`, `2wikimultihopqa-mixed`. The number found is checked against the published one; a difference is a
warning that travels in the manifest, because scores over other questions are other scores. `leaks.py` keeps evaluation
questions out of training.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload
from urllib.parse import urlsplit

from parallelsearch.answers import normalise
from parallelsearch.data.leaks import find_leaks
from parallelsearch.data.long_answers import label
from parallelsearch.data.made import made_set
from parallelsearch.data.place import DATA_VARIABLE, data_file, data_folder
from parallelsearch.data.questions import ANSWER_FIELDS, question_from_dict, read_questions, read_records, shipped
from parallelsearch.data.sealed import open_sealed
from parallelsearch.data.sources import SHIPPED, SOURCES, Source, kind_of
from parallelsearch.errors import DataError, MissingExtraError, UsageError, check_whole, nearest, require
from parallelsearch.trajectory import NEEDS, Kind, Question

SUBSETS: dict[str, Kind] = {needs.ending: kind for kind, needs in NEEDS.items()}
SMALL = "-small"
"""Behind the name of a set: the same questions in small letters."""
VERIFIED = "verified"
"""200 real dev questions of HotpotQA, 2WikiMultiHopQA and NQ, named by the hash of their text, labelled by reading."""
SEVEN = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
_OTHER_NAMES = {
    "2wiki": "2wikimultihopqa",
    "2wikimultihop": "2wikimultihopqa",
    "multihoprag": "multihop-rag",
    "natural_questions": "nq",
    "seven": ",".join(SEVEN),
    f"seven{SMALL}": ",".join(f"{name}{SMALL}" for name in SEVEN),
}


@dataclass(slots=True)
class QuestionSet:
    """Questions with their provenance: what a manifest needs to say which ones they were."""

    name: str
    questions: list[Question]
    sources: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.questions)

    def __len__(self) -> int:
        return len(self.questions)

    @overload
    def __getitem__(self, place: int) -> Question: ...

    @overload
    def __getitem__(self, place: slice) -> list[Question]: ...

    def __getitem__(self, place: int | slice) -> Question | list[Question]:
        """A question, or a list of them: what is left of a set is no longer that set."""
        return self.questions[place]

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_questions": len(self.questions),
            "questions_sha256": hash_questions(self.questions),
            "sources": self.sources,
        }


def hash_questions(questions: Iterable[Question]) -> str:
    """One hash over ids, texts and golden answers, in order: two runs with the same one asked the same questions."""
    digest = hashlib.sha256()
    for question in questions:
        parts = (question.id, question.question, *question.golden_answers)
        digest.update("\x1f".join(parts).encode() + b"\x1e")
    return digest.hexdigest()


# ---- loading ---------------------------------------------------------------------------------------------------------


def load_questions(
    name_or_file: str | os.PathLike[str],
    *,
    split: str | None = None,
    subset: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    opens_sealed: bool = False,
) -> QuestionSet:
    """The questions of a data set or file; several with commas (`seven`: the seven sets of the paper).

    `limit` takes that many of each set by a draw that depends on `seed` alone (a smaller draw is part of a larger one);
    the order stays that of the file. A sealed split (2WikiMultiHopQA test) is refused without `opens_sealed`, and opening
    it is written down.
    """
    if limit is not None:
        check_whole("limit is how many questions to take:", limit)
    text = os.fspath(name_or_file)
    text = _OTHER_NAMES.get(text, text)
    parts = [part.strip() for part in text.split(",") if part.strip()] if not Path(text).is_file() else [text]
    if not parts:
        raise UsageError(f"a data set or a file of questions is needed; the sets are {', '.join(known_names())}")
    sets = [_load_one(part, split, subset, limit, seed, opens_sealed) for part in parts]
    merged = QuestionSet(
        ",".join(one.name for one in sets),
        [question for one in sets for question in one.questions],
        [source for one in sets for source in one.sources],
        [warning for one in sets for warning in one.warnings],
    )
    _make_ids_unique(merged)
    return merged


def known_names() -> list[str]:
    return [*SOURCES, VERIFIED, "seven"]


def _load_verified() -> QuestionSet:
    """Real dev questions whose kind was decided by reading them; the label in the file replaces the data set's."""
    path = shipped("verified.jsonl")
    labels: dict[str, Kind] = {}
    names: dict[str, None] = {}
    for _, record in read_records(path):
        labels[record["text_sha256"]] = record["kind"]
        names[record["dataset"]] = None
    found = QuestionSet(VERIFIED, [], [_file_source(path)])
    for name in names:
        whole = _load_source(SOURCES[name], None)
        found.sources += whole.sources
        for question in whole.questions:
            kind = labels.pop(hashlib.sha256(normalise(question.question).encode()).hexdigest(), None)
            if kind is not None:
                question.kind = kind
                found.questions.append(question)
    if labels:
        found.warnings.append(f"{VERIFIED}: {len(labels)} of the labelled questions are not in the files found here")
    return found


def _load_one(
    name: str, split: str | None, subset: str | None, limit: int | None, seed: int, opens_sealed: bool
) -> QuestionSet:
    if name.lower().endswith(SMALL) and not Path(name).exists():
        found = _load_one(name[: -len(SMALL)], split, subset, limit, seed, opens_sealed)
        return _in_small_letters(found)
    source, subset = _resolve(name, subset)
    if name == VERIFIED:
        found = _load_verified()
    elif source is None:
        found = QuestionSet(Path(name).name, list(read_questions(name)), [_file_source(Path(name))])
        if split is not None:
            found.questions = [q for q in found.questions if (q.metadata or {}).get("split") == split]
    else:
        found = _load_source(source, split, opens_sealed)
    if subset is not None:
        _take_subset(found, source, subset, split)
    if not found.questions:
        raise DataError(name, None, "holds no questions" + (f" of split '{split}'" if split else ""))
    _draw(found, limit, seed)
    num_bare = sum(not question.golden_answers for question in found.questions)
    if num_bare:
        have = "question has" if num_bare == 1 else "questions have"
        fields = ", ".join(ANSWER_FIELDS)
        found.warnings.append(
            f"{found.name}: {num_bare} {have} no golden answer (none of {fields}) and can only count as wrong"
        )
    return found


def _in_small_letters(found: QuestionSet) -> QuestionSet:
    """The same questions as many people type them: a policy must not go by capitals."""
    for question in found.questions:
        question.question = question.question.lower()
        question.id = f"{question.id}{SMALL}" if question.id else question.id
        question.dataset = f"{question.dataset or found.name}{SMALL}"
    found.name = f"{found.name}{SMALL}"
    found.sources[0]["letters"] = "small"
    return found


def _draw(found: QuestionSet, limit: int | None, seed: int) -> None:
    """Keep `limit` questions: the first of a shuffled order, so that a smaller draw is part of a larger one."""
    if limit is not None and limit < len(found.questions):
        order = list(range(len(found.questions)))
        random.Random(seed).shuffle(order)
        found.questions = [found.questions[index] for index in sorted(order[:limit])]
        found.sources[0].update(limit=limit, seed=seed)


def _resolve(name: str, subset: str | None) -> tuple[Source | None, str | None]:
    """The source a name means, or None for a file; with the subset its name may end in."""
    if subset is not None and subset not in SUBSETS:
        raise UsageError(
            f"there is no subset '{subset}'; choose one of {', '.join(SUBSETS)}.{nearest(subset, SUBSETS)}"
        )
    plain = _OTHER_NAMES.get(name.lower(), name.lower())
    if name == VERIFIED:
        return None, subset
    if plain in SOURCES:
        return SOURCES[plain], subset
    stem, dash, ending = plain.rpartition("-")
    stem = _OTHER_NAMES.get(stem, stem)
    if dash and stem in SOURCES:
        if ending not in SUBSETS:
            names = ", ".join(f"{stem}-{one}" for one in SUBSETS)
            raise UsageError(f"'{stem}' has no subset '{ending}'; choose one of {names}.{nearest(ending, SUBSETS)}")
        return SOURCES[stem], ending
    if Path(name).exists() or Path(name).suffix or os.sep in name:
        return None, subset
    raise UsageError(
        f"there is no data set '{name}' and no file of that name; the sets are {', '.join(known_names())} "
        f"(with {', '.join(f'-{ending}' for ending in SUBSETS)} for a part, {SMALL} for small letters)."
        f"{nearest(plain, known_names())}"
    )


def _load_source(source: Source, split: str | None, opens_sealed: bool = False) -> QuestionSet:
    chosen = split or next(iter(source.splits))
    if chosen not in source.splits:
        raise UsageError(f"'{source.name}' has no split '{chosen}'; it has {', '.join(source.splits)}")
    warnings = open_sealed(source, chosen, opens_sealed)
    if source.maker:
        questions, told, more = made_set(source)
        found = QuestionSet(source.name, questions, [{**told, "split": chosen}], warnings + more)
        _check_count(found, source, chosen, len(questions))
        return found
    if source.name in SHIPPED:
        path: Path | None = shipped(source.splits[chosen])
    else:
        path = data_file(source.stems[chosen]) if source.folder else None
    if path is None and chosen in source.sealed:
        raise UsageError(f"'{source.name}' ({chosen}) is not on this machine, and no other place has it")
    if path is None:
        found = QuestionSet(source.name, *_from_hub(source, chosen))
    else:
        found = QuestionSet(source.name, list(read_questions(path)), [_file_source(path)])
    found.warnings += warnings
    if source.name == "questions_with_gold":
        found.questions = [q for q in found.questions if _has_gold(q, chosen)]
    for question in found.questions:
        if question.dataset is None:
            question.dataset = source.name
            question.kind = question.kind or kind_of(source.name, question.type)
        label(question)
    found.sources[0]["split"] = chosen
    _check_count(found, source, chosen, len(found.questions))
    return found


def _has_gold(question: Question, split: str) -> bool:
    """Of this split and with all its gold at hand. Train questions of 2WikiMultiHopQA are its sealed test split."""
    extra = question.metadata or {}
    is_sealed = split == "train" and question.dataset == "2wikimultihopqa"
    return extra.get("split") == split and bool(extra.get("all_gold_in_corpus")) and not is_sealed


def _take_subset(found: QuestionSet, source: Source | None, subset: str, split: str | None) -> None:
    kinds = Counter(question.kind for question in found.questions)
    found.questions = [question for question in found.questions if question.kind == SUBSETS[subset]]
    if not found.questions:
        has = ", ".join(f"{kind or 'unknown'} {count}" for kind, count in kinds.most_common())
        raise UsageError(f"'{found.name}' has no {SUBSETS[subset]} questions; by kind it has: {has}")
    found.name = f"{found.name}-{subset}"
    found.sources[0]["subset"] = subset
    if source is not None and split in (None, next(iter(source.splits))):
        _check_count(found, source, subset, len(found.questions))


def _check_count(found: QuestionSet, source: Source, key: str, count: int) -> None:
    published = source.num_published.get(key)
    if published is not None and published != count:
        found.warnings.append(
            f"{source.name} {key}: {count} questions found, {published} published; scores are over what was found"
        )


def _file_source(path: Path) -> dict[str, Any]:
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}") from error
    return {"file": path.name, "sha256": digest}


def _make_ids_unique(found: QuestionSet) -> None:
    """Rows are kept apart by id: a repeated one gets its data set in front, or a number behind."""
    seen: set[str] = set()
    num_renamed = 0
    for question in found.questions:
        if question.id in seen:
            num_renamed += 1
            base = f"{question.dataset}:{question.id}" if question.dataset else question.id
            number, name = 2, base
            while name in seen or name == question.id:
                name, number = f"{base}#{number}", number + 1
            question.id = name
        seen.add(question.id)
    if num_renamed:
        found.warnings.append(f"{found.name}: {num_renamed} repeated ids were made unique; no question was dropped")


def _hub_can_be_asked(repository: str) -> bool:
    """Whether it is worth trying: without a network the hub's client would repeat itself for half a minute first."""
    has_way = any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HF_HUB_OFFLINE"))
    if has_way or Path(repository).exists():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _from_hub(source: Source, split: str) -> tuple[list[Question], list[dict[str, Any]]]:
    folder = data_folder()
    place = (
        f"put it at {folder / source.folder / source.splits[split]}.jsonl"
        if folder is not None
        else f"set {DATA_VARIABLE} to a folder that has {source.folder}/{source.splits[split]}.jsonl"
    )
    if source.hub is None:
        raise UsageError(f"'{source.name}' ({split}) is not on this machine; {place}")
    repository, configuration = source.hub
    if not _hub_can_be_asked(repository):
        raise UsageError(
            f"'{source.name}' ({split}) is not on this machine and {repository} cannot be reached; {place}"
        )
    try:
        library = require("datasets", "files")
        rows = library.load_dataset(repository, configuration, split=source.hub_splits.get(split, split))
    except MissingExtraError as error:
        raise UsageError(f"'{source.name}' ({split}) is not on this machine: {place}, or {error}") from error
    except Exception as error:  # the hub's client fails in as many ways as a network does
        raise UsageError(
            f"'{source.name}' ({split}) is not on this machine and could not be had from {repository} "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}); {place}"
        ) from error
    questions: list[Question] = []
    for number, row in enumerate(rows):
        question = question_from_dict({"dataset": source.name, **row}, repository, number + 1)
        question.id = question.id or f"{source.name}-{split}-{number}"
        questions.append(question)
    return questions, [{"hub": repository, "configuration": configuration, "fingerprint": rows._fingerprint}]


# ---- questions to train on ---------------------------------------------------------------------------------------------


def training_pool(
    name_or_file: str,
    *,
    split: str | None = "train",
    subset: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> QuestionSet:
    """Questions for training: those of a set's train split, less every one that is also an evaluation question."""
    pool = load_questions(name_or_file, split=None if Path(name_or_file).is_file() else split, subset=subset)
    leaks = find_leaks(pool.questions)
    if leaks:
        leaked = {leak.question.id for leak in leaks}
        num_pairs = sum(leak.by == "names" for leak in leaks)
        pool.questions = [question for question in pool.questions if question.id not in leaked]
        pool.warnings.append(
            f"{pool.name}: {len(leaked)} questions left out because an evaluation file has them, {num_pairs} of them with "
            "other words about the same things"
        )
    if not pool.questions:
        raise UsageError(f"every question of '{name_or_file}' is an evaluation question; train on another file")
    _draw(pool, limit, seed)
    return pool
