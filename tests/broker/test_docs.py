"""docs/embedded-broker.md: its tables and figures are those of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from kafkabuf.broker import ConnectionLimits, EmbeddedCluster
from kafkabuf.broker.guards.limits import MAX_UNAUTHENTICATED, MAX_WITHOUT_RECORDS
from kafkabuf.broker.log.decoding import MAX_UNPACKED
from kafkabuf.broker.replica.arrivals import PIECE
from kafkabuf.errors import ConfigError, InvalidConfigError
from kafkabuf.protocol.schema import MOST_ITEMS

PAGE = (Path(__file__).parents[2] / "docs" / "embedded-broker.md").read_text()


@pytest.mark.parametrize(("section", "count"), [("Faults on demand", 13), ("ACLs", 4)])
def test_table_has_the_parameters_of_the_calls(section: str, count: int) -> None:
    rows = [line for line in PAGE.split(f"## {section}\n")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    calls = re.findall(r"`(\w+)\(([\w, =.'*]*)\)`", "\n".join(rows))
    assert len(calls) >= count
    for name, parameters in calls:
        known = inspect.signature(getattr(EmbeddedCluster, name)).parameters
        for text in filter(None, parameters.split(", ")):
            parameter, _, default = text.partition("=")
            assert parameter in known, (name, parameter)
            assert not default or default == repr(known[parameter].default), (name, text)


def test_figures_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    limits = ConnectionLimits()
    assert f"the last {inspect.signature(EmbeddedCluster).parameters['request_log'].default:,} requests" in text
    assert f"`max_connections` ({limits.max_connections:,})" in text
    assert f"`connections_max_idle_ms` ({limits.connections_max_idle_ms // 60_000} minutes)" in text
    assert f"`request_receive_timeout_ms` ({limits.request_receive_timeout_ms // 1000} s)" in text
    assert f"`authentication_timeout_ms` ({limits.authentication_timeout_ms // 1000} s)" in text
    assert f"`socket_request_max_bytes` ({limits.socket_request_max_bytes >> 20} MiB)" in text
    assert f"any other request {MAX_WITHOUT_RECORDS >> 20} MiB" in text
    assert f"a request of a client that has not authenticated {MAX_UNAUTHENTICATED >> 10} KiB" in text
    assert f"`consume` reads {PIECE >> 20} MiB of each partition" in text
    assert f"becomes more than {MAX_UNPACKED >> 20} MiB" in text
    assert f"more than {MOST_ITEMS:,} topics and partitions" in text


def test_least_segment_of_the_page_is_the_least_that_the_cluster_takes() -> None:
    text = " ".join(PAGE.split())
    found = re.search(r"at least ([\d,]+) bytes, and so does `log.segment.bytes` in `config`", text)
    smallest = re.search(r"may have `segment.bytes` down to (\d+)", text)
    assert found is not None
    assert smallest is not None
    least, of_a_topic = int(found[1].replace(",", "")), int(smallest[1])
    with pytest.raises(ConfigError, match=f"at least {least}"):
        EmbeddedCluster(config={"log.segment.bytes": least - 1})
    with EmbeddedCluster(config={"log.segment.bytes": least}) as cluster:
        cluster.create_topic("t", configs={"segment.bytes": str(of_a_topic)})
        with pytest.raises(InvalidConfigError):
            cluster.create_topic("u", configs={"segment.bytes": str(of_a_topic - 1)})
