from collections.abc import Callable
from typing import Any, NamedTuple

from kafkabuf.append._producer import ProducerCore
from kafkabuf.memory.buffers import Headers

class TopicPartition(NamedTuple):
    topic: str
    partition: int

class RecordMetadata(NamedTuple):
    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    checksum: None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int

class FutureRecordMetadata:
    @property
    def is_done(self) -> bool: ...
    @property
    def value(self) -> RecordMetadata | None: ...
    @property
    def exception(self) -> Exception | None: ...
    def succeeded(self) -> bool: ...
    def failed(self) -> bool: ...
    def retriable(self) -> bool: ...
    def get(self, timeout: float | None = None) -> RecordMetadata: ...
    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> FutureRecordMetadata: ...
    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> FutureRecordMetadata: ...
    def chain(self, future: Any) -> FutureRecordMetadata: ...
    def add_both(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> FutureRecordMetadata: ...

class SendCore:
    def _open(self, producer: ProducerCore, prepare: Callable[..., tuple[Any, Any, int | None]] | None) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata: ...
