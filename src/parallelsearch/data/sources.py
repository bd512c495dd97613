"""The named data sets: where each one lies, how many questions it must have, and how its questions split.

A new data set is one entry of `SOURCES`. Nothing is read here: `sets.py` finds and loads the files, `questions.py` reads
their records, `made.py` has the sets that are made from the corpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallelsearch.trajectory import Kind

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
SHIPPED = ("demo", "dependency", "traps")
"""The sets that come with the package."""


@dataclass(frozen=True, slots=True)
class Source:
    """A named data set. `splits` maps a split to its file; the first split is the one that is evaluated."""

    name: str
    splits: Mapping[str, str]
    folder: str = ""
    num_published: Mapping[str, int] = field(default_factory=dict)
    """By split, and by subset of the first split: the counts of the paper and of the field."""
    hub: tuple[str, str | None] | None = None
    """Repository and configuration on the Hugging Face hub."""
    hub_splits: Mapping[str, str] = field(default_factory=dict)
    kinds: Kind | Mapping[str, Kind] | None = None
    """How its questions split: all of them alike, or by the set's own type (docs/evaluation.md has the reasons)."""
    maker: str = ""
    """Of a set that is made from the corpus: `package.module:function` (`made.py`)."""
    sha256: str = ""
    """Of such a set: the hash of its file, which makes it the same everywhere."""
    sealed: frozenset[str] = frozenset()
    """Splits that nobody looks at: they are opened on purpose, once a release, and the code says when (`sealed.py`)."""

    @property
    def stems(self) -> dict[str, str]:
        """By split: its file under the data folder, without the ending."""
        return {split: f"{self.folder}/{file}" for split, file in self.splits.items()} if self.folder else {}


def _flashrag(
    name: str,
    splits: Mapping[str, str],
    num_published: Mapping[str, int],
    kinds: Kind | Mapping[str, Kind],
    sealed: frozenset[str] = frozenset(),
) -> Source:
    return Source(name, splits, name, num_published, (FLASHRAG, name), kinds=kinds, sealed=sealed)


def _made(name: str, maker: str, num_published: Mapping[str, int], sha256: str, split: str = "dev") -> Source:
    return Source(
        name, {split: ""}, num_published={split: num_published["all"], **num_published}, maker=maker, sha256=sha256
    )


_FROM_PAGES = "parallelsearch.coldstart.english.from_pages.evaluation"


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        _flashrag("nq", {"test": "test", "train": "train_subset"}, {"test": 3610}, "single"),
        _flashrag("triviaqa", {"test": "test", "dev": "dev"}, {"test": 11313}, "single"),
        _flashrag("popqa", {"test": "test"}, {"test": 14267}, "single"),
        _flashrag(
            "hotpotqa",
            {"dev": "dev", "train": "train_qa"},
            {"dev": 7405, "par": 1487, "seq": 5918, "train": 90447},
            {"comparison": "parallel", "bridge": "sequential"},
        ),
        _flashrag(
            "2wikimultihopqa",
            # Train questions in origin: 500 that nobody has read, kept as the test split of this project.
            {"dev": "dev", "train": "train", "test": "train_context"},
            {"dev": 12576, "par": 3040, "seq": 6785, "mixed": 2751, "test": 500},
            {
                "comparison": "parallel",
                "bridge_comparison": "mixed",
                "compositional": "sequential",
                "inference": "sequential",
            },
            frozenset({"test"}),
        ),
        _flashrag("musique", {"dev": "dev", "train": "train"}, {"dev": 2417, "train": 19938}, "sequential"),
        # Train questions whose decomposition was written by people.
        Source("musique-written", {"train": "train_context"}, "musique", {"train": 100}),
        _flashrag("bamboogle", {"test": "test"}, {"test": 125}, "sequential"),
        Source(
            "multihop-rag",
            {"test": "test"},
            "multihop-rag",
            {"test": 2556, "par": 856, "seq": 816},
            ("yixuantt/MultiHopRAG", "MultiHopRAG"),
            {"test": "train"},
            {"comparison_query": "parallel", "inference_query": "sequential"},
        ),
        Source("fanoutqa", {"dev": "dev"}, "fanoutqa", {"dev": 310}),
        Source("frames", {"test": "test"}, "frames", {"test": 824}, ("google/frames-benchmark", None)),
        # The hub has one file for StrategyQA, the public train set; dev is the 229 rows its own repository holds out.
        Source("strategyqa", {"dev": "dev", "train": "train"}, "strategyqa", {"dev": 229, "train": 2061}),
        Source("webquestions", {"test": "test", "train": "train"}, "webquestions", {"test": 2032}, kinds="single"),
        Source(
            "questions_with_gold",
            {"dev": "questions_with_gold", "train": "questions_with_gold"},
            "corpus",
            {"dev": 3604, "train": 2403},
        ),
        _made(
            "wide",
            f"{_FROM_PAGES}:wide",
            {"all": 790, "par": 700, "mixed": 90},
            "c506396a10b550e55d80380b3f167bcb06326e3cf356717b401698736854e0db",
        ),
        _made(
            "wide-reworded",
            f"{_FROM_PAGES}:wide_reworded",
            {"all": 400, "par": 350, "mixed": 50},
            "f7cc2e31fe8ca5230176e1b0e91657a9c9fd0b7779e289e8b1af259a708f69d4",
        ),
        _made(
            "mixed-balanced",
            f"{_FROM_PAGES}:mixed_balanced",
            {"all": 600},
            "4ccd47b5ba82f828a77af438237c86b174a186bc7996707a1402c24ee1dfb960",
        ),
        _made(
            "2wiki-mixed-agrees",
            f"{_FROM_PAGES}:shortcut_agrees",
            {"all": 130},
            "2d36602bd18039e9a737a14e92111183964ad9a36853344aa63f732faa18e3e1",
        ),
        _made(
            "2wiki-mixed-differs",
            f"{_FROM_PAGES}:shortcut_differs",
            {"all": 17},
            "e582579a292db9306033f372fa8512d965e481c6c6c97fe8e929a6fe780683f9",
        ),
        _made(
            "fanoutqa-corpus",
            "parallelsearch.data.long_answers:fanoutqa_in_corpus",
            {"all": 18},
            "18a07f24223a802b088fe1278d651b18495e98481d230af643a457209f523e86",
        ),
        _made(
            "frames-corpus",
            "parallelsearch.data.long_answers:frames_in_corpus",
            {"all": 56},
            "9e76580537dadbf559fa461a88dc461b4ba9fef897d0cb7a50d03690efa52e0b",
            "test",
        ),
        Source("demo", {"test": "questions.jsonl"}),
        Source("dependency", {"test": "dependency.jsonl"}, num_published={"test": 200}),
        Source("traps", {"test": "traps.jsonl"}, num_published={"test": 60}),
    )
}


def kind_of(dataset: str | None, type: str | None) -> Kind | None:
    """The kind a data set's own type implies, or None if it implies none."""
    source = SOURCES.get(dataset or "")
    kinds = source.kinds if source is not None else None
    return kinds.get(type or "") if isinstance(kinds, Mapping) else kinds
