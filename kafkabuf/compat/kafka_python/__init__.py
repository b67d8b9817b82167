"""KafkaProducer with kafka-python's arguments, defaults, futures and errors.

    from kafkabuf.compat.kafka_python import KafkaProducer

Where kafka-python is installed, the errors are also those of `kafka.errors`. Three things differ. Records without key
fill a batch of one partition before they go to the next (KIP-794). `buffer_memory` bounds the memory, as in version 2.
Settings that name parts of kafka-python itself are refused. Settings of a file (`buffer_path` and the like) are taken.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kafkabuf.compat.kafka_python._kafka_python import FutureRecordMetadata, RecordMetadata, SendCore, TopicPartition
from kafkabuf.compat.kafka_python.errors import as_peer, from_wait
from kafkabuf.compat.kafka_python.settings import DEFAULTS, complete, partitioner_in, settings_of, ssl_context_in
from kafkabuf.compat.shared.late_names import LateProducer
from kafkabuf.compat.shared.names import absent, in_whole_ms
from kafkabuf.errors import KafkaError
from kafkabuf.interceptors import close_all
from kafkabuf.metadata.metadata import TopicInfo
from kafkabuf.serialization import serialize_with
from kafkabuf.shown import also_unfinished

if TYPE_CHECKING:
    from kafkabuf.spool.recovered import Recovered

__all__ = ["FutureRecordMetadata", "KafkaProducer", "RecordMetadata", "TopicPartition"]

_numbers = count(1)
# What kafka-python has and this module lacks, and what takes its place.
_ELSEWHERE = {
    "KafkaConsumer": "kafkabuf has no consumer: import it from kafka",
    "KafkaAdminClient": "kafkabuf has no admin client: import it from kafka",
    "KafkaClient": "it is a part of kafka-python's own: kafkabuf's producer needs none",
}


def __getattr__(name: str) -> Any:
    raise absent(__name__, name, _ELSEWHERE)


class KafkaProducer(SendCore):
    """kafka-python's KafkaProducer. Thread-safe.

    Without `api_version` the constructor waits for a broker, up to `bootstrap_timeout_ms`, and raises KafkaTimeoutError
    where no broker answers or no bootstrap server can be resolved. Raises KafkaConfigurationError, which is a
    ValueError, for a setting that does not exist, is wrong or cannot be had here.
    """

    DEFAULT_CONFIG = DEFAULTS

    def __init__(self, **configs: Any) -> None:
        self._initialized = False
        with _peers_errors():
            self.config = complete(configs)
            if self.config["client_id"] is None:
                self.config["client_id"] = f"kafkabuf-kafka-python-{next(_numbers)}"
            self._producer = LateProducer(settings_of(self.config, configs), ssl_context=ssl_context_in(self.config))
            self._preparation = self._prepared_by(partitioner_in(self.config))
            self._open(self._producer, self._preparation)
            for name in ("acks", "enable_idempotence"):
                self.config[name] = getattr(self._producer.config, name)
            if self.config["api_version"] is None:
                self._bootstrap(in_whole_ms(self.config)["bootstrap_timeout_ms"] / 1000)
                self.config["api_version"] = _OLDEST_BROKER

    def _prepared_by(self, partitioner: Any) -> _Preparation | None:
        return None if partitioner is None else _Preparation(self._producer, self.config, partitioner)

    def _bootstrap(self, timeout: float) -> None:
        try:
            self._producer._metadata.await_update(timeout)
        except KafkaError as error:
            self._producer.close(timeout=0)
            # Version 2 of kafka-python has a class of its own for this error.
            raise as_peer(error, "NoBrokersAvailable", "KafkaTimeoutError") from None

    def bootstrap_connected(self) -> bool:
        """Whether a broker has answered."""
        return self._producer._metadata.updated_at >= 0

    def partitions_for(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions. Fetches metadata if necessary, for up to `max_block_ms`."""
        if not isinstance(topic, str):
            raise TypeError(f"a topic's name must be a str, found {topic!r}")
        try:
            return {partition.partition for partition in self._producer.partitions_for(topic).partitions}
        except KafkaError as error:
            raise from_wait(error) from error.__cause__

    def flush(self, timeout: float | None = None) -> None:
        """Send all buffered records and wait for their outcomes. Raises KafkaTimeoutError after `timeout` seconds."""
        with _peers_errors():
            self._producer.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send all buffered records and stop. After `timeout` seconds the remaining records fail.

        Afterwards it closes the serializers.
        """
        with _peers_errors():
            self._producer.close(timeout)
        if self._preparation is not None:  # else the producer beneath has closed its serializers
            self._preparation.close()

    @property
    def recovered(self) -> Recovered | None:
        """As kafkabuf.KafkaProducer.recovered: what the file of `buffer_path` held, and what has come of it."""
        return self._producer.recovered

    def metrics(self, raw: bool = False) -> dict[str, dict[str, float]] | None:
        """The metrics as {group: {name: value}}, under Java's names; None if `metrics_enabled` is False.

        `raw` changes nothing.
        """
        return self._producer.metrics() if self.config["metrics_enabled"] else None

    @staticmethod
    def max_usable_produce_magic(api_version: tuple[int, ...]) -> int:
        """The record format: always 2."""
        return 2

    # ---- transactions ------------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Prepare for transactions. A call after a success does nothing."""
        if not self._initialized:
            with _peers_errors():
                self._producer.init_transactions()
            self._initialized = True

    def begin_transaction(self) -> None:
        with _peers_errors():
            self._producer.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Any, group_metadata: Any) -> None:
        """Add a consumer's offsets, {TopicPartition: OffsetAndMetadata}; `group_metadata` may be the group's id."""
        with _peers_errors():
            self._producer.send_offsets_to_transaction(offsets, group_metadata)

    def commit_transaction(self) -> None:
        with _peers_errors():
            self._producer.commit_transaction()

    def abort_transaction(self) -> None:
        with _peers_errors():
            self._producer.abort_transaction()

    # ---- Python's own ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @also_unfinished
    def __repr__(self) -> str:
        named = f"client_id={self.config['client_id']} transactional_id={self.config['transactional_id']}"
        return f"<KafkaProducer {named}>"


# kafka-python stores the version that it has found. kafkabuf asks each broker for its own, and works with all of these.
_OLDEST_BROKER = (2, 1)


@contextmanager
def _peers_errors() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise as_peer(error) from error.__cause__


class _Cluster:
    """The part of kafka-python's ClusterMetadata that a partitioner asks."""

    def __init__(self, info: TopicInfo) -> None:
        self._info = info

    def topics(self) -> set[str]:
        return {self._info.name}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {partition.partition for partition in self._info.partitions}

    def available_partitions_for_topic(self, topic: str) -> set[int]:
        return {partition.partition for partition in self._info.partitions if partition.leader >= 0}


class _Preparation:
    """Serializes a record and calls the user's partitioner, which sees key and value before and after."""

    def __init__(self, producer: LateProducer, config: dict[str, Any], partitioner: Any) -> None:
        self._producer = producer
        self._choose = _chooser(partitioner)
        self._serializers = [serialize_with(config[f"{field}_serializer"], field) for field in ("key", "value")]
        self._user_objects: tuple[Any, ...] = (config["key_serializer"], config["value_serializer"], partitioner)

    def __call__(
        self, topic: str, value: Any, key: Any, headers: Any, partition: int | None
    ) -> tuple[Any, Any, int | None]:
        key_bytes, value_bytes = (
            data if serialize is None else serialize(topic, headers, data) if by_topic else serialize(data)
            for (serialize, by_topic), data in zip(self._serializers, (key, value), strict=True)
        )
        if partition is None:
            cluster = _Cluster(self._producer.partitions_for(topic))
            partition = self._choose(topic, key, key_bytes, value, value_bytes, cluster)
            if partition is None:
                raise ValueError(f"the partitioner returned None for a record of topic {topic!r}: return a number")
        return value_bytes, key_bytes, partition

    def close(self) -> None:
        user_objects, self._user_objects = self._user_objects, ()
        close_all(user_objects)


def _chooser(partitioner: Any) -> Callable[[str, Any, Any, Any, Any, _Cluster], int | None]:
    """The user's partitioner as version 3 calls a Partitioner.

    Other objects have the method's older form, partition(topic, key, cluster). Versions 1 and 2 call a function with
    lists of numbers.
    """
    choose: Callable[..., int | None] | None = getattr(partitioner, "partition", None)

    def called_with_the_key(topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any) -> Any:
        assert choose is not None
        return choose(topic, key_bytes, cluster)

    def called_with_lists(topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: _Cluster) -> Any:
        everywhere, available = cluster.partitions_for_topic(topic), cluster.available_partitions_for_topic(topic)
        return partitioner(key_bytes, sorted(everywhere), sorted(available))

    if choose is None:
        return called_with_lists
    return choose if _is_peers(partitioner) or not _takes(choose, 3) else called_with_the_key


def _is_peers(partitioner: Any) -> bool:
    """Whether it is a kafka.partitioner.Partitioner. kafka-python is imported already if it is."""
    module = sys.modules.get("kafka.partitioner")
    return module is not None and isinstance(partitioner, module.Partitioner)


def _takes(function: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # compiled code may hide its signature
        return True
    return True
