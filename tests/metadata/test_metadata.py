"""Metadata: topics in use, waiting threads, and which responses the client believes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    ClosedError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NetworkError,
    TimeoutError,
    TopicAuthorizationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from kafkabuf.metadata.metadata import Cluster, Metadata, Node, PartitionInfo, TopicInfo
from kafkabuf.metadata.snapshot import BELIEVED_AFTER
from kafkabuf.protocol import messages
from tests.network.support import PATIENCE, config_for, topic_of

BROKERS = [{"node_id": 1, "host": "one", "port": 9092, "rack": "r"}, {"node_id": 2, "host": "two", "port": 9093}]
LEADER_NOT_AVAILABLE, UNKNOWN_TOPIC, INVALID_TOPIC, UNAUTHORIZED = 5, 3, 17, 29


def answer(*topics: dict[str, Any], version: int = 12, brokers: list[dict[str, Any]] | None = None) -> Any:
    brokers = BROKERS if brokers is None else brokers
    return messages.build_response(messages.METADATA, version, brokers=brokers, controller_id=1, topics=list(topics))


class Rig:
    """Metadata on a manual clock. The test plays the broker."""

    def __init__(self, **settings: Any) -> None:
        # Waits time out only if a test wants it: only the test's thread calls advance().
        self.clock = ManualClock()
        self.metadata = Metadata(config_for(("boot", 9092), **settings), self.clock, random=lambda: 0.5)
        self.woken = 0
        self.metadata.on_update_requested = self._wake

    def _wake(self) -> None:
        self.woken += 1

    def update(self, *topics: dict[str, Any], **options: Any) -> tuple[str, ...]:
        """Make one request and respond to it with `topics`. Returns the topics that the request names."""
        asked = self.metadata.begin_update(self.clock.monotonic())
        self.metadata.on_response(answer(*topics, **options))
        return asked

    @property
    def wait(self) -> float:
        return self.metadata.time_to_update(self.clock.monotonic())

    @property
    def due(self) -> bool:
        return self.metadata.time_to_update(self.clock.monotonic()) <= 0

    def topic(self, name: str = "t") -> TopicInfo:
        return self.metadata.snapshot.topics[name]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@contextmanager
def waiting(rig: Rig, action: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run a blocking call in a thread while the body plays the broker. The list then holds its result or error."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(action())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not rig.metadata._waiters:
        thread.join(0.001)
    yield outcome
    thread.join(PATIENCE)
    assert outcome, "the call still waits"


# ---- which responses are believed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 13))
def test_every_version_of_metadata_is_understood(rig: Rig, version: int) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1, 2], epoch=5, topic_id=UUID(int=7)), version=version)
    epoch = 5 if version >= 7 else -1
    assert rig.metadata.snapshot == Cluster(
        brokers={1: Node(1, "one", 9092, "r"), 2: Node(2, "two", 9093, None)},
        topics={
            "t": TopicInfo(
                "t",
                UUID(int=7) if version >= 10 else None,
                None,
                (PartitionInfo(0, 1, epoch), PartitionInfo(1, 2, epoch)),
            )
        },
        controller=1,
        version=1,
    )


def test_lagging_broker_does_not_bring_back_an_old_leader(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1], epoch=7))
    rig.update(topic_of("t", [2], epoch=6))
    assert rig.topic().partitions == (PartitionInfo(0, 1, 7),)
    rig.update(topic_of("t", [2], epoch=8))
    assert rig.topic().partitions == (PartitionInfo(0, 2, 8),)
    rig.update(topic_of("t", [1], epoch=-1))
    assert rig.topic().partitions[0].leader == 1, "a broker that knows no epochs is believed"


def test_new_leader_named_by_a_former_leader_is_adopted(rig: Rig) -> None:
    # KIP-951
    rig.metadata.add_topic("t")
    rig.metadata.add_topic("u")
    rig.update(topic_of("t", [1, 1, 1], epoch=7), topic_of("u", [2], epoch=0))
    seen: list[Cluster] = []
    rig.metadata.listeners.append(seen.append)
    third = Node(3, "three", 9094)
    rig.metadata.update_leaders({("t", 1): (3, 8), ("t", 2): (2, 9)}, [third])
    assert rig.topic().leaders == [1, 3, 2]
    assert rig.topic().leader_epochs == [7, 8, 9]
    assert rig.metadata.snapshot.brokers == {1: Node(1, "one", 9092, "r"), 2: Node(2, "two", 9093), 3: third}
    assert rig.topic("u").leaders == [2]
    assert seen == [rig.metadata.snapshot]
    assert rig.metadata.snapshot.version == 1, "this is no response that a thread waits for"
    # A broker that lags behind does not undo the change.
    rig.update(topic_of("t", [1, 1, 1], epoch=7), topic_of("u", [2], epoch=0))
    assert rig.topic().leaders == [1, 3, 2]


@pytest.mark.parametrize(
    ("partition", "leader", "epoch"),
    [
        (("t", 0), 2, 7),  # the epoch is not newer
        (("t", 0), 2, 6),
        (("t", 0), 2, -1),
        (("t", 0), 9, 8),  # an unknown broker
        (("t", 0), -1, 8),
        (("t", 5), 2, 8),  # no such partition
        (("t", -1), 2, 8),
        (("nowhere", 0), 2, 8),
    ],
)
def test_impossible_leader_is_ignored(rig: Rig, partition: tuple[str, int], leader: int, epoch: int) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1], epoch=7))
    before = rig.metadata.snapshot
    rig.metadata.update_leaders({partition: (leader, epoch)}, [Node(4, "four", 1)])
    assert rig.metadata.snapshot is before


def test_topics_stay_without_leaders_when_brokers_are_forgotten(rig: Rig) -> None:
    # KIP-1102
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1, 2], epoch=7))
    seen: list[Cluster] = []
    rig.metadata.listeners.append(seen.append)
    rig.metadata.forget_brokers()
    assert (rig.metadata.snapshot.brokers, rig.metadata.snapshot.controller) == ({}, -1)
    assert rig.topic().leaders == [-1, -1]
    assert seen == [rig.metadata.snapshot]
    assert rig.metadata.await_topic("t", 0).leaders == [-1, -1], "send() must still queue records"
    assert rig.wait < 1
    rig.clock.advance(1)
    rig.update(topic_of("t", [2, 2], epoch=0))
    assert rig.topic().leaders == [2, 2], "another cluster has its own epochs"


def test_topic_created_again_gets_its_new_leader(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1], epoch=7, topic_id=UUID(int=1)))
    rig.update(topic_of("t", [2], epoch=0, topic_id=UUID(int=2)))
    assert rig.topic().partitions == (PartitionInfo(0, 2, 0),)
    # Brokers without topic ids report in between that the topic does not exist.
    rig.update(topic_of("t", [], error=UNKNOWN_TOPIC))
    assert rig.topic().partitions == ()
    rig.update(topic_of("t", [1], epoch=0))
    assert rig.topic().partitions == (PartitionInfo(0, 1, 0),)


OLD, NEW = UUID(int=1), UUID(int=2)


def disbelieved(rig: Rig, topic: dict[str, Any]) -> int:
    """How many responses with `topic` in a row the client does not believe. It asks for the next one soon."""
    before = rig.topic().partitions
    for count in range(BELIEVED_AFTER):
        rig.update(topic)
        if rig.topic().partitions != before:
            return count
        assert count == BELIEVED_AFTER - 1 or rig.wait <= 1, "the client does not ask again soon"
        rig.clock.advance(min(rig.wait, 1))
    return BELIEVED_AFTER


def test_replaced_id_is_believed_only_if_it_keeps_coming(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1] * 4, epoch=7, topic_id=OLD))
    rig.update(topic_of("t", [2] * 2, epoch=0, topic_id=NEW))
    lagging = topic_of("t", [1] * 4, epoch=7, topic_id=OLD)
    for _ in range(3):
        rig.update(lagging)
        assert (rig.topic().topic_id, rig.topic().leaders) == (NEW, [2, 2])
    rig.update(topic_of("t", [2] * 2, epoch=0, topic_id=NEW))
    assert rig.wait > 100, "the topic is still in doubt"
    assert disbelieved(rig, lagging) == BELIEVED_AFTER - 1, "the client keeps an id that is gone"
    assert rig.topic().topic_id == OLD
    rig.update(topic_of("t", [3], topic_id=UUID(int=3)))
    assert rig.topic().leaders == [3], "a new id must be believed at once"


def test_partitions_missing_in_a_response_stay_while_the_id_is_the_same(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1, 2, 1], epoch=7, topic_id=OLD))
    assert disbelieved(rig, topic_of("t", [1], epoch=7, topic_id=OLD)) == BELIEVED_AFTER
    rig.update(topic_of("t", [2], epoch=8, topic_id=OLD))
    assert rig.topic().leaders == [2, 2, 1], "a newer leader in such a response counts"


@pytest.mark.parametrize("no_id", [None, UUID(int=0)])
def test_fewer_partitions_without_ids_are_believed_if_they_keep_coming(rig: Rig, no_id: UUID | None) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1] * 4, epoch=7, topic_id=no_id))
    assert disbelieved(rig, topic_of("t", [1] * 2, epoch=7, topic_id=no_id)) == BELIEVED_AFTER - 1
    assert len(rig.topic().partitions) == 2


def test_older_leaders_are_believed_if_they_keep_coming(rig: Rig) -> None:
    # Without ids a topic that was created again starts with the first epochs. No broker would name a newer epoch.
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1], epoch=7))
    assert disbelieved(rig, topic_of("t", [2], epoch=0)) == BELIEVED_AFTER - 1
    assert rig.topic().partitions == (PartitionInfo(0, 2, 0),)


def test_topic_id_outlives_responses_without_an_id(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1], epoch=7, topic_id=OLD))
    rig.update(topic_of("t", [], error=LEADER_NOT_AVAILABLE))
    rig.update(topic_of("t", [2], epoch=6, topic_id=OLD))
    assert rig.topic().leaders == [1], "the topic is the same, so the older epoch is out of date"
    rig.update(topic_of("t", [1], epoch=7), version=9)
    assert rig.topic().topic_id == OLD


def test_retriable_error_leaves_the_partitions_of_a_topic_known(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1, 2]))
    rig.update(topic_of("t", [], error=LEADER_NOT_AVAILABLE))
    assert [p.leader for p in rig.topic().partitions] == [1, 2]
    assert isinstance(rig.topic().error, LeaderNotAvailableError)
    rig.update({**topic_of("t", [1, 2, 1]), "partitions": topic_of("t", [1, 2, 1])["partitions"][1:]})
    assert [p.partition for p in rig.topic().partitions] == [0, 1], "partitions[p].partition == p must hold"


def test_response_without_brokers_is_a_failure_and_keeps_the_cluster(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1]))
    rig.clock.advance(1)
    rig.metadata.request_update()
    rig.update(brokers=[])
    assert set(rig.metadata.snapshot.brokers) == {1, 2}
    assert rig.metadata.snapshot.version == 1
    assert rig.wait == pytest.approx(0.1), "a failure has a back-off"


def test_listeners_get_the_new_snapshot(rig: Rig) -> None:
    seen: list[Cluster] = []
    rig.metadata.listeners.append(seen.append)
    rig.update()
    assert seen == [rig.metadata.snapshot]


# ---- when to ask -----------------------------------------------------------------------------------------------------


def test_snapshot_is_updated_after_metadata_max_age_ms(rig: Rig) -> None:
    assert rig.due
    rig.update()
    assert rig.wait == pytest.approx(300)
    rig.clock.advance(300)
    assert rig.due


def test_no_second_request_is_due_while_a_request_is_in_flight(rig: Rig) -> None:
    rig.metadata.begin_update(rig.clock.monotonic())
    rig.metadata.request_update()
    rig.metadata.add_topic("t")
    assert rig.wait == float("inf")
    assert rig.woken == 0, "the response will wake the Sender"


def test_update_requested_while_another_is_in_flight_is_due_after_it(rig: Rig) -> None:
    rig.metadata.begin_update(rig.clock.monotonic())
    rig.metadata.request_update()
    rig.metadata.on_response(answer())
    assert rig.wait == pytest.approx(0.1)


def test_topic_added_while_a_request_is_in_flight_is_due_at_once(rig: Rig) -> None:
    assert rig.metadata.begin_update(rig.clock.monotonic()) == ()
    rig.metadata.add_topic("t")
    rig.metadata.on_response(answer())
    assert rig.due
    assert rig.update(topic_of("t", [1])) == ("t",)


def test_missing_topic_does_not_delay_a_topic_added_meanwhile(rig: Rig) -> None:
    rig.metadata.add_topic("nowhere")
    for _ in range(5):
        rig.clock.advance(rig.wait)
        rig.update(topic_of("nowhere", [], error=UNKNOWN_TOPIC))
    rig.clock.advance(rig.wait)
    rig.metadata.begin_update(rig.clock.monotonic())
    rig.metadata.add_topic("new")
    rig.metadata.on_response(answer(topic_of("nowhere", [], error=UNKNOWN_TOPIC)))
    assert rig.wait == 0
    assert rig.update(topic_of("nowhere", [], error=UNKNOWN_TOPIC), topic_of("new", [1])) == ("nowhere", "new")
    assert rig.wait > 0.5  # the missing topic is requested again after its back-off


def test_new_topic_is_due_at_once_and_wakes_the_sender_once(rig: Rig) -> None:
    rig.update()
    rig.metadata.add_topic("t")
    assert rig.due
    assert rig.woken == 1
    rig.metadata.add_topic("t")
    rig.metadata.request_update()
    assert rig.woken == 1, "the Sender is awake: another wake-up makes it spin"


def test_failures_back_off_until_a_success(rig: Rig) -> None:
    waits = []
    for _ in range(6):
        rig.metadata.begin_update(rig.clock.monotonic())
        rig.metadata.on_failure(NetworkError("gone"))
        waits.append(rig.wait)
        rig.clock.advance(rig.wait)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    rig.update()
    rig.metadata.request_update()
    assert rig.wait == pytest.approx(0.1), "a success resets the back-off"


@pytest.mark.parametrize(
    "topic",
    [
        topic_of("t", [], error=LEADER_NOT_AVAILABLE),
        topic_of("t", [], error=UNKNOWN_TOPIC),
        topic_of("t", [1, -1]),
        topic_of("t", []),
    ],
)
def test_missing_leader_is_asked_for_again_with_a_back_off(rig: Rig, topic: dict[str, Any]) -> None:
    rig.metadata.add_topic("t")
    waits = []
    for _ in range(3):
        rig.update(topic)
        waits.append(rig.wait)
        rig.clock.advance(rig.wait)
    assert waits == pytest.approx([0.1, 0.2, 0.4])
    rig.update(topic_of("t", [1, 2]))
    assert rig.wait == pytest.approx(300)


def test_unused_topic_is_forgotten() -> None:
    rig = Rig(metadata_max_idle_ms=60_000)
    rig.metadata.add_topic("used")
    rig.metadata.add_topic("unused")
    rig.update(topic_of("used", [1]), topic_of("unused", [1]))
    rig.clock.advance(40)
    rig.metadata.add_topic("used")
    rig.clock.advance(40)
    assert rig.update(topic_of("used", [1])) == ("used",)
    assert set(rig.metadata.snapshot.topics) == {"used"}


def test_topic_in_use_is_never_forgotten() -> None:
    rig = Rig(metadata_max_idle_ms=60_000)
    rig.metadata.add_topic("t")
    rig.metadata.topics_in_use = lambda: ["t"]
    rig.update(topic_of("t", [1]))
    rig.clock.advance(300)
    assert rig.update(topic_of("t", [2])) == ("t",)
    assert rig.topic().leaders == [2]
    rig.metadata.topics_in_use = tuple
    rig.clock.advance(59)
    assert rig.update(topic_of("t", [2])) == ("t",), "the topic was in use 59 s ago"
    rig.clock.advance(61)
    assert rig.update() == ()


def test_listeners_are_called_before_waiting_threads_wake(rig: Rig) -> None:
    # A thread that waits for a partition then uses its queue. A listener of the Sender creates this queue.
    waiting_threads = []
    rig.metadata.listeners.append(lambda _: waiting_threads.append(len(rig.metadata._waiters)))
    with waiting(rig, lambda: rig.metadata.await_update(None)):
        rig.update()
    assert waiting_threads == [1]


def test_listener_that_raises_does_not_end_all_updates(rig: Rig) -> None:
    def listener(_: Cluster) -> None:
        raise RuntimeError("a bug")

    rig.metadata.listeners.append(listener)
    with pytest.raises(RuntimeError):
        rig.update()
    assert rig.wait == pytest.approx(300)


def test_failure_of_another_connection_starts_no_update(rig: Rig) -> None:
    rig.update()
    rig.metadata.on_failure(NetworkError("another broker went away"))
    assert rig.wait == pytest.approx(300), "no update was requested"
    rig.metadata.on_failure(UnsupportedVersionError("another broker is too old"))
    with pytest.raises(TimeoutError):
        rig.metadata.await_topic("t", 0)


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_known_topic_is_returned_at_once(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("t", [1]))
    assert rig.metadata.await_topic("t", 0).name == "t"


def test_waiting_thread_wakes_when_the_topic_is_known(rig: Rig) -> None:
    with waiting(rig, lambda: rig.metadata.await_topic("t", None)) as outcome:
        assert rig.woken == 1
        rig.update(topic_of("t", [], error=LEADER_NOT_AVAILABLE))
        rig.update(topic_of("t", [1, 2]))
    assert [p.leader for p in outcome[0].partitions] == [1, 2]
    assert not rig.metadata._waiters


def test_time_out_names_the_topic_the_servers_and_the_last_error(rig: Rig) -> None:
    rig.metadata.on_failure(NetworkError("connection to boot:9092 failed: Connection refused"))
    with waiting(rig, lambda: rig.metadata.await_topic("t", 1.5)) as outcome:
        rig.clock.advance(2)
    assert isinstance(outcome[0], TimeoutError)
    text = "topic 't' not present in metadata after 1500 ms; bootstrap servers: boot:9092; last error: "
    advice = "; KafkaProducer(check=True) raises at once where no broker answers"
    assert str(outcome[0]) == text + "connection to boot:9092 failed: Connection refused" + advice
    assert not rig.metadata._waiters, "the call that timed out left its waiter behind"


def test_topic_missing_in_a_response_is_requested_again(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    rig.update(topic_of("another", [1]))
    rig.clock.advance(1)
    assert rig.metadata.time_to_update(rig.clock.monotonic()) <= 0


def test_leader_that_is_no_known_broker_is_asked_for_with_a_back_off(rig: Rig) -> None:
    rig.metadata.add_topic("t")
    pauses = []
    for _ in range(4):
        rig.update(topic_of("t", [99]))
        pauses.append(rig.metadata.time_to_update(rig.clock.monotonic()))
        rig.clock.advance(pauses[-1])
    assert pauses[-1] > 3 * pauses[0] > 0


def test_unknown_topic_is_reported_as_unknown_after_the_time_out(rig: Rig) -> None:
    with waiting(rig, lambda: rig.metadata.await_topic("t", 1.5)) as outcome:
        rig.update(topic_of("t", [], error=UNKNOWN_TOPIC))
        rig.clock.advance(2)
    assert isinstance(outcome[0], UnknownTopicOrPartitionError)
    assert "topic 't' not present in metadata after 1500 ms; bootstrap servers: boot:9092" in str(outcome[0])


@pytest.mark.parametrize(
    ("code", "kind"), [(INVALID_TOPIC, InvalidTopicError), (UNAUTHORIZED, TopicAuthorizationError)]
)
def test_refused_topic_fails_the_waiting_thread_at_once(rig: Rig, code: int, kind: type[Exception]) -> None:
    with waiting(rig, lambda: rig.metadata.await_topic("t", None)) as outcome:
        rig.update(topic_of("t", [], error=code))
    assert isinstance(outcome[0], kind)
    assert "topic 't'" in str(outcome[0])
    # The permission may have been granted since: the client asks again and does not repeat the old error.
    with waiting(rig, lambda: rig.metadata.await_topic("t", None)) as outcome:
        rig.update(topic_of("t", [1]))
    assert outcome[0].name == "t"


def test_fatal_error_fails_the_waiting_thread_at_once(rig: Rig) -> None:
    with waiting(rig, lambda: rig.metadata.await_topic("t", None)) as outcome:
        rig.metadata.begin_update(rig.clock.monotonic())
        rig.metadata.on_failure(UnsupportedVersionError("too old"))
    assert isinstance(outcome[0], UnsupportedVersionError)
    assert not rig.due, "the client must keep the back-off"
    rig.clock.advance(1)
    assert rig.due


def test_refused_topic_leaves_the_others_usable(rig: Rig) -> None:
    with waiting(rig, lambda: rig.metadata.await_topic("good", None)) as outcome:
        rig.metadata.add_topic("bad")
        rig.update(topic_of("bad", [], error=UNAUTHORIZED), topic_of("good", [1]))
    assert outcome[0].name == "good"


def test_close_fails_waiting_threads(rig: Rig) -> None:
    with waiting(rig, lambda: rig.metadata.await_topic("t", None)) as outcome:
        rig.metadata.close()
    assert isinstance(outcome[0], ClosedError)
    with pytest.raises(ClosedError):
        rig.metadata.await_topic("t", None)


def test_await_update_ignores_the_update_in_flight(rig: Rig) -> None:
    rig.metadata.begin_update(rig.clock.monotonic())
    with waiting(rig, lambda: rig.metadata.await_update(None)) as outcome:
        rig.metadata.on_response(answer())
        assert not outcome
        rig.update(topic_of("t", []))
    assert outcome[0].version == 2
    with waiting(rig, lambda: rig.metadata.await_update(0.5)) as outcome:
        rig.clock.advance(1)
    assert isinstance(outcome[0], TimeoutError)
    assert "no fresh metadata after 500 ms; bootstrap servers: boot:9092" in str(outcome[0])
