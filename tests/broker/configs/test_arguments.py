"""A wrong argument of EmbeddedCluster raises an error that names the argument, before anything has changed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import ConfigError

NAN = math.nan


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"config": [("num.partitions", 1)]}, "config: a mapping"),
        ({"config": []}, "config: a mapping"),
        ({"config": {1: "x"}}, "config: 1 is no name"),
        ({"config": {b"num.partitions": 1}}, "config: b'num.partitions' is no name"),
        ({"config": {"message.max.bytes": -5}}, "max_message_bytes=-5"),
        ({"brokers": "3"}, "brokers='3'"),
        ({"brokers": 2.0}, "brokers=2.0"),
        ({"default_partitions": 1.5}, "default_partitions=1.5"),
        ({"retention_bytes": "x"}, "retention_bytes='x'"),
        ({"max_message_bytes": None}, "max_message_bytes=None"),
        ({"broker_session_timeout_ms": NAN}, "broker_session_timeout_ms=nan"),
        ({"request_log": 1.5}, "request_log=1.5"),
        ({"host": ""}, "host is empty"),
        ({"host": None}, "host=None"),
        ({"ports": 9292}, "ports=9292: a list with a port for each broker is needed"),
        ({"ports": "9"}, "ports='9': a list"),
        ({"ports": [65536]}, "ports=65536"),
        ({"ports": ["9092"]}, "ports='9092'"),
        ({"security": {"users": {}}}, "security: Security is needed, found dict"),
        ({"limits": {}}, "limits: ConnectionLimits is needed, found dict"),
        ({"data_dir": ""}, "data_dir is empty"),
    ],
)
def test_cluster_refuses(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        EmbeddedCluster(**arguments)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("messages", (b"t",), "topic=b't'"),
        ("messages", ("t", "0"), "partition='0'"),
        ("wait_for_messages", ("t", "1"), "n='1'"),
        ("wait_for_messages", ("t", NAN), "n=nan"),
        ("wait_for_messages", ("t", 1, None), "timeout=None"),
        ("wait_for_messages", ("t", 1, NAN), "timeout=nan"),
        ("consume", (None,), "topic=None"),
        ("create_topic", (b"new",), "name=b'new'"),
        ("create_topic", ("new", "2"), "partitions='2'"),
        ("create_topic", ("new", 1, -1, {"retention.ms": None}), "configs: retention.ms=None"),
        ("kill_node", (9,), "no node 9: the cluster has nodes 1"),
        ("cut_connections", (9,), "no node 9"),
        ("set_replica_lag", (1, NAN), "seconds=nan"),
        ("set_latency", (NAN,), "seconds=nan"),
        ("set_latency", (1, "Produce"), "api_key='Produce'"),
        ("delay_next", (0, "1"), "seconds='1'"),
        ("fail_next", (0, "x"), "error_code='x'"),
        ("fail_next", (0, 7, "x"), "times='x'"),
        ("fail_next", (0, 1 << 15), "error_code=32768: at most 32767"),
        ("records", ("t", "0"), "partition='0'"),
        ("end_offset", ("t", True), "partition=True"),
        ("log_start_offset", ("t", 0.0), "partition=0.0"),
        ("leader", (None, 0), "topic=None"),
        ("throttle_next", (0, -1), "throttle_ms=-1"),
        ("set_producer_quota", (None, NAN), "bytes_per_second=nan"),
        ("cut_after", (1.5,), "nbytes=1.5"),
        ("add_acl", (5, "READ"), "principal=5"),
        ("add_acl", ("User:a", 5), "operation=5"),
    ],
)
def test_method_refuses(method: str, arguments: tuple[Any, ...], named: str) -> None:
    with EmbeddedCluster(security=Security(authorizer=True, allow_everyone_if_no_acl_found=True)) as cluster:
        cluster.create_topic("t")
        keywords = {"topic": "t"} if method == "add_acl" else {}
        with pytest.raises(ConfigError) as error:
            getattr(cluster, method)(*arguments, **keywords)
        assert named in str(error.value)
        assert cluster.topics() == {"t": 1}


def test_wait_for_request_counts_from_one(kafkabuf_broker: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match="count=0"):
        kafkabuf_broker.wait_for_request(count=0, timeout=0)


def test_configs_of_a_topic_may_be_numbers(kafkabuf_broker: EmbeddedCluster) -> None:
    kafkabuf_broker.create_topic("t", configs={"retention.ms": 60_000, "preallocate": True})
    assert kafkabuf_broker._call(lambda c: dict(c.catalogue.topic("t").configs)) == {
        "retention.ms": "60000",
        "preallocate": "true",
    }
