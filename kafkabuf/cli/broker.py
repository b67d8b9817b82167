"""`kafkabuf broker`: the embedded cluster, for whatever client you like."""

from __future__ import annotations

import signal

import click
from rich.console import Console


@click.command()
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, 100), help="Nodes of the cluster.")
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the first node, the others follow; 0 takes free ones.",
)
@click.option(
    "--partitions",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Partitions of a topic made by its first use.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Keep records, topics and groups in this folder, for the next run; without it they are in memory.",
)
def broker(brokers: int, port: int, partitions: int, data_dir: str | None) -> None:
    """Run an embedded cluster on loopback until Ctrl-C."""
    from kafkabuf.broker import EmbeddedCluster

    if port + brokers - 1 > 65535:
        raise click.BadParameter(f"{brokers} brokers from port {port} on go beyond 65535", param_hint="--port")
    ports = None if port == 0 else list(range(port, port + brokers))
    # A wish to stop that comes before the wait below stays pending until then.
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        with EmbeddedCluster(brokers=brokers, default_partitions=partitions, ports=ports, data_dir=data_dir) as cluster:
            Console().print(f"bootstrap.servers={cluster.bootstrap_servers}", highlight=False, soft_wrap=True)
            signal.sigwait(wanted)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, wanted)
