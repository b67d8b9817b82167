"""What happens to a cluster around a kill, and an embedded cluster of two nodes. real.py has real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from functools import cached_property
from random import Random
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ConfigError, KafkaError
from kafkabuf.protocol.messages import END_TXN, PRODUCE
from kafkabuf.spool.evidence import Answer
from kafkabuf.spool.leaders import Leaders
from rigs.real_kafka import admin_client, create_topic
from tests.spool.kills.plan import SMALL, SMALL_LIMIT
from tests.spool.kills.reader import Place, patiently

PATIENCE = 60.0  # seconds
_OF_A_REQUEST = 5.0  # seconds
_COORDINATOR_LOAD_IN_PROGRESS, _NOT_ENOUGH_REPLICAS_AFTER_APPEND = 14, 20


class Trouble:
    """A cluster. `strike` comes before a kill, `strike_away` while no producer runs, and `mend` ends all trouble."""

    bootstrap_servers: str
    replicas: int
    nodes: range
    real = False

    def __init__(self) -> None:
        self._mends: list[Callable[[], object]] = []
        self._created: set[str] = set()

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        raise NotImplementedError

    # ---- topics

    def create(self, topics: Mapping[str, int]) -> None:
        """Create those that do not exist."""
        for topic, partitions in topics.items():
            if topic not in self._created:
                self._create(topic, partitions, {"max.message.bytes": str(SMALL_LIMIT)} if topic == SMALL else {})
                self._created.add(topic)

    def _create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        create_topic(self._admin, topic, partitions, configs, self.replicas)

    def strike_away(self, kind: str, topics: Mapping[str, int], read: Mapping[Place, int], draw: Random) -> None:
        """`read` are the offsets up to which somebody has read the logs: what lies behind stays."""
        match kind:
            case "made again":
                self._make_again(topics)
            case "deleted":
                self._delete_records(read, draw)
            case "expired":
                self._expire(topics)

    def _make_again(self, topics: Mapping[str, int]) -> None:
        deadline = time.monotonic() + PATIENCE
        while left := set(topics) & set(patiently(lambda: self._admin.list_topics(timeout=_OF_A_REQUEST)).topics):
            assert time.monotonic() < deadline, f"{left} are still there after {PATIENCE} s"
            self._delete(left)
            time.sleep(0.02)
        self._created -= set(topics)
        self.create(topics)

    def _delete(self, topics: Set[str]) -> None:
        """One attempt, by a new client: an older one may wait for a connection to a node that was away."""
        self.__dict__.pop("_admin", None)
        for deleted in self._admin.delete_topics(list(topics), request_timeout=_OF_A_REQUEST).values():
            with suppress(KafkaException, TimeoutError):
                deleted.result(2 * _OF_A_REQUEST)

    def _delete_records(self, read: Mapping[Place, int], draw: Random) -> None:
        for place, end in read.items():
            deleted = TopicPartition(*place, draw.choice((end, draw.randint(0, end))))
            with suppress(KafkaException, TimeoutError):  # as many were deleted before
                answers = self._admin.delete_records([deleted], request_timeout=_OF_A_REQUEST)
                answers[deleted].result(2 * _OF_A_REQUEST)

    def await_committed(self, topics: Mapping[str, int]) -> None:
        """Wait until a reader sees all that the logs have."""

        def committed(leaders: Leaders, place: Place, answer: Answer) -> bool:
            high_watermark, end = leaders.ends(place, answer)
            return high_watermark >= end

        self._await(topics, committed)

    def _await(self, topics: Mapping[str, int], holds: Callable[[Leaders, Place, Answer], bool]) -> None:
        """Wait until something holds of each partition's leader."""
        places = {(topic, partition) for topic, count in topics.items() for partition in range(count)}
        deadline = time.monotonic() + PATIENCE
        with Leaders(ProducerConfig.from_mapping({"bootstrap.servers": self.bootstrap_servers})) as leaders:
            while places:
                assert time.monotonic() < deadline, f"{places} are not as they should be after {PATIENCE} s"
                for place, answer in leaders.ask(places).items():
                    with suppress(KafkaError):
                        if isinstance(answer, Answer) and holds(leaders, place, answer):
                            places.remove(place)
                time.sleep(0.01)

    @cached_property
    def _admin(self) -> AdminClient:
        return admin_client(self.bootstrap_servers)

    # ---- nodes

    def strike(self, kind: str, topics: Mapping[str, int], draw: Random) -> None:
        nodes = draw.sample(self.nodes, draw.randint(1, len(self.nodes)))
        each = {"paused": self._pause, "stopped": self._stop, "restarted": self._stop, "killed": self._kill}
        for node in nodes if kind in each else ():
            each[kind](node)
        match kind:
            case "moved":
                self._move(topics, draw)
            case "restarted":
                self.mend()
            case "doubtful":
                self._doubt(draw)

    def mend(self) -> None:
        mends, self._mends = self._mends, []
        for mend in mends:
            mend()

    def _expire(self, topics: Mapping[str, int]) -> None:
        """The nodes forget all producers of these topics."""
        raise NotImplementedError

    def _move(self, topics: Mapping[str, int], draw: Random) -> None:
        raise NotImplementedError

    def _pause(self, node: int) -> None:
        raise NotImplementedError

    def _stop(self, node: int) -> None:
        raise NotImplementedError

    def _kill(self, node: int) -> None:
        raise NotImplementedError

    def _doubt(self, draw: Random) -> None:
        """Nodes append records, and their clients do not learn of it."""
        raise NotImplementedError


class EmbeddedTrouble(Trouble):
    """The nodes keep their logs while they are away, as real nodes do."""

    replicas = 2
    nodes = range(1, 3)

    def __init__(self) -> None:
        super().__init__()
        self._cluster = EmbeddedCluster(
            len(self.nodes), broker_session_timeout_ms=500, request_log=0, auto_create_topics=False
        )

    def __enter__(self) -> Self:
        self._cluster.start()
        self.bootstrap_servers = self._cluster.bootstrap_servers
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cluster.stop()

    def _create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._cluster.create_topic(topic, partitions, self.replicas, configs)

    def _move(self, topics: Mapping[str, int], draw: Random) -> None:
        for topic, count in topics.items():
            for partition in range(count):
                with suppress(ConfigError):  # the other replica is not in sync yet
                    self._cluster.move_leader(topic, partition, draw.choice(self.nodes))

    def _pause(self, node: int) -> None:
        self._cluster.pause_node(node)
        self._mends.append(lambda: self._cluster.resume_node(node))

    def _stop(self, node: int) -> None:
        self._cluster.stop_node(node)
        self._mends.append(lambda: self._cluster.start_node(node))

    def _kill(self, node: int) -> None:
        self._cluster.kill_node(node)
        self._mends.append(lambda: self._cluster.start_node(node))

    def _doubt(self, draw: Random) -> None:
        self._cluster.fail_next(PRODUCE, _NOT_ENOUGH_REPLICAS_AFTER_APPEND, draw.choice((1, 2)), after=True)
        self._cluster.drop_next(PRODUCE, draw.choice((1, 3)))
        self._cluster.delay_next(PRODUCE, draw.choice((0.005, 5.0)), 4)
        match draw.choice(("dropped", "delayed", "refused")):
            case "dropped":
                self._cluster.drop_next(END_TXN, draw.choice((1, 3)))
            case "delayed":
                self._cluster.delay_next(END_TXN, draw.choice((0.005, 5.0)), 4)
            case "refused":
                self._cluster.fail_next(END_TXN, _COORDINATOR_LOAD_IN_PROGRESS, 1_000)
        self._mends.append(self._cluster.clear_faults)
