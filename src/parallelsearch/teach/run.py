"""`parallelsearch teach CORPUS --out DIR`: the stages, in order, each written down when it is done.

`DIR` ends up with the index, the questions (used and rejected), the trajectories, the runs of SFT and GRPO, the evaluations
before and after, and a card. `stages.json` says what is done. The same command goes on after a kill: a stage that is done is
not done again, training and evaluation go on inside their own folders, and the teacher is not asked twice. A corpus or a
setting that changed since is refused, because the parts would not belong together.

Gates stop a run before it wastes time or money: too few usable questions, a teacher whose replies cannot be used, too few
trajectories to learn from.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parallelsearch.addresses import open_policy, open_search
from parallelsearch.answers import exact_match
from parallelsearch.coldstart.lesson import ColdStartSettings, Drop
from parallelsearch.coldstart.pool import cut_by_kind
from parallelsearch.coldstart.rules import load_rules
from parallelsearch.coldstart.run import TokenizerEncoder, write_questions
from parallelsearch.coldstart.sampling import sample_right
from parallelsearch.coldstart.tutor import build_coldstart
from parallelsearch.data.leaks import held_out, held_out_texts, held_out_titles, names_keys
from parallelsearch.data.questions import read_questions
from parallelsearch.errors import PolicyError, UsageError, require
from parallelsearch.evaluation.comparison import compare
from parallelsearch.evaluation.folder import read_rows
from parallelsearch.evaluation.run import EvaluationSettings, Progress
from parallelsearch.evaluation.statistics import paired_test
from parallelsearch.evaluation.whole import evaluate
from parallelsearch.files import held_folder, read_json, write_json
from parallelsearch.policy.base import Policy
from parallelsearch.policy.models import parse_spec
from parallelsearch.retrieval.base import Passage
from parallelsearch.retrieval.corpus import CorpusReport, read_corpus
from parallelsearch.retrieval.indexing import build_index
from parallelsearch.retrieval.store import PassageStore, corpus_sha256
from parallelsearch.rollouts import in_order
from parallelsearch.search import Search
from parallelsearch.teach.card import write_card
from parallelsearch.teach.checking import Checked, check
from parallelsearch.teach.making import Bundle, bundles, check_prompt, question_prompt, read_reply
from parallelsearch.teach.planning import WAYS_OUT
from parallelsearch.teach.settings import READ_LATE, TeachSettings
from parallelsearch.teach.teacher import Teacher, TeacherSpentError
from parallelsearch.training.recipe import Recipe, parse_recipe
from parallelsearch.trajectory import Kind, Question, Segment, Trajectory, write_trajectories

Say = Callable[[str], None]
OnStep = Callable[[str, int, int], None]
"""Called with the stage, how much of it is done, and of how much."""

QUESTIONS_FILE, TRAJECTORIES_FILE = "questions.jsonl", "trajectories.jsonl"
STAGES = ("index", "questions", "trajectories", "sft", "grpo", "evaluation")
_SHARES: dict[Kind, float] = {"parallel": 0.4, "sequential": 0.3, "single": 0.3}
"""Of questions made by rule."""
_DRAFTS = 3
"""So many questions are made for each one wanted: some cannot be taught."""
_BATCH = 24
"""Bundles that the teacher gets before it is looked at what came of them."""
_TRIED_PASSAGES = 20_000
"""A plan tries the rules on so many at most: on a large corpus they take minutes, and there is enough to ask."""
_MIN_USABLE = 0.1
"""A teacher of whose questions fewer can be used is not worth its price."""


@dataclass(frozen=True, slots=True)
class Taught:
    """What came out: the address of the policy, and the record that `card` was written from."""

    address: str
    search: str
    record: dict[str, Any]
    card: Path


def teach(settings: TeachSettings, say: Say | None = None, on_step: OnStep | None = None) -> Taught:
    """Run all stages, or those that are left."""
    require("torch", "train")
    with held_folder(settings.out, "name another --out"):
        return _Run(settings, say or (lambda _: None), on_step or (lambda *_: None)).go()


def passages_of(corpus: str) -> list[Passage]:
    """The passages of a corpus as an index of it would have them."""
    return list(read_corpus(corpus, on_bad=CorpusReport().on_bad(corpus, False)))


def by_rule(settings: TeachSettings, passages: Sequence[Passage]) -> list[Question]:
    """Questions that the rules make from the passages, more than are wanted: the checks leave some out."""
    wanted = _DRAFTS * (settings.num_questions + settings.num_held_out)
    return load_rules(settings.rules).make(
        passages,
        {kind: max(1, round(share * wanted)) for kind, share in _SHARES.items()},
        seed=settings.seed,
        forbidden=held_out_texts(),
        needed=held_out_titles(),
        kept_back=(),
        wide={},
    )


def num_at_hand(settings: TeachSettings, passages: Sequence[Passage]) -> int | None:
    """How many questions there are before any is checked; None where only making them would tell."""
    if settings.questions is not None:
        return sum(1 for _ in read_questions(settings.questions))
    if settings.teacher is not None or len(passages) > _TRIED_PASSAGES:
        return None
    return len(by_rule(settings, passages))


class _Run:
    def __init__(self, settings: TeachSettings, say: Say, on_step: OnStep) -> None:
        self.settings, self.say, self.on_step = settings, say, on_step
        self.out = Path(settings.out)
        self.stages: dict[str, Any] = {}

    def go(self) -> Taught:
        self._begin()
        self._stage("index", self._index)
        self._stage("questions", lambda: asyncio.run(self._questions()))
        self._stage("trajectories", lambda: asyncio.run(self._trajectories()))
        self._stage("sft", self._sft)
        self._stage("grpo", self._grpo)
        self._stage("evaluation", lambda: asyncio.run(self._evaluate()))
        address = self._address()
        record = {"settings": self.settings.model_dump(mode="json"), **self.stages, "address": address}
        if self.settings.gguf:
            record["gguf"] = str(self._write_gguf(address))
        card = write_card(self.out, record)
        return Taught(address, self._search_address, record, card)

    # ---- what is done ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take over what an earlier start did, if it was the same run."""
        path = self.out / "stages.json"
        sha256 = corpus_sha256(passages_of(self.settings.corpus))
        self.frozen = self._frozen()
        if path.exists():
            record = read_json(path)
            if record.get("corpus_sha256") != sha256:
                raise UsageError(
                    f"the corpus '{self.settings.corpus}' is not the one that '{self.out}' was begun with: what was made "
                    "from the old one would not fit; name another --out"
                )
            old = record.get("settings", {})
            self.stages = dict(record.get("stages", {}))
            changed = [
                name
                for name, value in self.frozen.items()
                if name in old and old[name] != value and READ_LATE.get(name, STAGES[0]) in self.stages
            ]
            if changed:
                told = ", ".join(f"{name} was {old[name]!r} and is now {self.frozen[name]!r}" for name in changed)
                raise UsageError(
                    f"'{self.out}' was begun with other settings: {told}; use those, or name another --out"
                )
            if self.stages:
                self.say(f"going on: {', '.join(self.stages)} done")
        self.sha256 = sha256

    def _frozen(self) -> dict[str, Any]:
        """The settings that must stay; of the base its model alone was read before SFT, of a file of questions all of it."""
        kept = self.settings.frozen() | {"model": parse_spec(self.settings.base).name}
        if self.settings.questions is not None and Path(self.settings.questions).is_file():
            kept["questions_sha256"] = hashlib.sha256(Path(self.settings.questions).read_bytes()).hexdigest()
        return kept

    def _stage(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        if name in self.stages:
            return
        self.stages[name] = work()
        write_json(
            self.out / "stages.json",
            {"corpus_sha256": self.sha256, "settings": self.frozen, "stages": self.stages},
        )

    # ---- index, questions, trajectories ----------------------------------------------------------------------------

    @property
    def _search_address(self) -> str:
        return f"bm25:{self.out / 'index'}"

    def _open_search(self) -> Search:
        return open_search(self._search_address, k=self.settings.k)

    def _index(self) -> dict[str, Any]:
        report = build_index(
            Path(self.settings.corpus),
            self.out / "index",
            overwrite=True,
            on_progress=lambda done, total: self.on_step("index", done, total or 0),
        )
        skipped = f"; {report['num_skipped']} files left out: {report['problems'][0]}" if report["num_skipped"] else ""
        self.say(f"index: {report['num_passages']:,} passages{skipped}")
        return {"num_passages": report["num_passages"]}

    async def _questions(self) -> dict[str, Any]:
        settings, search = self.settings, self._open_search()
        spent: dict[str, Any] | None = None
        unread: Counter[str] = Counter()
        try:
            passages = PassageStore.open(self.out / "index")
            if settings.questions is not None:
                given = list(read_questions(settings.questions))
                checked = await self._checked(given, passages, search, are_made=False)
            elif settings.teacher is not None:
                checked, unread, spent = await self._ask_teacher(passages, search)
            else:
                checked = await self._checked(by_rule(settings, passages), passages, search, are_made=True)
        finally:
            await search.aclose()
        self._write_rejected(checked)  # to be read also where there are too few
        self._gate_questions(checked, len(passages))
        train, held = self._cut(checked)
        write_questions(self.out / QUESTIONS_FILE, train, with_metadata=True)
        write_questions(self.out / "held_out.jsonl", held, with_metadata=True)
        self._write_rejected(checked)
        used = {title for question in train for title in question.supporting_titles or ()}
        report = {
            **checked.describe(),
            "source": settings.source,
            "num_train": len(train),
            "num_held_out": len(held),
            "num_held_out_on_trained_pages": sum(
                any(title in used for title in question.supporting_titles or ()) for question in held
            ),
        }
        report["rejected"] = {**unread, **report["rejected"]}
        if spent is not None:
            report["teacher"] = spent
        self.say(
            f"questions: {len(train)} to learn from, {len(held)} held out; rejected: {report['rejected'] or 'none'}"
        )
        return report

    def _write_rejected(self, checked: Checked) -> None:
        rejected = [
            {
                "question": one.question,
                "why": why,
                "golden_answers": one.golden_answers,
                "supporting_titles": one.supporting_titles,
            }
            for one, why in checked.rejected
        ]
        write_json(self.out / "rejected.json", rejected)

    async def _checked(
        self, questions: Sequence[Question], passages: Sequence[Passage], search: Search, *, are_made: bool
    ) -> Checked:
        rules = load_rules(self.settings.rules)
        return await check(
            questions, passages, search, forbidden=held_out(), guess_kind=rules.guess_kind, are_made=are_made
        )

    def _gate_questions(self, checked: Checked, num_passages: int) -> None:
        wanted = self.settings.min_trajectories + self.settings.num_held_out
        if len(checked.questions) >= wanted:
            return
        why = ", ".join(f"{count} {reason}" for reason, count in checked.reasons.items()) or "none was rejected"
        raise UsageError(
            f"too few usable questions: {len(checked.questions)} of the {wanted} that are needed at least ({why}; "
            f"{self.out / 'rejected.json'}), from {num_passages:,} passages; {WAYS_OUT[self.settings.source]}"
        )

    def _cut(self, checked: Checked) -> tuple[list[Question], list[Question]]:
        """Which are held out follows from their texts, a fair share of each kind. A question about the same pages as one of
        them, or that sets the same names side by side, is not learned from."""
        settings, questions = self.settings, checked.questions
        by_kind = Counter(question.kind for question in questions if question.kind is not None)
        total = sum(by_kind.values())
        counts = {kind: max(1, round(settings.num_held_out * count / total)) for kind, count in by_kind.items()}
        train, held = cut_by_kind(questions, {k: min(n, by_kind[k] - 1) for k, n in counts.items()}, settings.seed)
        measured = set().union(*(_about(question) for question in held))
        checked.rejected += [(one, "about the same as a held-out question") for one in train if _about(one) & measured]
        train = [question for question in train if not _about(question) & measured]
        return (train[: _DRAFTS * settings.num_questions] if settings.questions is None else train), held

    async def _trajectories(self) -> dict[str, Any]:
        settings = self.settings
        questions = list(read_questions(self.out / QUESTIONS_FILE))
        encoder = TokenizerEncoder.of(parse_spec(settings.base).name)
        limits = settings.limits
        rules = ColdStartSettings(
            limits=limits, seed=settings.seed, max_tokens=settings.max_length, rules=settings.rules
        )
        search = self._open_search()
        try:
            kept, report = await build_coldstart(
                questions, search, encoder, rules, lambda done, total: self.on_step("lessons", done, total)
            )
            random.Random(settings.seed).shuffle(kept)  # a file often has its kinds one after the other
            num_teachable = len(kept)
            kept = kept[: settings.num_questions]
            record = {**report.to_dict(), "num_sampled": 0}
            if settings.num_samples and settings.teacher is not None and len(kept) < settings.num_questions:
                left = [question for question in questions if question.id in report.reasons]
                sampled, spent = await self._sample(left, search, encoder, rules)
                kept += sampled[: settings.num_questions - len(kept)]
                record |= {"num_sampled": len(sampled), "teacher": spent}
        finally:
            await search.aclose()
        if len(kept) < settings.min_trajectories:
            reasons = ", ".join(f"{count} {reason}" for reason, count in list(report.dropped.most_common())[:6])
            raise UsageError(
                f"too few trajectories to learn from: {len(kept)} of at least {settings.min_trajectories}. No lesson could "
                f"be written for the others ({reasons}). Give questions with their steps ('decomposition'), a teacher that "
                "tries them (--teacher ADDRESS --samples 4), or lower --min-trajectories"
            )
        write_trajectories(self.out / TRAJECTORIES_FILE, kept)
        record["num_kept"] = len(kept)
        record["kinds"] = dict(Counter(one.kind or "unknown" for one in kept).most_common())
        self.say(
            f"trajectories: {num_teachable} of {len(questions)} questions could be taught by rule; {len(kept)} are taken"
        )
        return record

    # ---- the teacher -----------------------------------------------------------------------------------------------

    def _teacher(self) -> Teacher:
        assert self.settings.teacher is not None
        policy: Policy = open_policy(self.settings.teacher)
        return Teacher(policy, self.out / "teacher.jsonl", self.settings.max_teacher_tokens)

    def _spent(self, teacher: Teacher) -> dict[str, Any]:
        prices = self.settings.price_list
        record: dict[str, Any] = {**asdict(teacher.spent)}
        if prices is not None:
            record["cost"] = prices.cost(teacher.spent.num_read, teacher.spent.num_written, 0)
        return record

    async def _ask_teacher(
        self, passages: Sequence[Passage], search: Search
    ) -> tuple[Checked, Counter[str], dict[str, Any]]:
        """Bundle after bundle until there are enough questions, the corpus gives no more, or the purse is empty."""
        settings, teacher = self.settings, self._teacher()
        wanted = settings.num_questions + settings.num_held_out
        todo = await bundles(passages, search, 10 * wanted, settings.seed)
        made: list[Question] = []
        unread: Counter[str] = Counter()
        checked = Checked()
        examples: list[str] = []
        num_tried = 0
        try:
            while num_tried < len(todo) and len(checked.questions) < wanted:
                batch = todo[num_tried : num_tried + _BATCH]
                replies = await in_order(lambda _, one: self._one(teacher, one), batch, settings.concurrency)
                spent = next((reply for reply in replies if isinstance(reply, TeacherSpentError)), None)
                failed = [reply for reply in replies if isinstance(reply, PolicyError) and reply is not spent]
                if len(failed) == len(batch):  # it is down, or refuses everything: the next batch would fare no better
                    raise failed[0]
                num_tried += len(batch)
                for reply in replies:
                    if isinstance(reply, Question):
                        made.append(reply)
                    elif isinstance(reply, tuple):
                        unread[reply[0]] += 1
                        examples.append(reply[1])
                unread.update(["no reply"] * len(failed))
                checked = await self._checked(made, passages, search, are_made=True)
                self.on_step("questions", len(checked.questions), wanted)
                if spent is not None:
                    self.say(str(spent))
                    break
                self._gate_teacher(num_tried, checked, unread, examples)
        finally:
            await teacher.aclose()
        return checked, unread, self._spent(teacher)

    async def _one(self, teacher: Teacher, bundle: Bundle) -> Question | tuple[str, str] | PolicyError:
        """A question, or why there is none and the reply that shows it. A failure is a value: the others' replies, under way
        and paid for, are waited for."""
        try:
            reply = await teacher.say(question_prompt(bundle), seed=self.settings.seed + bundle.number)
            try:
                question = read_reply(reply, bundle, "taught")
            except Drop as reason:
                return f"reply: {reason}", reply
            again = await teacher.say(check_prompt(bundle, question.question), temperature=0.0, max_tokens=60)
        except PolicyError as error:
            return error
        said = again.strip().splitlines()[0].strip(" .") if again.strip() else ""
        if not exact_match(said, question.golden_answers):
            return (
                "the answer does not follow from the passages",
                f"{question.question} {question.golden_answers[0]} / {said}",
            )
        return question

    def _gate_teacher(self, num_tried: int, checked: Checked, unread: Counter[str], examples: Sequence[str]) -> None:
        if len(checked.questions) >= _MIN_USABLE * num_tried:
            return
        why = {**unread, **checked.reasons}
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items(), key=lambda one: -one[1])[:5])
        shown = f" A reply was: {examples[0][:200]!r}." if examples else ""
        raise PolicyError(
            f"the teacher '{self.settings.teacher}' was asked for {num_tried} questions and {len(checked.questions)} can be "
            f"used ({listed}).{shown} Nothing more is asked of it; try another model"
        )

    async def _sample(
        self, questions: Sequence[Question], search: Search, encoder: Policy, rules: ColdStartSettings
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        """The teacher's own right tries, in the tokens of the model that is to learn from them."""
        teacher = self._teacher()
        try:
            settings = replace(rules, max_concurrent=self.settings.concurrency)
            tries, _ = await sample_right(questions, teacher, search, settings, num_samples=self.settings.num_samples)
        finally:
            await teacher.aclose()
        encoded = [encoded_with(encoder, one) for one in tries]
        fitting = [one for one in encoded if len(one.prompt_ids()) + len(one.response_ids()) <= rules.max_tokens]
        return fitting, self._spent(teacher)

    # ---- training and evaluation -----------------------------------------------------------------------------------

    def _recipe(self, algorithm: str, adapter: Path | None, **more: dict[str, Any]) -> Recipe:
        settings, spec = self.settings, parse_spec(self.settings.base)
        start = adapter or spec.adapter
        model: dict[str, Any] = {"name": spec.name}
        if start is None:
            model |= {"lora_rank": settings.lora_rank, "lora_alpha": 2 * settings.lora_rank}
        else:
            model["adapter"] = str(start)
        train = {"algorithm": algorithm, "out": str(self.out / algorithm), "seed": settings.seed, "eval_every": 0}
        return parse_recipe(
            {
                "model": model,
                "search": {"address": self._search_address, "k": settings.k},
                "rollout": {"max_turns": settings.max_turns, "max_tokens": settings.max_length},
                **more,
                "train": {**train, **more.get("train", {})},
            }
        )

    def _sft(self) -> dict[str, Any]:
        from parallelsearch.training.sft import run_sft

        settings = self.settings
        recipe = self._recipe(
            "sft",
            None,
            data={"train": str(self.out / TRAJECTORIES_FILE)},
            train={
                "epochs": settings.epochs,
                "batch_size": settings.batch_size,
                "max_length": settings.max_length,
                "micro_batch_tokens": max(settings.micro_batch_tokens, settings.max_length),
                "lr": settings.lr,
                "lr_schedule": "cosine",
                "warmup_ratio": 0.05,
                "save_every": self._save_every(),
            },
        )
        every = self._save_every()
        saved = "each step" if every == 1 else f"every {every} steps"
        self.say(f"sft: learning from {self.stages['trajectories']['num_kept']} trajectories, saved after {saved}")
        done = run_sft(recipe, say=self.say)
        if done.final is None:
            raise UsageError(f"SFT stopped at step {done.step} of {done.num_steps}; the same command goes on")
        return {"step": done.step, "loss": done.loss, "num_rows": done.num_rows, "adapter": self._inside(done.final)}

    def _grpo(self) -> dict[str, Any]:
        if not self.settings.grpo_steps:
            return {}
        from parallelsearch.training.run import train

        recipe = self._recipe(
            "grpo",
            self.out / self.stages["sft"]["adapter"],
            data={"train": str(self.out / QUESTIONS_FILE), "num_validation": 16},
            train={
                "steps": self.settings.grpo_steps,
                "questions_per_step": 8,
                "samples_per_question": 4,
                "lr": 5e-5,
                "eval_every": max(1, self.settings.grpo_steps // 2),
                "save_every": self._save_every(),
            },
        )
        done = train(recipe, say=self.say)
        best = done.best or done.out / "final"
        return {"step": done.step, "best_accuracy": done.best_accuracy, "adapter": self._inside(best)}

    @staticmethod
    def _save_every() -> int:
        """Steps between checkpoints: each on a CPU, where a step takes minutes and the checkpoint of an adapter less than a
        second."""
        return 20 if require("torch", "train").cuda.is_available() else 1

    def _inside(self, path: Path) -> str:
        """A path as it is noted: from the run's folder on, so that the folder can be moved."""
        return path.relative_to(self.out).as_posix()

    @property
    def _adapter(self) -> Path:
        return self.out / str(self.stages["grpo"].get("adapter") or self.stages["sft"]["adapter"])

    def _address(self) -> str:
        return f"hf:{parse_spec(self.settings.base).name}+{self._adapter}"

    async def _evaluate(self) -> dict[str, Any]:
        held = list(read_questions(self.out / "held_out.jsonl"))
        settings = EvaluationSettings(limits=self.settings.limits, concurrency=self.settings.num_asked_at_once)
        summaries = {}
        for name, address in (("before", f"hf:{self.settings.base}"), ("after", self._address())):

            def tell(progress: Progress, name: str = name) -> None:
                self.on_step(f"evaluation {name}", progress.num_done, progress.num_total)

            summary = await evaluate(
                held, address, self._search_address, self.out / name, settings, tell, k=self.settings.k
            )
            summaries[name] = next(iter(summary["subsets"].values()))
        both = compare([self.out / "before", self.out / "after"])
        first = next(iter(both.runs[0].subsets))
        tests = [{"metric": test.metric, **asdict(test.result)} for test in both.tests if test.subset == first]
        return {"num_questions": len(held), **summaries, "tests": tests + self._tests_of_searching()}

    def _tests_of_searching(self) -> list[dict[str, Any]]:
        """What only some questions have, gold pages and parts: tested over those."""
        before, after = ({row.id: row for row in read_rows(self.out / name)} for name in ("before", "after"))
        tests = []
        for metric in ("gold_recall", "parts_covered"):
            pairs = [
                (getattr(before[key], metric), getattr(after[key], metric)) for key in before.keys() & after.keys()
            ]
            known = sorted((one, other) for one, other in pairs if one is not None and other is not None)
            if known:
                result = paired_test([float(one) for one, _ in known], [float(other) for _, other in known])
                tests.append({"metric": metric, **asdict(result)})
        return tests

    def _write_gguf(self, address: str) -> Path:
        from parallelsearch.policy.gguf_export import write_gguf

        file = self.out / "policy.gguf"
        return file if file.exists() else write_gguf(parse_spec(address.removeprefix("hf:")), file, "f16")


def _about(question: Question) -> set[str]:
    return names_keys(question.question, question.supporting_titles, question.kind)


def encoded_with(encoder: Policy, trajectory: Trajectory) -> Trajectory:
    """The same trajectory in the tokens of another model: each segment encoded once, by itself, as a rollout does."""

    def again(segment: Segment) -> Segment:
        if segment.author == "prompt":
            return encoder.prompt(segment.text, trajectory.question)
        return encoder.insert(segment.text + (segment.restored or ""), segment.author)

    return replace(trajectory, segments=[again(segment) for segment in trajectory.segments])
