"""Nodes without sockets on a manual clock, for the tests of replication and elections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.broker.replica.replication_support import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    from tests.broker.replica.replication_support import Rig

    rig = Rig()
    yield rig
    rig.close()
