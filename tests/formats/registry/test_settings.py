"""Settings of the registry, subjects, framing."""

from __future__ import annotations

import io
import pickle

import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.config.schema_registry import parse_strategy
from kafkabuf.errors import ConfigError
from kafkabuf.formats.registry import framing
from kafkabuf.formats.registry.settings import RegistrySettings
from kafkabuf.formats.rows.subjects import avro_record_name, subject_name

URL = "http://host:8081"
GUID = "89791762-2336-4186-9674-299b90a802e2"


def settings(**given: object) -> RegistrySettings:
    return RegistrySettings({"schema.registry.url": URL} | {name.replace("_", "."): v for name, v in given.items()})


def test_names_with_prefix_and_in_the_spelling_of_python_are_the_same() -> None:
    names = ("max.retries", "schema.registry.max.retries", "max_retries", "schema_registry_max_retries")
    found = [RegistrySettings({"url": f"{URL}/a/,https://other", name: "7"}) for name in names]
    assert {each.max_retries for each in found} == {7}
    assert set(found) == {found[0]}
    assert list(map(str, found[0].schema_registry_url)) == [f"{URL}/a", "https://other:443"]
    assert pickle.loads(pickle.dumps(found[0])) == found[0]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"schema.registry.url": None}, r"schema\.registry\.url is missing"),
        ({"url": "http://x"}, r"schema\.registry\.url is given twice"),
        ({"max.retrys": 1}, r"did you mean max\.retries"),
        ({"timeout": 1}, r"http\.read\.timeout\.ms"),
        ({"max.retries": -1}, "found -1"),
        ({"basic.auth.user.info": "me"}, "user:password"),
        ({"basic.auth.credentials.source": "USER_INFO"}, r"set basic\.auth\.user\.info"),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, "'URL' or 'USER_INFO'"),
        ({"basic.auth.credentials.source": "URL", "basic.auth.user.info": "a:b"}, "remove one"),
        ({"basic.auth.user.info": "a:b", "bearer.auth.token": "t"}, "only one"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, r"set bearer\.auth\.token"),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, r"set bearer\.auth\.issuer\.endpoint\.url and"),
        ({"bearer.auth.credentials.source": "CUSTOM"}, "STATIC_TOKEN' or 'OAUTHBEARER"),
        ({"ssl.key.location": "k"}, r"need ssl\.certificate\.location"),
        ({"auto.register.schemas": "true", "use.latest.version": "true"}, "both set"),
        ({"use.schema.id": 2, "use.latest.version": "true"}, "both set"),
        ({"subject.name.strategy": "none"}, "topic, record, topic_record"),
        ({"schema.id.framing": "both"}, "prefix' or 'header"),
    ],
)
def test_wrong_setting_is_named(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        RegistrySettings({"schema.registry.url": URL} | given)


@pytest.mark.parametrize(
    "given",
    [
        {"schema.registry.url": "ftp://me:hidden@host"},
        {"schema.registry.url": "http://me:hidden@host:port"},
        {"schema.registry.url": "http://me:hidden@[host"},
        {"schema.registry.url": ["http://me:hidden@host", 7]},
        {"proxy": "https://me:hidden@host"},
        {"bearer.auth.token": "hidden token"},
        {"bearer.auth.token": "hidden\r\ntoken"},
        {"bearer.auth.token": 7, "ssl.key.password": "hidden"},
        {"basic.auth.user.info": "hidden"},
        {"basic.auth.user.info": b"hidden\xff"},
    ],
)
def test_error_of_a_setting_shows_no_secret(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        RegistrySettings({"schema.registry.url": URL} | given)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hidden" not in f"{error!r} {error}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_token_endpoint_must_be_https_without_a_user() -> None:
    given = {"bearer.auth.client.id": "i", "bearer.auth.client.secret": "s", "schema.registry.url": URL}
    given["bearer.auth.credentials.source"] = "OAUTHBEARER"
    for url in ("http://host/token", "https://me:hidden@host/token"):
        with pytest.raises(ConfigError, match=r"bearer\.auth\.issuer\.endpoint\.url") as caught:
            RegistrySettings(given | {"bearer.auth.issuer.endpoint.url": url})
        assert "hidden" not in str(caught.value)


def test_schema_id_of_minus_one_is_none() -> None:
    assert settings(use_schema_id="-1").use_schema_id is None
    assert settings(use_schema_id=0).use_schema_id == 0


def test_settings_are_frozen() -> None:
    with pytest.raises(ConfigError, match="frozen"):
        settings().max_retries = 3


# ---- subjects --------------------------------------------------------------------------------------------------------


def test_strategies_have_the_names_of_all_clients() -> None:
    for name in ("record", "RECORD", "RecordNameStrategy", "io.confluent.kafka.serializers.subject.RecordNameStrategy"):
        assert parse_strategy(name) == "record"
    assert parse_strategy("TOPIC_RECORD") == parse_strategy("topic-record") == "topic_record"


def test_subject_is_that_of_the_strategy() -> None:
    assert subject_name("topic", "t", "key", None) == "t-key"
    assert subject_name("record", "t", "value", "n.R") == "n.R"
    assert subject_name("topic_record", "t", "value", "n.R") == "t-n.R"
    assert subject_name(lambda *arguments: "/".join(map(str, arguments)), "t", "value", None) == "t/value/None"
    with pytest.raises(ConfigError, match="use the strategy topic"):
        subject_name("record", "t", "value", None)
    with pytest.raises(ConfigError, match="must return text"):
        subject_name(lambda *_: "", "t", "value", None)


def test_keys_and_values_may_have_strategies_of_their_own() -> None:
    found = settings(key_subject_name_strategy="record", subject_name_strategy="topic_record")
    assert (found.strategy("key"), found.strategy("value")) == ("record", "topic_record")


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ('{"type":"record","name":"R","namespace":"a.b"}', "a.b.R"),
        ('{"type":"record","name":"x.R","namespace":"a.b"}', "x.R"),
        ('{"type":"enum","name":"E","namespace":""}', "E"),
        ('"long"', None),
        ('["null","long"]', None),
        ('{"type":"array","items":"long"}', None),
        ("{bad", None),
    ],
)
def test_record_name_is_the_full_name(schema: str, name: str | None) -> None:
    assert avro_record_name(schema) == name


# ---- framing ---------------------------------------------------------------------------------------------------------

PATHS = st.none() | st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


@given(st.integers(0, 2**31 - 1), PATHS)
def test_prefix_is_what_confluent_kafka_reads_and_writes(number: int, path: list[int] | None) -> None:
    written = framing.prefix(number, path)
    assert written == SchemaId("x", number, None, path).id_to_bytes()
    read = SchemaId("AVRO" if path is None else "PROTOBUF")
    assert read.from_bytes(io.BytesIO(written + b"rest")).read() == b"rest"
    assert (read.id, read.message_indexes) == (number, path)


@given(st.uuids(), PATHS, st.sampled_from(["key", "value"]))
def test_header_is_what_confluent_kafka_reads_and_writes(guid: object, path: list[int] | None, field: str) -> None:
    name, written = framing.header(field, str(guid), path)
    assert name == f"__{field}_schema_id"
    assert written == SchemaId("x", None, str(guid), path).guid_to_bytes()


def test_first_message_of_a_file_is_one_byte() -> None:
    assert framing.prefix(1, [0]) == bytes([0, 0, 0, 0, 1, 0])
    assert framing.prefix(1, [0, 0]) == bytes([0, 0, 0, 0, 1, 4, 0, 0])
    assert framing.prefix(1, [300]) == bytes([0, 0, 0, 0, 1, 2, 0xD8, 4])


def test_framing_refuses_what_no_consumer_reads() -> None:
    for number in (-1, 2**31):
        with pytest.raises(ConfigError, match="id must be"):
            framing.prefix(number)
    for path in ([], [-1], [0, -1]):
        with pytest.raises(ConfigError, match="message indexes"):
            framing.prefix(1, path)
    with pytest.raises(ConfigError, match="UUID"):
        framing.header("key", "x")
    with pytest.raises(ConfigError, match="key or value"):
        framing.header("keys", GUID)
