"""Where the embedded broker answers otherwise than Kafka 4.1.2, and why. One that no longer shows fails the test as
much as one that is not listed here."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from kafkabuf.protocol import messages as m


@dataclass(frozen=True)
class Deviation:
    """`step` and `path` are patterns."""

    api_key: int
    step: str
    path: str
    reason: str

    def explains(self, api_key: int, step: str, path: str) -> bool:
        return api_key == self.api_key and fnmatchcase(step, self.step) and fnmatchcase(path, self.path)


# Kafka 4.1 sets it for the whole cluster, for the sake of eligible leader replicas (KIP-966).
_ELR = "no eligible leader replicas, and so no min.insync.replicas set for the whole cluster"
_FIRST_OFFSETS = "Kafka asks the coordinator only before a producer's first offsets"
_MIN_ISR = "*.configs[[]min.insync.replicas[]]"

DEVIATIONS = [
    Deviation(m.API_VERSIONS, "*", "*", "fewer APIs and features are served"),
    Deviation(m.PRODUCE, "a codec that is none", "*", "a refusal that says what is wrong; Kafka stumbles"),
    Deviation(
        m.PRODUCE,
        "more records than there are",
        "*.log_start_offset",
        "no client looks at it in an error",
    ),
    Deviation(m.FETCH, "no such *", "*.aborted_transactions", "null or empty: no client tells them apart in an error"),
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
    Deviation(m.DESCRIBE_CONFIGS, "with synonyms", "*[[]retention.ms[]].synonyms*", "not told in hours"),
    Deviation(m.DESCRIBE_CONFIGS, "all nodes", ".results[[][]].configs", _ELR),
    Deviation(m.DESCRIBE_CONFIGS, "a node", "*.read_only", "nodes' settings do not change here"),
    Deviation(m.DESCRIBE_CONFIGS, "a node", "*.config_source", "told as given, although it is the default"),
]
