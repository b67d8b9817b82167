"""kafkabuf: a Kafka producer over one preallocated arena, for Python and Spark.

Importing the package loads no module but lazy_names.py: the first use of a name imports the name's module. So a Spark
driver can import `kafkabuf.spark` on a machine that never sends a record.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kafkabuf.lazy_names import lazy_names

if TYPE_CHECKING:
    from kafkabuf._pool import BufferPool as BufferPool
    from kafkabuf._records import MemoryRecordsBuilder as MemoryRecordsBuilder
    from kafkabuf.batches._batch import RecordFuture as RecordFuture
    from kafkabuf.config import ProducerConfig as ProducerConfig
    from kafkabuf.producer import KafkaProducer as KafkaProducer
    from kafkabuf.record_metadata import BatchOutcome as BatchOutcome
    from kafkabuf.record_metadata import RecordMetadata as RecordMetadata
    from kafkabuf.version import __version__ as __version__

# Where the application has not set up logging, Python prints warnings on standard error. The producer's warnings belong
# there: they report connections that fail and records that are lost. The embedded broker is for tests and stays silent.
logging.getLogger("kafkabuf.broker").addHandler(logging.NullHandler())

_HOMES = {
    "__version__": "kafkabuf.version",
    "BatchOutcome": "kafkabuf.record_metadata",
    "BufferPool": "kafkabuf._pool",
    "KafkaProducer": "kafkabuf.producer",
    "MemoryRecordsBuilder": "kafkabuf._records",
    "ProducerConfig": "kafkabuf.config",
    "RecordFuture": "kafkabuf.batches._batch",
    "RecordMetadata": "kafkabuf.record_metadata",
}
__all__ = [*_HOMES]  # noqa: PLE0604

_CONSUMER = (
    "kafkabuf only produces. Use the consumer of another library beside it: confluent_kafka.Consumer, "
    "kafka.KafkaConsumer or aiokafka.AIOKafkaConsumer. send_offsets_to_transaction() takes the offsets of any of them"
)
_ADMIN = (
    "kafkabuf only produces. Use the admin client of another library beside it: confluent_kafka.admin.AdminClient, "
    "kafka.KafkaAdminClient or aiokafka.admin.AIOKafkaAdminClient. partitions_for() of a producer names a topic's "
    "partitions, and `kafkabuf spark` administers the sink's groups and transactions"
)
_ELSEWHERE = {
    "AIOKafkaProducer": "use kafkabuf.aio.AIOKafkaProducer",
    "Producer": "use kafkabuf.KafkaProducer",
    "Consumer": _CONSUMER,
    "KafkaConsumer": _CONSUMER,
    "AIOKafkaConsumer": _CONSUMER,
    "AdminClient": _ADMIN,
    "KafkaAdminClient": _ADMIN,
    "AIOKafkaAdminClient": _ADMIN,
}

_load = lazy_names(globals(), _HOMES)


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        # Not an AttributeError: `from kafkabuf import` would replace its text.
        raise ImportError(f"kafkabuf has no {name}: {_ELSEWHERE[name]}")
    return _load(name)
