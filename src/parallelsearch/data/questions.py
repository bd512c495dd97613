"""Questions: read from files, checked, and labelled with the kind their data set implies.

A record may be the package's own (`id`, `question`, `golden_answers`, ...) or spelt as the field's usual files spell it
(`query`, `answer`, `metadata.type`, `data_source`); both become a `Question`. Fields beyond the contract are kept in
`metadata`. Where a named data set comes from is the business of `sets.py`, how its types split that of `sources.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallelsearch.data.sources import kind_of
from parallelsearch.errors import DataError
from parallelsearch.files import ParquetRecords, fields_of, kind_of_name, read_json_records, read_table
from parallelsearch.trajectory import Question
from parallelsearch.untrusted import whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_FIELDS = frozenset(field.name for field in fields(Question))

# The names other projects use for the same thing, best first (the released code's order).
_ALIASES: dict[str, tuple[str, ...]] = {
    "id": ("_id",),
    "question": ("query",),
    "golden_answers": ("answer", "answers", "final_answer"),
    "type": ("query_type", "category", "question_type"),
    "dataset": ("data_source",),
}
ANSWER_FIELDS = ("golden_answers", *_ALIASES["golden_answers"])
_NESTED = ("metadata", "extra_info")
"""Objects that hold more about a question, the first one's fields winning."""
_HEAVY = frozenset({"context", "passages", "contexts", "prompt", "reward_model"})
"""Whole paragraphs that some files carry with a question: they belong in a corpus, not in every question."""
_VERL_PREFIX = "searchR1_"
"""verl's own script for these sets puts it before the name of each."""


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Question]:
    from pydantic import TypeAdapter

    return TypeAdapter(Question)


def question_from_dict(record: Any, path: str = "<record>", line: int | None = None) -> Question:
    """Check one record. Fields beyond the contract are kept in `metadata`."""
    from pydantic import ValidationError

    if not isinstance(record, dict):
        raise DataError(
            path, line, f"expected an object with question and golden_answers, found {type(record).__name__}"
        )
    given, record = record, _translated(record)
    known = {name: value for name, value in record.items() if name in _FIELDS and name != "metadata"}
    extra = {name: value for name, value in record.items() if name not in _FIELDS and name not in _HEAVY}
    golden = _written(known.get("golden_answers"))
    if isinstance(golden, str | list):
        known["golden_answers"] = [_written(one) for one in golden] if isinstance(golden, list) else [golden]
    elif golden is None:
        known.pop("golden_answers", None)  # not known
    if isinstance(known.get("id"), int):
        known["id"] = str(known["id"])
    if "question" not in known:
        raise DataError(path, line, f"is missing ({fields_of(given)})", field="question")
    try:
        question = _adapter().validate_python(known)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(
            path, line, f"{first['msg']}, found {first['input']!r}", ".".join(map(str, first["loc"]))
        ) from error
    if not question.question.strip():
        raise DataError(path, line, "is empty", field="question")
    question.kind = question.kind or kind_of(question.dataset, question.type)
    question.metadata = extra or None
    return question


def _written(value: Any) -> Any:
    """A number as it is written: many files have a year or a count as one."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _translated(record: dict[str, Any]) -> dict[str, Any]:
    """The record in the package's own field names; nested objects are folded in, own fields winning."""
    result = dict(record)
    for name in _NESTED:
        inner = result.pop(name, None)
        result = {**(inner if isinstance(inner, dict) else {}), **result}
    for name, others in _ALIASES.items():
        for other in others:
            if result.get(name) is None and isinstance(_written(result.get(other)), str | list):
                result[name] = _written(result.pop(other))
    if isinstance(result.get("dataset"), str):
        result["dataset"] = result["dataset"].removeprefix(_VERL_PREFIX)
    titles = _titles(result.get("supporting_facts"))
    if result.get("supporting_titles") is None and titles:
        result["supporting_titles"] = list(dict.fromkeys(titles))
    return result


def _titles(facts: Any) -> list[str]:
    """Of the supporting facts: `[[title, sentence], ...]` in HotpotQA's own files, `{"title": [...]}` on the hub."""
    if isinstance(facts, dict):
        titles = facts.get("title")
    else:
        titles = [pair[0] for pair in facts if isinstance(pair, list) and pair] if isinstance(facts, list) else None
    return [title for title in titles if isinstance(title, str)] if isinstance(titles, list) else []


def read_records(path: str | os.PathLike[str]) -> Iterator[tuple[int, Any]]:
    """`(number, record)` of JSON Lines, a JSON array, CSV or TSV (each plain, gzip, zstd), or of a Parquet file."""
    kind = kind_of_name(path)
    if kind in (".csv", ".tsv"):
        names, rows = read_table(path)
        names = [name.lower() for name in names]
        for line, _, values in rows:
            yield line, {name: _cell(value) for name, value in zip(names, values, strict=True) if value.strip()}
    elif kind == ".parquet":
        yield from ParquetRecords(path)
    else:
        yield from read_json_records(path)


def _cell(text: str) -> Any:
    """A cell of a table: its text, or a list where it is written as JSON, as several golden answers are."""
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def read_questions(path: str | os.PathLike[str]) -> Iterator[Question]:
    """The questions of a file, in any form that `read_records` reads; an id is made where there is none."""
    for line, record in read_records(path):
        question = question_from_dict(record, str(path), line)
        if not question.id:
            question.id = whole(f"{Path(path).name.partition('.')[0]}-{line}")
        yield question


def shipped(name: str) -> Path:
    """A data file that comes with the package."""
    return Path(str(files("parallelsearch.data.demo") / name))


def demo_questions() -> list[Question]:
    """The questions that come with the package, in file order."""
    return list(read_questions(shipped("questions.jsonl")))
