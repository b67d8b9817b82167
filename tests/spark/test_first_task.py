"""The first task of a Python worker loads no module that it does not need: Spark ends workers that are idle."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql import types as T

from bench.spark.first_task import first_task
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import ConfigError
from kafkabuf.spark import checked
from kafkabuf.spark.options import SinkOptions
from kafkabuf.spark.sink import ArrowSink

NEEDLESS = {"asyncio", "email", "http", "hypothesis", "importlib.metadata", "kio", "pandas", "pydantic", "rich", "ssl"}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once", "atomic"])
def test_first_task_loads_only_what_it_needs(guarantee: str) -> None:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": "t", "deliveryguarantee": guarantee}
        schema = T.StructType([T.StructField(name, T.BinaryType()) for name in ("key", "value")])
        _, loaded = first_task(ArrowSink.of(SinkOptions.parse(options | {"sinkid": "s"}), schema))
    assert "kafkabuf.producer" in loaded
    assert NEEDLESS & set(loaded) == set()


SASL = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "u"}


def test_task_takes_the_settings_that_the_driver_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.linger.ms": "7", "topic": "t", **SASL, "kafka.sasl.password": "x"}
    pickled = pickle.dumps(SinkOptions.parse(given))
    monkeypatch.setattr(checked, "_known", {})
    monkeypatch.setattr(checked, "check", lambda settings: pytest.fail("a task checks settings"))
    options = pickle.loads(pickled)
    added = [("batch.size", "100"), ("transactional.id", "i")]
    config = checked.config_of(tuple(sorted([*options.producer, *added])))
    assert (config.linger_ms, config.batch_size, config.slab_size) == (7, 100, 512)
    assert (config.transactional_id, config.enable_idempotence) == ("i", True)
    assert config.sasl_password is not None
    assert config.sasl_password.get_secret_value() == "x"
    assert "x" not in repr(config).replace("max", "") + repr(config.sasl_password) + repr(options)
    again = ProducerConfig.from_mapping(config.given())
    assert again == ProducerConfig.from_mapping(dict([*options.producer, *added]))


def test_plain_settings_have_all_that_a_producer_reads() -> None:
    config = ProducerConfig.from_mapping({"bootstrap.servers": "h:1"})
    read = {name for kind in type(config).__mro__[:3] for name in vars(kind) if isinstance(vars(kind)[name], property)}
    for name in {*type(config).model_fields, *read}:
        assert getattr(config.plain(), name) == getattr(config, name)


def test_settings_that_are_not_known_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked, "_known", {})
    assert checked.config_of((("bootstrap.servers", "h:1"), ("linger.ms", "9"))).linger_ms == 9
    with pytest.raises(ConfigError, match=r"linger\.ms"):
        checked.config_of((("bootstrap.servers", "h:1"), ("linger.ms", "soon")))
