"""KafkaProducer(check=True) and AIOKafkaProducer.start() where no broker answers, and where brokers do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import (
    ClusterAuthorizationError,
    ConfigError,
    KafkaError,
    NetworkError,
    SaslAuthenticationError,
    SslAuthenticationError,
    TimeoutError,
)
from kafkabuf.protocol.messages import INIT_PRODUCER_ID
from rigs.producer import PATIENCE
from tests.network.tls.certificates import Authority

SECRET = "sentinel-password"
COORDINATOR_LOAD_IN_PROGRESS, CLUSTER_AUTHORIZATION_FAILED = 14, 31

Open = Callable[..., None]


def open_threaded(**settings: Any) -> None:
    KafkaProducer(check=True, **settings).close()


def open_in_loop(**settings: Any) -> None:
    async def start() -> None:
        async with AIOKafkaProducer(**settings):
            pass

    asyncio.run(start())


@pytest.fixture(params=[open_threaded, open_in_loop])
def opened(request: pytest.FixtureRequest) -> Open:
    call: Open = request.param
    return call


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 5


def test_refused_connection_fails_at_once(opened: Open, closed_port: int) -> None:
    with at_once(), pytest.raises(NetworkError, match=r"refused.*is a broker listening there"):
        opened(bootstrap_servers=f"127.0.0.1:{closed_port}")


def test_error_names_each_bootstrap_server(opened: Open, closed_port: int) -> None:
    servers = f"127.0.0.1:{closed_port},localhost:{closed_port}"
    with at_once(), pytest.raises(NetworkError, match=r"127.0.0.1.*refused.*localhost.*refused"):
        opened(bootstrap_servers=servers)


def test_unknown_host_fails_at_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with at_once(), pytest.raises(ConfigError, match="no entry can be resolved"):
        opened(bootstrap_servers="nowhere.invalid:9092")


def test_silent_peer_fails_after_max_block_ms(opened: Open, silent_port: int) -> None:
    with at_once(), pytest.raises(TimeoutError, match=rf"no broker answered within 0.3 s.*127.0.0.1:{silent_port}"):
        opened(bootstrap_servers=f"127.0.0.1:{silent_port}", max_block_ms=300)


def test_untrusted_certificate_fails_at_once(opened: Open, authority: Authority) -> None:
    with EmbeddedCluster(security=Security(ssl_certfile=authority.issue("broker", "IP:127.0.0.1").store)) as cluster:
        with at_once(), pytest.raises(SslAuthenticationError, match=re.escape("ssl.truststore.location")):
            opened(bootstrap_servers=cluster.bootstrap_servers, security_protocol="SSL")


def test_plain_client_of_a_tls_port_fails_at_once(opened: Open, authority: Authority) -> None:
    with EmbeddedCluster(security=Security(ssl_certfile=authority.issue("broker", "IP:127.0.0.1").store)) as cluster:
        with at_once(), pytest.raises(NetworkError, match=r"is security\.protocol=PLAINTEXT right for this port"):
            opened(bootstrap_servers=cluster.bootstrap_servers)


@pytest.mark.parametrize("password", [SECRET, "wrong"])
def test_wrong_password_fails_at_once(opened: Open, password: str) -> None:
    with EmbeddedCluster(security=Security(users={"alice": SECRET})) as cluster:
        settings = {
            "bootstrap_servers": cluster.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "alice", "sasl_password": password,
        }  # fmt: skip
        refused = pytest.raises(SaslAuthenticationError) if password == "wrong" else contextlib.nullcontext()
        with at_once(), refused:
            opened(**settings)


def test_missing_right_to_send_fails_at_once(opened: Open) -> None:
    with EmbeddedCluster() as cluster:
        cluster.fail_next(INIT_PRODUCER_ID, CLUSTER_AUTHORIZATION_FAILED)
        with at_once(), pytest.raises(ClusterAuthorizationError, match="grant IdempotentWrite"):
            opened(bootstrap_servers=cluster.bootstrap_servers)


def test_cluster_that_is_still_loading_has_answered(opened: Open) -> None:
    with EmbeddedCluster() as cluster:
        cluster.fail_next(INIT_PRODUCER_ID, COORDINATOR_LOAD_IN_PROGRESS)
        with at_once():
            opened(bootstrap_servers=cluster.bootstrap_servers)


def test_one_broker_that_answers_is_enough(opened: Open, closed_port: int) -> None:
    with EmbeddedCluster() as cluster:
        opened(bootstrap_servers=f"127.0.0.1:{closed_port},{cluster.bootstrap_servers}")


@pytest.mark.parametrize("idempotent", [True, False])
def test_checked_producer_asks_once_and_sends_over_the_connection_of_the_check(idempotent: bool) -> None:
    with EmbeddedCluster() as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "enable_idempotence": idempotent,
        }
        with KafkaProducer(check=True, **settings) as producer:
            for n in range(3):
                assert producer.send("checked", b"v", partition=0).result(10).offset == n
        asked = [request.api_key for request in cluster.requests()]
        assert asked.count(INIT_PRODUCER_ID) == int(idempotent)


def test_producer_without_check_opens_where_no_broker_answers(closed_port: int) -> None:
    KafkaProducer(bootstrap_servers=f"127.0.0.1:{closed_port}").close(0)

    async def start() -> None:
        async with AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{closed_port}", check=False):
            pass

    asyncio.run(start())


def resources() -> tuple[int, int, int]:
    """Threads, descriptors, and KiB of address space."""
    status = Path("/proc/self/status").read_text()
    size = re.search(r"VmSize:\s+(\d+) kB", status)
    assert size is not None
    return threading.active_count(), len(os.listdir("/proc/self/fd")), int(size[1])


def test_failed_check_leaves_no_thread_no_socket_and_no_memory(opened: Open, closed_port: int) -> None:
    def fail() -> None:
        with pytest.raises(KafkaError):
            # Each arena would be half a GiB.
            opened(bootstrap_servers=f"localhost:{closed_port}", buffer_memory=1 << 29)

    fail()  # imports what it needs
    gc.collect()
    threads, descriptors, memory = resources()
    for _ in range(5):
        fail()
    deadline = time.monotonic() + PATIENCE
    # The resolver's thread ends by itself, and so may a thread of an earlier test.
    while any(now > before for now, before in zip(resources()[:2], (threads, descriptors), strict=True)):
        if opened is open_in_loop:
            gc.collect()  # asyncio.run() leaves cycles of its own
        assert time.monotonic() < deadline
    assert resources()[2] < memory + (1 << 20)  # 1 GiB, for the C library's arenas of threads


def test_interrupt_ends_the_check(silent_port: int) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with at_once(), pytest.raises(KeyboardInterrupt):
            KafkaProducer(bootstrap_servers=f"127.0.0.1:{silent_port}", check=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_cancelled_start_may_be_repeated(silent_port: int) -> None:
    async def cancelled() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{silent_port}", max_block_ms=500)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(producer.start(), 0.05)
        with pytest.raises(TimeoutError, match="no broker answered"):
            await producer.start()

    asyncio.run(cancelled())


def test_ssl_context_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssl_context must be an ssl\.SSLContext, found int: 5"):
        KafkaProducer(bootstrap_servers="localhost:9", security_protocol="SSL", ssl_context=cast(Any, 5))
