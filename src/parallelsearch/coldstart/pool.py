"""Training questions for the cold start and for RL: collected, labelled, cut, and kept apart from every evaluation set.

Built on `data/sets.py` (names, files, what is held out). What is added here: several sources in one pool without
repeats, a kind for unlabelled questions (from the labeller one gives), a validation cut with a fixed number of each
kind, and `check_pool`, which refuses a pool that overlaps with its validation set or with a dev or test file; it is
cheap, so every start can afford it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallelsearch.answers import normalise
from parallelsearch.data.leaks import held_out, refuse_leaks
from parallelsearch.data.sets import hash_questions, training_pool
from parallelsearch.errors import UsageError
from parallelsearch.trajectory import Kind, Question

Labeller = Callable[[str], Kind | None]


@dataclass(slots=True)
class Pool:
    """Questions to train on, questions to validate on, and what was left out."""

    train: list[Question]
    validation: list[Question] = field(default_factory=list)
    num_repeated: int = 0
    num_unlabelled: int = 0
    warnings: list[str] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """What a manifest needs: counts by kind, and the hashes that tell one cut from another."""
        return {
            "train": _by_kind(self.train),
            "validation": _by_kind(self.validation),
            "train_sha256": hash_questions(self.train),
            "validation_sha256": hash_questions(self.validation),
            "num_repeated": self.num_repeated,
            "num_unlabelled": self.num_unlabelled,
        }


def training_questions(
    sources: Sequence[str],
    *,
    kinds: Sequence[Kind] | None = None,
    datasets: Sequence[str] | None = None,
    labeller: Labeller | None = None,
) -> Pool:
    """The questions of files or named sets as one pool. Of questions with the same normalised text the first is kept, so
    name the source with supporting titles first. Evaluation questions are left out by `training_pool`, then refused."""
    if not sources:
        raise UsageError("no source of training questions was given; name a data set or a file")
    pool = Pool([])
    seen: set[str] = set()
    for source in sources:
        found = training_pool(source)
        pool.warnings += found.warnings
        for question in found.questions:
            key = normalise(question.question)
            if datasets is not None and question.dataset not in datasets:
                continue
            if key in seen:
                pool.num_repeated += 1
                continue
            seen.add(key)
            if question.kind is None and labeller is not None:
                question.kind = labeller(question.question)
            pool.num_unlabelled += question.kind is None
            if kinds is None or question.kind in kinds:
                pool.train.append(question)
    if not pool.train:
        raise UsageError(f"nothing is left to train on of {', '.join(sources)} after choosing kinds and data sets")
    check_pool(pool)
    return pool


def cut_by_kind(
    questions: Sequence[Question], counts: Mapping[Kind, int], seed: int = 0
) -> tuple[list[Question], list[Question]]:
    """Take so many questions of each kind out. Which ones depends on the seed and the texts, not on the order of the pool,
    so that a pool which grows keeps most of its validation set."""
    taken: set[str] = set()
    for kind, count in counts.items():
        texts = [normalise(question.question) for question in questions if question.kind == kind]
        if count > len(texts):
            raise UsageError(f"{count} {kind} questions are wanted for validation, and there are {len(texts)}")
        texts.sort(key=lambda text: random.Random(f"{seed}/{text}").random())
        taken |= set(texts[:count])
    train = [question for question in questions if normalise(question.question) not in taken]
    return train, [question for question in questions if normalise(question.question) in taken]


def check_pool(pool: Pool, known: Mapping[str, str] | None = None) -> None:
    """Refuse a pool whose training questions stand in a dev or test file, or in its own validation set."""
    known = held_out() if known is None else known
    refuse_leaks(pool.train, known)
    refuse_leaks(pool.validation, known)
    kept_back = {normalise(question.question) for question in pool.validation}
    both = [question for question in pool.train if normalise(question.question) in kept_back]
    if both:
        raise UsageError(
            f"{len(both)} questions are in training and in validation, for example '{both[0].question}'; cut the validation "
            "set from the training questions (cut_by_kind does)"
        )


def _by_kind(questions: Iterable[Question]) -> dict[str, int]:
    return dict(Counter(question.kind or "unknown" for question in questions).most_common())
