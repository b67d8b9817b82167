"""The claims, by the names of their commands."""

from __future__ import annotations

import importlib

from bench.claim import Claim

# The module, below bench, of each claim.
MODULES = {
    "send": "append.send",
    "aio": "append.aio",
    "compat": "compat.faces",
    "arrow": "append.arrow",
    "formats": "formats.avro",
    "formats-send": "formats.sending",
    "protobuf": "formats.protobuf",
    "json": "formats.json_text",
    "transactions": "transactions.transactions",
    "latency": "sending.latency",
    "compression": "batches.compression",
    "encode": "ground.encode",
    "pool": "ground.pool",
    "purgatory": "broker.purgatory",
    "import": "faces.opening",
    "threads": "append.threads",
    "memory": "batches.memory",
    "batches": "batches.batches",
    "partitions": "batches.partitions",
    "cluster": "broker.cluster",
    "failover": "sending.failover",
    "spark": "spark.sink",
    "spark-formats": "spark.formats",
    "perf": "cli.perf",
    "produce": "cli.produce",
    "tls": "network.tls",
    "spool": "spool.rates",
    "spool-latency": "spool.latency",
    "spool-outage": "spool.outage",
}
# `python -m bench all` leaves these out: they measure no peer, and take their time.
APART = {"batches"}


def load(name: str) -> Claim:
    claim = importlib.import_module(f"bench.{MODULES[name]}").CLAIM
    assert isinstance(claim, Claim)
    return claim
