from collections.abc import Callable
from typing import Any

from kafkabuf.batches._accumulator import AccumulatorCore, TopicQueues
from kafkabuf.batches._batch import RecordFuture
from kafkabuf.clock import Clock
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import KafkaError
from kafkabuf.interceptors import Interceptors
from kafkabuf.memory.buffers import Headers
from kafkabuf.record_metadata import RecordMetadata

FORKED: str

class TopicPolicy:
    def await_topic(self, name: str, timeout: float) -> TopicQueues: ...
    def await_partition(self, name: str, partition: int, timeout: float) -> None: ...
    def may_wait(self) -> bool: ...

class ProducerCore:
    accumulator: AccumulatorCore
    topics: TopicPolicy
    records_sent: int
    detour: bool
    interceptors: Interceptors | None
    def _open(
        self,
        accumulator: AccumulatorCore,
        topics: TopicPolicy,
        config: ProducerConfig,
        clock: Clock,
        schemas: Any = None,
    ) -> None: ...
    def _begin_close(self, because: str = ...) -> None: ...
    def check_open(self) -> int:
        """Raises ClosedError unless records can be sent. In a forked child it opens a producer of the child's own."""
    def _close_in_child(self, reopen: Callable[[], None] | None = None) -> None: ...
    def __dir__(self) -> list[str]: ...
    def prepare(
        self, topic: str, key: Any, value: Any, headers: Headers | None, partition: int | None
    ) -> tuple[Any, Any, Headers | None, int | None]: ...
    def _lacks_schema(self, topic: str, key: Any, value: Any) -> bool: ...
    def _await_schemas(self, topic: str, key: Any, value: Any, timeout: float) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        callback: Callable[[RecordMetadata, KafkaError | None], object] | None = None,
        opaque: object = None,
    ) -> RecordFuture: ...
