"""A question as a row of the Parquet files verl reads, and back; written, read and checked here and nowhere else.

verl wants `data_source`, `prompt` (messages), `ability`, `reward_model` and `extra_info`. The prompt is the one the agent
loop will ask with: verl counts its tokens to leave long ones out. `extra_info.index` is a number made from the question
itself, so that rows of merged files never share one, as row numbers would.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parallelsearch.dialects import open_dialect
from parallelsearch.errors import DataError, UsageError, require
from parallelsearch.files import ParquetRecords, to_json, whole_file
from parallelsearch.training.collect import check_questions
from parallelsearch.training.recipe import RewardSettings
from parallelsearch.trajectory import Question, QuestionPart

_NEEDED = {
    "data_source": (),
    "prompt": (),
    "reward_model": ("ground_truth",),
    "extra_info": ("index", "id", "question", "split"),
}
HOW_TO = "write it with: parallelsearch data verl QUESTIONS --out FOLDER"
_ROW_GROUP = 10_000


def row_of_question(question: Question, split: str, dialect: str | None = None) -> dict[str, Any]:
    """One row. `split` says what it is for: train or validation."""
    return {
        "data_source": question.dataset or "own",
        "prompt": [{"role": "user", "content": open_dialect(dialect).prompt(question.question)}],
        "ability": "search",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(question.golden_answers)}},
        "extra_info": {
            "index": index_of(question),
            "id": question.id,
            "question": question.question,
            "split": split,
            "type": question.type,
            "kind": question.kind,
            **{name: _json_or_none(plain) for name, plain in _labels_of(question).items()},
        },
    }


def _labels_of(question: Question) -> dict[str, Any]:
    """What rewards look at beside answer and kind. As JSON: Parquet would give every row the keys of every other."""
    parts = [asdict(part) for part in question.parts or ()]
    return {
        "supporting_titles": question.supporting_titles,
        "gold_passage_ids": question.gold_passage_ids,
        "parts": parts,
    }


def _json_or_none(value: Any) -> str | None:
    return to_json(value) if value else None


def _from_json(text: Any) -> Any:
    return json.loads(text) if isinstance(text, str) and text else None


def index_of(question: Question) -> int:
    """63 bits that follow from the question: the same in every file, another for every other question."""
    text = "\x1f".join((question.dataset or "", question.id, question.question))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def question_of_row(row: Mapping[str, Any]) -> Question:
    """The question in a row as verl hands it to an agent loop."""
    info = row.get("extra_info")
    if not isinstance(info, Mapping) or not isinstance(info.get("question"), str):
        raise UsageError(f"a row of the training data has no 'extra_info.question'; {HOW_TO}")
    return Question(
        info["question"],
        targets_of((row.get("reward_model") or {}).get("ground_truth")),
        id=str(info.get("id") or info.get("index") or ""),
        dataset=row.get("data_source"),
        type=info.get("type"),
        kind=info.get("kind"),
        supporting_titles=_from_json(info.get("supporting_titles")),
        gold_passage_ids=_from_json(info.get("gold_passage_ids")),
        parts=None if (parts := _from_json(info.get("parts"))) is None else [QuestionPart(**part) for part in parts],
    )


def targets_of(ground_truth: Any) -> list[str]:
    """The golden answers in a `ground_truth`: ours and Search-R1's `{"target": [...]}`, a list, or one text."""
    target = ground_truth.get("target") if isinstance(ground_truth, Mapping) else ground_truth
    if target is None:
        return []
    return [target] if isinstance(target, str) else [str(answer) for answer in target]


# ---- files -----------------------------------------------------------------------------------------------------------


def write_rows(path: str | os.PathLike[str], questions: Iterable[Question], split: str, dialect: str | None) -> int:
    """Write a Parquet file, whole or not at all; returns how many rows."""
    arrow, parquet = require("pyarrow", "files"), require("pyarrow.parquet", "files")
    schema = _schema(arrow)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with whole_file(target) as draft, parquet.ParquetWriter(draft, schema) as writer:
        for group in _groups(questions):
            rows = [row_of_question(question, split, dialect) for question in group]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def _schema(arrow: Any) -> Any:
    text = arrow.string()
    message = arrow.struct({"role": text, "content": text})
    truth = arrow.struct({"target": arrow.list_(text)})
    names = ("id", "question", "split", "type", "kind", "supporting_titles", "gold_passage_ids", "parts")
    info = arrow.struct({"index": arrow.int64(), **dict.fromkeys(names, text)})
    return arrow.schema(
        {
            "data_source": text,
            "prompt": arrow.list_(message),
            "ability": text,
            "reward_model": arrow.struct({"style": text, "ground_truth": truth}),
            "extra_info": info,
        }
    )


def _groups(questions: Iterable[Question]) -> Iterator[list[Question]]:
    group: list[Question] = []
    for question in questions:
        group.append(question)
        if len(group) == _ROW_GROUP:
            yield group
            group = []
    if group:
        yield group


def check_file(path: str | os.PathLike[str], dialect: str | None, reward: RewardSettings) -> int:
    """Refuse, before a GPU is taken, a file verl or the agent loop would stumble over; returns how many rows it has."""
    name = os.fspath(path)
    if not Path(path).is_file():
        raise UsageError(f"there is no file '{name}'; {HOW_TO}")
    file = ParquetRecords(path)
    _check_columns(name, {field.name: field.type for field in file.schema})
    for batch in file.batches():
        _check_batch(name, batch, dialect, reward)
    return file.num_rows


def _check_columns(name: str, types: Mapping[str, Any]) -> None:
    for column, inner in _NEEDED.items():
        if column not in types:
            raise DataError(name, None, f"is missing (found {', '.join(types) or 'no columns'}); {HOW_TO}", column)
        kind = types[column]
        fields = [kind.field(number).name for number in range(kind.num_fields)] if inner else []
        for key in inner:
            if key not in fields:
                raise DataError(name, None, f"is missing; {HOW_TO}", f"{column}.{key}")


def _check_batch(name: str, rows: Sequence[Mapping[str, Any]], dialect: str | None, reward: RewardSettings) -> None:
    questions = [question_of_row(row) for row in rows]
    talk = open_dialect(dialect)
    for number, (row, question) in enumerate(zip(rows, questions, strict=True), start=1):
        content = row["prompt"][0]["content"] if row["prompt"] else None
        if content != talk.prompt(question.question):
            raise DataError(
                name,
                number,
                f"is not the prompt that rollout.dialect = '{talk.name}' asks with, so verl would count other tokens than "
                f"are sent; {HOW_TO} --dialect {talk.name}",
                "prompt",
            )
    check_questions(questions, reward, name)
