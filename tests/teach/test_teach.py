"""`teach` from end to end on a tiny model, with a teacher on the wire, the rules and a file; what it refuses; a killed run."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import teaching_server
from teaching_server import serving

from parallelsearch.coldstart.lesson import Drop
from parallelsearch.data.questions import read_questions
from parallelsearch.errors import PolicyError, UsageError
from parallelsearch.retrieval.base import Passage
from parallelsearch.teach import TeachSettings, plan, teach
from parallelsearch.teach import run as teach_run
from parallelsearch.teach.card import write_card
from parallelsearch.teach.making import Bundle, linked, read_reply
from parallelsearch.trajectory import read_trajectories

FIRST = ("Ada", "Carl", "Vera", "Nils", "Ira", "Ann", "Tom", "Rosa")
LAST = ("Brenn", "Dorn", "Lind", "Berg", "Moss", "Poe")


def painters() -> list[dict[str, str]]:
    rng = random.Random(3)
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    rows = []
    for number, name in enumerate(names):
        teacher = names[(number + 7) % len(names)]
        text = (
            f"{name} was a painter, born in {rng.randint(1780, 1950)} in the town of {rng.choice(LAST)}. "
            f"{name} was a pupil of {teacher}."
        )
        rows.append({"id": f"p{number}", "title": name, "text": text})
    return rows


def born_first() -> list[dict[str, Any]]:
    """Questions over the painters, each about two of them."""
    rows = painters()
    years = {row["title"]: int(row["text"].split("born in ")[1][:4]) for row in rows}
    names = list(years)
    return [
        {
            "question": f"Which painter was born first, {a} or {b}?",
            "golden_answers": [min(a, b, key=years.__getitem__)],
            "kind": "parallel",
            "supporting_titles": [a, b],
        }
        for a, b in zip(names, names[5:], strict=False)
        if years[a] != years[b]
    ]


@pytest.fixture(autouse=True)
def _no_evaluation_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a question stands in one is looked up in the data folder; this world is in none."""
    monkeypatch.setenv("PARALLELSEARCH_DATA", str(tmp_path))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few thousand weights whose tokenizer knows the words of this world."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from parallelsearch.dialects import open_dialect

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = [row["text"] for row in painters()] + [open_dialect(None).prompt("Who was born first?")] * 5
    raw.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", pad_token="<|pad|>", clean_up_tokenization_spaces=False
    )
    folder = tmp_path_factory.mktemp("base")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=0, pad_token_id=1, bos_token_id=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "painters.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in painters()), encoding="utf-8")
    return path


@pytest.fixture
def settings(base: Path, corpus: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "corpus": str(corpus), "out": str(tmp_path / "taught"), "base": str(base), "num_questions": 12, "num_held_out": 3,
        "min_trajectories": 6, "k": 2, "max_turns": 2, "max_length": 1500, "epochs": 1, "lora_rank": 2, "batch_size": 6,
    }  # fmt: skip


@pytest.fixture(scope="module")
def teacher() -> Iterator[tuple[str, list[str]]]:
    with serving() as found:
        yield found


def test_from_a_corpus_to_a_policy_and_again(
    settings: dict[str, Any], teacher: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, prompts = teacher
    wanted = TeachSettings(**settings, teacher=address, prices=(1.0, 10.0), max_teacher_tokens=200_000)
    said: list[str] = []
    done = teach(wanted, said.append)
    out = Path(wanted.out)
    assert done.address == f"hf:{wanted.base}+{out / done.record['sft']['adapter']}"
    assert (out / done.record["sft"]["adapter"] / "adapter_config.json").is_file()
    trajectories = list(read_trajectories(out / "trajectories.jsonl"))
    assert {one.kind for one in trajectories} >= {"parallel", "single"}
    assert all(one.is_right and one.has_token_ids for one in trajectories)
    assert all(one.is_split == (one.kind == "parallel") for one in trajectories)
    held = {question.question for question in read_questions(out / "held_out.jsonl")}
    assert len(held) >= 2
    assert not held & {one.question for one in trajectories}
    evaluation = done.record["evaluation"]
    assert evaluation["before"]["n"] == evaluation["after"]["n"] == len(held)
    assert {"em", "gold_recall", "parts_covered"} <= {test["metric"] for test in evaluation["tests"]}
    spent = done.record["questions"]["teacher"]
    assert spent["num_replies"] == len(prompts) == len(set(prompts))
    assert spent["cost"] == pytest.approx(spent["num_read"] / 1e6 + spent["num_written"] * 10 / 1e6)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert done.address in card
    assert re.search(r"\| parts covered \| \d\.\d+ \(\d\.\d+, \d\.\d+\) \| .*\| [+-]\d\.\d+ \([+-]", card)
    assert f"{spent['num_replies']} replies" in card
    assert "gguf:" not in card
    with_file = write_card(tmp_path, {**done.record, "gguf": "taught/policy.gguf"}).read_text(encoding="utf-8")
    assert "--policy gguf:taught/policy.gguf --search" in with_file
    # Everything is there: nothing is asked, trained or measured a second time.
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and "README" not in path.name}
    again = teach(wanted, said.append)
    assert again.record == done.record
    assert len(prompts) == spent["num_replies"]
    assert said[-1].startswith("going on: index, questions")
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and "README" not in path.name}
    assert {path.name for path in after if after[path] != before.get(path)} <= {"teach.json", ".lock"}
    _refuses_what_changed(wanted)


def _refuses_what_changed(wanted: TeachSettings) -> None:
    with pytest.raises(UsageError, match=r"lr was 0.0005 and is now 0.01"):
        teach(wanted.model_copy(update={"lr": 0.01}))
    other = Path(wanted.out).parent / "other.jsonl"
    other.write_text(json.dumps(painters()[0]) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="is not the one that"):
        teach(wanted.model_copy(update={"corpus": str(other)}))


def test_a_run_that_was_cut_off_asks_only_for_the_rest(
    settings: dict[str, Any], teacher: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, prompts = teacher
    wanted = TeachSettings(**settings, teacher=address, concurrency=1)
    calls = 0
    real = teach_run.read_reply

    def cut(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise RuntimeError("the power went")
        return real(*args)

    start = len(prompts)
    monkeypatch.setattr(teach_run, "read_reply", cut)
    with pytest.raises(RuntimeError, match="the power went"):
        teach(wanted)
    monkeypatch.setattr(teach_run, "read_reply", real)
    monkeypatch.setattr(teach_run._Run, "_sft", lambda self: (_ for _ in ()).throw(UsageError("far enough")))
    with pytest.raises(UsageError, match="far enough"):
        teach(wanted)
    asked = prompts[start:]
    assert len(asked) == len(set(asked)), "nothing is asked twice"
    assert json.loads((Path(wanted.out) / "stages.json").read_text())["stages"].keys() == {
        "index", "questions", "trajectories",
    }  # fmt: skip


def test_training_that_was_cut_off_goes_on_from_its_last_step(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU a step takes minutes; twenty lost ones would be an hour."""
    import torch

    from parallelsearch.training import sft

    if torch.cuda.is_available():
        pytest.skip("with a GPU steps are quick, and not each is saved")
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(one) + "\n" for one in born_first()), encoding="utf-8")
    wanted = TeachSettings(**{**settings, "questions": str(questions), "epochs": 2})
    monkeypatch.setattr(teach_run._Run, "_evaluate", lambda self: (_ for _ in ()).throw(UsageError("far enough")))
    monkeypatch.setattr(sft, "_QUIET_S", 0.0)
    real = sft._SftRun.saved

    def cut(self: Any) -> None:
        real(self)
        if self.trainer.state.global_step == 2:
            raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr(sft._SftRun, "saved", cut)
    with pytest.raises(KeyboardInterrupt):
        teach(wanted, said.append)
    assert "sft: learning from 12 trajectories, saved after each step" in said
    assert any(line.startswith("step 2/4 ") for line in said)  # none is left out where they are slow
    monkeypatch.setattr(sft._SftRun, "saved", real)
    said.clear()
    with pytest.raises(UsageError, match="far enough"):
        teach(wanted, said.append)
    assert any(line.startswith("going on from step 2 of 4 ") for line in said)
    assert not any(line.startswith("step 2/") for line in said)


def test_a_run_goes_on_in_another_place_on_another_machine(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    questions = here / "questions.jsonl"
    questions.write_text("".join(json.dumps(one) + "\n" for one in born_first()), encoding="utf-8")
    wanted = TeachSettings(**{**settings, "out": str(here / "taught"), "questions": str(questions)})
    with monkeypatch.context() as patch:
        patch.setattr(teach_run._Run, "_sft", lambda self: (_ for _ in ()).throw(UsageError("far enough")))
        with pytest.raises(UsageError, match="far enough"):
            teach(wanted)
    there = here.rename(tmp_path / "there")
    moved = {"out": str(there / "taught"), "questions": str(there / "questions.jsonl")}
    larger = {"micro_batch_tokens": 50_000, "num_asked_at_once": 100}
    asked: list[int] = []
    real = teach_run.evaluate

    async def evaluate(*args: Any, **more: Any) -> Any:
        asked.append(args[4].concurrency)
        return await real(*args, **more)

    monkeypatch.setattr(teach_run, "evaluate", evaluate)
    # What only training reads may still change, too.
    done = teach(wanted.model_copy(update={**moved, **larger, "lr": 0.01}))
    assert asked == [100, 100]
    again = there.rename(tmp_path / "again")
    moved = {"out": str(again / "taught"), "questions": str(again / "questions.jsonl"), "lr": 0.01}
    once_more = teach(wanted.model_copy(update=moved))
    assert once_more.record["evaluation"] == done.record["evaluation"]
    assert once_more.address.endswith(str(again / "taught" / "sft" / "final"))
    with pytest.raises(UsageError, match=r"lr was 0.01 and is now 0.02"):
        teach(wanted.model_copy(update={**moved, "lr": 0.02}))
    (again / "questions.jsonl").write_text(json.dumps(born_first()[0]) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="questions_sha256 was"):
        teach(wanted.model_copy(update=moved))


def test_nothing_is_learned_about_the_pages_of_a_held_out_question(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = born_first()
    turned = [{**one, "question": one["question"].replace("painter was", "one was")} for one in first]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*first, *turned]), encoding="utf-8")
    monkeypatch.setattr(teach_run._Run, "_sft", lambda self: (_ for _ in ()).throw(UsageError("far enough")))
    wanted = TeachSettings(**settings, questions=str(file))
    with pytest.raises(UsageError, match="far enough"):
        teach(wanted)
    out = Path(wanted.out)
    held = [question.supporting_titles for question in read_questions(out / "held_out.jsonl")]
    used = [question.supporting_titles for question in read_questions(out / "questions.jsonl")]
    assert len(held) == wanted.num_held_out
    assert not [titles for titles in used if titles in held]
    rejected = json.loads((out / "rejected.json").read_text())
    assert {one["why"] for one in rejected} == {"about the same as a held-out question"}


def test_the_purse_is_looked_at_before_a_request_goes_out(
    settings: dict[str, Any], teacher: tuple[str, list[str]]
) -> None:
    address, _ = teacher
    wanted = TeachSettings(**settings, teacher=address, max_teacher_tokens=6000)
    said: list[str] = []
    with pytest.raises(UsageError, match=r"too few usable questions: \d of the 9 .*give the teacher more tokens"):
        teach(wanted, said.append)
    assert any("--max-teacher-tokens" in line for line in said)
    spent = [json.loads(line) for line in (Path(wanted.out) / "teacher.jsonl").read_text().splitlines()]
    assert 0 < sum(one["read"] + one["written"] for one in spent) <= 6000


def test_a_teacher_that_answers_rubbish_is_left_before_the_money_is_gone(settings: dict[str, Any]) -> None:
    with serving(lambda prompt: "I would rather not.") as (address, prompts):
        with pytest.raises(PolicyError, match=r"24 questions and 0 can be used \(24 reply: not_json\).*rather not"):
            teach(TeachSettings(**settings, teacher=address))
        assert len(prompts) == 24


def test_an_answer_that_does_not_follow_is_not_believed(settings: dict[str, Any]) -> None:
    def unsure(prompt: str) -> str:
        return "unknown" if "\nAnswer:" in prompt else teaching_server.reply(prompt)

    with (
        serving(unsure) as (address, _),
        pytest.raises(PolicyError, match="the answer does not follow from the passages"),
    ):
        teach(TeachSettings(**settings, teacher=address))


def test_a_teacher_that_is_down_is_named(settings: dict[str, Any]) -> None:
    address = "openai:http://127.0.0.1:9/v1?max_attempts=1#teacher"
    with pytest.raises(PolicyError, match=r"127\.0\.0\.1:9"):
        teach(TeachSettings(**settings, teacher=address))


def test_questions_of_ones_own(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = born_first()
    bad = [
        {"question": "Where is Nowhere?", "golden_answers": ["x"], "kind": "single", "supporting_titles": ["Nowhere"]},
        {"question": "Who is Ada Brenn?", "golden_answers": [], "kind": "single"},
        {"question": "What is Ada Brenn?", "golden_answers": ["a cook"], "kind": "single", "supporting_titles": ["Ada Brenn"]},
        questions[0],
    ]  # fmt: skip
    years = {row["title"]: row["text"].split("born in ")[1][:4] for row in painters()}
    first, second = "Ada Brenn", "Carl Dorn"
    both = {
        "question": f"When were {first} and {second} born?",
        "golden_answers": [f"{years[first]} and {years[second]}"],  # in these words on no page
        "kind": "parallel",
        "supporting_titles": [first, second],
        "decomposition": [{"question": f"{one} born", "answer": years[one]} for one in (first, second)],
    }
    wrong = both | {
        "question": f"In which years were {first} and {second} born?",
        "decomposition": [{"question": f"{one} born", "answer": "1066"} for one in (first, second)],
    }
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*questions, *bad, both, wrong]), encoding="utf-8")
    monkeypatch.setattr(teach_run._Run, "_sft", lambda self: (_ for _ in ()).throw(UsageError("far enough")))
    wanted = TeachSettings(**settings, questions=str(file))
    with pytest.raises(UsageError, match="far enough"):
        teach(wanted)
    rejected = json.loads((Path(wanted.out) / "rejected.json").read_text())
    assert [one["why"] for one in rejected] == [
        "a page is not in the corpus", "no golden answer", "the answer is not in its pages", "asked twice",
        "the answer is not in its pages",
    ]  # fmt: skip
    assert rejected[0]["supporting_titles"] == ["Nowhere"]
    assert rejected[-1]["question"] == wrong["question"]
    taught = list(read_trajectories(Path(wanted.out) / "trajectories.jsonl"))
    assert len(taught) == wanted.num_questions
    assert all(one.is_split and one.is_right for one in taught)


def test_a_corpus_the_rules_cannot_read_says_what_to_name(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"too few usable questions.*English prose.*--teacher"):
        teach(TeachSettings(**{**settings, "num_held_out": 60, "min_trajectories": 40}))


# ---- parts -----------------------------------------------------------------------------------------------------------

PAGES = (
    Passage("1", "Ada Brenn", "Ada Brenn was a painter, born in 1901. She was a pupil of Carl Dorn."),
    Passage("2", "Carl Dorn", "Carl Dorn was a painter, born in 1888."),
)
STEPS = [{"question": "Ada Brenn born", "answer": "1901", "passage": 1},
         {"question": "Carl Dorn born", "answer": "1888", "passage": 2}]  # fmt: skip


def said(**changes: Any) -> str:
    return json.dumps(
        {"question": "Who was born first, Ada Brenn or Carl Dorn?", "answer": "Carl Dorn", "steps": STEPS} | changes
    )


def test_a_reply_becomes_a_question_with_parts_and_pages() -> None:
    question = read_reply(f"Sure!\n```json\n{said()}\n```", Bundle("parallel", PAGES, 4), "d")
    assert question.golden_answers == ["Carl Dorn"]
    assert question.gold_passage_ids == {"Ada Brenn": ["1"], "Carl Dorn": ["2"]}
    assert question.parts is not None
    assert [(part.names, part.round) for part in question.parts] == [(["Ada Brenn"], 1), (["Carl Dorn"], 1)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("no braces", "not_json"),
        ("{" * 100_000, "not_json"),
        ("[1]", "not_json"),
        (said(question=3), "no_question"),
        (said(question=""), "no_question"),
        (said(answer=None), "no_short_answer"),
        (said(answer="word " * 40), "no_short_answer"),
        (said(steps="x"), "no_steps"),
        (said(steps=[{"question": "a", "answer": ""}]), "empty_step"),
        (said(steps=[{**STEPS[0], "passage": 7}, STEPS[1]]), "no_such_passage"),
        (said(steps=[{**STEPS[0], "passage": True}, STEPS[1]]), "no_such_passage"),
        (said(steps=STEPS[:1]), "steps_do_not_fit_the_kind"),
        (said(steps=[STEPS[0], {**STEPS[1], "question": "who taught #1"}]), "steps_do_not_fit_the_kind"),
        (said(steps=[STEPS[0], {**STEPS[1], "question": "who taught #9"}]), "bad_reference"),
        (said(steps=[{**STEPS[0], "answer": "1902"}, STEPS[1]]), "step_not_in_passage"),
        (said(answer="Vera Lind"), "answer_not_in_passages"),
    ],
)
def test_what_is_wrong_with_a_reply(reply: str, reason: str) -> None:
    with pytest.raises(Drop) as dropped:
        read_reply(reply, Bundle("parallel", PAGES, 0), "d")
    assert str(dropped.value) == reason


def test_a_chain_may_not_name_its_bridge() -> None:
    steps = [{"question": "teacher of Ada Brenn", "answer": "Carl Dorn", "passage": 1},
             {"question": "year #1 was born", "answer": "1888", "passage": 2}]  # fmt: skip
    chain = Bundle("sequential", PAGES, 0)
    question = read_reply(
        said(question="In what year was the teacher of Ada Brenn born?", answer="1888", steps=steps), chain, "d"
    )
    assert [part.round for part in question.parts or ()] == [1, 2]
    with pytest.raises(Drop, match="names_the_bridge"):
        read_reply(said(question="In what year was Carl Dorn born?", answer="1888", steps=steps), chain, "d")


def test_linked_passages_are_found_by_title() -> None:
    assert linked(PAGES) == [(0, 1)]


def test_a_plan_counts_before_anything_is_asked(settings: dict[str, Any], corpus: Path) -> None:
    passages = teach_run.passages_of(str(corpus))
    by_rule = plan(TeachSettings(**settings), passages, "cpu")
    assert (by_rule.num_teacher_calls, by_rule.cost) == (0, None)
    asked = plan(TeachSettings(**settings, teacher="demo", prices=(1.0, 10.0)), passages, "cpu")
    more = plan(TeachSettings(**{**settings, "num_questions": 24}, teacher="demo", prices=(1.0, 10.0)), passages, "cpu")
    assert asked.cost is not None
    assert more.cost is not None
    assert 0 < asked.cost < more.cost
    assert any("requests to the teacher" in line for line in asked.lines())


def test_a_plan_says_where_it_would_stop(settings: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    passages = teach_run.passages_of(str(corpus))
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"question": "Who?", "golden_answers": ["x"]}\n')
    from_file = TeachSettings(**{**settings, "questions": str(mine)})
    assert teach_run.num_at_hand(from_file, passages) == 1
    (told,) = [line for line in plan(from_file, passages, "cpu", 1).lines() if "there are only 1 questions" in line]
    assert "it would stop; give more questions" in told
    assert plan(from_file, passages, "cpu", 1).lines()[-1].startswith("with enough of them about ")
    with pytest.raises(UsageError, match="there is no file"):
        teach_run.num_at_hand(TeachSettings(**{**settings, "questions": str(tmp_path / "none.jsonl")}), passages)
    by_rule = TeachSettings(**settings)
    assert teach_run.num_at_hand(by_rule, passages) == len(teach_run.by_rule(by_rule, passages))
    enough = plan(by_rule, passages, "cpu", by_rule.num_questions + by_rule.num_held_out)
    assert not any("there are only" in line for line in enough.lines())
    fewer = plan(by_rule, passages, "cpu", by_rule.num_questions + by_rule.num_held_out - 1)
    assert (
        f"there are only {fewer.num_at_hand} questions, so {by_rule.num_questions - 1} at most to learn from"
        in fewer.lines()
    )
    assert fewer.num_trained_tokens < enough.num_trained_tokens
    assert teach_run.num_at_hand(TeachSettings(**settings, teacher="demo"), passages) is None
