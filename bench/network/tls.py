"""TLS beside plaintext, and beside confluent-kafka over TLS: one real Kafka with a listener for each."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import clients
from bench.claim import Case, Claim, Goal, Job, Measurement
from bench.harness import BROKER_OPTIONS, topic
from bench.measure import BATCH_LARGE, CPU, RATE, Client, measure
from rigs.ports import free_ports
from rigs.real_kafka import RealKafka

# The cases run in processes of their own, which inherit these: the port of the TLS listener, and its certificate.
PORT, CERTIFICATE = "KAFKABUF_BENCH_TLS_PORT", "KAFKABUF_BENCH_TLS_CERTIFICATE"
OURS_TLS, OURS_PLAIN, PEER_TLS, PEER_PLAIN = "kafkabuf, TLS", "kafkabuf", "confluent-kafka, TLS", "confluent-kafka"
REPLAY_TLS, REPLAY_PLAIN = "replay, TLS", "replay"
# Java decrypts 30 MB/s before its compiler has seen the code often enough, and forty times as much after that.
WARM_UP_RECORDS = 6_000_000


class _TlsKafka(RealKafka):
    def __init__(self, store: Path) -> None:
        super().__init__(options=BROKER_OPTIONS, heap="1g")
        self._store = store
        self.tls_port = 0

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        plain = super()._properties(port, controller_port)
        (self.tls_port,) = free_ports(1)
        return plain | {
            "listeners": f"{plain['listeners']},TLS://127.0.0.1:{self.tls_port}",
            "advertised.listeners": f"{plain['advertised.listeners']},TLS://localhost:{self.tls_port}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},TLS:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._store),
        }


@contextmanager
def cluster() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        key, certificate, store = (Path(folder) / name for name in ("key.pem", "certificate.pem", "store.pem"))
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        store.write_bytes(key.read_bytes() + certificate.read_bytes())
        kafka = _TlsKafka(store)
        with kafka:
            os.environ |= {PORT: str(kafka.tls_port), CERTIFICATE: str(certificate)}
            for client in (_over_tls(REPLAY_TLS, {}), clients.replay(BATCH_LARGE)):
                _measured(client, Job(WARM_UP_RECORDS, kafka.bootstrap_servers))
            yield kafka.bootstrap_servers


def _over_tls(name: str, settings: Mapping[str, str]) -> Client:
    secured = dict(settings) | {"security.protocol": "SSL"}
    secured |= {key: os.environ[CERTIFICATE] for key, value in secured.items() if value == CERTIFICATE}
    client = _CLIENTS[name](secured)

    @contextmanager
    def open_(bootstrap: str, name: str) -> Iterator[Any]:
        with client(f"localhost:{os.environ[PORT]}", name) as publish:
            yield publish

    return open_


def _secured(name: str, settings: Mapping[str, str], job: Job) -> Measurement:
    """The end offset is asked for over plaintext, from the same node."""
    return _measured(_over_tls(name, settings), job)


def _measured(client: Client, job: Job) -> Measurement:
    """A claim with a cluster of its own makes its own topics."""
    with topic(job.bootstrap) as name:
        return measure(client, replace(job, topic=name))


def _kafkabuf(settings: Mapping[str, Any]) -> Client:
    return clients.kafkabuf(BATCH_LARGE, settings=_keywords(settings))


def _keywords(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in settings.items()}


def _confluent(settings: Mapping[str, Any]) -> Client:
    return clients.confluent(settings=settings)


def _replay(settings: Mapping[str, Any]) -> Client:
    context = ssl.create_default_context(cafile=os.environ[CERTIFICATE])

    def wrap(plain: socket.socket) -> socket.socket:
        return context.wrap_socket(plain, server_hostname="localhost")

    return clients.replay(BATCH_LARGE, wrap)


_CLIENTS = {OURS_TLS: _kafkabuf, PEER_TLS: _confluent, REPLAY_TLS: _replay}

CLAIM = Claim(
    name="tls",
    title="TLS costs less than half of the rate",
    cases=[
        Case(OURS_TLS, partial(_secured, OURS_TLS, {"ssl.truststore.location": CERTIFICATE}), baseline=PEER_TLS),
        Case(OURS_PLAIN, partial(_measured, clients.kafkabuf(BATCH_LARGE)), baseline=PEER_PLAIN),
        Case(PEER_TLS, partial(_secured, PEER_TLS, {"ssl.ca.location": CERTIFICATE}), share=0.5),
        Case(PEER_PLAIN, partial(_measured, clients.confluent()), share=0.5),
        Case(REPLAY_TLS, partial(_secured, REPLAY_TLS, {})),
        Case(REPLAY_PLAIN, partial(_measured, clients.replay(BATCH_LARGE)), baseline=PEER_PLAIN),
    ],
    metrics=[RATE, CPU],
    baseline=PEER_TLS,
    amount=2_000_000,
    cluster=cluster,
    goals=[
        Goal("TLS of plaintext", OURS_TLS, RATE.name, 0.5, OURS_PLAIN),
        Goal("TLS against confluent-kafka over TLS", OURS_TLS, RATE.name, 3, PEER_TLS),
    ],
    notes=[
        "Values of 100 bytes, batch.size 128 KiB, linger.ms 5, acks=all, idempotent; TLS 1.3 with an RSA key.",
        "A replay sends one batch, made before, over and over through a socket of Python's: the limit of a connection.",
    ],
)
