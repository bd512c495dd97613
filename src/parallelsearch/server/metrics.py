"""What a search server counts, in Prometheus' form. Each app has a registry of its own, so that two can live together."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from parallelsearch.search import Found, Search
from parallelsearch.server.limits import PendingQueries

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class SearchStatsCollector(Collector):
    """The counts the search layer keeps itself, read when somebody asks."""

    _meanings: ClassVar[dict[str, str]] = {
        "num_shared": "queries that were already in flight for somebody else",
        "num_calls": "calls of the backend",
        "num_asked": "queries sent to the backend",
        "num_retries": "queries sent again after a transient failure",
        "num_timeouts": "queries without an answer in time",
    }

    def __init__(self, search: Search) -> None:
        self._search = search

    def collect(self) -> Iterable[Metric]:
        for name, meaning in self._meanings.items():
            metric = f"parallelsearch_search_{name.removeprefix('num_')}"
            yield CounterMetricFamily(metric, meaning, value=getattr(self._search.stats, name))


class ServerMetrics:
    """Counters of one server."""

    def __init__(self, search: Search, pending: PendingQueries) -> None:
        self._registry = registry = CollectorRegistry()
        requests = Counter("parallelsearch_requests", "requests by status", ["status"], registry=registry)
        self._of_status = functools.cache(lambda status: requests.labels(str(status)))
        queries = Counter("parallelsearch_queries", "queries by outcome", ["outcome"], registry=registry)
        self._found, self._cached, self._failed = (queries.labels(name) for name in ("found", "cached", "failed"))
        self._seconds = Histogram(
            "parallelsearch_request_seconds", "time to answer a request", buckets=SECONDS_BUCKETS, registry=registry
        )
        self._per_request = Histogram(
            "parallelsearch_queries_per_request",
            "queries in one request",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024),
            registry=registry,
        )
        gauge = Gauge("parallelsearch_pending_queries", "queries taken and not yet answered", registry=registry)
        gauge.set_function(lambda: pending.num_pending)
        registry.register(SearchStatsCollector(search))

    def request(self, status: int, elapsed_s: float, found: list[Found]) -> None:
        self._of_status(status).inc()
        self._seconds.observe(elapsed_s)
        if not found:
            return
        self._per_request.observe(len(found))
        num_failed = sum(one.error is not None for one in found)
        num_cached = sum(one.cached for one in found)
        self._found.inc(len(found) - num_failed - num_cached)
        if num_failed:
            self._failed.inc(num_failed)
        if num_cached:
            self._cached.inc(num_cached)

    def text(self) -> bytes:
        return generate_latest(self._registry)
