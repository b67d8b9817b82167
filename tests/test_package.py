"""`from kafkabuf import ...`: names that users of other libraries look for lead to what there is."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import kafkabuf


@pytest.mark.parametrize("name", ["KafkaConsumer", "Consumer", "AIOKafkaConsumer"])
def test_import_of_a_consumer_names_the_consumers_to_use_beside_kafkabuf(name: str) -> None:
    with pytest.raises(ImportError, match=f"kafkabuf has no {name}: kafkabuf only produces.*confluent_kafka.Consumer"):
        exec(f"from kafkabuf import {name}")


@pytest.mark.parametrize("name", ["AdminClient", "KafkaAdminClient", "AIOKafkaAdminClient"])
def test_import_of_an_admin_client_names_the_clients_to_use_beside_kafkabuf(name: str) -> None:
    with pytest.raises(ImportError, match=f"kafkabuf has no {name}: .*kafka.KafkaAdminClient"):
        exec(f"from kafkabuf import {name}")


@pytest.mark.parametrize("name", ["Producer", "AIOKafkaProducer"])
def test_import_of_another_producer_names_its_home(name: str) -> None:
    with pytest.raises(ImportError, match=f"kafkabuf has no {name}: use kafkabuf"):
        exec(f"from kafkabuf import {name}")


def test_names_of_the_package_can_be_imported() -> None:
    assert {name: getattr(importlib.import_module("kafkabuf"), name) for name in kafkabuf.__all__}
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from kafkabuf import nonsense")


def test_extensions_have_no_functions_for_tests_and_benches() -> None:
    """bench/core.pyx has them."""
    for path in Path(kafkabuf.__file__).parent.rglob("*.pyx"):
        text = path.read_text()
        assert re.findall(r"def \w*(?:bench|test)\w*\(", text) == [], path
        assert re.findall(r"[Ff]or (?:the )?(?:tests|bench)\b.*", text) == [], path
