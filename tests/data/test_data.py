"""Questions and data sets: by name and from files, counted, cut into subsets, kept out of training."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

import small_data
from parallelsearch.data import sets as datasets
from parallelsearch.data.leaks import LeakError, find_leaks, refuse_leaks
from parallelsearch.data.parts import parts_of
from parallelsearch.data.questions import (
    demo_questions,
    question_from_dict,
    read_questions,
    shipped,
)
from parallelsearch.data.sets import load_questions, training_pool
from parallelsearch.data.sources import kind_of
from parallelsearch.errors import DataError, UsageError
from parallelsearch.evaluation.chance import chance_em
from parallelsearch.evaluation.metrics import expected_plan
from parallelsearch.files import read_jsonl
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.trajectory import Question

ROWS: list[dict[str, Any]] = [
    {"id": "c1", "question": "Who is older, A or B?", "golden_answers": ["A"], "type": "comparison"},
    {"id": "b1", "question": "Who is the mother of the author of C?", "golden_answers": ["D"], "type": "bridge"},
    {"id": "b2", "question": "Where was the director of E born?", "golden_answers": ["F"], "type": "bridge"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    elif path.suffix == ".gz":
        data = gzip.compress(data)
    path.write_bytes(data)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLELSEARCH_DATA", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


# ---- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "type", "kind"),
    [
        ("hotpotqa", "comparison", "parallel"),
        ("hotpotqa", "bridge", "sequential"),
        ("2wikimultihopqa", "bridge_comparison", "mixed"),
        ("2wikimultihopqa", "inference", "sequential"),
        ("multihop-rag", "comparison_query", "parallel"),
        ("multihop-rag", "null_query", None),
        ("musique", "multihop", "sequential"),
        ("bamboogle", None, "sequential"),
        ("nq", None, "single"),
        ("frames", "Tabular reasoning", None),
        (None, None, None),
    ],
)
def test_the_kind_a_type_implies(dataset: str | None, type: str | None, kind: str | None) -> None:
    assert kind_of(dataset, type) == kind


def test_the_fields_spelling_is_understood() -> None:
    question = question_from_dict(
        {
            "id": 7,
            "query": "Who is older, A or B?",
            "answer": "A",
            "dataset": "hotpotqa",
            "metadata": {
                "type": "comparison",
                "level": "hard",
                "supporting_facts": {"title": ["A", "A", "B"], "sent_id": [0, 1, 0]},
                "context": {"title": ["A"], "content": ["long"]},
            },
        }
    )
    assert (question.id, question.golden_answers, question.kind) == ("7", ["A"], "parallel")
    assert question.supporting_titles == ["A", "B"]
    assert question_from_dict({"question": "Q?", "golden_answers": None}).golden_answers == []
    assert question.metadata is not None
    assert question.metadata["level"] == "hard"
    assert "context" not in question.metadata


def test_of_supporting_facts_only_titles_are_kept() -> None:
    for facts in ({"title": [1, ["b"], "A"]}, [[1, 0], [["b"], 0], ["A", 0]]):
        assert question_from_dict({"question": "q?", "supporting_facts": facts}).supporting_titles == ["A"]


@pytest.mark.parametrize("source", ["hotpotqa", "searchR1_hotpotqa"])
def test_a_row_for_verl_is_understood(source: str) -> None:
    row = {
        "id": "train_0",
        "question": "Which is older, the Danube or the Rhine?",
        "golden_answers": ["the Danube"],
        "data_source": source,
        "prompt": [{"role": "user", "content": "Answer the question."}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["the Danube"]}},
        "extra_info": {"split": "train", "index": 0, "type": "comparison"},
    }
    question = question_from_dict(row)
    assert (question.dataset, question.type, question.kind) == ("hotpotqa", "comparison", "parallel")
    assert question.metadata == {"ability": "fact-reasoning", "split": "train", "index": 0}
    # the package's own fields win, and metadata over extra_info
    question = question_from_dict({**row, "dataset": "nq", "metadata": {"type": "bridge"}})
    assert (question.dataset, question.type, question.kind) == ("nq", "bridge", "single")


def test_an_own_kind_wins_over_the_implied_one() -> None:
    assert question_from_dict({"question": "Q?", "dataset": "nq", "kind": "parallel"}).kind == "parallel"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ([], "expected an object"),
        ({"id": "1"}, "field 'question': is missing"),
        ({"question": " "}, "field 'question': is empty"),
        ({"question": 3}, "field 'question'"),
        ({"question": "Q?", "golden_answers": [None]}, "golden_answers.0"),
        ({"question": "Q?", "kind": "paralel"}, "field 'kind'"),
    ],
)
def test_a_bad_record_is_named(record: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        question_from_dict(record, "f.jsonl", 4)


@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz", "q.jsonl.zst"])
def test_files_of_every_form_hold_the_same(tmp_path: Path, name: str) -> None:
    assert [q.id for q in read_questions(write(tmp_path / name, ROWS))] == ["c1", "b1", "b2"]


def test_parquet_holds_the_same_and_a_false_one_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "q.parquet")
    assert list(read_questions(tmp_path / "q.parquet")) == list(read_questions(write(tmp_path / "q.jsonl", ROWS)))
    (tmp_path / "false.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(DataError, match="damaged, or not Parquet"):
        list(read_questions(tmp_path / "false.parquet"))
    with pytest.raises(UsageError, match="there is no file"):
        list(read_questions(tmp_path / "none.parquet"))


def test_a_missing_id_is_made_from_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"question": "Q?"}])
    assert next(read_questions(path)).id == "mine-1"


# ---- what comes with the package -------------------------------------------------------------------------------------


def test_the_demo_questions_are_whole() -> None:
    questions = demo_questions()
    assert len(questions) > 100
    assert all(question.golden_answers and question.kind for question in questions)
    assert len({question.id for question in questions}) == len(questions)


def test_the_dependency_set_is_two_hundred_labelled_graphs() -> None:
    questions = load_questions("dependency").questions
    assert len(questions) == 200
    assert len({question.question.casefold() for question in questions}) == 200
    assert len({question.id for question in questions}) == 200
    kinds = [question.kind for question in questions]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "parallel": 60,
        "sequential": 60,
        "mixed": 40,
        "single": 40,
    }
    traps = [(question.metadata or {})["trap"] for question in questions]
    assert traps.count("looks_parallel") >= 40
    assert traps.count("looks_sequential") >= 15


def test_every_graph_fits_its_kind() -> None:
    for question in load_questions("dependency").questions:
        graph = (question.metadata or {})["graph"]
        seen: set[int] = set()
        for node in graph:
            assert set(node["needs"]) <= seen, question.id
            assert node["query"].strip()
            seen.add(node["id"])
        roots = [node for node in graph if not node["needs"]]
        chained = [node for node in graph if node["needs"]]
        assert {
            "parallel": len(roots) >= 2 and not chained,
            "sequential": len(roots) == 1
            and all(node["needs"] == [node["id"] - 1] for node in chained)
            and bool(chained),
            "mixed": bool(chained) and len(graph) >= 3,
            "single": len(graph) == 1,
        }[question.kind or ""], question.id
        trap = (question.metadata or {})["trap"]
        assert trap is None or (trap == "looks_sequential") == (question.kind == "parallel"), question.id


# ---- by name ---------------------------------------------------------------------------------------------------------


def test_a_set_is_found_by_name_and_its_count_is_checked(folder: Path) -> None:
    write(folder / "hotpotqa" / "dev.jsonl.zst", ROWS)
    found = load_questions("hotpotqa")
    assert [question.kind for question in found] == ["parallel", "sequential", "sequential"]
    assert found.warnings == ["hotpotqa dev: 3 questions found, 7405 published; scores are over what was found"]
    record = found.describe()
    assert record["num_questions"] == 3
    assert record["sources"][0]["file"] == "dev.jsonl.zst"
    assert str(folder) not in json.dumps(record)


def test_subsets_are_cut_as_the_paper_cuts_them(folder: Path) -> None:
    write(folder / "hotpotqa" / "dev.jsonl", ROWS)
    assert [q.id for q in load_questions("hotpotqa-par")] == ["c1"]
    assert [q.id for q in load_questions("HotpotQA-seq")] == ["b1", "b2"]
    assert [q.id for q in load_questions("hotpotqa", subset="seq")] == ["b1", "b2"]
    assert "1487 published" in load_questions("hotpotqa-par").warnings[-1]
    with pytest.raises(UsageError, match=r"no mixed questions.*sequential 2, parallel 1"):
        load_questions("hotpotqa-mixed")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hotpot", "Did you mean 'hotpotqa'"),
        ("hotpotqa-paralel", r"hotpotqa-par, hotpotqa-seq"),
        ("nothing", "the sets are nq"),
        ("nothing.jsonl", "there is no file"),
        (" , ", "a data set or a file"),
    ],
)
def test_an_unknown_name_names_the_right_ones(folder: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_questions(name)


def test_unknown_subsets_splits_and_limits_are_named(folder: Path) -> None:
    write(folder / "hotpotqa" / "dev.jsonl", ROWS)
    with pytest.raises(UsageError, match=r"no subset 'part'.*par, seq, single, mixed"):
        load_questions("hotpotqa", subset="part")
    with pytest.raises(UsageError, match="has no split 'test'; it has dev, train"):
        load_questions("hotpotqa", split="test")
    with pytest.raises(UsageError, match="at least 1"):
        load_questions("hotpotqa", limit=0)


def test_a_set_that_is_not_here_says_where_to_put_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"put it at .*fanoutqa/dev.jsonl"):
        load_questions("fanoutqa")
    monkeypatch.delenv("PARALLELSEARCH_DATA")
    with pytest.raises(UsageError, match=r"set PARALLELSEARCH_DATA to a folder that has fanoutqa/dev.jsonl"):
        load_questions("fanoutqa")


def test_without_a_network_it_says_so_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    pytest.importorskip("datasets")  # which takes a while by itself
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"MultiHopRAG cannot be reached; put it at .*multihop-rag/test.jsonl"):
        load_questions("multihop-rag")
    assert time.monotonic() - start < 120


def test_the_hub_is_asked_when_there_is_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `datasets` library, on a repository that lies on disk."""
    pytest.importorskip("datasets")
    hub = folder / "hub"
    rows = [{"id": "t1", "question": "Who?", "golden_answers": ["A"], "metadata": {"type": "comparison"}}]
    write(hub / "hotpotqa" / "dev.jsonl", rows)
    (hub / "README.md").write_text(
        "---\nconfigs:\n- config_name: hotpotqa\n  data_files:\n  - split: dev\n    path: hotpotqa/dev.jsonl\n---\n"
    )
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
    source = replace(datasets.SOURCES["hotpotqa"], num_published={}, hub=(str(hub), "hotpotqa"))
    monkeypatch.setitem(datasets.SOURCES, "hotpotqa", source)
    found = load_questions("hotpotqa")
    assert [(q.id, q.dataset, q.kind) for q in found] == [("t1", "hotpotqa", "parallel")]
    assert found.sources[0]["hub"] == str(hub)


def test_a_limit_is_a_seeded_draw_in_file_order(folder: Path) -> None:
    rows = [{"id": f"q{n:03d}", "question": f"Question {n}?", "golden_answers": ["x"]} for n in range(100)]
    path = write(folder / "mine.jsonl", rows)
    ten = [q.id for q in load_questions(path, limit=10)]
    assert ten == sorted(ten)
    assert ten == [q.id for q in load_questions(path, limit=10)]
    assert ten != [q.id for q in load_questions(path, limit=10, seed=1)]
    assert set(ten) <= {q.id for q in load_questions(path, limit=20)}
    assert len(load_questions(path, limit=1000)) == 100


def test_several_sets_are_joined_and_ids_stay_unique(folder: Path) -> None:
    write(folder / "nq" / "test.jsonl", [{"id": "1", "question": "A?", "golden_answers": ["x"]}])
    write(folder / "popqa" / "test.jsonl", [{"id": "1", "question": "B?", "golden_answers": []}] * 2)
    found = load_questions("nq,popqa")
    assert [question.id for question in found] == ["1", "popqa:1", "popqa:1#2"]
    assert any("made unique" in warning for warning in found.warnings)
    assert any("no golden answer" in warning for warning in found.warnings)


@pytest.mark.parametrize("field", ["golden_answers", "answer"])
def test_a_number_is_an_answer_as_it_is_written(folder: Path, field: str) -> None:
    rows = [{"question": f"{n}?", field: value} for n, value in enumerate((1840, [1840, "in 1840"], 0.5))]
    found = load_questions(write(folder / "mine.jsonl", rows)).questions
    assert [one.golden_answers for one in found] == [["1840"], ["1840", "in 1840"], ["0.5"]]


@pytest.mark.parametrize(
    "graph", [[["Monet", "born", "1840"]], [{"id": 0, "query": "a"}], [{"id": 0, "query": "a", "needs": [1]}], "x", [3]]
)
def test_a_field_called_graph_that_is_none_is_left_alone(graph: Any) -> None:
    question = question_from_dict({"question": "A or B?", "kind": "parallel", "graph": graph}, "f", 1)
    assert expected_plan("parallel", graph) == (True, 1)
    found = parts_of(question)
    assert found is None or found[1] != "graph"


def test_the_first_round_is_one() -> None:
    record = {"question": "A or B?", "parts": [{"names": ["A"], "round": 0}]}
    with pytest.raises(DataError, match="the first round is 1, not 0"):
        question_from_dict(record, "f", 1)


def test_a_table_of_questions(folder: Path) -> None:
    (folder / "mine.csv").write_text('ID,Question,Answer,level\n7,A?,b,\n,"C, and\nD?","[""e"", ""f""]",hard\n')
    first, second = load_questions(str(folder / "mine.csv"))
    assert (first.id, first.question, first.golden_answers, first.metadata) == ("7", "A?", ["b"], None)
    assert (second.id, second.question, second.golden_answers) == ("mine-4", "C, and\nD?", ["e", "f"])
    assert second.metadata == {"level": "hard"}
    with gzip.open(folder / "mine.tsv.gz", "wt") as file:
        file.write("query\tgolden_answers\nA, b?\t1840\n")
    [packed] = load_questions(str(folder / "mine.tsv.gz"))
    assert (packed.question, packed.golden_answers) == ("A, b?", ["1840"])
    (folder / "corpus.csv").write_text("id,title,text\n1,a,b\n")
    with pytest.raises(DataError, match=r"corpus\.csv, line 2: field 'question': is missing \(found id, title, text\)"):
        load_questions(str(folder / "corpus.csv"))
    (folder / "german.csv").write_bytes(b"question;answer\r\nWhat is 1,5 and 2?;3,5\r\n")
    [question] = load_questions(str(folder / "german.csv"))
    assert (question.question, question.golden_answers) == ("What is 1,5 and 2?", ["3,5"])
    (folder / "torn.csv").write_text("question,answer\nA?,b,c\n")
    with pytest.raises(DataError, match=r"torn\.csv, line 2: has 3 fields, and the header has 2"):
        load_questions(str(folder / "torn.csv"))


def test_the_official_files_of_hotpotqa_and_2wiki(folder: Path) -> None:
    record = {
        "_id": "5a8b57f25542995d1e6f1371",
        "question": "Were Scott Derrickson and Ed Wood of the same nationality?",
        "answer": "yes",
        "type": "comparison",
        "level": "hard",
        "supporting_facts": [["Scott Derrickson", 0], ["Ed Wood", 0], ["Ed Wood", 3]],
        "context": [["Ed Wood", ["Edward Davis Wood Jr. was an American filmmaker."]]],
    }
    (folder / "hotpot_dev_fullwiki_v1.json").write_text(json.dumps([record, {**record, "_id": "2"}]))
    first, second = load_questions(str(folder / "hotpot_dev_fullwiki_v1.json"))
    assert (first.id, second.id) == ("5a8b57f25542995d1e6f1371", "2")
    assert (first.golden_answers, first.type) == (["yes"], "comparison")
    assert first.supporting_titles == ["Scott Derrickson", "Ed Wood"]
    assert "context" not in (first.metadata or {})


def test_a_cell_that_is_nested_too_deeply_for_json_is_a_text(folder: Path) -> None:
    cell = "[" * 100_000
    (folder / "deep.csv").write_text(f"question,answer\nq?,{cell}\n")
    [question] = load_questions(folder / "deep.csv")
    assert question.golden_answers == [cell]


def test_an_empty_file_is_an_error(folder: Path) -> None:
    (folder / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no questions"):
        load_questions(folder / "empty.jsonl")


# ---- a corpus that is not Wikipedia ----------------------------------------------------------------------------------


def test_the_debian_script_makes_questions_whose_answers_stand_in_its_corpus(tmp_path: Path) -> None:
    sections = ("games", "admin", "utils")
    lines = []
    for n in range(240):
        needs = f"Depends: tool{(n * 7) % 120 + 120} (>= 1.{n}), libc6 | libc7\n" if n < 120 else ""
        lines.append(
            f"Package: tool{n}\nInstalled-Size: {3 ** (n % 9) + n}\nMaintainer: Team {n} <t{n}@example.org>\n{needs}"
            f"Description: a tool of number {n}\n more text\nSection: {sections[n % 2] if n < 120 else sections[2]}\n\n"
        )
    (tmp_path / "Packages").write_text("".join(lines) + "Package: broken\n")
    script = Path(__file__).parents[2] / "scripts" / "debian_corpus.py"
    options = ["--out", str(tmp_path / "out"), "--passages", "200", "--questions", "40"]
    subprocess.run([sys.executable, str(script), str(tmp_path / "Packages"), *options], check=True, capture_output=True)
    passages = {p.title: p.text for p in read_passages(tmp_path / "out" / "corpus.jsonl")}
    asked = list(read_questions(tmp_path / "out" / "questions.jsonl"))
    assert len(passages) == 200
    assert [question.kind for question in asked] == ["parallel"] * 20 + ["sequential"] * 20
    answers = [question.golden_answers[0] for question in asked]
    assert (answers.count("yes"), answers.count("no")) == (5, 5)
    assert {chance_em(q.question, q.golden_answers) for q in asked if q.kind == "parallel"} == {0.5}
    for question in asked:
        first, second = question.supporting_titles or []
        assert {first, second} <= passages.keys()
        if question.type == "larger":
            sizes = {
                title: int(passages[title].partition("takes ")[2].partition(" kB")[0]) for title in (first, second)
            }
            assert question.golden_answers == [max(sizes, key=sizes.__getitem__)]
        elif question.type == "dependency":
            assert f"depends on {second}." in passages[first]
            assert question.golden_answers[0] in passages[second]
    hyphened = (tmp_path / "Packages").read_text().replace("tool", "a-tool")
    (tmp_path / "Packages").write_text(hyphened)
    command = [sys.executable, str(script), str(tmp_path / "Packages"), *options]
    assert b"too few packages" in subprocess.run(command, check=False, capture_output=True).stderr
    subprocess.run([*command, "--hyphens"], check=True, capture_output=True)
    assert len(list(read_questions(tmp_path / "out" / "questions.jsonl"))) == 40


# ---- leaks -----------------------------------------------------------------------------------------------------------


def test_a_training_question_that_is_evaluated_is_refused(folder: Path) -> None:
    write(folder / "hotpotqa" / "dev.jsonl.zst", ROWS)
    write(folder / "hotpotqa" / "train_qa.jsonl", [{"id": "t", "question": "Who is new?", "golden_answers": ["x"]}])
    write(
        folder / "corpus" / "questions_with_gold.jsonl",
        [{"question": "Dev one?", "split": "dev"}, {"question": "Train one?", "split": "train"}],
    )
    clean = [Question("Who is new?"), Question("Train one?")]
    refuse_leaks(clean)
    leaky = [*clean, Question("who is OLDER,  a or b"), Question("Dev one"), Question(demo_questions()[0].question)]
    assert [leak.file for leak in find_leaks(leaky)] == [
        "hotpotqa/dev.jsonl.zst",
        "corpus/questions_with_gold.jsonl",
        "demo/questions.jsonl",
    ]
    with pytest.raises(LeakError, match=r"3 of 5 training questions.*hotpotqa/dev.jsonl.zst"):
        refuse_leaks(leaky)


def test_the_training_pool_leaves_leaks_out_and_says_so(folder: Path) -> None:
    write(folder / "hotpotqa" / "dev.jsonl", ROWS)
    train = [{"id": f"t{n}", "question": f"New {n}?", "golden_answers": ["x"]} for n in range(5)]
    write(folder / "hotpotqa" / "train_qa.jsonl", [*train, {**ROWS[0], "id": "leak"}])
    pool = training_pool("hotpotqa")
    assert [question.id for question in pool] == [f"t{n}" for n in range(5)]
    assert any("1 questions left out" in warning for warning in pool.warnings)
    assert len(training_pool("hotpotqa", limit=2)) == 2
    with pytest.raises(UsageError, match="every question"):
        training_pool(str(folder / "hotpotqa" / "dev.jsonl"))


# ---- labels made by reading ------------------------------------------------------------------------------------------


def test_the_verified_labels_are_two_hundred_and_replace_the_data_sets(folder: Path) -> None:
    labels = [record for _, record in read_jsonl(shipped("verified.jsonl"))]
    assert len({label["text_sha256"] for label in labels}) == 200
    assert {label["kind"] for label in labels} == {"parallel", "sequential", "mixed", "single"}
    assert 5 <= sum(label["kind"] != label["data_set_kind"] for label in labels) <= 30
    text = "Who was born first, Frank I. Cobb or Joseph Pulitzer?"  # called a bridge question; it is a comparison
    write(folder / "hotpotqa" / "dev.jsonl", [*ROWS, {"id": "x", "question": text, "type": "bridge"}])
    write(folder / "2wikimultihopqa" / "dev.jsonl", ROWS)
    write(folder / "nq" / "test.jsonl", ROWS)
    found = load_questions("verified")
    assert [(question.question, question.kind) for question in found] == [(text, "parallel")]
    assert any("199 of the labelled" in warning for warning in found.warnings)


# ---- the files, real or small --------------------------------------------------------------------------------------------------


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("seven", 51_713),
        ("hotpotqa-par", 1487),
        ("hotpotqa-seq", 5918),
        ("fanoutqa", 310),
        ("frames", 824),
        ("strategyqa", 229),
        ("webquestions", 2032),
        ("questions_with_gold", 3604),
        ("verified", 200),
        ("dependency", 200),
    ],
)
def test_sets_have_their_published_sizes_or_say_so(data_dir: Path, has_real_data: bool, name: str, size: int) -> None:
    found = load_questions(name)
    assert len(found) == (size if has_real_data else small_data.SIZES[name])
    said = [warning for warning in found.warnings if "published" in warning or "labelled" in warning]
    assert bool(said) == (not has_real_data and name != "dependency")  # that one comes with the package


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "found", "published"), [("par", 2933, 3040), ("seq", 6998, 6785), ("mixed", 2645, 2751)]
)
def test_the_local_labels_of_2wiki_are_by_rule_and_the_warning_says_so(
    data_dir: Path, has_real_data: bool, name: str, found: int, published: int
) -> None:
    asked = load_questions(f"2wiki-{name}")
    found = found if has_real_data else small_data.SIZES[f"2wiki-{name}"]
    assert len(asked) == found
    expected = f"2wikimultihopqa {name}: {found} questions found, {published} published"
    assert any(expected in warning for warning in asked.warnings)


@pytest.mark.shared_data
def test_no_training_question_survives_in_an_evaluation_file(data_dir: Path) -> None:
    pool = training_pool("nq")
    refuse_leaks(pool.questions)
    assert any("left out" in warning for warning in pool.warnings)  # NQ's train file has some of the test questions


def test_small_letters_are_the_same_questions() -> None:
    plain, small = load_questions("demo-seq"), load_questions("demo-seq-small")
    assert [one.question.lower() for one in plain] == [one.question for one in small]
    assert [one.golden_answers for one in plain] == [one.golden_answers for one in small]
    assert {(one.dataset, one.kind) for one in small} == {("demo-small", "sequential")}
    assert small.name == "demo-seq-small"
    assert small.sources[0]["letters"] == "small"
    both = load_questions("demo,demo-small", limit=3)
    assert [f"{one.id}-small" for one in list(both)[:3]] == [one.id for one in list(both)[3:]], "the same draw"
    assert datasets._OTHER_NAMES["seven-small"].split(",") == [f"{name}-small" for name in datasets.SEVEN]
    with pytest.raises(UsageError, match=r"there is no data set 'demmo'.*-small for small letters"):
        load_questions("demmo-small")


def test_a_set_is_read_like_a_list():
    found = load_questions("demo", limit=5)
    assert (len(found), list(found)) == (5, found.questions)
    assert found[:2] == found.questions[:2]
    assert found[-1] is found.questions[-1]
