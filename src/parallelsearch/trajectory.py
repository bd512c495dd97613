"""The one record of what happened: a question, the segments of text in order, and the turns with their searches.

The rollout writes it; rewards, metrics, trainers and the viewer read it and nothing else. A segment keeps its token ids
as they were sampled; the loss mask is a property of the record. JSON Lines in and out; the reader names the line and the
field of a bad record and accepts files written by hand with only `question`, `golden_answers`, `kind` and `segments`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from parallelsearch import grammar
from parallelsearch.answers import each, exact_match
from parallelsearch.errors import DataError, UsageError
from parallelsearch.files import fields_of, read_jsonl, to_json, write_lines
from parallelsearch.limits import Prices, goes_in_circles
from parallelsearch.markup import trajectory_html
from parallelsearch.retrieval.base import Hit
from parallelsearch.untrusted import whole

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 1

Author = Literal["prompt", "model", "search", "notice"]
Kind = Literal["parallel", "sequential", "single", "mixed"]
AbstainReason = Literal[
    "no_answer", "not_found", "search_failed", "no_evidence", "unsupported", "parts_missing", "misread", "uncited"
]
Stop = Literal["answer", "max_turns", "max_tokens", "timeout", "error"]
KINDS: tuple[Kind, ...] = get_args(Kind)
STOPS: tuple[Stop, ...] = get_args(Stop)
MANY_CUT = 0.1
"""Where so many of the passages shown are cut, or runs differ by so much in it, a reader is told."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a question of one kind needs: rounds of search, and whether the first asks several things at once."""

    num_rounds: int
    should_split: bool
    ending: str
    """Of the name of a data set's part: `hotpotqa-par`."""


NEEDS: dict[Kind, Needs] = {
    "parallel": Needs(1, should_split=True, ending="par"),
    "sequential": Needs(2, should_split=False, ending="seq"),
    "single": Needs(1, should_split=False, ending="single"),
    "mixed": Needs(2, should_split=True, ending="mixed"),
}


@dataclass(slots=True)
class QuestionPart:
    """One of the things a question asks for: what it may be called in a query, and the first round that can ask for it
    (1, unless its name is only known from an earlier round's results)."""

    names: list[str]
    round: int = 1

    def __post_init__(self) -> None:
        if self.round < 1:
            raise ValueError(f"the first round is 1, not {self.round}")


@dataclass(slots=True)
class Question:
    """What a person asks. `kind` says how it splits, `type` is the data set's own word for it; both may be unknown.
    `parts` are what it asks for, where they are labelled; `gold_passage_ids` are the passages with the evidence, any one of
    a title's list being enough."""

    question: str
    golden_answers: list[str] = field(default_factory=list)
    id: str = ""
    dataset: str | None = None
    type: str | None = None
    kind: Kind | None = None
    supporting_titles: list[str] | None = None
    metadata: dict[str, Any] | None = None
    gold_passage_ids: dict[str, list[str]] | None = None
    parts: list[QuestionPart] | None = None

    def __post_init__(self) -> None:
        # Half a surrogate pair, from a command line or a JSON escape, could be written and never be read back.
        self.question, self.id = whole(self.question), whole(self.id)
        self.golden_answers = [whole(answer) for answer in each(self.golden_answers)]
        if self.kind is not None and self.kind not in KINDS:
            raise UsageError(f"kind is one of {', '.join(KINDS)}, or None, not {self.kind!r}")

    @property
    def is_empty(self) -> bool:
        """Nothing is asked: there is no letter or digit in it."""
        return not any(map(str.isalnum, self.question))


@dataclass(slots=True)
class Call:
    """A call of a tool as the model made it. `arguments` is its raw text, which may not be JSON. `extra` is what a server
    puts beside a call and wants back with it (Gemini's signature of the thought before it)."""

    id: str
    name: str
    arguments: str
    extra: dict[str, Any] | None = None


@dataclass(slots=True)
class Segment:
    """A stretch of text with one author. `restored` is the stop string a server had stripped: shown, never trained on.
    A model that calls tools has `calls` beside its text, and `reasoning` where a server gives it apart; what came back for a
    call has its `call_id`. `raw` is the message in the server's own form, or what it knows of its thoughts, kept only where
    the server wants it back unchanged and it cannot be made from the rest (signed thinking)."""

    author: Author
    text: str
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    restored: str | None = None
    calls: list[Call] | None = None
    reasoning: str | None = None
    call_id: str | None = None
    raw: list[dict[str, Any]] | None = None

    @property
    def num_tokens(self) -> int:
        """Its tokens, those of its calls among them; about four bytes each where the engine gave no ids."""
        if self.token_ids is not None:
            return len(self.token_ids)
        written = [self.text, *(part for call in self.calls or () for part in (call.name, call.arguments))]
        return (len("".join(written).encode()) + 3) // 4


@dataclass(slots=True)
class Query:
    """One executed sub-query. Times are seconds since the rollout began."""

    text: str
    hits: list[Hit] = field(default_factory=list)
    error: str | None = None
    cached: bool = False
    start_s: float = 0.0
    end_s: float = 0.0
    missing: list[str] | None = None
    """The parts of the search that gave nothing, and why, where others answered."""


@dataclass(slots=True)
class Shown:
    """A passage as the model was shown it. `number` is the one it stood under, `query` the place of the sub-query among the
    turn's, and `num_chars` how much there was of its text (`observation.one_line` of it) before it was cut."""

    number: int
    id: str
    query: int
    num_chars: int
    is_cut: bool = False


@dataclass(slots=True)
class Turn:
    """One call of the model, what it says, and the searches it led to.

    `action`, `thought` and `separated` (its search holds the separator) are as the dialect read them. `shown` are the
    passages that were put before the model, in their order; one that is only referred to again is not among them. `usage` is
    what the server counted; a call between two turns counts with the second, or where none came with the first. Such a
    call, and one that the deadline cut off, is counted here where the server did not. A turn of the environment (a search
    before the model is asked) has no tokens. `text` is what the model wrote; the record keeps it in the segments, and the
    reader puts it here.
    """

    queries: list[Query] = field(default_factory=list)
    dropped_queries: list[str] = field(default_factory=list)
    finish: str | None = None
    num_tokens: int | None = None
    start_s: float = 0.0
    generate_s: float = 0.0
    problems: list[str] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    action: Literal["search", "answer"] | None = None
    thought: str | None = None
    separated: bool = False
    usage: dict[str, int] | None = None
    text: str = field(default="", compare=False, repr=False)

    @property
    def was_written(self) -> bool:
        """The model finished it: the deadline did not cut it off."""
        return self.finish != "timeout"

    @property
    def is_split(self) -> bool:
        """At least two distinct sub-queries were asked at once."""
        return len(self.queries) >= 2


TOO_COSTLY = "its call would have passed what a question may cost (max_billed_tokens, max_cost)"
"""The error of a reading that was not asked for."""


@dataclass(slots=True)
class Reading:
    """The call of another model that read the passages and answered (`reading.py`): who it was, what it wrote, and what the
    policy itself had answered. Where it failed, `error` says how, and the policy's own answer stands."""

    policy: dict[str, Any]
    text: str = ""
    own_answer: str | None = None
    error: str | None = None
    num_tokens: int | None = None
    num_read: int | None = None
    """Tokens of what it was asked; `num_tokens` is what it wrote."""
    start_s: float = 0.0
    generate_s: float = 0.0
    finish: str | None = None
    """As that of a turn."""

    @property
    def is_refused(self) -> bool:
        """The model was not asked, for the cost of it."""
        return self.error == TOO_COSTLY

    @property
    def is_failed(self) -> bool:
        """The model was asked and gave no answer."""
        return self.error is not None and not self.is_refused


@dataclass(slots=True)
class Abstention:
    """Why an answer was not given (`grounding.abstention_of`), and what the model had said. `not_found`: it said itself that
    it found nothing. `search_failed`: of all searches, so that nobody can say what the corpus holds. `parts_missing`: of
    something that is compared nothing was found. `misread`: it noted of a passage what the passage does not say. `uncited`:
    it wrote a text that names no passage, and none has what it states."""

    reason: AbstainReason
    answer: str | None = None

    @property
    def words(self) -> str:
        return _WHY_TAKEN_BACK[self.reason]


_WHY_TAKEN_BACK: dict[AbstainReason, str] = {
    "no_answer": "the searches did not lead to an answer",
    "not_found": "what was found does not answer this",
    "search_failed": "every search failed",
    "no_evidence": "no passage about this was found",
    "unsupported": "none of the passages found says so",
    "parts_missing": "there is no passage about all that is asked for",
    "misread": "the model noted of a passage what does not stand there",
    "uncited": "the text names no passage, and none of those found has what it states",
}


@dataclass(slots=True)
class Trajectory:
    """Everything that happened between a question and its answer. Where a front door took the answer back, `abstained` says
    why, and `answer` is None; evaluation and training take no answer back unless they are asked to."""

    question: str
    segments: list[Segment] = field(default_factory=list)
    golden_answers: list[str] = field(default_factory=list)
    id: str = ""
    dataset: str | None = None
    kind: Kind | None = None
    type: str | None = None
    group_id: str | None = None
    sample: int | None = None
    step: int | None = None
    turns: list[Turn] = field(default_factory=list)
    answer: str | None = None
    stop: Stop | None = None
    error: str | None = None
    no_room: str | None = None
    """Where it ended for its tokens or its cost: which limit that was, and what going on would have taken."""
    num_llm_calls: int = 0
    num_searches: int = 0
    num_subqueries: int = 0
    elapsed_s: float | None = None
    rewards: dict[str, float] | None = None
    policy: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None
    search: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    supporting_titles: list[str] | None = None
    dialect: str | None = None
    gold_passage_ids: dict[str, list[str]] | None = None
    parts: list[QuestionPart] | None = None
    abstained: Abstention | None = None
    reading: Reading | None = None
    written: bool | None = None
    """True where a text with its sources was asked for, in Markdown, rather than a short answer."""
    schema_version: int = SCHEMA_VERSION

    def __repr__(self) -> str:
        """Short, since lists of them are shown; `to_dict()` has all of it."""
        counts = f"{self.num_llm_calls} LLM calls, {self.num_subqueries} sub-queries"
        said = f"answer={self.answer!r}" if self.abstained is None else f"abstained={self.abstained.reason!r}"
        failed = "" if self.error is None else f", error={self.error!r}"
        return f"<Trajectory {self.question!r}, {said}, stop={self.stop!r}{failed}, {counts}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it as the last line of a cell."""
        return trajectory_html(self)

    @classmethod
    def of(cls, question: Question) -> Trajectory:
        """An empty record for a question."""
        return cls(
            question=question.question,
            golden_answers=list(question.golden_answers),
            id=question.id,
            dataset=question.dataset,
            kind=question.kind,
            type=question.type,
            supporting_titles=question.supporting_titles,
            gold_passage_ids=question.gold_passage_ids,
            parts=question.parts,
        )

    @property
    def text(self) -> str:
        """Everything after the prompt, as one text."""
        return "".join(segment.text for segment in self.segments if segment.author != "prompt")

    @property
    def rounds(self) -> list[Turn]:
        """The turns that searched."""
        return [turn for turn in self.turns if turn.queries]

    @property
    def shown_hits(self) -> list[Hit]:
        """Every passage that was put before the model, once, in that order."""
        hits = {hit.id: hit for query in reversed(self.queries) for hit in reversed(query.hits)}
        return [hits[id] for id in dict.fromkeys(one.id for turn in self.rounds for one in turn.shown) if id in hits]

    @property
    def num_passages_shown(self) -> int:
        return sum(len(turn.shown) for turn in self.turns)

    @property
    def num_passages_cut(self) -> int:
        """Of those that were shown, how many not to their end."""
        return sum(one.is_cut for turn in self.turns for one in turn.shown)

    @property
    def queries(self) -> list[Query]:
        """The sub-queries that were asked, in order."""
        return [query for turn in self.turns for query in turn.queries]

    @property
    def is_right(self) -> bool:
        """The answer is a golden one, letter by letter once normalised. Where the policy failed, nothing is right."""
        return self.stop != "error" and exact_match(self.answer, self.golden_answers)

    @property
    def is_split(self) -> bool:
        """The first round asked at least two distinct sub-queries at once."""
        return any(turn.is_split for turn in self.rounds[:1])

    @property
    def invalid_turns(self) -> list[Turn]:
        """The turns that led to nothing: neither to a search that was run nor to the answer. A search after the last
        round allowed is one, and so is a turn in which no action could be read or that the deadline cut off."""
        answering = self.turns[-1] if self.turns and self.stop == "answer" else None
        return [turn for turn in self.turns if not turn.queries and turn is not answering]

    @property
    def why_no_answer(self) -> str | None:
        """Where there is no answer, the reason in words: which limit was met, and at what value. None where there is one."""
        if self.answer is not None:
            return None
        if self.error is not None:
            return self.error
        if self.abstained is not None and (self.stop == "answer" or self.abstained.reason == "search_failed"):
            return self.abstained.words
        limits, num_turns = self.limits or {}, len(self.turns)
        idle = [turn for turn in self.turns if turn.was_written and turn.action is None]
        cut = sum(turn.finish == "length" for turn in idle)
        is_poor = (self.no_room or "").startswith(("max_cost", "max_billed_tokens"))
        if is_poor and not any((turn.text or "").strip() for turn in idle):
            idle, cut = [], 0  # it thought, and there was no money to think on
        if cut:
            limit = f"max_tokens_per_turn={limits.get('max_tokens_per_turn')}"
            if all(goes_in_circles(turn.text, _LONGEST_LOOP) for turn in idle if turn.finish == "length"):
                return (
                    f"in {cut} of {num_turns} turns the model wrote the same again and again, without end; asked in other "
                    "words it may answer, and a larger model does this less"
                )
            return (
                f"{cut} of {num_turns} turns ended at {limit} before they searched or answered; allow more, for a model that "
                "reasons at length thousands"
            )
        if idle and len(idle) == num_turns:
            return (
                f"none of {num_turns} turns searched or answered; does the model follow this dialect ({self.dialect})?"
            )
        max_turns = limits.get("max_turns")
        if self.stop == "max_turns" and self._ends_in_repetition:
            return "the model asked again for what it had asked before, and gave none when it was told to"
        reasons = {
            "max_turns": f"max_turns={max_turns} rounds of search did not lead to one",
            "max_tokens": self.no_room
            or f"{_all_set(limits, 'max_cost', 'max_billed_tokens', 'max_tokens')} left no room to go on",
            "timeout": f"timeout_s={limits.get('timeout_s')} was over",
        }
        return reasons.get(self.stop or "", "it is unfinished")

    @property
    def _ends_in_repetition(self) -> bool:
        """Whether all that was searched last had been searched before."""
        asked = [{grammar.query_key(query.text) for query in turn.queries} for turn in self.rounds]
        return len(asked) > 1 and asked[-1] <= set().union(*asked[:-1])

    @property
    def num_truncated(self) -> int:
        """Turns that ended at the limit of tokens."""
        return sum(turn.finish == "length" for turn in self.turns)

    @property
    def num_failed_queries(self) -> int:
        return sum(query.error is not None for query in self.queries)

    @property
    def num_partial_queries(self) -> int:
        """Queries that a part of the search did not answer."""
        return sum(query.missing is not None for query in self.queries)

    @property
    def billed_tokens(self) -> tuple[int, int]:
        """Tokens read and written over all calls, of the model and of another that reads in its place. Each call reads all
        that was said before it. What the server counted stands; where it counted nothing, it is the length of the text."""
        num_read = num_written = before = 0
        written = _written_turns(self)
        for turn in self.turns:  # calls that left no text: beside the turns, or cut off
            if turn.usage is not None and not any(turn is other for other in written):
                num_read += turn.usage.get("prompt_tokens", 0)
                num_written += turn.usage.get("completion_tokens", 0)
        turns = iter(written)
        for segment in self.segments:
            if segment.author == "model":
                turn = next(turns, Turn())
                usage = turn.usage or {}
                counted = segment.num_tokens if turn.num_tokens is None else turn.num_tokens
                num_read += usage.get("prompt_tokens", before)
                num_written += usage.get("completion_tokens", counted)
            before += segment.num_tokens
        if (reading := self.reading) is not None:
            counted = Segment("model", reading.text).num_tokens if reading.num_tokens is None else reading.num_tokens
            num_read, num_written = num_read + (reading.num_read or 0), num_written + counted
        return num_read, num_written

    def cost(self, prices: Prices) -> float:
        """What it cost; a query that a cache answered costs nothing."""
        return prices.cost(*self.billed_tokens, self.num_uncached)

    @property
    def num_uncached(self) -> int:
        return sum(not query.cached for query in self.queries)

    @property
    def max_subqueries(self) -> int:
        """How many sub-queries a turn could ask."""
        return int((self.limits or {}).get("max_subqueries", grammar.MAX_SUBQUERIES))

    @property
    def has_token_ids(self) -> bool:
        return bool(self.segments) and all(segment.token_ids is not None for segment in self.segments)

    def prompt_ids(self) -> list[int]:
        return [i for segment in self.segments if segment.author == "prompt" for i in segment.token_ids or ()]

    def response_ids(self) -> list[int]:
        ids: list[int] = []
        for segment in self.segments:
            if segment.author != "prompt":
                ids += segment.token_ids or ()
        return ids

    def loss_mask(self) -> list[int]:
        """1 for each response token the model sampled, 0 for what search, notices or a restored stop string put there."""
        mask: list[int] = []
        for segment in self.segments:
            if segment.author != "prompt":
                mask += [int(segment.author == "model")] * len(segment.token_ids or ())
        return mask

    def response_logprobs(self) -> list[float]:
        """One per response token, 0.0 where the model did not sample."""
        result: list[float] = []
        for segment in self.segments:
            if segment.author != "prompt":
                ids = segment.token_ids or []
                result += segment.logprobs if segment.logprobs is not None else [0.0] * len(ids)
        return result

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the `trajectories.jsonl` contract; fields that are unknown are left out."""
        record = {name: getattr(self, name) for name in _TRAJECTORY_FIELDS}
        record["segments"] = [_segment_dict(segment) for segment in self.segments]
        record["turns"] = [
            {
                **_plain(turn, _TURN_FIELDS),
                "queries": [_query_dict(query) for query in turn.queries],
                "shown": [_plain(shown, _SHOWN_FIELDS) for shown in turn.shown],
            }
            for turn in self.turns
        ]
        if self.parts is not None:
            record["parts"] = [_plain(part, _PART_FIELDS) for part in self.parts]
        if self.reading is not None:
            record["reading"] = _plain(self.reading, _READING_FIELDS)
        if self.abstained is not None:
            record["abstained"] = _plain(self.abstained, _ABSTENTION_FIELDS)
        return {
            key: value
            for key, value in record.items()
            if value is not None or key in ("answer", "kind", "type", "dataset")
        }

    def to_json(self) -> str:
        return to_json(self.to_dict())


def _all_set(limits: Mapping[str, Any], *names: str) -> str:
    """For records that do not say which of them it was."""
    return " or ".join(f"{name}={limits[name]}" for name in names if limits.get(name) is not None) or names[-1]


_LONGEST_LOOP = 800
"""Letters of a piece that a turn repeats."""
_TRAJECTORY_FIELDS = ("schema_version", *(f.name for f in fields(Trajectory) if f.name != "schema_version"))
_SEGMENT_FIELDS = tuple(f.name for f in fields(Segment))
_CALL_FIELDS = tuple(f.name for f in fields(Call))
_TURN_FIELDS = tuple(f.name for f in fields(Turn) if f.name not in ("queries", "shown", "text"))
_SHOWN_FIELDS = tuple(f.name for f in fields(Shown))
_PART_FIELDS = tuple(f.name for f in fields(QuestionPart))
_READING_FIELDS = tuple(f.name for f in fields(Reading))
_ABSTENTION_FIELDS = tuple(f.name for f in fields(Abstention))
_HIT_FIELDS = tuple(f.name for f in fields(Hit))


def _plain(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def _segment_dict(segment: Segment) -> dict[str, Any]:
    record = _plain(segment, _SEGMENT_FIELDS)
    if segment.calls is not None:
        record["calls"] = [_plain(call, _CALL_FIELDS) for call in segment.calls]
    return record


def _query_dict(query: Query) -> dict[str, Any]:
    return {
        "text": query.text,
        "hits": [_plain(hit, _HIT_FIELDS) for hit in query.hits],
        "error": query.error,
        "cached": query.cached,
        "start_s": query.start_s,
        "end_s": query.end_s,
        **({} if query.missing is None else {"missing": query.missing}),
    }


# ---- reading and writing ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Trajectory]:
    from pydantic import TypeAdapter

    # Unknown fields are let through: a later version's extra field must not make an old record unreadable.
    return TypeAdapter(Trajectory)


def trajectory_from_dict(record: object, path: str = "<record>", line: int | None = None) -> Trajectory:
    """Check and build a trajectory; counts that a hand-written record lacks are derived from its segments."""
    from pydantic import ValidationError

    if not isinstance(record, dict):
        raise DataError(path, line, f"expected a JSON object, found {type(record).__name__}")
    for name in ("question", "segments"):
        if name not in record:
            held = f"is missing ({fields_of(record)}); a trajectory is what eval writes: RUN/trajectories.jsonl"
            raise DataError(path, line, held, field=name)
    version = record.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise DataError(
            path, line, f"found {version!r}, this release reads up to {SCHEMA_VERSION}", field="schema_version"
        )
    try:
        trajectory = _adapter().validate_python(record)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found = repr(first["input"])
        raise DataError(
            path, line, f"{first['msg']}, found {found if len(found) < 80 else found[:77] + '...'}", field=where
        ) from error
    for number, segment in enumerate(trajectory.segments):
        if (
            segment.token_ids is not None
            and segment.logprobs is not None
            and len(segment.token_ids) != len(segment.logprobs)
        ):
            raise DataError(
                path,
                line,
                f"{len(segment.logprobs)} values for {len(segment.token_ids)} token ids",
                field=f"segments.{number}.logprobs",
            )
    if "turns" not in record:
        derive_turns(trajectory)
    elif "dialect" not in record and not any("action" in turn for turn in record["turns"]):
        _say_actions(trajectory)
    _give_texts(trajectory)
    return trajectory


def _written_turns(trajectory: Trajectory) -> list[Turn]:
    """The turn of each segment that the model wrote. Where the counts differ, the last call failed, or the first turn is the
    environment's. A turn of the model's may be empty, too."""
    turns = [turn for turn in trajectory.turns if turn.was_written]
    num_written = sum(segment.author == "model" for segment in trajectory.segments)
    if len(turns) > num_written and turns[-1].finish is None and turns[-1].num_tokens is None:
        turns.pop()
    if len(turns) > num_written and turns[0].num_tokens == 0:
        del turns[0]
    return turns


def _give_texts(trajectory: Trajectory) -> None:
    """What the model wrote in each turn."""
    texts = [segment.text for segment in trajectory.segments if segment.author == "model"]
    for turn, text in zip(_written_turns(trajectory), texts, strict=False):
        turn.text = text


def _say_actions(trajectory: Trajectory) -> None:
    """For a record of an earlier release, in which turns do not say what they do: read the model's segments again."""
    texts = iter([segment.text for segment in trajectory.segments if segment.author == "model"])
    for turn in trajectory.turns:
        if turn.was_written:
            _say(turn, grammar.parse_turn(next(texts, "")))


def _say(turn: Turn, parsed: grammar.ParsedTurn) -> None:
    turn.action, turn.thought, turn.separated = parsed.action, parsed.thought, parsed.separated


def derive_turns(trajectory: Trajectory) -> None:
    """Fill turns, counts and answer from the segments: a search counts when the search engine's segment follows it."""
    turns: list[Turn] = []
    answer: str | None = None
    segments = trajectory.segments
    for number, segment in enumerate(segments):
        if segment.author != "model":
            continue
        parsed = grammar.parse_turn(segment.text, trajectory.max_subqueries)
        was_executed = number + 1 < len(segments) and segments[number + 1].author == "search"
        queries = [Query(text) for text in parsed.queries] if was_executed else []
        turn = Turn(queries, list(parsed.dropped) if was_executed else [], problems=[p.code for p in parsed.problems])
        _say(turn, parsed)
        turns.append(turn)
        answer = parsed.answer if parsed.action == "answer" else answer
    trajectory.turns = turns
    trajectory.answer = trajectory.answer if trajectory.answer is not None else answer
    trajectory.num_llm_calls = len(turns)
    trajectory.num_searches = len(trajectory.rounds)
    trajectory.num_subqueries = sum(len(turn.queries) for turn in turns)
    if trajectory.stop is None:
        trajectory.stop = "answer" if trajectory.answer is not None else "max_turns"


def read_trajectories(path: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Trajectories of a JSON Lines file, one at a time; a bad line raises `DataError` with its number and field."""
    for line, record in read_jsonl(path):
        yield trajectory_from_dict(record, str(path), line)


def write_trajectories(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> int:
    """Write one object a line; returns how many. The file appears when it is whole."""
    return write_lines(path, (trajectory.to_json() for trajectory in trajectories))
