"""A fake registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.formats.registry.support import CLIENTS, FakeRegistry, running


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry
