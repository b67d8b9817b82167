"""Other clients' own test suites against the embedded cluster: `python -m tools.suites`, a part of `make test-peers`.

A suite runs unchanged, with its own client. Each test that fails on the embedded cluster runs again on a real Apache
Kafka. A test that fails there too says nothing about the cluster. Each other test must be in known.py, with the reason.
The command writes the table of docs/embedded-broker.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PASSED, FAILED = "passed", "failed"
# The state of a test that the suite itself skips is SKIPPED, or the suite's reason.
SKIPPED = "skipped"

# By the name of each test: PASSED, FAILED, or why it was skipped.
States = dict[str, str]


class Wanted(NamedTuple):
    """The cluster that a suite asks for. `configs` are those of the brokers, by Kafka's names."""

    brokers: int = 1
    topics: Mapping[str, int] = MappingProxyType({})
    configs: Mapping[str, str] = MappingProxyType({})


# Makes a cluster for the time of a `with`, and gives its addresses.
Clusters = Callable[[Wanted], AbstractContextManager[str]]


class Suite(NamedTuple):
    """`run` takes the clusters to run on and the tests to run (None: all). It raises UnavailableError where the suite
    cannot be had."""

    name: str
    run: Callable[[Clusters, Iterable[str] | None], States]


class UnavailableError(Exception):
    """The suite cannot run here. The message says what is missing."""


@contextmanager
def embedded(wanted: Wanted) -> Iterator[str]:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=wanted.brokers, default_partitions=2, config=wanted.configs) as cluster:
        for topic, partitions in wanted.topics.items():
            cluster.create_topic(topic, partitions)
        yield cluster.bootstrap_servers


class RealClusters:
    """One node of Apache Kafka for all that want the same configs, whatever number of brokers they want."""

    def __init__(self) -> None:
        from rigs.real_kafka import RealKafka

        self._kafka: RealKafka | None = None
        self._configs: Mapping[str, str] = {}

    @contextmanager
    def cluster(self, wanted: Wanted) -> Iterator[str]:
        from confluent_kafka.admin import AdminClient

        from rigs.real_kafka import TEST_JVM, RealKafka

        if self._kafka is None or self._configs != wanted.configs:
            self.close()
            options = {"num.partitions": "2", "group.consumer.min.heartbeat.interval.ms": "100", **wanted.configs}
            self._kafka, self._configs = RealKafka(options=options, jvm_options=TEST_JVM), wanted.configs
            self._kafka.start()
        for topic, partitions in wanted.topics.items():
            self._kafka.create_topic(topic, partitions)
        try:
            yield self._kafka.bootstrap_servers
        finally:
            if wanted.topics:
                admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap_servers})
                for deleted in admin.delete_topics(list(wanted.topics)).values():
                    deleted.exception()

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.stop()
            self._kafka = None
