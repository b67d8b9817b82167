"""A first look at an installed kafkabuf: `python -I tests/smoke.py [cluster]`, with nothing but its dependencies.

Every extension loads but those of the embedded broker, a producer opens and closes, and a MockProducer acknowledges a
record. With `cluster`, the broker's extensions load too, and a producer writes to an embedded cluster with each codec;
that needs the dependencies of the embedded broker.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import kafkabuf

RECORDS = 1000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def load_extensions(broker: bool) -> int:
    package = Path(kafkabuf.__file__).parent
    suffix = EXTENSION_SUFFIXES[0]
    paths = [path.relative_to(package.parent).as_posix() for path in package.rglob(f"*{suffix}")]
    names = [path.removesuffix(suffix).replace("/", ".") for path in paths]
    loaded = [name for name in names if broker or not name.startswith("kafkabuf.broker.")]
    for name in loaded:
        importlib.import_module(name)
    return len(loaded)


def open_producers() -> None:
    from kafkabuf.testing import MockProducer

    with kafkabuf.KafkaProducer(bootstrap_servers="127.0.0.1:1"):
        pass
    with MockProducer() as producer:
        assert producer.send("greetings", b"hello", key=b"world").result(0).offset == 0


def write_to_a_cluster() -> None:
    from kafkabuf.broker import EmbeddedCluster

    with EmbeddedCluster(brokers=3) as cluster:
        for codec in CODECS:
            cluster.create_topic(codec)
            with kafkabuf.KafkaProducer(
                {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec}
            ) as producer:
                producer.send_many(codec, [b"value"] * (RECORDS - 1)).result()
                assert producer.send(codec, b"last").result(30).offset == RECORDS - 1
            assert cluster.end_offsets(codec) == {0: RECORDS}


def main(arguments: list[str]) -> None:
    broker = "cluster" in arguments
    extensions = load_extensions(broker)
    assert extensions > 20, f"{extensions} extensions lie in {Path(kafkabuf.__file__).parent}"
    open_producers()
    if broker:
        write_to_a_cluster()


if __name__ == "__main__":
    main(sys.argv[1:])
