"""The first task of a Python worker loads no module that it does not need: Spark ends workers that are idle."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types as T

from bench.spark.first_task import first_task
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.sink import ArrowSink

NEEDLESS = {"asyncio", "email", "http", "hypothesis", "importlib.metadata", "kio", "pandas", "rich", "ssl"}


@pytest.mark.parametrize(
    ("guarantee", "format"),
    [("at_least_once", "raw"), ("exactly_once", "raw"), ("atomic", "raw"), ("at_least_once", "avro")],
)
def test_first_task_loads_only_what_it_needs(guarantee: str, format: str) -> None:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "deliveryguarantee": guarantee}
        options["valueformat"] = format
        schema = T.StructType([T.StructField(name, T.BinaryType()) for name in ("key", "value")])
        _, loaded = first_task(ArrowSink.of(SinkOptions.parse(options | {"sinkid": "s"}), schema))
    assert "kafkabuf.producer" in loaded
    assert NEEDLESS & set(loaded) == set()
    assert ("kafkabuf.formats.avro._columns" in loaded) == (format != "raw")


def test_options_hide_secrets_and_bring_them_to_the_task() -> None:
    sasl = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "u"}
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", **sasl, "kafka.sasl.password": "s3ntin3l"}
    options = pickle.loads(pickle.dumps(SinkOptions.parse(given)))
    config = ProducerConfig.from_mapping(dict(options.producer))
    assert config.sasl_password is not None
    assert config.sasl_password.get_secret_value() == "s3ntin3l"
    assert "s3ntin3l" not in repr(config) + repr(config.sasl_password) + repr(options)
