"""The benchmark files in small, for machines without the real ones: the same folders, names and columns, with questions and
passages written for this package. What a test checks on the real data it checks on these too, with their own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zstandard

from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions

COMPARISONS = [
    ("Which is longer, the Danube or the Rhine?", "Danube"),
    ("Is the Danube longer than the Rhine?", "yes"),
    ("Who is older, Claude Monet or Camille Pissarro?", "Camille Pissarro"),
    ("What do the Danube and the Rhine have in common?", "both are rivers"),
]
LABELLED = ("Who was born first, Frank I. Cobb or Joseph Pulitzer?", "Joseph Pulitzer")  # one of the set `verified`
BRIDGES = [
    ("Who wrote the novel on which the film Rebecca is based?", "Daphne du Maurier"),
    ("In which year was the painter of Impression, Sunrise born?", "1840"),
]
MIXED = [("Which film has the director who was born earlier, Rebecca or Rashomon?", "Rebecca")]
SINGLE = [("When was Claude Monet born?", "1840"), ("Who painted Guernica?", "Pablo Picasso")]
ONLY_IN_TRAIN = ("Who composed the opera Aida?", "Giuseppe Verdi")

SIZES = {
    "seven": 4 + 1 + 2 + 4 + 2 + 1 + 2 * 5,
    "hotpotqa-par": 4,
    "hotpotqa-seq": 3,
    "2wiki-par": 4,
    "2wiki-seq": 2,
    "2wiki-mixed": 1,
    "fanoutqa": 4,
    "frames": 4,
    "strategyqa": 4,
    "webquestions": 2,
    "questions_with_gold": 178,
    "verified": 1,
    "dependency": 200,
}
CHANCE = {"hotpotqa-par": 0.375, "hotpotqa-seq": 1 / 6, "2wiki-par": 0.375, "2wiki-mixed": 0.5, "nq": 0.0}
NUM_PASSAGES, MIN_RECALL = 522, 0.66


def write_small_data(folder: Path) -> Path:
    """All files under a folder, which is then what PARALLELSEARCH_DATA points at."""
    hotpotqa = rows(COMPARISONS, "comparison") + rows([*BRIDGES, LABELLED], "bridge")
    two_wiki = rows(COMPARISONS, "comparison") + rows(BRIDGES, "compositional") + rows(MIXED, "bridge_comparison")
    _write(folder / "hotpotqa" / "dev", hotpotqa)
    _write(folder / "2wikimultihopqa" / "dev", two_wiki)
    for name in ("nq/test", "triviaqa/test", "popqa/test", "musique/dev", "bamboogle/test", "webquestions/test"):
        _write(folder / name, rows(BRIDGES if name.startswith(("musique", "bamboogle")) else SINGLE))
    _write(folder / "nq" / "train_subset", rows([*SINGLE, ONLY_IN_TRAIN]))
    for name in ("hotpotqa/train_qa", "strategyqa/train", "musique/train", "webquestions/train"):
        _write(folder / name, [{**row, "split": "train"} for row in rows([ONLY_IN_TRAIN])])
    for name in ("fanoutqa/dev", "frames/test", "strategyqa/dev"):
        _write(folder / name, rows(COMPARISONS))
    passages = demo.passages()
    ids: dict[str, list[str]] = {}
    for passage in passages:
        ids.setdefault(passage.title, []).append(passage.id)
    gold = [
        {
            "id": question.id,
            "question": question.question,
            "golden_answers": question.golden_answers,
            "split": "dev",
            "all_gold_in_corpus": number > 0,  # one whose evidence is said to be missing
            "gold_passage_ids": {title: ids[title] for title in question.supporting_titles or []},
        }
        for number, question in enumerate(demo_questions())
    ]
    _write(folder / "corpus" / "questions_with_gold", gold)
    texts = [{"id": passage.id, "title": passage.title, "text": passage.text} for passage in passages]
    _write(folder / "corpus" / "multihop_passages", texts)
    aida = {
        "id": "b1",
        "title": "Aida",
        "text": "Aida is an opera in four acts by Giuseppe Verdi, first given in Cairo in 1871.",
    }
    _write(folder / "corpus" / "wiki_background_chunks", [aida])
    return folder


def rows(pairs: list[tuple[str, str]], type: str | None = None) -> list[dict[str, Any]]:
    return [
        {"id": f"{type}-{number}", "question": question, "golden_answers": [answer], "type": type}
        for number, (question, answer) in enumerate(pairs)
    ]


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.with_name(f"{path.name}.jsonl.zst").write_bytes(zstandard.compress(text.encode()))
