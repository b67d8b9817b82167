"""A first look at an installed kafkabuf: `python -I tests/smoke.py [cluster]`, with nothing but its dependencies.

Every extension loads, a producer opens and closes, and a MockProducer acknowledges a record. With `cluster`, a producer
writes to an embedded cluster with each codec; that needs the dependencies of the embedded broker.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import kafkabuf

RECORDS = 1000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def load_extensions() -> int:
    package = Path(kafkabuf.__file__).parent
    files = [path for suffix in EXTENSION_SUFFIXES[:1] for path in package.rglob(f"*{suffix}")]
    for path in files:
        name = path.relative_to(package.parent).as_posix().removesuffix(EXTENSION_SUFFIXES[0]).replace("/", ".")
        importlib.import_module(name)
    return len(files)


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
    extensions = load_extensions()
    assert extensions > 20, f"{extensions} extensions lie in {Path(kafkabuf.__file__).parent}"
    open_producers()
    if "cluster" in arguments:
        write_to_a_cluster()


if __name__ == "__main__":
    main(sys.argv[1:])
