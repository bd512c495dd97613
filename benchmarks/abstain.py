"""How often the agent abstains when the evidence is there and when it is not.

    python benchmarks/abstain.py                                             # the demo policy, all demo questions
    python benchmarks/abstain.py --policy hf:smollm2-135m+parallel --questions 60 --json figures.json
    python benchmarks/abstain.py --gold questions.jsonl passages.jsonl       # the rule alone, a perfect reader
    python benchmarks/abstain.py --runs run another-run                      # what it does to the answers of runs of `eval`
    python benchmarks/abstain.py --told                                      # right answers in a chat model's sentences

Each question is asked four times: over the demo corpus as it is; without the question's gold passages; without those and
all others that hold a golden answer; and over passages about something else. Two rates are told, with intervals of 95%: of
the answers that were right over the whole corpus, how many were not given (false refusals); of the questions without
evidence, how many were answered, and how many of these wrongly (false answers).

`--runs` asks nothing: of the answers in finished runs it tells by reason how many right and wrong ones are not given, and
what share of those given is right without the reason `misread` and with it.

`--gold` needs no policy: a question's gold passages are shown and the golden answer is given; then the gold passages and
the answer of another question. What the rule refuses of the first is a false refusal, what it lets through of the second
a false answer.

`--told` gives the demo's right answers over the demo corpus as chat models put them, with the reason that is written for
each; then the same words with another question's answer in place of the right one, where no passage shown holds that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from parallelsearch.addresses import open_policy
from parallelsearch.answers import normalise
from parallelsearch.data import demo
from parallelsearch.data.questions import demo_questions, read_questions
from parallelsearch.evaluation.statistics import wilson
from parallelsearch.grounding import abstention_of, is_computed
from parallelsearch.limits import Limits
from parallelsearch.policy.base import Policy
from parallelsearch.retrieval.base import Hit, Passage
from parallelsearch.retrieval.bm25 import BM25Retriever
from parallelsearch.retrieval.corpus import read_passages
from parallelsearch.retrieval.without import Without
from parallelsearch.rollout import rollout
from parallelsearch.search import Search
from parallelsearch.trajectory import Query, Question, Shown, Trajectory, Turn, read_trajectories

UNRELATED = [
    Passage("u1", "Sourdough", "Bread leavened by wild yeast. The starter is fed with flour and water every day."),
    Passage("u2", "Chess opening", "The first moves of a game, many of them with names, studied in books."),
    Passage("u3", "Tide", "Sea level rises and falls twice a day under the pull of the Moon."),
    Passage("u4", "Bicycle chain", "It carries the force of the pedals to the rear wheel and wants oil."),
]
CORPORA = ("whole", "without gold", "without answer", "unrelated")


def missing(question: Question, passages: Sequence[Passage], corpus: str) -> set[str]:
    """Ids of the passages that a corpus lacks for this question."""
    titles = set(question.supporting_titles or []) if corpus.startswith("without") else set()
    wanted = [f" {normalise(answer)} " for answer in question.golden_answers if normalise(answer) not in ("yes", "no")]
    answers = wanted if corpus == "without answer" else []
    return {
        passage.id
        for passage in passages
        if passage.title in titles
        or any(answer in f" {normalise(f'{passage.title} {passage.text}')} " for answer in answers)
    }


async def ask_all(policy: Policy, questions: Sequence[Question], corpus: str) -> list[Trajectory]:
    passages = demo.passages()
    whole = BM25Retriever.from_passages(UNRELATED if corpus == "unrelated" else passages)

    async def one(question: Question) -> Trajectory:
        search = Search(Without(whole, missing(question, passages, corpus)), cache_size=0)
        return await rollout(question, policy, search, Limits(timeout_s=None))

    done = await asyncio.gather(*(one(question) for question in questions))
    await whole.aclose()
    return list(done)


def share(part: int, whole: int) -> str:
    """A count with its share and interval."""
    if not whole:
        return "none"
    low, high = wilson(part, whole)
    return f"{part} of {whole} = {part / whole:.1%} ({low:.1%} to {high:.1%})"


async def measure(policy: Policy, questions: Sequence[Question], corpora: Sequence[str]) -> dict[str, dict[str, int]]:
    figures: dict[str, dict[str, int]] = {}
    print(f"{len(questions)} questions, policy {policy.title}")
    for corpus in corpora:
        counts: Counter[str] = Counter()
        for trajectory in await ask_all(policy, questions, corpus):
            abstained = abstention_of(trajectory)
            counts["given right" if trajectory.is_right else "given wrong"] += abstained is None
            counts["withheld right" if trajectory.is_right else "withheld wrong"] += abstained is not None
            if abstained is not None:
                counts[abstained.reason] += 1
        figures[corpus] = dict(counts)
        given = counts["given right"] + counts["given wrong"]
        print(f"{corpus}: {dict(counts)}")
        if corpus == "whole":
            right = counts["given right"] + counts["withheld right"]
            print(f"  false refusals, of right answers: {share(counts['withheld right'], right)}")
        else:
            print(f"  answered all the same: {share(given, len(questions))}, of these wrongly {counts['given wrong']}")
    return figures


# ---- the rule alone --------------------------------------------------------------------------------------------------


def perfect_reader(questions: Path, passages: Path, most: int, seed: int = 0) -> None:
    """Gold passages and golden answers, a question's own and another's."""
    asked = [one for one in read_questions(questions) if one.gold_passage_ids and one.golden_answers]
    random.Random(seed).shuffle(asked)
    asked = asked[:most]
    ids = {id for one in asked for some in (one.gold_passage_ids or {}).values() for id in some}
    pages = {passage.id: passage for passage in read_passages(passages) if passage.id in ids}
    own, other = Counter[str](), Counter[str]()
    for number, question in enumerate(asked):
        stranger = asked[number - 1]
        for counts, shown in ((own, question), (other, stranger)):
            found = [pages[id] for some in (shown.gold_passage_ids or {}).values() for id in some if id in pages]
            hits = [Hit.of(passage, 1.0, rank) for rank, passage in enumerate(found, start=1)]
            turn = Turn([Query(question.question, hits)])
            turn.shown = [Shown(hit.rank, hit.id, 0, len(hit.text)) for hit in hits]
            record = Trajectory(question.question, turns=[turn], answer=shown.golden_answers[0], stop="answer")
            counts["given" if abstention_of(record) is None else "withheld"] += 1
    print(f"{len(asked)} questions, gold passages and golden answers")
    print(f"  false refusals: {share(own['withheld'], len(asked))}")
    print(f"  answers of another question given: {share(other['given'], len(asked))}")


# ---- in sentences ----------------------------------------------------------------------------------------------------

FORMS = {
    "the answer": "{answer}",
    "the reason": "{reason}",
    "the answer, then the reason": "**{answer}** {reason}",
    "the reason in brackets": "{answer} ({reason})",
    "an opening": "Based on the search results, the answer is {answer}.",
}


async def told() -> None:
    policy = demo.DemoPolicy()
    policy.tokens_per_s = None
    questions = demo_questions()
    records = list(zip(questions, await ask_all(policy, questions, "whole"), strict=True))
    await policy.aclose()
    draw = random.Random(0)
    right, wrong = {form: Counter[str]() for form in FORMS}, {form: Counter[str]() for form in FORMS}
    for question, record in records:
        golden, reason = question.golden_answers[0], (question.metadata or {})["thoughts"][-1]
        shown = normalise(" ".join(f"{hit.title} {hit.text}" for hit in record.shown_hits))
        others = [
            other
            for other in (one.golden_answers[0] for one in questions)
            if other[:1].isupper() == golden[:1].isupper()
            and other[:1].isdigit() == golden[:1].isdigit()
            and normalise(other) not in shown
        ]
        has_wrong = others and golden in reason and not is_computed(question.question, golden)
        for counts, answer in ((right, golden), (wrong, draw.choice(others) if has_wrong else None)):
            for form, words in FORMS.items() if answer is not None else ():
                record.answer = words.format(answer=answer, reason=reason.replace(golden, answer))
                counts[form]["given" if abstention_of(record) is None else "withheld"] += 1
    for form in FORMS:
        print(f"{form}: false refusals {share(right[form]['withheld'], right[form].total())}")
        print(f"  wrong answers given {share(wrong[form]['given'], wrong[form].total())}")


# ---- finished runs ---------------------------------------------------------------------------------------------------


def finished_runs(folders: Sequence[Path]) -> None:
    everywhere: Counter[tuple[str, bool]] = Counter()
    for folder in folders:
        counts: Counter[tuple[str, bool]] = Counter()
        for trajectory in read_trajectories(folder / "trajectories.jsonl"):
            abstained = abstention_of(trajectory)
            counts["given" if abstained is None else abstained.reason, trajectory.is_right] += 1
        everywhere.update(counts)
        tell(folder.name, counts)
    if len(folders) > 1:
        tell("all", everywhere)


def tell(name: str, counts: Counter[tuple[str, bool]]) -> None:
    right, wrong = (counts["given", is_right] for is_right in (True, False))
    misread_right, misread_wrong = (counts["misread", is_right] for is_right in (True, False))
    print(f"{name}: {sum(counts.values())} questions")
    for reason in sorted({reason for reason, _ in counts} - {"given"}):
        print(f"  {reason}: {counts[reason, True]} right and {counts[reason, False]} wrong answers not given")
    before = share(right + misread_right, right + wrong + misread_right + misread_wrong)
    print(f"  right of the given, misread ones among them: {before}")
    print(f"  right of the given: {share(right, right + wrong)}")
    print(f"  misread, of the right: {share(misread_right, right + misread_right)}")
    print(f"  misread, of the wrong: {share(misread_wrong, wrong + misread_wrong)}")


async def run(options: argparse.Namespace) -> None:
    policy = open_policy(options.policy)
    if isinstance(policy, demo.DemoPolicy):
        policy.tokens_per_s = None
    asked = demo_questions()
    chosen = asked[:: max(1, len(asked) // options.questions)][: options.questions]
    figures = await measure(policy, chosen, options.corpora.split(","))
    await policy.aclose()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="demo", help="the policy's address")
    parser.add_argument("--questions", type=int, default=179, help="how many questions, spread over all")
    parser.add_argument("--corpora", default=",".join(CORPORA), help="which of the four, with commas")
    parser.add_argument(
        "--gold", type=Path, nargs=2, metavar=("QUESTIONS", "PASSAGES"), help="the rule alone, on these"
    )
    parser.add_argument("--runs", type=Path, nargs="+", metavar="RUN", help="the rule on what was answered there")
    parser.add_argument("--told", action="store_true", help="right answers in the sentences of a chat model")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.runs:
        finished_runs(options.runs)
    elif options.told:
        asyncio.run(told())
    elif options.gold:
        perfect_reader(*options.gold, most=options.questions)
    else:
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
