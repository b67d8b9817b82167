"""The upkeep of logs on demand: a test calls it through `EmbeddedCluster.compact` and `tick`."""

from __future__ import annotations

from kafkabuf.broker.cluster.cluster import Cluster
from kafkabuf.broker.replica.replication import Partition
from kafkabuf.errors import ConfigError


async def compact(cluster: Cluster, name: str, index: int | None) -> int:
    """Cleans every replica of a topic, or of one partition. Returns how many records the leaders have dropped."""
    topic = cluster.catalogue.topic(name)
    policy = topic.settings.get("cleanup.policy", "delete")
    if "compact" not in policy:
        raise ConfigError(
            f"topic {name} has cleanup.policy={policy}: only a topic whose "
            "cleanup.policy contains compact can be compacted"
        )
    partitions = topic.partitions if index is None else [topic.partition(index)]
    return sum([await _compact(cluster, partition) for partition in partitions])


async def _compact(cluster: Cluster, partition: Partition) -> int:
    removed = 0
    _tell_high_watermark(partition)
    for node_id, replica in list(partition.replicas.items()):
        dropped = await cluster.logs.cleaner.clean_now(replica.log)
        if node_id == partition.leader:
            removed = dropped
    return removed


def _tell_high_watermark(partition: Partition) -> None:
    """The followers learn the leader's high watermark, which limits what they may clean, now instead of with their next
    fetch. So the log is compacted on whichever node leads next."""
    leader = partition.replicas.get(partition.leader)
    for node_id in partition.isr if leader is not None else ():
        replica = partition.replicas[node_id]
        if leader is not None and replica.node.connected and replica.known.epoch == leader.known.epoch:
            log = replica.log
            log.high_watermark = max(log.high_watermark, min(leader.log.high_watermark, log.end_offset))


async def tick(cluster: Cluster) -> None:
    cluster.timer.advance()
    cluster.logs.retain()
    await cluster.logs.cleaner.settled()
