"""What holds for every test of the broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.broker.log import support as log_support
from tests.broker.raw_client import RawClient


@pytest.fixture(autouse=True)
def no_file_of_a_log_stays_open() -> Iterator[None]:
    """A process of tests may open 1,024 files on many machines, and a log has one for each of its segments."""
    before = _open_files()
    yield
    log_support.kill_all()
    assert _open_files() <= before, "close the log or the cluster, or end it as kill -9 does"


def _open_files() -> set[str]:
    """The files of logs and journals, also deleted ones. Empty where the system has no /proc."""
    found = set()
    if (folder := Path("/proc/self/fd")).is_dir():
        for number in os.listdir(folder):
            with suppress(OSError):
                found.add(os.readlink(folder / number).removesuffix(" (deleted)"))
    return {name for name in found if name.endswith((".log", "cluster.journal"))}


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Iterator[RawClient]:
    """A client of the cluster that the test's module makes."""
    with RawClient(cluster.bootstrap_servers) as connected:
        yield connected
