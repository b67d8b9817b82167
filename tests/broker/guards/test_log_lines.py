"""The broker's lines in the log: a client cannot forge one, and bad connections do not flood the log."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator

import pytest

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.guards.log_lines import FIRST_WARNINGS, LimitedWarnings, guard_log, log, one_line
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient, batch

FORGED = "t\nWARNING kafkabuf.broker:server.py node 1 is on fire\r\x1b[2J\x85\u2028\u202e"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "kafkabuf.broker")
    caplog.handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    return caplog


def test_text_of_one_line_has_no_character_that_is_not_printable() -> None:
    assert one_line("topic ünï 'a b'") == "topic ünï 'a b'"
    escaped = one_line(FORGED + "\udc80\0")
    assert escaped.isprintable()
    assert escaped.startswith(r"t\nWARNING kafkabuf.broker")
    assert escaped.endswith(r"on fire\r\x1b[2J\x85\u2028\u202e\udc80\x00")


def test_client_forges_no_line(lines: pytest.LogCaptureFixture) -> None:
    with EmbeddedCluster() as cluster, RawClient(cluster.bootstrap_servers) as client:
        assert client.produce(FORGED, batch([b"x"])).error_code != 0
        data = [{"name": FORGED, "partition_data": [{"index": 0, "records": batch([b"x"])}]}]
        client.send(m.PRODUCE, 9, acks=0, timeout=1, topic_data=data)
        assert client.closed()
    assert r"t\nWARNING kafkabuf.broker:server.py node 1 is on fire" in lines.text
    assert not [line for line in lines.text.splitlines() if line.startswith("WARNING kafkabuf.broker:server.py")]
    assert all(record.getMessage().isprintable() for record in lines.records)


def test_traceback_that_quotes_a_client_begins_no_line_as_a_record_does(lines: pytest.LogCaptureFixture) -> None:
    guard_log()
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("a request from %s failed", FORGED)
    first, *rest = lines.text.splitlines()
    assert first.startswith("ERROR a request from t\\nWARNING")
    assert any("is on fire" in line for line in rest)
    assert all(line.startswith("    ") for line in rest)


def test_bad_connections_are_counted_after_the_first_warnings(lines: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with EmbeddedCluster(clock=clock) as cluster:
        for _ in range(FIRST_WARNINGS + 25):
            with RawClient(cluster.bootstrap_servers) as client:
                client.socket.sendall(struct.pack(">ih", -5, 0))
                assert client.closed()
        assert lines.text.count("closing the connection") == FIRST_WARNINGS
        assert "25 more" not in lines.text
        clock.advance(1.1)
        cluster.tick()
        assert lines.text.count("WARNING 25 more warnings about connections") == 1


@pytest.fixture
def timer() -> Iterator[Timer]:
    loop = asyncio.new_event_loop()
    yield Timer(loop, ManualClock())
    loop.close()


def test_warnings_are_logged_again_after_a_quiet_second(timer: Timer, lines: pytest.LogCaptureFixture) -> None:
    clock, warnings = timer.clock, LimitedWarnings(timer)
    assert isinstance(clock, ManualClock)

    def flood_for_a_second() -> list[str]:
        lines.clear()
        for number in range(FIRST_WARNINGS + 3):
            warnings.warn("no. %d", number)
        clock.advance(1.1)
        timer.advance()
        return [record.getMessage() for record in lines.records]

    counted = "more warnings about connections, which are not logged one by one"
    assert flood_for_a_second() == [*(f"no. {number}" for number in range(FIRST_WARNINGS)), f"3 {counted}"]
    assert flood_for_a_second() == [f"{FIRST_WARNINGS + 3} {counted}"], "the flood goes on"
    clock.advance(1.1)
    timer.advance()
    assert len(flood_for_a_second()) == FIRST_WARNINGS + 1
    assert timer.next_expiry() is not None
    for _ in range(2):
        clock.advance(1.1)
        timer.advance()
    assert timer.next_expiry() is None, "no timer runs without warnings"


def test_last_count_is_told_at_the_end(timer: Timer, lines: pytest.LogCaptureFixture) -> None:
    warnings = LimitedWarnings(timer)
    for _ in range(FIRST_WARNINGS + 2):
        warnings.warn("w")
    warnings.report()
    warnings.report()
    assert lines.text.count("2 more warnings") == 1
