"""The leader appends a producer's batch to its log."""

from collections.abc import Sequence
from typing import final
from uuid import UUID

from kafkabuf.broker.replica.rare_appends import Node, Terms
from kafkabuf.broker.replica.replication import Replica
from kafkabuf.errors import KafkaError

@final
class Appended:
    """The result of an append (Kafka's LogAppendResult). `end` is the offset behind the batch's last record. A batch
    that came twice has the offsets of its first arrival. Only such a batch, and a batch that got its timestamps from
    the leader, have an `append_time`. A refused batch has an `error`, with the (index, text) of each bad record; it has
    a `log_start_offset` if its header was valid."""

    def __init__(
        self,
        leader: Replica | None = None,
        base_offset: int = -1,
        end: int = -1,
        append_time: int = -1,
        log_start_offset: int = -1,
        error: KafkaError | None = None,
        record_errors: Sequence[tuple[int, str]] = (),
    ) -> None: ...
    @property
    def leader(self) -> Replica | None: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def append_time(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def error(self) -> KafkaError | None: ...
    @property
    def record_errors(self) -> Sequence[tuple[int, str]]: ...

def append_as_leader(
    node: Node, topic: str | UUID, index: int, data: bytearray, terms: Terms, most_named: int
) -> Appended:
    """Appends a batch to the log of a partition that the node leads. It takes over `data`. If records are bad, the
    result names at most `most_named` of them, which is at least 1.

    It does not tell the followers of the batch: the caller then calls `Replica.appended`, which tells them.
    """
