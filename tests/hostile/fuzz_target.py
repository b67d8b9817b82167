"""The request path as a fuzzer sees it: the broker responds to any bytes, or closes the connection.

`Target` is the entry point. A request may raise only a KafkaError, and may take at most a second and 8 MiB of memory.
The corpus (fuzz_corpus.txt) has a request of every API in every version, taken from the script of tests/conformance."""

from __future__ import annotations

import asyncio
import logging
import resource
import struct
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from kafkabuf.broker import EmbeddedCluster, apis
from kafkabuf.broker.apis.dispatch import dispatch
from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaError

CORPUS = Path(__file__).with_name("fuzz_corpus.txt")
# The prefix of all names in the corpus. The topic of the corpus exists in the target's cluster.
NAME = "f"
MAX_SECONDS = 1.0
MAX_BYTES = 8 << 20
# After so many requests the target replaces its cluster, with all topics and groups.
_GENERATION = 500


class FuzzError(AssertionError):
    """A request took too long or too much memory."""


def corpus() -> list[bytes]:
    return [bytes.fromhex(line) for line in CORPUS.read_text().split()]


def api_of(frame: bytes) -> tuple[int, int]:
    """(API key, version)"""
    key, version = struct.unpack_from(">hh", frame)
    return key, version


def _peak() -> int:
    """Bytes: the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Target:
    """A node of a cluster on a manual clock. It dispatches frames as its server would, without a connection."""

    def __init__(self) -> None:
        apis.load()
        self._logger = logging.getLogger("kafkabuf")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)
        self._config = EmbeddedCluster()._config
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None
        self._served = 0
        # The first request of each API and version reads its schema: that memory must not count for a later request.
        for frame in corpus():
            self._dispatch(frame)

    def close(self) -> None:
        self._logger.setLevel(self._level)
        self._stop()
        self._loop.close()

    def __call__(self, frame: bytes) -> None:
        """Serve a frame. Raises FuzzError, and every exception but a KafkaError."""
        held = _peak()
        seconds, grown = self._timed(frame), _peak() - held
        # A second measurement decides, since the machine may have been busy.
        if seconds > MAX_SECONDS and self._timed(frame) > MAX_SECONDS:
            raise FuzzError(f"{seconds:.2f} s for a frame of {len(frame)} bytes: at most {MAX_SECONDS} s are allowed")
        if grown > MAX_BYTES:
            raise FuzzError(f"{grown} bytes more for a frame of {len(frame)} bytes: at most {MAX_BYTES} are allowed")

    def _timed(self, frame: bytes) -> float:
        began = time.perf_counter()
        self._dispatch(frame)
        return time.perf_counter() - began

    def _dispatch(self, frame: bytes) -> None:
        if self._served % _GENERATION == 0:
            self._renew()
        self._served += 1
        self._loop.run_until_complete(self._serve(frame))

    def _renew(self) -> None:
        self._stop()
        self._cluster = Cluster(self._config, ManualClock(), self._loop)
        self._loop.run_until_complete(self._cluster.start())
        self._cluster.catalogue.create_topic(f"{NAME}-t", 3)

    def _stop(self) -> None:
        if self._cluster is not None:
            self._loop.run_until_complete(self._cluster.stop())

    async def _serve(self, frame: bytes) -> None:
        assert self._cluster is not None
        try:
            _, response = dispatch(self._cluster.nodes[1], frame)
            if isinstance(response, Awaitable):
                await _serve_parked(response)
        except KafkaError:
            pass  # the server would close the connection


async def _serve_parked(response: Awaitable[Any]) -> None:
    """Run the handler for a few turns of the loop. Cancel it if it still waits, as the end of its client would."""
    task = asyncio.ensure_future(response)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
