"""Interceptors: what they see, may change, and cannot break."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ConfigError, InvalidPartitionsError, SerializationError
from kafkabuf.interceptors import ProducerRecord, close_all
from kafkabuf.record_metadata import RecordMetadata
from tests.producer_support import TOPIC, Rig, assert_whole


def sends(rig: Rig) -> Any:
    """Its send(), for what a serializer takes."""
    return rig.send


class Noting:
    """Appends its name to values, and notes what it hears."""

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


def test_chain_is_out_of_order_or_ends_before_the_users_callback() -> None:
    journal: list[Any] = []
    rig = Rig(interceptor_classes=[Noting("1", journal), Noting("2", journal)], value_serializer="string")
    future = sends(rig)("v", callback=lambda metadata, error: journal.append(("user", metadata, error)))
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"v12"]
    metadata = future.result(0)
    assert journal == [("1", "v"), ("2", "v1"), ("1", metadata, None), ("2", metadata, None), ("user", metadata, None)]
    assert_whole(rig.pool)


def test_raising_interceptor_breaks_a_send(caplog: pytest.LogCaptureFixture) -> None:
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
def test_answer_that_is_no_record_is_sent(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def on_send(self, record: ProducerRecord) -> Any:
            return answer

    rig = Rig(interceptor_classes=[Odd()])
    rig.send(b"v")
    rig.ack_all()
    assert [record.value for record in rig.log[TOPIC, 0]] == [b"v"]
    assert "on_send returns a ProducerRecord" in caplog.text


def test_record_that_send_refuses_is_never_acknowledged() -> None:
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


def test_record_that_fails_later_is_never_acknowledged() -> None:
    noting = Noting()
    rig = Rig(interceptor_classes=[noting], value_serializer="string")
    future = sends(rig)("v")
    rig.accumulator.abort()
    ((_, metadata, error),) = noting.journal[1:]
    assert metadata[:3] == (TOPIC, 0, -1)
    assert error is future.exception(0) is not None


def test_interceptor_that_reads_headers_uses_them_up() -> None:
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


def test_bulk_appends_pass_by_the_interceptors_in_silence() -> None:
    rig = Rig(interceptor_classes=[Noting()])
    with pytest.raises(ConfigError, match="send_many asks no interceptors"):
        rig.producer.send_many(TOPIC, [b"v"])
    with pytest.raises(ConfigError, match="send_arrow asks no interceptors"):
        rig.producer.send_arrow(object(), TOPIC)


@pytest.mark.parametrize("setting", ["my.Interceptor", [5], [Noting(), "x"], [Noting]])
def test_setting_that_intercepts_nothing_is_taken(setting: Any) -> None:
    with pytest.raises(ConfigError, match="interceptor"):
        Rig(interceptor_classes=setting)


def test_interceptor_is_not_configured() -> None:
    configured: list[Any] = []

    class Configured(Noting):
        def configure(self, config: ProducerConfig) -> None:
            configured.append(config.linger_ms)

    Rig(interceptor_classes=[Configured()], linger_ms=7)
    assert configured == [7]

    class Refusing(Noting):
        def configure(self, config: ProducerConfig) -> None:
            raise ZeroDivisionError("no")

    with pytest.raises(ConfigError, match="cannot be configured: no"):
        Rig(interceptor_classes=[Refusing()])


def test_close_is_called_twice_or_stops_at_an_error(caplog: pytest.LogCaptureFixture) -> None:
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
