"""A cluster of one node for the tests of a command, and topics of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest_plugins = ["tests.one_node"]


@pytest.fixture
def topic(new_topic: Callable[[], str]) -> str:
    return new_topic()
