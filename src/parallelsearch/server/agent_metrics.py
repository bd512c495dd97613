"""What an agent server counts, in Prometheus' form: requests, questions by how they ended, calls, sub-queries, tokens."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from parallelsearch.search import Search
from parallelsearch.server.answering import Reply
from parallelsearch.server.limits import PendingQueries
from parallelsearch.server.metrics import SECONDS_BUCKETS, SearchStatsCollector


class AgentMetrics:
    """Counters of one agent server."""

    def __init__(self, search: Search, pending: PendingQueries) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("parallelsearch_requests", "requests by status", ["status"], registry=registry)
        self._questions = Counter(
            "parallelsearch_questions", "questions by how they ended", ["stop"], registry=registry
        )
        self._abstained = Counter("parallelsearch_abstained", "questions not answered on purpose", registry=registry)
        self._llm_calls = Counter("parallelsearch_llm_calls", "turns of the model", registry=registry)
        self._searches = Counter("parallelsearch_rounds", "turns that searched", registry=registry)
        self._subqueries = Counter(
            "parallelsearch_subqueries", "sub-queries by outcome", ["outcome"], registry=registry
        )
        self._tokens = Counter(
            "parallelsearch_tokens", "tokens of all model calls of answered questions", ["kind"], registry=registry
        )
        self._cost = Counter("parallelsearch_cost", "what answered questions cost, by --prices", registry=registry)
        self._seconds = Histogram(
            "parallelsearch_request_seconds", "time to answer", buckets=(*SECONDS_BUCKETS, 60, 120), registry=registry
        )
        gauge = Gauge("parallelsearch_pending_questions", "questions being answered", registry=registry)
        gauge.set_function(lambda: pending.num_pending)
        registry.register(SearchStatsCollector(search))

    def request(self, status: int, elapsed_s: float) -> None:
        self._requests.labels(str(status)).inc()
        self._seconds.observe(elapsed_s)

    def answered(self, reply: Reply) -> None:
        trajectory = reply.trajectory
        self._questions.labels(trajectory.stop or "unknown").inc()
        self._abstained.inc(reply.abstained is not None)
        for kind, number in zip(("read", "written"), trajectory.billed_tokens, strict=True):
            self._tokens.labels(kind).inc(number)
        self._cost.inc(reply.cost or 0.0)
        self._llm_calls.inc(trajectory.num_llm_calls)
        self._searches.inc(trajectory.num_searches)
        for turn in trajectory.turns:
            for query in turn.queries:
                outcome = "failed" if query.error is not None else "cached" if query.cached else "found"
                self._subqueries.labels(outcome).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
