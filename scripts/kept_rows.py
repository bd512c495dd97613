"""The rows behind the published tables: how a run becomes a small file in docs/results, and how it is read again.

A file holds the rows of one policy (one seed of it) on all sets: a line for each question, without the question's text. A
line has the set, the rounds that were allowed, what was answered, the verdicts that the tables need, and, on the sets that
the budget tables are about, where each piece of gold stands in the order of `parallelsearch budget`. What depends on the
clock, tokens, and what is unknown are left out. `POLICY.jsonl.zst` is a policy of one seed; `POLICY.SEED.jsonl.zst` one of
several seeds of a way of training. What was tried and is not taken further lies in `tried/`: it has a table of its own, and
stands in no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import zstandard

from parallelsearch.addresses import open_search
from parallelsearch.data import load_questions
from parallelsearch.data.parts import parts_of
from parallelsearch.errors import UsageError
from parallelsearch.evaluation.budget import DEPTH, LABELLED, ROUNDS, WHOLE, Arm, labelled_arm, run_arm, whole_arm
from parallelsearch.evaluation.folder import TRAJECTORIES_FILE
from parallelsearch.evaluation.manifest import Manifest, differences, read_manifest
from parallelsearch.evaluation.metrics import Row, row_from_dict, row_of
from parallelsearch.files import read_jsonl, write_whole
from parallelsearch.trajectory import Question, read_trajectories

ROWS = Path(__file__).parents[1] / "docs" / "results"
DEV, WIDE, BALANCED = "questions_with_gold", "wide", "mixed-balanced"
PER_PART = 3
"""Passages a part, in the budget of a wide question."""
DEPTHS = {DEV: DEPTH, WIDE: 8 * PER_PART, BALANCED: DEPTH}
"""The sets with places, and the largest budget that these serve."""
SHORTCUTS = {"agrees": "2wiki-mixed-agrees", "differs": "2wiki-mixed-differs"}
TURNS = 4
"""The rounds that are allowed where nothing else is said."""
_FILES = {WHOLE: "whole-question", LABELLED: "parts-as-labelled"}
TRIED = "tried/"
"""Before the names of policies that no table has but their own."""
_ENDING = ".jsonl.zst"
_KEPT = (
    "id",
    "dataset",
    "kind",
    "type",
    "trap",
    "em",
    "f1",
    "sub_em",
    "num_llm_calls",
    "num_searches",
    "num_subqueries",
    "is_split",
    "should_split",
    "gold_recall",
    "has_all_gold",
    "stop",
    "error_class",
    "chance",
    "num_shown",
    "num_cut",
    "gold_by",
    "num_parts",
    "parts_from",
    "parts_covered",
    "has_first_parts",
    "string_accuracy",
)
# What a Row needs and no table reads.
_LEFT_OUT: dict[str, Any] = {
    **dict.fromkeys(("elapsed_s", "generate_s", "wait_s", "search_s"), 0.0),
    **dict.fromkeys(("num_output_tokens", "num_input_tokens", "response_tokens", "num_truncated", "num_invalid"), 0),
    **dict.fromkeys(("num_failed_queries", "num_dropped_queries", "num_uncached"), 0),
    **dict.fromkeys(("num_rounds_needed", "error"), None),
    "is_split_anywhere": False,
}
Places = dict[int, list[int | None]]
Record = dict[str, Any]


# ---- a line ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One question of one file."""

    record: Record
    shortcut: str | None = None
    """Of a mixed question of 2WikiMultiHopQA: whether the years of the works lead to the right answer."""

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def set(self) -> str:
        return str(self.record["set"])

    @property
    def turns(self) -> int:
        return int(self.record.get("turns", TURNS))

    @property
    def dataset(self) -> str | None:
        return self.record.get("dataset")

    @property
    def kind(self) -> str | None:
        return self.record.get("kind")

    @property
    def trap(self) -> str | None:
        return self.record.get("trap")

    @property
    def num_parts(self) -> int:
        return int(self.record.get("num_parts") or 0)

    @cached_property
    def row(self) -> Row:
        values = {name: self.record.get(name) for name in _KEPT}
        return row_from_dict({**values, **_LEFT_OUT}, "docs/results", 0)

    def recall(self, num_passages: int, num_rounds: int) -> float | None:
        """The share of the gold among so many passages of so many rounds; None where the order was not kept."""
        kept: dict[str, list[int | None]] | None = self.record.get("places")
        if kept is None:
            return None
        places = kept[max((key for key in kept if int(key) <= num_rounds), key=int)]
        return sum(place is not None and place <= num_passages for place in places) / len(places)


@dataclass
class Kept:
    """All that is kept: the two arms without a model, and of each policy the files of its seeds."""

    whole: list[Line] = field(default_factory=list)
    labelled: list[Line] = field(default_factory=list)
    policies: dict[str, list[list[Line]]] = field(default_factory=dict)
    tried: dict[str, list[list[Line]]] = field(default_factory=dict)


def policy_of(name: str) -> str:
    """The way of training that a file's name belongs to: `parallel-3.s2` is a seed of `parallel-3`."""
    return name.partition(".")[0]


def read_records(name: str, folder: Path | None = None) -> list[Record]:
    return [record for _, record in read_jsonl((folder or ROWS) / f"{name}{_ENDING}")]


def read_all() -> Kept:
    paths = [*ROWS.glob(f"*{_ENDING}"), *ROWS.glob(f"{TRIED}*{_ENDING}")]
    names = sorted(path.relative_to(ROWS).as_posix().removesuffix(_ENDING) for path in paths)
    return as_kept({name: read_records(name) for name in names})


def as_kept(files: Mapping[str, Sequence[Record]]) -> Kept:
    kept = Kept()
    shortcuts = {row["id"]: row["shortcut"] for row in files.get(_FILES[WHOLE], ()) if "shortcut" in row}
    for name, records in files.items():
        lines = [Line(record, shortcuts.get(record["id"])) for record in records]
        if name == _FILES[WHOLE]:
            kept.whole = lines
        elif name == _FILES[LABELLED]:
            kept.labelled = lines
        elif name.startswith(TRIED):
            kept.tried.setdefault(policy_of(name.removeprefix(TRIED)), []).append(lines)
        else:
            kept.policies.setdefault(policy_of(name), []).append(lines)
    return kept


# ---- keeping ---------------------------------------------------------------------------------------------------------


def write_records(name: str, records: Iterable[Record], folder: Path | None = None) -> Path:
    """Sorted by set and kind: like beside like takes the least room."""
    ordered = sorted(
        records, key=lambda one: (one["set"], one.get("turns", 0), one["dataset"] or "", one["kind"] or "", one["id"])
    )
    text = "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in ordered)
    path = (folder or ROWS) / f"{name}{_ENDING}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, zstandard.ZstdCompressor(level=22).compress(text.encode()))
    return path


def kept_record(row: Row, answer: str | None, places: Places | None, *, set_name: str, turns: int) -> Record:
    values = {name: value for name, value in row.to_dict().items() if name in _KEPT}
    record: Record = {
        "id": values.pop("id"),
        "set": set_name,
        "turns": turns,
        "dataset": values.pop("dataset"),
        "kind": values.pop("kind"),
        **{name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()},
        "answer": answer,
    }
    record = {name: value for name, value in record.items() if value is not None or name in ("dataset", "kind")}
    return record if places is None else {**record, "places": fewer(places)}


def fewer(places: Places) -> dict[str, list[int | None]]:
    """Only the numbers of rounds at which something changes."""
    result: dict[str, list[int | None]] = {}
    last: list[int | None] | None = None
    for rounds in sorted(places):
        if places[rounds] != last:
            last = result[str(rounds)] = places[rounds]
    return result


async def keep(
    name: str, folders: Sequence[Path], address: str | None, *, adds: bool = False, rows: Path | None = None
) -> Path:
    """The rows of a policy's runs as one file, among the published ones or in the folder `rows`. With `adds`, other sets and
    limits that the file has stay in it."""
    if name in _FILES.values():
        raise UsageError(f"'{name}' is the name of an arm without a model; keep-whole writes it")
    manifests = [read_manifest(folder) for folder in folders]
    _refuse_others(folders, manifests)
    found: dict[tuple[str, int, str], Record] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        for record in await _records_of(name, folder, manifest, address):
            key = (record["set"], record["turns"], record["id"])
            if key in found:
                raise UsageError(f"two of the runs asked '{record['id']}' of {record['set']} with the same limits")
            found[key] = record
    if adds and ((rows or ROWS) / f"{name}{_ENDING}").exists():
        fresh = {key[:2] for key in found}
        for record in read_records(name, rows):
            if (record["set"], record["turns"]) not in fresh:
                found[record["set"], record["turns"], record["id"]] = record
    return write_records(name, found.values(), rows)


def _refuse_others(folders: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """One file is one policy, decoded one way."""
    for folder, manifest in zip(folders[1:], manifests[1:], strict=True):
        for part in ("policy", "sampling"):
            different = differences(manifests[0].setup[part], manifest.setup[part], f"{part}.")
            if different:
                listed = "; ".join(map(str, different))
                raise UsageError(f"'{folders[0]}' and '{folder}' are not runs of one policy: {listed}")


async def _records_of(name: str, folder: Path, manifest: Manifest, address: str | None) -> list[Record]:
    sets, questions = _asked(manifest)
    turns = manifest.setup["limits"]["max_turns"]
    trajectories = list(read_trajectories(folder / TRAJECTORIES_FILE))
    if len(trajectories) < len(questions):
        raise UsageError(f"'{folder}' is not finished: {len(trajectories)} of {len(questions)} questions")
    num_failed = sum(one.stop in ("error", "timeout") for one in trajectories)
    if num_failed:  # they would stand in the tables as wrong answers
        raise UsageError(
            f"'{folder}' has {num_failed} questions that failed: ask them again with eval --retry-failures"
        )
    depths = {DEPTHS[one] for one in sets.values() if one in DEPTHS}
    if depths and address is None:
        raise UsageError(f"'{folder}' has questions of {', '.join(DEPTHS)}: say --search ADDRESS")
    rounds = sorted({*ROUNDS, turns})
    placed: dict[str, Places] = {}
    for depth in sorted(depths):
        search = open_search(str(address))
        arm = await run_arm(name, folder, search, depth, rounds)
        await search.aclose()
        placed.update({one.id: one.places for one in arm.found if DEPTHS.get(sets[one.id]) == depth})
    return [
        kept_record(row_of(one, questions[one.id]), one.answer, placed.get(one.id), set_name=sets[one.id], turns=turns)
        for one in trajectories
    ]


def _asked(manifest: Manifest) -> tuple[dict[str, str], dict[str, Question]]:
    """The questions of a run, loaded again: which set each is of, and what the record does not carry (graphs, traps, answers
    that are lists)."""
    data = manifest.setup["data"]
    names = str(data["name"]).split(",")
    sources = data["sources"] if len(data["sources"]) == len(names) else [{}] * len(names)
    sets: dict[str, str] = {}
    questions: dict[str, Question] = {}
    for name, source in zip(names, sources, strict=True):
        loaded = load_questions(
            name, split=source.get("split"), limit=source.get("limit"), seed=source.get("seed") or 0
        )
        for question in loaded:
            if question.id in sets:
                raise UsageError(f"{name} and {sets[question.id]} share the id '{question.id}': run them apart")
            sets[question.id], questions[question.id] = name, question
    if len(questions) != data["num_questions"]:
        raise UsageError(f"{data['name']} has {len(questions)} questions here, the run {data['num_questions']}")
    return sets, questions


async def keep_whole(address: str) -> list[Path]:
    """The two arms that need no model, on every set with places."""
    records: dict[str, list[Record]] = {name: [] for name in _FILES}
    shortcuts = {question.id: how for how, name in SHORTCUTS.items() for question in load_questions(name)}
    search = open_search(address)
    for name, depth in DEPTHS.items():
        questions = load_questions(name)
        by_id = {question.id: question for question in questions}
        for arm in (await whole_arm(questions, search, depth), await labelled_arm(questions, search, depth)):
            records[arm.name] += _without_model(arm, name, by_id, shortcuts)
    await search.aclose()
    return [write_records(file, records[name]) for name, file in _FILES.items()]


def _without_model(
    arm: Arm, name: str, questions: Mapping[str, Question], shortcuts: Mapping[str, str]
) -> Iterator[Record]:
    for one in arm.found:
        question = questions[one.id]
        known = parts_of(question)
        record: Record = {"id": one.id, "set": name, "dataset": question.dataset, "kind": question.kind}
        if known is not None:
            record["num_parts"] = len(known[0])
        if arm.name == WHOLE and one.id in shortcuts:
            record["shortcut"] = shortcuts[one.id]
        yield {**record, "places": fewer(one.places)}
