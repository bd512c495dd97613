"""How good a judge is: whether it says of an answer what was written beside it by hand.

    python benchmarks/judge.py                                                    # exact match and substring match alone
    python benchmarks/judge.py --judge openai:https://api.openai.com/v1#MODEL     # and a judge
    python benchmarks/judge.py --judge gguf:model.gguf --out judged --json figures.json

`judge-cases.jsonl` has 159 answers, each with a label, 77 of them right. All were written by one hand before any judge was
asked, by the rules that the judge is told, and nobody has checked them a second time. 30 are plain. 129 are hard, and exact
match calls none of them right: sentences, paraphrases, dates and numbers more and less precise, other names and spellings,
hedges, contradictions, right names in a denial, lists with an item missing, and answers that tell the judge what to say.
They are judged as the answers of any run are (`parallelsearch judge`), by the same words, so the figures are those of the
judge that your runs will have.

Told are, each with its interval of 95%: how often a judge says what the label says, how many of the right answers it calls
right, and how many of the wrong ones. No verdict counts as a wrong one. At the end stands what the report of such a run says
of the judge without knowing the labels: would it have warned?
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallelsearch.evaluation import JudgeSettings, evaluate_answers, judge
from parallelsearch.evaluation.folder import read_rows
from parallelsearch.evaluation.metrics import Row
from parallelsearch.evaluation.report import judge_sections, notes_of
from parallelsearch.evaluation.statistics import mcnemar, wilson
from parallelsearch.files import read_jsonl, write_lines

CASES = Path(__file__).with_name("judge-cases.jsonl")
Verdicts = Mapping[str, bool | None]


def share(part: int, whole: int) -> str:
    low, high = wilson(part, whole)
    return f"{part:>3} of {whole:<3} {part / whole:.3f} [{low:.3f}, {high:.3f}]"


def figures_of(cases: Sequence[dict[str, Any]], verdicts: Verdicts) -> dict[str, int]:
    """The counts of one way to score."""
    right = [verdicts[case["id"]] for case in cases if case["right"]]
    wrong = [verdicts[case["id"]] for case in cases if not case["right"]]
    return {
        "n": len(cases),
        "agrees": sum(verdict is True for verdict in right) + sum(verdict is False for verdict in wrong),
        "num_right": len(right),
        "right_called_right": sum(verdict is True for verdict in right),
        "num_wrong": len(wrong),
        "wrong_called_right": sum(verdict is True for verdict in wrong),
        "no_verdict": sum(verdict is None for verdict in (*right, *wrong)),
    }


def tell(name: str, cases: Sequence[dict[str, Any]], verdicts: Verdicts) -> dict[str, int]:
    one = figures_of(cases, verdicts)
    print(f"\n{name}")
    print(f"  says what the label says   {share(one['agrees'], one['n'])}")
    print(f"  right answers called right {share(one['right_called_right'], one['num_right'])}")
    print(f"  wrong answers called right {share(one['wrong_called_right'], one['num_wrong'])}")
    if one["no_verdict"]:
        print(f"  no verdict                 {one['no_verdict']}")
    return one


def compare(cases: Sequence[dict[str, Any]], verdicts: Verdicts, others: Mapping[str, Verdicts]) -> None:
    """On how many answers only the judge says what the label says, and on how many only the other way to score."""
    for name, theirs in others.items():
        pairs = [(verdicts[case["id"]] is case["right"], theirs[case["id"]] is case["right"]) for case in cases]
        only_judge, only_other = pairs.count((True, False)), pairs.count((False, True))
        p = mcnemar(only_judge, only_other)
        print(f"  against {name}: {only_judge} answers better, {only_other} worse (McNemar p {p:.3g})")


def tell_kinds(cases: Sequence[dict[str, Any]], all_verdicts: Mapping[str, Verdicts]) -> None:
    print(f"\n{'agrees, by kind':16}" + "".join(f"{name:>12}" for name in all_verdicts))
    for kind in dict.fromkeys(case["kind"] for case in cases):
        group = [case for case in cases if case["kind"] == kind]
        cells = [f"{figures_of(group, verdicts)['agrees']} of {len(group)}" for verdicts in all_verdicts.values()]
        print(f"{kind:16}" + "".join(f"{cell:>12}" for cell in cells))


def make_run(cases: Sequence[dict[str, Any]], folder: Path) -> Path:
    """The cases as answers made elsewhere: a run like any other."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = [
        {key: case[key] for key in ("id", "question", "golden_answers")} | {"type": case["kind"]} for case in cases
    ]
    write_lines(folder / "questions.jsonl", map(json.dumps, asked))
    write_lines(folder / "answers.jsonl", (json.dumps({"id": one["id"], "answer": one["answer"]}) for one in cases))
    evaluate_answers(str(folder / "questions.jsonl"), folder / "answers.jsonl", folder / "run")
    return folder / "run"


async def run(options: argparse.Namespace, folder: Path) -> None:
    cases = [case for _, case in read_jsonl(options.cases)]
    made = make_run(cases, folder)
    rows: list[Row] = read_rows(made)
    all_verdicts: dict[str, Verdicts] = {
        "EM": {row.id: row.em for row in rows},
        "substring": {row.id: row.sub_em for row in rows},
    }
    others = dict(all_verdicts)
    summary: dict[str, Any] = {}
    if options.judge:
        settings = JudgeSettings(max_tokens=options.max_tokens, replace=True, max_failures_in_a_row=None)
        summary = await judge(made, options.judge, settings)
        all_verdicts["judge"] = {row.id: row.judged for row in read_rows(made)}
    print(f"{len(cases)} answers, {sum(case['right'] for case in cases)} of them labelled right")
    figures = {name: tell(name, cases, verdicts) for name, verdicts in all_verdicts.items()}
    if options.judge:
        compare(cases, all_verdicts["judge"], others)
    tell_kinds(cases, all_verdicts)
    if options.judge:
        print("\nwhat the report of such a run says, which knows no labels")
        for section in judge_sections(summary):
            for what, value in section.tables[0].rows:
                print(f"  {what}: {value}")
        for note in notes_of(summary):
            print(f"  note: {note}")
        if options.wrong:
            tell_wrong(cases, all_verdicts["judge"])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def tell_wrong(cases: Sequence[dict[str, Any]], verdicts: Verdicts) -> None:
    print("\nwhere it says something else than the label")
    for case in cases:
        if verdicts[case["id"]] is not case["right"]:
            said = {True: "right", False: "wrong", None: "no verdict"}[verdicts[case["id"]]]
            print(f"  {case['id']}, {said}: {case['question']} {case['golden_answers']} <- {case['answer']!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", help="the judge's address; left out, only EM and substring match are told")
    parser.add_argument("--cases", type=Path, default=CASES, help="other cases of the same form")
    parser.add_argument("--out", type=Path, help="keep the run with its verdicts here; a killed one goes on")
    parser.add_argument("--max-tokens", type=int, default=512, help="tokens the judge may write about an answer")
    parser.add_argument("--wrong", action="store_true", help="list the answers on which judge and label differ")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.out:
        asyncio.run(run(options, options.out))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(run(options, Path(folder)))


if __name__ == "__main__":
    main()
