"""Types for annotations in users' code: the settings as keywords, and what KafkaProducer and MockProducer share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self
from uuid import UUID

from kafkabuf.config.keywords import Settings
from kafkabuf.memory.buffers import Buffer as BytesLike
from kafkabuf.memory.buffers import K, V

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from kafkabuf.batches._batch import RecordFuture
    from kafkabuf.clock import Clock
    from kafkabuf.config import ProducerConfig
    from kafkabuf.errors import KafkaError
    from kafkabuf.memory.buffers import Headers
    from kafkabuf.metadata.snapshot import TopicInfo
    from kafkabuf.record_metadata import RecordMetadata
    from kafkabuf.transactions.groups import GroupMetadata, Offsets

__all__ = ["BytesLike", "Options", "Producer", "Settings"]


class Options(Settings, total=False):
    """The keywords of a producer's constructor: its settings, and what is no setting of Kafka."""

    clock: Clock | None
    check: bool
    ssl_context: ssl.SSLContext | None


class Producer(Protocol, Generic[K, V]):
    """The methods that KafkaProducer and MockProducer share, for code that a test runs with a MockProducer.

    K and V are the types of keys and values: `Producer[BytesLike, Order]`. `Producer` alone takes any keys and values.
    """

    @property
    def config(self) -> ProducerConfig: ...
    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Callable[[RecordMetadata, KafkaError | None], object] | None = None,
    ) -> RecordFuture: ...
    def partitions_for(self, topic: str) -> TopicInfo: ...
    def init_transactions(self) -> None: ...
    def begin_transaction(self) -> None: ...
    def send_offsets_to_transaction(self, offsets: Offsets, group_metadata: GroupMetadata | str | Any) -> None: ...
    def commit_transaction(self) -> None: ...
    def abort_transaction(self) -> None: ...
    def flush(self, timeout: float | None = None) -> None: ...
    def purge(self, *, in_flight: bool = True) -> None: ...
    def close(self, timeout: float | None = None) -> None: ...
    def client_instance_id(self, timeout: float) -> UUID: ...
    def metrics(self) -> dict[str, dict[str, float]]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
