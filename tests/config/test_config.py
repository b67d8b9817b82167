"""ProducerConfig: both spellings, Kafka's defaults, ranges, and error texts that help."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from kafkabuf.config import ProducerConfig, dotted, parse_address
from kafkabuf.config.kinds import field_of
from kafkabuf.errors import ConfigError
from kafkabuf.producer import config_of

SERVERS = {"bootstrap.servers": "localhost:9092"}


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig.from_mapping(SERVERS, settings)


def refused(*mappings: dict[Any, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping(*mappings)
    assert isinstance(raised.value, ValueError)
    return str(raised.value)


# ---- names -----------------------------------------------------------------------------------------------------------


def test_both_spellings_mean_the_same() -> None:
    python = ProducerConfig.from_mapping(
        {"bootstrap_servers": "h:1", "linger_ms": 7, "max_in_flight_requests_per_connection": 1}
    )
    kafka = ProducerConfig.from_mapping(
        {"bootstrap.servers": "h:1", "linger.ms": "7", "max.in.flight.requests.per.connection": "1"}
    )
    assert python == kafka
    assert kafka.linger_ms == 7


@pytest.mark.parametrize(
    ("name", "near"),
    [("linger.mss", "linger.ms"), ("linger_mss", "linger.ms"), ("bootstrap.server", "bootstrap.servers"),
     ("batchsize", "batch.size"), ("ack", "acks"), ("buffer_memori", "buffer.memory")],
)  # fmt: skip
def test_misspelt_setting_is_refused_with_a_hint(name: str, near: str) -> None:
    assert refused(SERVERS, {name: 1}) == f"there is no producer setting {name!r}; did you mean {near}?"


@pytest.mark.parametrize("name", ["zzz", "", 5, None])
def test_setting_like_no_other_gets_no_hint(name: Any) -> None:
    assert refused(SERVERS, {name: 1}) == f"there is no producer setting {str(name)!r}"


@pytest.mark.parametrize("name", ["transaction.two.phase.commit.enable"])
def test_setting_that_is_not_supported_yet_is_refused(name: str) -> None:
    assert refused(SERVERS, {name: "true"}) == (
        f"{name.replace('_', '.')} is a setting of Kafka's producer that kafkabuf does not support yet: leave it out"
    )


def test_setting_given_in_both_spellings_is_refused() -> None:
    assert refused(SERVERS, {"linger.ms": 1, "linger_ms": 2}) == "linger.ms is given twice: leave one of the two out"
    assert (
        refused(SERVERS, {"bootstrap_servers": "a:1"}) == "bootstrap.servers is given twice: leave one of the two out"
    )


def test_dotted_names_lead_back_to_their_fields() -> None:
    fields = list(ProducerConfig.model_fields)
    assert [field_of(dotted(field)) for field in fields] == fields
    assert [field_of(dotted(field).replace(".", "_")) for field in fields] == fields


# ---- bootstrap list --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:65535,", [("a", 1), ("b", 65535)]),
        (["a:1", "b:2"], [("a", 1), ("b", 2)]),
        (("a:1",), [("a", 1)]),
        ([("a", 1)], [("a", 1)]),
        ("[::1]:9092", [("::1", 9092)]),
        ("PLAINTEXT://a.b-c.d:9092", [("a.b-c.d", 9092)]),
    ],
)
def test_bootstrap_list_is_read_in_every_form(given: Any, expected: list[tuple[str, int]]) -> None:
    assert ProducerConfig.from_mapping({"bootstrap.servers": given}).bootstrap_servers == tuple(expected)


@pytest.mark.parametrize("given", ["", " ", ",", [], ()])
def test_empty_bootstrap_list_is_refused(given: Any) -> None:
    assert refused({"bootstrap.servers": given}) == (
        "bootstrap.servers is empty: give at least one host:port of the cluster"
    )


@pytest.mark.parametrize("bad", ["a", "a:", ":9", "a:b", "a:0", "a:65536", "a:-1", "a:9 2", "a:1²", "http:", "a:1:"])
def test_entry_that_is_no_address_is_refused(bad: str) -> None:
    assert refused({"bootstrap.servers": f"good:1,{bad}"}).startswith(f"bootstrap.servers: {bad!r} is not host:port")
    with pytest.raises(ConfigError):
        parse_address(bad)


@pytest.mark.parametrize("given", ["a:1 b:2", "a:1;b:2", "a:1\nb:2", ["a:1 b:2"], "c:3,a:1 b:2", "SSL://a:1 SSL://b:2"])
def test_entries_without_commas_between_them_are_refused_with_that_advice(given: Any) -> None:
    assert "commas separate the entries" in refused({"bootstrap.servers": given})


@pytest.mark.parametrize("bad", [None, 5, b"a:1", [None], [("a", "b")], [("a",)], {"a": 1}])
def test_bootstrap_list_of_a_wrong_type_is_refused(bad: Any) -> None:
    assert refused({"bootstrap.servers": bad}).startswith("bootstrap.servers")


@pytest.mark.parametrize("field", [field for field in ProducerConfig.model_fields if field != "bootstrap_servers"])
def test_none_is_the_default_of_every_setting(field: str) -> None:
    for name in (field, dotted(field)):
        found = ProducerConfig.from_mapping(SERVERS, {name: None})
        assert found == config()
        assert found.given() == config().given()


def test_none_leaves_the_other_spelling_alone() -> None:
    assert config(**{"linger.ms": 7, "linger_ms": None}).linger_ms == 7
    assert config_of(config(linger_ms=7), {"linger_ms": None}).linger_ms == 7


def test_missing_bootstrap_list_is_refused() -> None:
    assert refused({}) == "bootstrap.servers is missing: give at least one host:port of the cluster"


# ---- values ----------------------------------------------------------------------------------------------------------


def test_defaults_are_kafkas() -> None:
    found = config()
    assert (found.buffer_memory, found.batch_size, found.linger_ms) == (33_554_432, 16_384, 5)
    assert (found.acks, found.retries, found.max_in_flight_requests_per_connection) == (-1, 2**31 - 1, 5)
    assert (found.max_block_ms, found.max_request_size) == (60_000, 1_048_576)
    assert (found.request_timeout_ms, found.delivery_timeout_ms) == (30_000, 120_000)
    assert (found.retry_backoff_ms, found.retry_backoff_max_ms) == (100, 1_000)
    assert (found.record_magic, found.compression_type) == ("auto", "none")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("acks", "all", -1), ("acks", "-1", -1), ("acks", "0", 0), ("acks", 1, 1), ("acks", "1", 1),
        ("record.magic", "1", 1), ("record.magic", 2, 2), ("record.magic", "auto", "auto"),
        ("partitioner.ignore.keys", "true", True), ("partitioner.ignore.keys", False, False),
        ("enable.idempotence", "false", False), ("enable.idempotence", "FALSE", False),
        ("enable.idempotence", False, False), ("enable.idempotence", "True", True),
        ("buffer.memory", "65536", 65536), ("batch.size", 0, 0), ("connections.max.idle.ms", "-1", -1),
    ],
)  # fmt: skip
def test_value_in_the_form_of_spark_options_is_accepted(name: str, given: Any, expected: Any) -> None:
    assert getattr(config(**{name: given}), name.replace(".", "_")) == expected


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("acks", True), ("linger.ms", True),
        ("acks", 2), ("acks", "two"), ("record.magic", 0), ("record.magic", 3), ("record.magic", "2.0"),
        ("compression.type", "brotli"), ("security.protocol", "TLS"), ("linger.ms", -1), ("linger.ms", 1.5),
        ("linger.ms", "soon"), ("linger.ms", 2**63), ("linger.ms", float("nan")),
        ("batch.size", -1), ("batch.size", 2**31), ("buffer.memory", -1), ("buffer.memory", 2**70),
        ("max.request.size", 2**31), ("retries", -1), ("max.in.flight.requests.per.connection", 0),
        ("metadata.max.idle.ms", 4999), ("send.buffer.bytes", -2), ("receive.buffer.bytes", 2**31),
        ("request.timeout.ms", 2**31), ("request.timeout.ms", -1), ("client.id", 5), ("client.id", "x" * 9000),
        ("client.id", "\ud800"), ("client.dns.lookup", "default"), ("partitioner.ignore.keys", "maybe"),
        ("key.serializer", "org.apache.kafka.StringSerializer"), ("value.serializer", 5),
    ],
)  # fmt: skip
def test_value_out_of_range_is_refused_and_named(name: str, bad: Any) -> None:
    text = refused(SERVERS, {name: bad})
    assert text.startswith(f"{name}: ")
    assert f"found {bad!r}"[:900] in text


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [
        ("acks", 1, "acks=all, found 1"), ("acks", "0", "acks=all, found 0"), ("retries", "0", "retries above 0"),
        ("record.magic", "1", "record.magic 2"),
    ],
)  # fmt: skip
def test_default_of_idempotence_gives_way_to_other_settings(name: str, value: Any, needs: str) -> None:
    assert config().enable_idempotence
    assert not config(**{name: value}).enable_idempotence
    assert f"enable.idempotence needs {needs}" in refused(SERVERS, {name: value, "enable.idempotence": "true"})


def test_idempotence_allows_five_requests_in_flight() -> None:
    settings = {"max.in.flight.requests.per.connection": 6}
    assert "at most 5, found 6" in refused(SERVERS, settings)
    assert config(**settings | {"enable.idempotence": False}).max_in_flight_requests_per_connection == 6


def test_all_mistakes_are_reported_at_once() -> None:
    text = refused(SERVERS, {"linger.ms": -1, "acks": 9})
    assert "linger.ms: " in text
    assert "acks: " in text


# ---- settings that go together ---------------------------------------------------------------------------------------


def test_delivery_timeout_shorter_than_one_request_is_refused() -> None:
    assert refused(SERVERS, {"delivery.timeout.ms": 30_004}) == (
        "delivery.timeout.ms (30004) must be at least linger.ms (5) + request.timeout.ms (30000)"
    )
    assert config(delivery_timeout_ms=30_005).delivery_timeout_ms == 30_005


def test_delivery_timeout_follows_linger_and_request_timeout() -> None:
    assert config(linger_ms=100_000).delivery_timeout_ms == 130_000
    assert config(linger_ms="100000", request_timeout_ms="50000").delivery_timeout_ms == 150_000
    assert config(linger_ms=10).delivery_timeout_ms == 120_000


def test_memory_for_less_than_a_batch_is_refused() -> None:
    assert refused(SERVERS, {"buffer.memory": 1024, "batch.size": 1025}) == (
        "buffer.memory (1024 bytes) is smaller than one batch (1025 bytes): raise buffer.memory, or lower batch.size"
    )
    assert config(buffer_memory=1024, batch_size=1024).slab_size == 1024


def test_slab_has_room_for_a_batch_header() -> None:
    assert config(batch_size=0).slab_size == config(batch_size=1).slab_size == 512
    assert config(batch_size=513).slab_size == 513


# ---- as an object ----------------------------------------------------------------------------------------------------


def test_config_is_frozen_and_pickles_as_itself() -> None:
    found = config(linger_ms=3, key_serializer=str.encode)
    assert pickle.loads(pickle.dumps(found)) == found
    assert ProducerConfig.from_mapping({name: getattr(found, name) for name in found.model_fields}) == found
    assert ProducerConfig.from_mapping(found.given()) == found
    assert hash(pickle.loads(pickle.dumps(found))) == hash(found)
    assert config(linger_ms=4) != found
    with pytest.raises(ValueError, match="frozen"):
        found.linger_ms = 4
    with pytest.raises(ValueError, match="frozen"):
        del found.linger_ms
    assert repr(found).startswith("ProducerConfig(security_protocol='PLAINTEXT', ")
