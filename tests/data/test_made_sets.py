"""Sets made on this machine, sealed splits, leaks by name, long answers; the published hashes where the data folder is."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallelsearch.answers import list_forms, string_accuracy
from parallelsearch.data import leaks, made, sealed
from parallelsearch.data.leaks import find_leaks, held_out, held_out_texts, names_keys
from parallelsearch.data.long_answers import label
from parallelsearch.data.made import Material, as_lines, made_set
from parallelsearch.data.questions import shipped
from parallelsearch.data.sets import load_questions, training_pool
from parallelsearch.data.sources import SOURCES, Source
from parallelsearch.errors import UsageError
from parallelsearch.trajectory import Question, QuestionPart


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLELSEARCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "data"


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- sets that are made ----------------------------------------------------------------------------------------------

ASKED = Question(
    "Who is older, A or B?", ["A"], "m1", metadata={"wide": {"form": "first_of"}}, parts=[QuestionPart(["A"])]
)


def two(material: Material) -> list[Question]:
    """A maker for the tests: one question for each page."""
    return [replace(ASKED, id=passage.id) for passage in material.passages]


def test_a_made_set_is_kept_only_if_its_hash_is_right(folder: Path) -> None:
    for stem in made.CORPUS:
        write(folder / f"{stem}.jsonl", [{"id": stem[-3:], "title": "T", "text": "t"}])
    digest = hashlib.sha256(as_lines(two(Material())).encode()).hexdigest()
    source = Source("pair", {"dev": ""}, maker=f"{__name__}:two", sha256=digest)
    questions, told, warnings = made_set(source)
    assert (len(questions), warnings, told["sha256"]) == (2, [], digest)
    assert questions[0].parts == [QuestionPart(["A"])]
    assert questions[0].metadata == {"wide": {"form": "first_of"}}
    for stem in made.CORPUS:
        (folder / f"{stem}.jsonl").unlink()
    assert made_set(source)[0] == questions, "read from where it was kept"
    (kept,) = made.cache_folder().glob("pair-*.jsonl")
    kept.write_text(kept.read_text().replace("older", "taller"))
    with pytest.raises(UsageError, match="'corpus/multihop_passages' is not in it"):
        made_set(source)


def test_other_passages_give_another_set_and_it_says_so(folder: Path) -> None:
    for stem in made.CORPUS:
        write(folder / f"{stem}.jsonl", [{"id": stem, "title": "T", "text": "t"}])
    source = Source("pair", {"dev": ""}, maker=f"{__name__}:two", sha256="0" * 64)
    _, _, warnings = made_set(source)
    assert "made from other passages" in warnings[0]
    assert not list(made.cache_folder().glob("*"))


@pytest.mark.slow
@pytest.mark.shared_data
@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.maker])
@pytest.mark.usefixtures("data_dir")
def test_published_sets_are_the_same_everywhere(
    name: str, material: Material, has_real_data: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = SOURCES[name]
    questions, told, warnings = made_set(source, material)
    if not has_real_data:  # from the small ones another set is made, and said to be another
        assert told["sha256"] != source.sha256
        assert "made from other passages" in warnings[0]
        return
    assert (told["sha256"], warnings) == (source.sha256, [])
    assert len(questions) == source.num_published["all"]
    for subset in ("par", "mixed"):
        if subset in source.num_published:
            kind = {"par": "parallel", "mixed": "mixed"}[subset]
            assert sum(question.kind == kind for question in questions) == source.num_published[subset]


@pytest.fixture(scope="module")
def material() -> Material:
    return Material()


# ---- sealed splits ---------------------------------------------------------------------------------------------------


def test_a_sealed_split_is_opened_on_purpose_and_that_is_written_down(folder: Path) -> None:
    row = {"id": "s", "question": "Sealed?", "golden_answers": ["x"], "dataset": "2wikimultihopqa", "split": "train"}
    write(folder / "2wikimultihopqa" / "train_context.jsonl", [row])
    with pytest.raises(UsageError, match=r"'2wikimultihopqa test' is sealed.*--open-sealed"):
        load_questions("2wikimultihopqa", split="test")
    assert sealed.openings("2wikimultihopqa test") == []
    first = load_questions("2wiki", split="test", opens_sealed=True)
    assert "never on this machine" in next(w for w in first.warnings if "sealed" in w)
    again = load_questions("2wiki", split="test", opens_sealed=True)
    (when, _) = sealed.openings("2wikimultihopqa test")
    assert when in next(warning for warning in again.warnings if "sealed" in warning)


def test_a_sealed_split_is_never_trained_on(folder: Path) -> None:
    row = {"id": "s", "question": "Sealed?", "golden_answers": ["x"], "dataset": "2wikimultihopqa", "split": "train"}
    write(folder / "2wikimultihopqa" / "train_context.jsonl", [row])
    gold = {**row, "all_gold_in_corpus": True}
    other = {**gold, "id": "o", "question": "Open?", "dataset": "hotpotqa", "type": "bridge"}
    write(folder / "corpus" / "questions_with_gold.jsonl", [gold, other])
    assert [q.id for q in load_questions("questions_with_gold", split="train")] == ["o"]
    assert [leak.file for leak in find_leaks([Question("sealed")])] == ["2wikimultihopqa/train_context.jsonl"]
    with pytest.raises(UsageError, match="sealed"):
        training_pool("2wikimultihopqa", split="test")


# ---- leaks by name ---------------------------------------------------------------------------------------------------


def test_the_same_two_names_are_a_leak_in_other_words(folder: Path) -> None:
    dev = {
        "id": "d",
        "question": "Who is older, Ada Brenn or Carl Dorn?",
        "golden_answers": ["x"],
        "type": "comparison",
    }
    bridge = {"id": "b", "question": "Where was the director of Blue Gate born?", "golden_answers": ["x"],
              "type": "bridge", "supporting_titles": ["Blue Gate (film)", "Ira Moss"]}  # fmt: skip
    write(folder / "hotpotqa" / "dev.jsonl", [{**dev, "dataset": "hotpotqa"}, {**bridge, "dataset": "hotpotqa"}])
    known = held_out()

    def by(text: str, kind: Any = "parallel", titles: list[str] | None = None) -> str | None:
        leaks = find_leaks([Question(text, kind=kind, supporting_titles=titles)], known)
        return leaks[0].by if leaks else None

    assert by("Who is OLDER, Ada Brenn or Carl Dorn") == "text"
    assert by("Which painter died first, Carl Dorn or Ada Brenn?") == "names"
    assert by("Which painter died first, Carl Dorn or Tom Hale?") is None
    assert by("Who made it?", "sequential", ["Ira Moss", "Blue Gate"]) == "names"
    assert by("Who made it?", "sequential", ["Ira Moss", "Iron Lake"]) is None
    train = [{"id": "t", "question": "Which painter died first, Carl Dorn or Ada Brenn?", "golden_answers": ["x"],
              "type": "comparison"}, {"id": "u", "question": "New?", "golden_answers": ["x"], "type": "bridge"}]  # fmt: skip
    write(folder / "hotpotqa" / "train_qa.jsonl", train)
    pool = training_pool("hotpotqa")
    assert [question.id for question in pool] == ["u"]
    assert "1 questions left out because an evaluation file has them, 1 of them with other words" in pool.warnings[-1]


def test_what_is_held_out_is_kept_and_is_never_older_than_the_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"question": "Who is older, Ada Brenn or Carl Dorn?", "dataset": "hotpotqa", "type": "comparison"},
        {
            "question": "Où est né l’auteur ?",
            "dataset": "hotpotqa",
            "supporting_titles": ["Blue Gate (film)", "Ira Moss"],
        },
    ]
    dev, mixed = folder / "hotpotqa" / "dev.jsonl", folder / "corpus" / "questions_of_all.jsonl"
    write(dev, rows)
    write(mixed, [{"question": "New one?", "split": "dev"}, {"question": "For training?", "split": "train"}])

    def as_told() -> dict[str, str]:
        """What one start writes down, the next one reads without the questions' files being read again."""
        known, texts = held_out(), held_out_texts()
        with monkeypatch.context() as patch:
            patch.setattr(leaks, "read_records", None)
            assert (held_out(), held_out_texts()) == (known, texts)
        assert known == leaks._keys_in(leaks._held_out_files())
        return known

    first = as_told()
    names = {"ada brenn\x1fcarl dorn", "blue gate\x1fira moss"}
    own = {key: file for key, file in first.items() if not file.startswith("demo/")}
    assert own == dict.fromkeys(
        [*names, "who is older ada brenn or carl dorn", "où est né lauteur"], "hotpotqa/dev.jsonl"
    ) | {"new one": "corpus/questions_of_all.jsonl"}
    assert held_out_texts() == {key for key in first if "\x1f" not in key}
    status = dev.stat()
    dev.write_text(dev.read_text().replace("Carl Dorn", "Carl Horn"))  # as long, and of the same time
    os.utime(dev, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert set(as_told()) - set(first) == {"who is older ada brenn or carl horn", "ada brenn\x1fcarl horn"}
    kept = made.cache_folder() / "held-out.json"
    for damaged in (kept.read_text().replace("carl horn", "carl corn"), "", "{}"):
        kept.write_text(damaged)
        assert "who is older ada brenn or carl horn" in as_told()
    kept.unlink()
    kept.mkdir()  # nothing can be kept
    assert held_out() == leaks._keys_in(leaks._held_out_files())


def test_a_question_of_one_thing_has_no_key() -> None:
    assert names_keys("Who wrote Emma?", ["Emma"], "single") == set()
    assert names_keys("Are A Bee and C Dee both bands?", None, "parallel") == {"bee\x1fc dee"}


# ---- long answers ----------------------------------------------------------------------------------------------------

STEPS = [
    {"id": "r", "question": "Who are the members of Trio X?", "depends_on": [], "evidence": {"title": "Trio X (band)"}},
    {"id": "a", "question": "When was Ada Brenn born?", "depends_on": ["r"], "evidence": {"title": "Ada Brenn"}},
    {
        "id": "n",
        "question": "Where did Carl Dorn's teacher live?",
        "depends_on": ["r"],
        "decomposition": [
            {"id": "n1", "question": "Who taught Carl Dorn?", "depends_on": [], "evidence": {"title": "Carl Dorn"}},
            {"id": "n2", "question": "Where did Tom Hale live?", "depends_on": ["n1"], "evidence": {"title": "Tom Hale"}},
        ],
    },
]  # fmt: skip


def test_the_graph_of_a_written_decomposition_gives_parts_rounds_and_kind() -> None:
    question = Question("?", ["x"], dataset="fanoutqa", metadata={"decomposition": STEPS})
    label(question)
    assert question.kind == "mixed"
    parts = {part.names[0]: part.round for part in question.parts}
    assert parts == {"Trio X (band)": 1, "Ada Brenn": 2, "Carl Dorn": 2, "Tom Hale": 3}
    assert "Trio X" in question.parts[0].names
    assert [node["needs"] for node in question.metadata["graph"]] == [[], [1], [1], [1, 3]]


def test_links_become_titles() -> None:
    links = ["https://en.wikipedia.org/wiki/Ada_Brenn_(painter)#Life", "https://en.wikipedia.org/wiki/Caf%C3%A9"]
    question = Question("?", ["x"], dataset="frames", metadata={"wiki_links": links})
    label(question)
    assert question.supporting_titles == ["Ada Brenn (painter)", "Café"]


def test_string_accuracy_is_the_share_of_strings_found() -> None:
    assert (
        string_accuracy("Right for Pat Burrell, left for Mark Mulder", {"Pat Burrell": "Right", "Mark Mulder": "Left"})
        == 1
    )
    assert string_accuracy("Pat Burrell: right", {"Pat Burrell": "Right", "Mark Mulder": "Left"}) == 0.5
    assert string_accuracy("It was 1,204, I think", 1204) == 1
    assert string_accuracy("no", False) == 1
    assert string_accuracy("Oslo and Bergen", ["Bergen", "Oslo", "Lund"]) == pytest.approx(2 / 3)
    assert string_accuracy("Lundby", ["Lund"]) == 0, "on word boundaries"
    assert string_accuracy(None, "x") == 0


def test_a_list_may_be_joined_in_three_ways() -> None:
    assert list_forms(["A", "B", "C"]) == ["A, B and C", "A, B, C", "A and B and C"]
    assert list_forms(["A"]) == ["A"]


def test_the_traps_look_like_chains_and_are_none() -> None:
    traps = load_questions("traps").questions
    assert len(traps) == 60
    assert {question.kind for question in traps} == {"parallel"}
    assert {question.metadata["trap"] for question in traps} == {"looks_sequential"}
    assert all(len(question.metadata["graph"]) >= 2 for question in traps)
    assert all(not node["needs"] for question in traps for node in question.metadata["graph"])
    dependency = {q.question for q in load_questions("dependency")}
    assert not dependency & {question.question for question in traps}
    assert shipped("traps.jsonl").is_file()
