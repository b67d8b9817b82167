"""`python -m bench`: send() against its peers on a real Apache Kafka of its own; a table, and JSON with --json."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from bench.harness import Results, alternate, ratio, table
from bench.peers import PEERS
from tests.real_kafka import KAFKA_4, RealKafka

BASELINE = "confluent-kafka, callback"
# Issue 3: send() against confluent-kafka with a callback per record.
GOALS = {"kafkabuf send 128 KiB": 3.0, "kafkabuf send 16 KiB": 3.0}


@click.command()
@click.option("--records", default=1_000_000, show_default=True, help="Records a run, of 100 bytes.")
@click.option("--rounds", default=5, show_default=True, help="Runs of each peer; medians are reported.")
@click.option("--bootstrap-servers", help="A broker to use instead of an Apache Kafka started for the run.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Only these, and the baseline.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the single results here.")
def main(records: int, rounds: int, bootstrap_servers: str | None, peers: tuple[str, ...], path: Path | None) -> None:
    """Publish the same records with kafkabuf and its peers, in turn, and compare."""
    names = [name for name in PEERS if not peers or name in peers or name == BASELINE]
    if bootstrap_servers:
        results = _compare(names, rounds, bootstrap_servers, records)
    else:
        with RealKafka(KAFKA_4) as kafka:
            results = _compare(names, rounds, kafka.bootstrap_servers, records)
    Console(width=100).print(table(results, records, BASELINE))
    for name, goal in GOALS.items():
        if name in results:
            found = ratio(results, name, BASELINE, "wall")
            print(f"{name}: {found:.2f} x {BASELINE} (goal {goal:g}: {'met' if found >= goal else 'missed'})")
    if path:
        path.write_text(json.dumps({"records": records, "results": results}, indent=1))


def _compare(names: list[str], rounds: int, bootstrap: str, records: int) -> Results:
    topic = f"kafkabuf-bench-{uuid.uuid4().hex[:8]}"
    # Bounded, so that a long comparison does not fill the disk or the page cache.
    limits = {"retention.bytes": "300000000", "segment.bytes": "100000000"}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=limits)])[topic].result()
    try:
        return alternate(names, rounds, bootstrap, topic, records)
    finally:
        admin.delete_topics([topic])[topic].result()


if __name__ == "__main__":
    main()
