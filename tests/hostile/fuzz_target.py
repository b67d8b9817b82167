"""The request path as a fuzzer sees it: a broker is given whatever bytes; it answers, or closes the connection.

`Target` is the one entry point: no exception but a KafkaError, no more than a second, no more than 8 MiB of memory. The
corpus (fuzz_corpus.txt) has a request of every API in every version, taken from the script of conformance.py."""

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
# What the names in the corpus begin with; its topic exists.
NAME = "f"
MAX_SECONDS = 1.0
MAX_BYTES = 8 << 20
# Requests that one cluster serves before it is replaced, topics, groups and all.
_GENERATION = 500


class FuzzError(AssertionError):
    """What a request must not do."""


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
    """A node of a cluster on a manual clock, without clients: frames are dispatched as its server would."""

    def __init__(self) -> None:
        apis.load()
        self._logger = logging.getLogger("kafkabuf")
        self._level = self._logger.level
        self._logger.setLevel(logging.CRITICAL)
        self._config = EmbeddedCluster()._config
        self._loop = asyncio.new_event_loop()
        self._cluster: Cluster | None = None
        self._served = 0
        # Schemas are read and readers made when they are first needed: that is none of a request's memory.
        for frame in corpus():
            self._dispatch(frame)

    def close(self) -> None:
        self._logger.setLevel(self._level)
        self._stop()
        self._loop.close()

    def __call__(self, frame: bytes) -> None:
        """FuzzError, or whatever exception is none of the protocol's."""
        held = _peak()
        seconds, grown = self._timed(frame), _peak() - held
        # Twice, for the machine may have been busy with something else.
        if seconds > MAX_SECONDS and self._timed(frame) > MAX_SECONDS:
            raise FuzzError(f"{seconds:.2f} s for a frame of {len(frame)} bytes, {MAX_SECONDS} s are allowed")
        if grown > MAX_BYTES:
            raise FuzzError(f"{grown} bytes more for a frame of {len(frame)}, {MAX_BYTES} are allowed")

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
            _, answer = dispatch(self._cluster.nodes[1], frame)
            if isinstance(answer, Awaitable):
                await _parked(answer)
        except KafkaError:
            pass  # the connection is closed


async def _parked(answer: Awaitable[Any]) -> None:
    """Until it is answered or has nothing to do but wait, which ends with its client."""
    task = asyncio.ensure_future(answer)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
