"""Deviations: the differences between the embedded broker's responses and Kafka 4.1.2's, with their reasons.

The test fails for a difference without an entry here, and for an entry without a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from kafkabuf.protocol import messages as m


@dataclass(frozen=True)
class Deviation:
    """A known difference. `step`, the label of the request, and `path` are patterns."""

    api_key: int
    step: str
    path: str
    reason: str

    def explains(self, api_key: int, step: str, path: str) -> bool:
        return api_key == self.api_key and fnmatchcase(step, self.step) and fnmatchcase(path, self.path)


# Kafka 4.1 sets min.insync.replicas for the whole cluster, since eligible leader replicas (KIP-966) need it.
_ELR = "there are no eligible leader replicas: min.insync.replicas is not set for the whole cluster"
_FIRST_OFFSETS = "Kafka asks the coordinator only before a producer's first offsets"
_MIN_ISR = "*.configs[[]min.insync.replicas[]]"

DEVIATIONS = [
    Deviation(m.API_VERSIONS, "*", "*", "the embedded broker serves fewer APIs and features"),
    Deviation(m.PRODUCE, "an unknown codec", "*", "the refusal names the cause, and Kafka's does not"),
    Deviation(
        m.PRODUCE,
        "more records than there are",
        "*.log_start_offset",
        "no client reads it beside an error",
    ),
    Deviation(
        m.FETCH, "no such *", "*.aborted_transactions", "null or empty: no client tells them apart beside an error"
    ),
    Deviation(m.FIND_COORDINATOR, "of *", ".error_message", "Kafka's text for no error is NONE"),
    Deviation(m.CREATE_TOPICS, "*", _MIN_ISR + ".config_source", _ELR),
    Deviation(
        m.TXN_OFFSET_COMMIT,
        "unknown transactional id",
        "*",
        _FIRST_OFFSETS,
    ),
    Deviation(m.DESCRIBE_CONFIGS, "*", _MIN_ISR + ".config_source", _ELR),
    Deviation(m.DESCRIBE_CONFIGS, "with synonyms", _MIN_ISR + ".synonyms", _ELR),
    Deviation(m.DESCRIBE_CONFIGS, "with synonyms", "*[[]retention.ms[]].synonyms*", "retention is not listed in hours"),
    Deviation(m.DESCRIBE_CONFIGS, "all nodes", ".results[[][]].configs", _ELR),
    Deviation(m.DESCRIBE_CONFIGS, "a node", "*.read_only", "the settings of a node cannot change"),
    Deviation(m.DESCRIBE_CONFIGS, "a node", "*.config_source", "a default is listed as a setting of the node"),
]
