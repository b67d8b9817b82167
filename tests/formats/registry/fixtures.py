"""A fake registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.formats.registry.support import FakeRegistry, running


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with running(FakeRegistry()) as registry:
        yield registry
