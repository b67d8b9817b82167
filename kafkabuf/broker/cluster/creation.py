"""Topics of any size: a test creates them through `EmbeddedCluster.create_topic`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.nodes.catalogue import MAX_CHANGES
from kafkabuf.broker.waiting.slices import Work
from kafkabuf.errors import InvalidPartitionsError

# More would fill the memory of the process before anybody notices the mistake.
MOST_PARTITIONS = 1_000_000


async def create_topic(
    cluster: Cluster, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    """Creates a topic with as many partitions as Kafka creates for one request, and then adds the others."""
    if partitions > MOST_PARTITIONS:
        raise InvalidPartitionsError(f"an embedded cluster creates at most {MOST_PARTITIONS:,} partitions in a topic")
    catalogue = cluster.catalogue
    made = min(partitions, MAX_CHANGES - 1)
    await _in_slices(cluster, catalogue.creating_topic(name, made, replication_factor, configs))
    while made < partitions:
        made = min(made + MAX_CHANGES, partitions)
        await _in_slices(cluster, catalogue.adding_partitions(name, made))


async def _in_slices(cluster: Cluster, work: Work[Any]) -> None:
    result = cluster.slices.run(work, exclusive=True)
    if isinstance(result, asyncio.Future):
        await result
