"""Deviations: the differences between the embedded broker and Kafka 4.1.2, with their reasons.

The test fails for a difference without an entry here, and for an entry without a difference. `python -m
tools.broker_page` writes the reasons to docs/embedded-broker.md, with what the docstrings of kafkabuf/broker say about
differences that are not in responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from kafkabuf.protocol import messages as m


@dataclass(frozen=True)
class Deviation:
    """A known difference. `step`, the label of the request, and `path` are patterns. `reason` is a sentence for
    users."""

    api_key: int
    step: str
    path: str
    reason: str

    def explains(self, api_key: int, step: str, path: str) -> bool:
        return api_key == self.api_key and fnmatchcase(step, self.step) and fnmatchcase(path, self.path)


_UNFOLLOWED = "A node refuses a setting of nodes that the embedded cluster does not follow."
_SMALL_SEGMENTS = "segment.bytes may be as small as 14, so that a test can fill segments."
_NO_POLICY = (
    "A request for too many partitions gets POLICY_VIOLATION, as in CreateTopics, where Kafka answers "
    "UNKNOWN_SERVER_ERROR."
)

DEVIATIONS = [
    Deviation(m.API_VERSIONS, "*", "*", "The node serves fewer APIs than Kafka, and no other feature."),
    Deviation(m.PRODUCE, "an unknown codec", "*", "The error for an unknown codec says what is wrong, unlike Kafka's."),
    Deviation(
        m.PRODUCE,
        "more records than there are",
        "*.log_start_offset",
        "The log_start_offset of a refused batch may differ from Kafka's.",
    ),
    Deviation(
        m.FETCH,
        "no such *",
        "*.aborted_transactions",
        "The list of aborted transactions of a partition with an error is null, where Kafka's may be empty.",
    ),
    Deviation(
        m.FIND_COORDINATOR,
        "of *",
        ".error_message",
        "A response without an error has no error message; Kafka's says NONE.",
    ),
    Deviation(m.CREATE_PARTITIONS, "to 10003", "*.error_code", _NO_POLICY),
    Deviation(m.CREATE_PARTITIONS, "to 2147483647", "*.error_code", _NO_POLICY),
    Deviation(
        m.TXN_OFFSET_COMMIT,
        "unknown transactional id",
        "*",
        "The node asks the transaction coordinator for every request, Kafka only before a producer's first offsets.",
    ),
    Deviation(m.CREATE_TOPICS, "segment.bytes: *", "*", _SMALL_SEGMENTS),
    Deviation(m.ALTER_CONFIGS, "values: segment.bytes=*", "*", _SMALL_SEGMENTS),
    Deviation(m.INCREMENTAL_ALTER_CONFIGS, "values: segment.bytes=*", "*", _SMALL_SEGMENTS),
    Deviation(m.INCREMENTAL_ALTER_CONFIGS, "node *: no such setting", "*", _UNFOLLOWED),
    Deviation(m.INCREMENTAL_ALTER_CONFIGS, "node *: threads", "*", _UNFOLLOWED),
    Deviation(
        m.INCREMENTAL_ALTER_CONFIGS,
        "node '1': no replicas in sync",
        "*",
        "To delete min.insync.replicas of one node, which is never set, is no error.",
    ),
    Deviation(m.DESCRIBE_CONFIGS, "with documentation", "*.documentation", "There are no texts of documentation."),
    *(
        Deviation(m.DESCRIBE_CONFIGS, "the values of a node", f".{name}.*", f"{name} is {text}")
        for name, text in {
            "group.coordinator.rebalance.protocols": "classic,consumer: there are no streams groups.",
            "max.connections": "10,000 by default.",
            "max.incremental.fetch.session.cache.slots": "0: there are no fetch sessions.",
            "num.io.threads": "1: one thread serves all nodes.",
            "num.network.threads": "1: one thread serves all nodes.",
            "offsets.retention.minutes": "the largest number: offsets never expire.",
            "transactional.id.expiration.ms": "the largest number: transactional ids never expire.",
        }.items()
    ),
    Deviation(m.DESCRIBE_CONFIGS, "the same twice", "*", "A resource that the request repeats comes once."),
    Deviation(
        m.DESCRIBE_QUORUM,
        "the metadata",
        ".nodes*.listeners*.name",
        "The nodes have no listeners for controllers: the response names their listeners for clients.",
    ),
]

# The APIs of Kafka 4.1.2 that the embedded cluster does not serve, by what they are for.
NOT_SERVED = {
    "moving replicas": (34, 45),
    "delegation tokens": (38, 39, 40, 41),
    "quotas": (48, 49),
    "SCRAM users": (50, 51),
    "features and the quorum": (57, 64, 80, 81),
    "share groups": (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
}
