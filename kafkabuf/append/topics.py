"""Topics and partitions that send() does not know: it waits for metadata, but never in the Sender's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from kafkabuf.append._producer import TopicPolicy
from kafkabuf.batches._accumulator import TopicQueues
from kafkabuf.batches.accumulator import RecordAccumulator
from kafkabuf.errors import InvalidTopicError, TimeoutError
from kafkabuf.metadata.metadata import Metadata, TopicInfo
from kafkabuf.metadata.topic_names import TOPIC_RULE, is_legal_topic


class Topics(TopicPolicy):
    """The topics of a producer that has a cluster. A producer that is closed asks nothing here.

    `in_sender_thread` says whether a callback runs the call: the thread that runs the callback fetches metadata.
    `timed` adds the duration of a block to a metric.
    """

    def __init__(
        self,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        in_sender_thread: Callable[[], bool],
        timed: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._metadata = metadata
        self._accumulator = accumulator
        self._in_sender_thread = in_sender_thread
        self._timed = timed

    def may_wait(self) -> bool:
        return not self._in_sender_thread()

    def info(self, name: str, timeout: float) -> TopicInfo:
        """The topic's partitions and their leaders, within `timeout` seconds."""
        if not is_legal_topic(name):
            raise InvalidTopicError(f"{name!r:.300} is not a valid topic name: {TOPIC_RULE}")
        if self._in_sender_thread():
            return self._known(name)
        with self._timed("metadata-wait"):
            return self._metadata.await_topic(name, timeout)

    def _known(self, name: str) -> TopicInfo:
        try:
            return self._metadata.await_topic(name, 0)
        except TimeoutError:
            raise TimeoutError(
                f"topic {name!r} is not known yet, and a callback cannot wait for metadata (the producer has requested "
                "it): call partitions_for() before, or send from another thread"
            ) from None

    def await_topic(self, name: str, timeout: float) -> TopicQueues:
        info = self.info(name, timeout)
        topic = self._accumulator.made_topic(name, info.leaders, info.leader_epochs, info.topic_id)
        if self._metadata.snapshot.topics.get(name) is not info:
            # Metadata changed before the Sender could see the new queues: let the listeners run once more.
            self._metadata.request_update()
        return topic

    def await_partition(self, name: str, partition: int, timeout: float) -> None:
        """An unknown partition may be new. Requests metadata once and then trusts the response."""
        self._metadata.add_topic(name)
        if self._in_sender_thread():
            self._metadata.request_update()
            raise TimeoutError(
                f"partition {partition} of topic {name!r} is not known, and a callback cannot wait for metadata (the "
                "producer has requested it): send again later, or from another thread"
            )
        with self._timed("metadata-wait"):
            self._metadata.await_update(timeout)  # the Sender creates the queues before it wakes this thread
