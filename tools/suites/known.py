"""The tests of other suites that pass on Apache Kafka and fail on the embedded cluster, with the reason."""

from __future__ import annotations

KNOWN: dict[str, dict[str, str]] = {
    "kafka-python": {
        "test_admin_integration.test_alter_replica_log_dirs": "a node has one log folder",
        "test_admin_integration.test_alter_partition_reassignments": "the cluster has no reassignments",
    },
}
