"""Metrics of Spark queries for Prometheus: `REGISTRY.register(ReportCollector(listener))`. Needs prometheus-client.

Register it in the process that runs the queries, with the listener that `spark.streams.addListener` got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafkabuf.spark.reports.listener import QueryTotals, ReportListener

_PREFIX = "kafkabuf_spark_"
_BY_TOPIC = {
    "rows": "Rows that the brokers have acknowledged",
    "bytes": "Bytes of keys, values and headers as encoded",
}
_BY_QUERY = {
    "micro_batches": "Micro-batches that were committed",
    "skipped": "Rows that onRowError 'skip' left out",
    "dead_lettered": "Rows that went to the dead-letter topic",
    "retries": "Rows that were sent again",
    "wait_seconds": "Seconds that tasks waited for memory",
}
_NEWEST = {
    "last_batch": ("last_batch_id", "Number of the newest micro-batch"),
    "last_commit": ("last_commit_timestamp_seconds", "End of the newest micro-batch, in seconds since 1970"),
}


class ReportCollector:
    """Reads the totals of a `ReportListener` at each scrape. The label `query` is the query's name, or its id.

    Queries with the same name, one after the other, share their metrics. A query that has ended has no
    `last_commit_timestamp_seconds`: an alarm on its age means a query that runs and commits nothing.
    """

    def __init__(self, listener: ReportListener) -> None:
        self._listener = listener

    def describe(self) -> list[Metric]:
        return []  # metrics of queries appear only after the registration

    def collect(self) -> Iterator[Metric]:
        queries = sorted(self._listener.totals().values(), key=lambda query: query.last_commit)
        yield from _counters(queries)
        for field, (name, text) in _NEWEST.items():
            shown = (query for query in queries if query.micro_batches)
            if field == "last_commit":
                shown = (query for query in shown if not query.has_ended)
            newest = {query.name: getattr(query, field) for query in shown}
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["query"])
            for query_name, value in newest.items():
                gauge.add_metric([query_name], value)
            yield gauge


def _counters(queries: list[QueryTotals]) -> Iterator[Metric]:
    for field, text in _BY_TOPIC.items():
        by_topic: Counter[tuple[str, ...]] = Counter()
        for query in queries:
            by_topic.update({(query.name, topic): value for topic, value in getattr(query, field).items()})
        yield _counter(field, text, ["query", "topic"], by_topic)
    for field, text in _BY_QUERY.items():
        by_query: Counter[tuple[str, ...]] = Counter()
        for query in queries:
            by_query[query.name,] += getattr(query, field)
        yield _counter(field, text, ["query"], by_query)


def _counter(name: str, text: str, labels: list[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
    for label_values, value in values.items():
        counter.add_metric(label_values, value)
    return counter
