"""The claims, by the name of their command and of the module here whose CLAIM they are."""

from __future__ import annotations

import importlib

from bench.claim import Claim

NAMES = (
    "send",
    "aio",
    "arrow",
    "transactions",
    "latency",
    "compression",
    "encode",
    "pool",
    "purgatory",
    "threads",
    "memory",
    "batches",
    "partitions",
    "cluster",
    "failover",
    "spark",
)


def load(name: str) -> Claim:
    claim = importlib.import_module(f"bench.{name}").CLAIM
    assert isinstance(claim, Claim)
    return claim
