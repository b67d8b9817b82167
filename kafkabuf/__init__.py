"""kafkabuf: a Kafka producer over one preallocated arena, for Python and Spark.

Importing the package loads nothing: names are found when they are first used, so that Spark's drivers may look at
`kafkabuf.spark` on machines that never send a record.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkabuf._pool import BufferPool as BufferPool
    from kafkabuf._records import MemoryRecordsBuilder as MemoryRecordsBuilder
    from kafkabuf.batches._batch import RecordFuture as RecordFuture
    from kafkabuf.config import ProducerConfig as ProducerConfig
    from kafkabuf.producer import KafkaProducer as KafkaProducer
    from kafkabuf.record_metadata import RecordMetadata as RecordMetadata

__version__ = "0.1.0"

# To those who have not set up logging Python shows warnings on standard error, and ours tell of connections that cannot
# be made and of records that are lost. The embedded broker, which is for tests, stays silent.
logging.getLogger("kafkabuf.broker").addHandler(logging.NullHandler())

_HOMES = {
    "BufferPool": "kafkabuf._pool",
    "KafkaProducer": "kafkabuf.producer",
    "MemoryRecordsBuilder": "kafkabuf._records",
    "ProducerConfig": "kafkabuf.config",
    "RecordFuture": "kafkabuf.batches._batch",
    "RecordMetadata": "kafkabuf.record_metadata",
}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kafkabuf' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
