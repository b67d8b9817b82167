"""kafkabuf.compat.aiokafka beside aiokafka itself: arguments, defaults, futures, errors, batches, transactions."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka import errors as their_errors
from aiokafka.structs import RecordMetadata, TopicPartition

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.compat.aiokafka import AIOKafkaProducer
from kafkabuf.compat.aiokafka.errors import peer_error
from kafkabuf.compat.aiokafka.settings import Tokens
from kafkabuf.compat.shared.names import with_port
from kafkabuf.protocol.messages import PRODUCE
from tests.aio.support import read_back, run
from tests.compat import late_name
from tests.network.tls.certificates import Authority

pytest_plugins = ["tests.aio.fixtures"]

SECRET = "sentinel-password"
MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED = 10, 29


def ours(cluster: EmbeddedCluster, **settings: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **settings)


async def raised(call: Coroutine[Any, Any, Any]) -> Exception:
    try:
        await call
    except Exception as error:
        return error
    raise AssertionError("the call raised nothing")


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    ["__init__", "start", "stop", "send", "send_and_wait", "flush", "partitions_for", "create_batch", "send_batch",
     "begin_transaction", "commit_transaction", "abort_transaction", "send_offsets_to_transaction", "transaction"],
)  # fmt: skip
def test_arguments_have_aiokafkas_names_order_and_defaults(method: str) -> None:
    def parameters(of: type) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(getattr(of, method)).parameters.values()
        # acks and partitioner have objects of aiokafka's own as their defaults.
        return [
            (p.name, p.kind, None if p.name in ("acks", "partitioner") else p.default)
            for p in found
            if p.name not in ("buffer_memory", "file")  # of kafkabuf's own
        ]

    assert parameters(AIOKafkaProducer) == parameters(aiokafka.AIOKafkaProducer)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost", "localhost:9092"),
        ("a:1,b", "a:1,b:9092"),
        (["a:1", "b:2"], "a:1,b:2"),
        (["::1", "[::1]:9093", "[::1]"], "[::1]:9092,[::1]:9093,[::1]:9092"),
    ],
)
def test_bootstrap_servers_may_be_a_list_and_lack_the_port(given: Any, expected: str) -> None:
    assert with_port(given) == expected


def test_settings_have_aiokafkas_defaults() -> None:
    config = AIOKafkaProducer()._producer.config
    assert (config.acks, config.enable_idempotence, config.linger_ms, config.batch_size) == (1, False, 0, 16384)
    assert (config.request_timeout_ms, config.compression_type) == (40_000, "none")
    assert config.max_in_flight_requests_per_connection == 1, "a retry would change the order"
    assert AIOKafkaProducer(enable_idempotence=True)._producer.config.acks == -1
    assert AIOKafkaProducer(transactional_id="t")._producer.config.enable_idempotence
    assert AIOKafkaProducer(client_id=3)._producer.config.client_id == "3"


def test_fractions_of_a_millisecond_are_rounded_up() -> None:
    times: dict[str, Any] = {
        "linger_ms": 0.1,
        "request_timeout_ms": 0.1,
        "retry_backoff_ms": 2000.5,
        "metadata_max_age_ms": 10.0,
    }
    config = AIOKafkaProducer(**times, transactional_id="t", transaction_timeout_ms=7.5)._producer.config
    assert (config.linger_ms, config.request_timeout_ms, config.delivery_timeout_ms) == (1, 1, 3)
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms, config.metadata_max_age_ms) == (2001, 2001, 10)
    assert config.transaction_timeout_ms == 8
    with pytest.raises(their_errors.KafkaConfigurationError, match="linger"):
        AIOKafkaProducer(linger_ms=-0.5)


@pytest.mark.parametrize("name", ["linger_ms", "request_timeout_ms", "retry_backoff_ms", "metadata_max_age_ms"])
@pytest.mark.parametrize("wrong", ["soon", None, [5]])
def test_a_time_that_is_no_number_is_refused_by_its_name(name: str, wrong: Any) -> None:
    with pytest.raises(their_errors.KafkaConfigurationError, match=f"{name}: expected a number of milliseconds"):
        AIOKafkaProducer(**{name: wrong})


def test_an_error_says_what_its_settings_are_called_here() -> None:
    late = peer_error(errors.TimeoutError("not acknowledged within delivery.timeout.ms (4000 ms)"))
    assert str(late).endswith("(4000 ms) (delivery.timeout.ms is linger_ms + 2 x request_timeout_ms here)")


def test_times_of_the_environment_are_numbers_in_text() -> None:
    config = AIOKafkaProducer(linger_ms="0.1", request_timeout_ms="5000")._producer.config  # type: ignore[arg-type]
    assert (config.linger_ms, config.request_timeout_ms, config.delivery_timeout_ms) == (1, 5000, 10_001)


@pytest.mark.parametrize(
    "settings",
    [{"acks": 2}, {"acks": 1, "enable_idempotence": True}, {"compression_type": "zip"},
     {"security_protocol": "SASL_PLAINTEXT"},
     {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI", "sasl_kerberos_domain_name": "d"},
     {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}, {"security_protocol": "SSL"},
     {"security_protocol": "plain"}],
)  # fmt: skip
def test_wrong_arguments_raise_value_error(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"acks|compression|sasl|ssl_context|security_protocol"):
        AIOKafkaProducer(**settings)


def test_arguments_without_effect_warn() -> None:
    with pytest.warns(DeprecationWarning, match="api_version"):
        AIOKafkaProducer(api_version="auto")


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_arrive_as_aiokafkas_do(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        settings = {"key_serializer": str.encode, "value_serializer": str.encode}
        records = [
            (f"value {n}", f"key {n}", None if n % 2 else n % 3, 1_000 + n, [("h", b"%d" % n)]) for n in range(50)
        ]
        found = []
        for number, kind in enumerate((aiokafka.AIOKafkaProducer, AIOKafkaProducer)):
            producer = kind(bootstrap_servers=aio_cluster.bootstrap_servers, **settings)
            async with producer:
                futures = [await producer.send(f"same-{number}", *record) for record in records]
                found.append([await future for future in futures])
        for theirs, mine, record in zip(*found, records, strict=True):
            assert type(mine) is RecordMetadata
            assert mine.topic_partition == TopicPartition("same-1", mine.partition)
            assert (mine.partition, mine.timestamp_type) == (theirs.partition, theirs.timestamp_type)
            # aiokafka gives all records of a batch the timestamp of the first.
            assert mine.timestamp == record[3]
        stored = [sorted(map(content, await read_back(aio_cluster, f"same-{number}", 50))) for number in (0, 1)]
        assert stored[0] == stored[1]

    def content(record: Any) -> tuple[Any, ...]:
        return record.partition, record.timestamp, record.key, record.value, record.headers

    run(test())


def test_custom_partitioner_gets_bytes_and_partitions(aio_cluster: EmbeddedCluster) -> None:
    calls = []

    def partitioner(key: bytes | None, everything: list[int], available: list[int]) -> int:
        calls.append((key, everything, available))
        return 2

    async def test() -> None:
        async with ours(aio_cluster, partitioner=partitioner, key_serializer=str.encode) as producer:
            assert (await producer.send_and_wait("chosen", b"v", "k")).partition == 2
            assert await producer.partitions_for("chosen") == {0, 1, 2}

    run(test())
    assert calls == [(b"k", [0, 1, 2], [0, 1, 2])]


def test_future_and_send_raise_errors_of_both_libraries(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster, max_request_size=2_000) as producer:
            too_large = await raised(producer.send("errors", b"x" * 3_000))
            assert isinstance(too_large, their_errors.MessageSizeTooLargeError)
            assert isinstance(too_large, errors.RecordTooLargeError)
            await producer.partitions_for("errors")
            aio_cluster.fail_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
            future = await producer.send("errors", b"v")
            refused = await raised(producer.send_and_wait("errors", b"", partition=7))
            assert isinstance(refused, AssertionError)
            assert isinstance(refused, errors.InvalidPartitionsError)
            with pytest.raises(their_errors.TopicAuthorizationFailedError):
                await future
            assert isinstance(future.exception(), errors.TopicAuthorizationError)
            with pytest.raises(AssertionError):
                await producer.send("errors")
        assert isinstance(await raised(producer.send("errors", b"v")), their_errors.ProducerClosed)

    run(test())


@pytest.mark.parametrize(
    "name",
    [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.KafkaError)],
)
def test_every_error_is_aiokafkas_too(name: str) -> None:
    error = getattr(errors, name)("the text")
    error.rows_queued = 3
    converted = peer_error(error)
    assert isinstance(converted, type(error))
    assert isinstance(converted, their_errors.KafkaError | their_errors.IllegalOperation)
    assert "the text" in str(converted)
    assert converted.rows_queued == 3
    assert (converted.code, converted.retriable) == (error.code, error.retriable)
    assert type(peer_error(converted)) is type(converted)


@pytest.mark.parametrize(
    ("error", "theirs"),
    [
        (errors.TimeoutError, their_errors.KafkaTimeoutError),
        (errors.RequestTimedOutError, their_errors.RequestTimedOutError),
        (errors.NetworkError, their_errors.KafkaConnectionError),
        (errors.NotLeaderOrFollowerError, their_errors.NotLeaderForPartitionError),
        (errors.SaslAuthenticationError, their_errors.SaslAuthenticationFailed),
        (errors.SslAuthenticationError, their_errors.AuthenticationFailedError),
        (errors.ProducerFencedError, their_errors.ProducerFenced),
        (errors.IllegalStateError, their_errors.IllegalOperation),
    ],
)
def test_error_is_the_one_that_aiokafka_raises(error: type[errors.KafkaError], theirs: type[Exception]) -> None:
    assert isinstance(peer_error(error("text")), theirs)


def test_start_fails_at_once_where_no_broker_answers() -> None:
    async def test() -> None:
        producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
        assert isinstance(await raised(producer.start()), their_errors.KafkaConnectionError)
        await producer.stop()

    run(test())


def test_start_may_be_tried_again_until_the_name_can_be_resolved(
    aio_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    late_name.resolve_after(monkeypatch, failures=2)

    async def test() -> None:
        port = aio_cluster.bootstrap_servers.rpartition(":")[2]
        producer = AIOKafkaProducer(bootstrap_servers=f"{late_name.NAME}:{port}")
        for _ in range(2):
            assert isinstance(await raised(producer.start()), their_errors.KafkaConnectionError)
        await producer.start()
        await producer.send_and_wait("late", b"v")
        await producer.stop()

    run(test())


def test_second_start_does_nothing(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster, transactional_id="twice") as producer:
            async with producer.transaction():
                await producer.start()
                await producer.send("twice", b"v")
        assert isinstance(await raised(producer.start()), their_errors.IllegalOperation)

    run(test())


def test_producer_that_was_not_stopped_warns(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        producer = ours(aio_cluster)
        await producer.start()
        with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer"):
            del producer

    run(test())


def test_records_without_acknowledgement_have_no_metadata(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster, acks=0) as producer:
            assert await producer.send_and_wait("unacknowledged", b"v") is None

    run(test())


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batch_takes_as_many_records_as_aiokafkas(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        theirs = aiokafka.AIOKafkaProducer(bootstrap_servers=aio_cluster.bootstrap_servers, max_batch_size=3_000)
        async with theirs, ours(aio_cluster, max_batch_size=3_000) as mine:
            batches = [theirs.create_batch(), mine.create_batch()]
            sizes: list[list[int]] = [[], []]
            for batch, seen in zip(batches, sizes, strict=True):
                n = 0
                record = {"key": b"k" * 70, "headers": [("name", b"v"), ("null", None)]}
                while batch.append(timestamp=1_000 + 100 * n, value=b"v" * (7 * n), **record) is not None:
                    n += 1
                    seen.append(batch.size())
                assert batch.closed()
                assert batch.record_count() == n
            assert sizes[0] == sizes[1]
            for number, batch in enumerate(batches):
                producer: Any = (theirs, mine)[number]
                metadata = await (await producer.send_batch(batch, f"batch-{number}", partition=1))
                assert (metadata.topic, metadata.partition, metadata.offset) == (f"batch-{number}", 1, 0)
            stored = [await read_back(aio_cluster, f"batch-{number}", batches[0].record_count()) for number in (0, 1)]
        contents = [[(r.timestamp, r.key, r.value, r.headers) for r in records] for records in stored]
        assert contents[0] == contents[1]

    run(test())


def test_batch_serializes_its_records_once(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster, value_serializer=lambda value: b"<%s>" % value) as producer:
            batch = producer.create_batch()
            assert batch.append(timestamp=None, key=None, value=b"v") is not None
            await (await producer.send_batch(batch, "serialized", partition=0))
        (record,) = await read_back(aio_cluster, "serialized", 1)
        assert record.value == b"<v>"

    run(test())


def test_failed_batch_raises_its_error(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster) as producer:
            await producer.partitions_for("failed")
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=b"v")
            aio_cluster.fail_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(their_errors.TopicAuthorizationFailedError):
                await (await producer.send_batch(batch, "failed", partition=0))
            with pytest.raises(ValueError, match="no record"):
                await producer.send_batch(producer.create_batch(), "failed", partition=0)

    run(test())


# ---- transactions ----------------------------------------------------------------------------------------------------


def test_transactions_need_no_initialisation(aio_cluster: EmbeddedCluster) -> None:
    aio_cluster.create_topic("source", 2)

    async def aborted(producer: AIOKafkaProducer) -> None:
        async with producer.transaction():
            await producer.send("transactions", b"aborted")
            raise ZeroDivisionError

    async def test() -> None:
        async with ours(aio_cluster, transactional_id="mine") as producer:
            async with producer.transaction():
                await producer.send("transactions", b"committed")
                offsets = {TopicPartition("source", 0): 7, TopicPartition("source", 1): (8, "note")}
                await producer.send_offsets_to_transaction(offsets, "group")
                for wrong in ({}, {"t": 1}, {TopicPartition("t", 0): "x"}, {TopicPartition("t", 0): (1, 2)}):
                    error = await raised(producer.send_offsets_to_transaction(wrong, "group"))
                    assert isinstance(error, ValueError | TypeError)
            assert isinstance(await raised(aborted(producer)), ZeroDivisionError)
            await producer.begin_transaction()
            await producer.send("transactions", b"committed")
            await producer.commit_transaction()
            assert isinstance(await raised(producer.commit_transaction()), their_errors.IllegalOperation)
        records = await read_back(aio_cluster, "transactions", 2, isolation_level="read_committed")
        assert [record.value for record in records] == [b"committed"] * 2

    run(test())


def test_older_producer_of_the_transactional_id_is_fenced(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster, transactional_id="fenced") as older:
            await older.begin_transaction()
            await older.send_and_wait("fenced", b"v")
            async with ours(aio_cluster, transactional_id="fenced"):
                assert isinstance(await raised(older.commit_transaction()), their_errors.ProducerFenced)

    run(test())


def test_transactional_methods_of_a_plain_producer_are_illegal(aio_cluster: EmbeddedCluster) -> None:
    async def test() -> None:
        async with ours(aio_cluster) as producer:
            for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
                assert isinstance(await raised(call()), their_errors.IllegalOperation)
            offsets = {TopicPartition("source", 0): 7}
            assert isinstance(
                await raised(producer.send_offsets_to_transaction(offsets, "g")), their_errors.IllegalOperation
            )

    run(test())


# ---- security --------------------------------------------------------------------------------------------------------


class Provider:
    async def token(self) -> str:
        await asyncio.sleep(0)
        return "alice-token"


class ExtendingProvider(Provider):
    def extensions(self) -> dict[str, str]:
        return {"pool": "p1"}


@pytest.mark.parametrize(("provider", "extensions"), [(Provider(), {}), (ExtendingProvider(), {"pool": "p1"})])
def test_extensions_of_a_token_provider_go_with_the_token(provider: Provider, extensions: dict[str, str]) -> None:
    async def test() -> None:
        tokens = Tokens(provider)
        tokens.loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(tokens) == ("alice-token", None, extensions)

    run(test())


def test_ssl_context_and_token_provider_are_aiokafkas(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = Security(
        ssl_certfile=authority.issue("broker", "IP:127.0.0.1").store,
        users={"alice": SECRET},
        oauth_validator=lambda token: token.split("-")[0],
    )
    context = ssl.create_default_context(cafile=str(authority.certificate))
    credentials: list[dict[str, Any]] = [
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "alice", "sasl_plain_password": SECRET},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": ExtendingProvider()},
    ]

    async def test() -> None:
        with EmbeddedCluster(security=security) as cluster:
            for settings in credentials:
                async with ours(cluster, security_protocol="SASL_SSL", ssl_context=context, **settings) as producer:
                    await producer.send_and_wait("secure", b"v")
            wrong = credentials[0] | {"sasl_plain_password": "wrong"}
            producer = ours(cluster, security_protocol="SASL_SSL", ssl_context=context, **wrong)
            assert "credentials" in str(await raised(producer.start()))

    run(test())


# ---- without aiokafka ------------------------------------------------------------------------------------------------

WITHOUT = """
import asyncio, sys
sys.modules["aiokafka"] = None
from kafkabuf.compat.aiokafka import AIOKafkaProducer
from kafkabuf.errors import NetworkError

async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        metadata = await producer.send_and_wait("without", b"v")
    assert (metadata.topic_partition.partition, metadata.offset) == (0, 0)
    try:
        await AIOKafkaProducer(bootstrap_servers="127.0.0.1:1").start()
    except NetworkError as error:
        assert type(error) is NetworkError

asyncio.run(main())
"""


def test_face_needs_no_aiokafka() -> None:
    with EmbeddedCluster() as cluster:
        command = [sys.executable, "-c", WITHOUT, cluster.bootstrap_servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", [aiokafka.AIOKafkaProducer, AIOKafkaProducer], ids=["aiokafka", "kafkabuf"])
def test_digits_of_a_time_are_cut_off(aio_cluster: EmbeddedCluster, kind: Any) -> None:
    async def send() -> None:
        async with kind(bootstrap_servers=aio_cluster.bootstrap_servers) as producer:
            times = [(await producer.send_and_wait("times", b"v", timestamp_ms=1.7e12 + 0.75)).timestamp]
            batch = producer.create_batch()
            times.append(batch.append(timestamp=1.7e12 + 0.75, key=None, value=b"v").timestamp)
            for wrong, error in ((float("nan"), ValueError), (float("inf"), OverflowError), ("5", TypeError)):
                with pytest.raises(error) as raised:
                    await producer.send_and_wait("times", b"v", timestamp_ms=wrong)
                expected = f"timestamp must be a number of milliseconds since 1970, found {wrong!r}"
                assert kind is not AIOKafkaProducer or expected in str(raised.value)
            assert times == [1_700_000_000_000] * 2

    run(send())


def test_records_of_a_batch_keep_their_bytes(aio_cluster: EmbeddedCluster) -> None:
    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=aio_cluster.bootstrap_servers) as producer:
            batch = producer.create_batch()
            value = bytearray(b"before")
            batch.append(timestamp=None, key=None, value=value)
            value[:] = b"behind"
            for wrong in ({"value": "text"}, {"key": 5}, {"headers": [("a", "text")]}, {"headers": [(b"a", b"1")]}):
                with pytest.raises(TypeError):
                    batch.append(**{"timestamp": None, "key": None, "value": b"v"} | wrong)
            await (await producer.send_batch(batch, "kept", partition=0))

    run(send())
    assert [message.value for message in aio_cluster.messages("kept")] == [b"before"]
