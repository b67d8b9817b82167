"""franz-go: the tests of its client, of which some produce, consume in groups and transact for a minute.

Its client waits 10 s for an answer. On a machine without CPU to spare, members of TestGroupETL lose answers and come
back with epoch 0. Kafka 4.1.2 refuses that, and so does the embedded cluster (KAFKA-19233): FENCED_MEMBER_EPOCH, for a
static member UNRELEASED_INSTANCE_ID. That says nothing about the cluster; run the suite alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tools.suites import Clusters, States, Suite, Wanted, go

MODULE, VERSION = "github.com/twmb/franz-go", "v1.22.2"
_RECORDS = 20_000


def run(clusters: Clusters, tests: Iterable[str] | None) -> States:
    folder = go.module(MODULE, VERSION)
    test = go.compiled(folder, "./pkg/kgo")
    with clusters(Wanted(brokers=3)) as addresses:
        copies = str(addresses.count(",") + 1)
        environment = {"KGO_SEEDS": addresses, "KGO_TEST_RF": copies, "KGO_TEST_RECORDS": str(_RECORDS)}
        return go.ended(test, folder / "pkg/kgo", environment, tests)


SUITE = Suite("franz-go's kgo", run)
