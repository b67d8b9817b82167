"""A pytest plugin for aiokafka's own tests: the broker that they expect, and kafkabuf's producer in place of theirs.

`--kafkabuf` puts kafkabuf.compat.aiokafka's producer where the tests import aiokafka's, and leaves out the tests that
look into aiokafka's producer. `--kafka-hosts` names the broker, whose topics have two partitions by default. With
`--embedded` the broker is an embedded cluster: the plugin then leaves out the tests that race with a commit.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# What a test names that mocks or reads the inside of aiokafka's producer.
_INSIDE = re.compile(r"\bmock\b|\._(sender|txn_manager|metadata|message_accumulator|batches)\b|producer\d?\.client\b")
# These expect that a commit lasts for more than 0.1 ms. The embedded cluster is faster.
_RACES = ("test_producer_transactional_send_message_outside_txn", "test_producer_transactional_send_batch_outside_txn")
_THEIRS = pytest.StashKey[type]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kafkabuf", action="store_true")
    parser.addoption("--kafka-hosts")
    parser.addoption("--embedded", action="store_true")
    parser.addoption("--kafka-release", default="4.1.2")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ssl: needs aiokafka's certificates")
    if config.getoption("--kafkabuf"):
        import aiokafka.producer

        from kafkabuf.compat.aiokafka import AIOKafkaProducer

        config.stash[_THEIRS] = aiokafka.producer.AIOKafkaProducer
        aiokafka.AIOKafkaProducer = aiokafka.producer.AIOKafkaProducer = AIOKafkaProducer


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("ssl")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    if config.getoption("--kafkabuf"):
        for name, module in sys.modules.items():
            if name.endswith("._testutil"):  # it looks into the producer with which it fills topics
                module.AIOKafkaProducer = config.stash[_THEIRS]  # type: ignore[attr-defined]
        for item in items:
            inside = _INSIDE.search(_source_of(item))
            if item.name in _RACES and config.getoption("--embedded"):
                item.add_marker(pytest.mark.skip("races with a commit, which the embedded cluster ends in 0.1 ms"))
            elif inside is not None:
                item.add_marker(pytest.mark.skip(f"looks into aiokafka's producer: {inside[0]}"))


def _source_of(item: pytest.Item) -> str:
    return inspect.getsource(inspect.unwrap(item.function))  # type: ignore[attr-defined]


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


@pytest.fixture(scope="class")
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    cls: Any = request.cls
    hosts = request.config.getoption("--kafka-hosts")
    cls.loop, cls.hosts, cls.ssl_folder = loop, [hosts], Path()
    cls.kafka_host, _, port = hosts.rpartition(":")
    cls.kafka_port, cls.kafka_version = int(port), request.config.getoption("--kafka-release")


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    yield
    gc.collect()
