from typing import final

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.compat.aiokafka.records import RecordMetadata
from kafkabuf.errors import KafkaError

@final
class Outcomes:
    """The outcomes of send()'s futures: aiokafka's RecordMetadata and errors. Only the loop's thread calls it."""

    def result(self, record: RecordFuture) -> RecordMetadata | None:
        """None with acks=0, as in aiokafka. Raises aiokafka's error."""

    def exception(self, record: RecordFuture) -> KafkaError | None: ...
