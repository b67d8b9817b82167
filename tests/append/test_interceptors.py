"""Interceptors: they see and may change every record, and their errors break nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ClosedError, ConfigError, InvalidPartitionsError, SerializationError
from kafkabuf.interceptors import ProducerRecord, close_all
from kafkabuf.record_metadata import RecordMetadata
from rigs.producer import TOPIC, Rig, assert_whole


def sends(rig: Rig) -> Any:
    """The rig's send(), typed for any value that a serializer takes."""
    return rig.send


class Noting:
    """Appends its name to values, and notes every call in its journal."""

    def __init__(self, name: str = "1", journal: list[Any] | None = None) -> None:
        self.name = name
        self.journal: list[Any] = [] if journal is None else journal

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.journal.append((self.name, record.value))
        return record._replace(value=record.value + self.name)

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.journal.append((self.name, metadata, error))


class Raising(Noting):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        super().on_send(record)
        raise ZeroDivisionError("in on_send")

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        super().on_acknowledgement(metadata, error)
        raise ZeroDivisionError("in on_acknowledgement")


def test_chain_runs_in_order_before_the_users_callback() -> None:
    journal: list[Any] = []
    rig = Rig(interceptor_classes=[Noting("1", journal), Noting("2", journal)], value_serializer="string")
    future = sends(rig)("v", callback=lambda metadata, error: journal.append(("user", metadata, error)))
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"v12"]
    metadata = future.result(0)
    assert journal == [("1", "v"), ("2", "v1"), ("1", metadata, None), ("2", metadata, None), ("user", metadata, None)]
    assert_whole(rig.pool)


def test_raising_interceptor_is_logged_and_skipped(caplog: pytest.LogCaptureFixture) -> None:
    journal: list[Any] = []
    chain = (Noting("1", journal), Raising("2", journal), Noting("3", journal))
    rig = Rig(interceptor_classes=chain, value_serializer="string")
    with caplog.at_level(logging.WARNING):
        sends(rig)("v")
        rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"v13"]
    assert [entry[0] for entry in journal] == ["1", "2", "3", "1", "2", "3"]
    assert journal[2] == ("3", "v1")
    assert caplog.text.count("ZeroDivisionError: in on_send") == 1
    assert caplog.text.count("ZeroDivisionError: in on_acknowledgement") == 1


@pytest.mark.parametrize("answer", [None, "text", ("t", b"v")])
def test_result_that_is_no_record_is_ignored(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def on_send(self, record: ProducerRecord) -> Any:
            return answer

    rig = Rig(interceptor_classes=[Odd()])
    rig.send(b"v")
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"v"]
    assert "on_send must return a ProducerRecord" in caplog.text


def test_record_that_send_refuses_is_acknowledged_with_its_error() -> None:
    noting = Noting()
    rig = Rig(interceptor_classes=[noting], value_serializer="string")
    called: list[Any] = []
    with pytest.raises(InvalidPartitionsError) as raised:
        sends(rig)("v", partition=7, callback=lambda *args: called.append(args))
    assert noting.journal[1:] == [("1", RecordMetadata(TOPIC, 7, -1, -1, -1, -1), raised.value)]
    assert called == []
    with pytest.raises(SerializationError) as refused:
        sends(rig)("\ud800", partition=None)
    assert noting.journal[3:] == [("1", RecordMetadata(TOPIC, -1, -1, -1, -1, -1), refused.value)]
    assert_whole(rig.pool)


class HeaderReader(Noting):
    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None, headers: Any = ()) -> None:
        self.journal.append((self.name, metadata.offset, headers))


def test_interceptor_that_asks_for_headers_gets_those_of_the_record() -> None:  # KIP-512
    journal: list[Any] = []
    reader = HeaderReader("1", journal)
    rig = Rig(interceptor_classes=[reader, Noting("2", journal)], value_serializer="string")
    sends(rig)("v", headers={"h": b"1"})
    rig.producer.send_many(TOPIC, ["v", "v"], headers=[[("h", b"2")], None])
    with pytest.raises(InvalidPartitionsError):
        sends(rig)("v", headers=[("h", b"3")], partition=7)
    rig.ack_all()
    assert [entry for entry in journal if entry[0] == "1" and len(entry) == 3] == [
        ("1", -1, [("h", b"3")]), ("1", 0, [("h", b"1")]), ("1", 1, [("h", b"2")]), ("1", 2, []),
    ]  # fmt: skip
    assert_whole(rig.pool)


def test_record_that_fails_later_is_acknowledged_with_its_error() -> None:
    noting = Noting()
    rig = Rig(interceptor_classes=[noting], value_serializer="string")
    future = sends(rig)("v")
    rig.accumulator.abort()
    ((_, metadata, error),) = noting.journal[1:]
    assert metadata[:3] == (TOPIC, 0, -1)
    assert error is future.exception(0) is not None


def test_interceptor_may_read_headers_of_an_iterator() -> None:
    class Reader:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            assert list(record.headers) == [("h", b"1")]
            return record._replace(headers=[*record.headers, ("more", None)])

    rig = Rig(interceptor_classes=[Reader()])
    rig.send(b"v", headers=iter([("h", b"1")]))
    rig.ack_all()
    assert rig.log[TOPIC, 0][0].headers == [("h", b"1"), ("more", None)]
    with pytest.raises(SerializationError):
        rig.send(b"v", headers=5)


def test_send_arrow_refuses_a_producer_with_interceptors() -> None:
    rig = Rig(interceptor_classes=[Noting()])
    with pytest.raises(ConfigError, match=r"cannot apply interceptor\.classes"):
        rig.producer.send_arrow(object(), TOPIC)


# ---- send_many -------------------------------------------------------------------------------------------------------


def test_records_of_send_many_go_through_the_interceptors(caplog: pytest.LogCaptureFixture) -> None:
    journal: list[Any] = []
    rig = Rig(interceptor_classes=[Noting("1", journal), Raising("2", journal)], value_serializer="string")
    with caplog.at_level(logging.WARNING):
        report = rig.producer.send_many(TOPIC, ["a", "b"], keys=[b"k", None], timestamps_ms=[7, None])
        rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a1", b"b1"]
    assert report.result(0).offset.tolist() == [0, 1]
    assert journal[:4] == [("1", "a"), ("2", "a1"), ("1", "b"), ("2", "b1")]
    first, first_again, second, *_ = [metadata for _, metadata, error in journal[4:] if error is None]
    assert first is first_again
    assert first == RecordMetadata(TOPIC, 0, 0, 7, 1, 2)
    assert (second.offset, second.serialized_key_size, second.timestamp) == (1, -1, report.result(0).timestamp[1])
    assert caplog.text.count("ZeroDivisionError: in on_acknowledgement") == 2
    assert_whole(rig.pool)


def test_record_that_send_many_refuses_is_acknowledged_with_its_error() -> None:
    noting = Noting()
    rig = Rig(interceptor_classes=[noting], value_serializer="string", max_request_size=1_000)
    with pytest.raises(InvalidPartitionsError, match="record 2: partition 7") as raised:
        rig.producer.send_many(TOPIC, ["a", "b" * 2_000, "c", "d"], partitions=[0, None, 7, 0])
    assert [entry[1] for entry in noting.journal if len(entry) == 2] == ["a", "b" * 2_000, "c"]
    large, refused = (entry for entry in noting.journal if len(entry) == 3)
    assert large[1] == RecordMetadata(TOPIC, -1, -1, -1, -1, -1)
    assert refused[1] == RecordMetadata(TOPIC, 7, -1, -1, -1, -1)
    assert isinstance(refused[2], InvalidPartitionsError)
    rig.ack_all()
    assert noting.journal[-1][1][:3] == (TOPIC, 0, 0)
    assert large[2] is raised.value.report.exception(0)
    assert_whole(rig.pool)


def test_record_of_send_many_that_fails_later_is_acknowledged_with_its_error() -> None:
    noting = Noting()
    rig = Rig(interceptor_classes=[noting], value_serializer="string")
    report = rig.producer.send_many(TOPIC, ["v"])
    rig.accumulator.abort()
    ((_, metadata, error),) = noting.journal[1:]
    assert metadata[:3] == (TOPIC, 0, -1)
    assert error is report.exception(0) is not None


def test_topic_and_fields_that_an_interceptor_sets_are_used() -> None:
    class Sorting:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            if record.value != b"other":
                return record
            return record._replace(topic="elsewhere", key=b"k", headers=[("h", None)], partition=1, timestamp_ms=5)

    rig = Rig(interceptor_classes=[Sorting()])
    rig.accumulator.topic_queues("elsewhere", [1, 1])
    report = rig.producer.send_many(TOPIC, [b"a", b"other", b"b", b"other"])
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"a", b"b"]
    there = rig.log["elsewhere", 1]
    assert [(r.key, r.value, r.headers, r.timestamp) for r in there] == [(b"k", b"other", [("h", None)], 5)] * 2
    assert report.result(0).partition.tolist() == [0, 1, 0, 1]
    assert report.result(0).timestamp.tolist()[1::2] == [5, 5]
    assert_whole(rig.pool)


def test_closed_producer_calls_no_interceptor() -> None:
    noting = Noting()
    rig = Rig(interceptor_classes=[noting], value_serializer="string")
    rig.producer._begin_close()
    with pytest.raises(ClosedError):
        rig.producer.send_many(TOPIC, ["v"])
    assert noting.journal == []


@pytest.mark.parametrize("setting", ["my.Interceptor", [5], [Noting(), "x"], [Noting]])
def test_setting_that_intercepts_nothing_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match="interceptor"):
        Rig(interceptor_classes=setting)


def test_interceptor_is_configured_with_the_producers_settings() -> None:
    configured: list[Any] = []

    class Configured(Noting):
        def configure(self, config: ProducerConfig) -> None:
            configured.append(config.linger_ms)

    Rig(interceptor_classes=[Configured()], linger_ms=7)
    assert configured == [7]

    class Refusing(Noting):
        def configure(self, config: ProducerConfig) -> None:
            raise ZeroDivisionError("no")

    with pytest.raises(ConfigError, match=r"configure\(\) of the interceptor .* raised: no"):
        Rig(interceptor_classes=[Refusing()])


def test_close_is_called_once_for_each_object_despite_errors(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []

    class Closing:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)
            raise ZeroDivisionError("in close")

    one = Closing("1")
    close_all([one, None, "string", one, Closing("2"), len])
    assert closed == ["1", "2"]
    assert caplog.text.count("ZeroDivisionError: in close") == 2
