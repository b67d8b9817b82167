"""The Schema Registry's client against a registry over HTTP."""

from __future__ import annotations

import base64
import logging
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from kafkabuf.clock import ManualClock
from kafkabuf.errors import (
    ConfigError,
    KafkaError,
    NetworkError,
    SchemaRegistryError,
    SerializationError,
    TimeoutError,
)
from kafkabuf.formats.registry import SchemaReference, SchemaRegistry
from tests.formats.registry.support import OTHER, RECORD, WIDER, FakeRegistry, connect, running

pytest_plugins = ["tests.formats.registry.fixtures"]

SECRET = "s3cret/Word"


# ---- which schema ----------------------------------------------------------------------------------------------------


def test_schema_is_registered_and_its_id_is_in_the_prefix(fake: FakeRegistry) -> None:
    registry = connect(fake)
    resolved = registry.resolve(RECORD, subject="t-value")
    assert (resolved.schema, resolved.id, resolved.prefix) == (RECORD, 100, b"\x00\x00\x00\x00\x64")
    assert resolved.header is None
    assert [each["schema"] for each in fake.subjects["t-value"]] == [RECORD]


def test_second_call_asks_nobody(fake: FakeRegistry) -> None:
    registry = connect(fake)
    first = registry.resolve(RECORD, subject="t-value")
    assert registry.resolve(RECORD, subject="t-value") == first
    assert len(fake.seen) == 1


def test_schema_that_is_not_registered_is_an_error_without_auto_register(fake: FakeRegistry) -> None:
    registry = connect(fake, **{"auto.register.schemas": "false"})
    with pytest.raises(SchemaRegistryError, match="Schema not found") as caught:
        registry.resolve(RECORD, subject="t-value")
    assert str(caught.value).startswith("subject 't-value': ")
    assert str(caught.value).endswith("auto.register.schemas is false: register the schema first, or set it to true")
    assert (caught.value.status, caught.value.error_code, caught.value.retriable) == (404, 40403, False)
    assert fake.subjects == {}
    connect(fake).resolve(RECORD, subject="t-value")
    assert registry.resolve(RECORD, subject="t-value").id == 100, "an error is not remembered"


def test_normalize_is_asked_of_the_registry(fake: FakeRegistry) -> None:
    connect(fake, **{"normalize.schemas": True}).resolve(RECORD, subject="t-value")
    connect(fake).resolve(RECORD, subject="t-value")
    assert [seen.path.lower().partition("normalize=")[2] for seen in fake.seen] == ["true", "false"]


def test_latest_version_is_used(fake: FakeRegistry) -> None:
    registry = connect(fake)
    registry.resolve(RECORD, subject="t-value")
    registry.resolve(WIDER, subject="t-value")
    latest = connect(fake, **{"use.latest.version": True})
    assert latest.resolve(None, subject="t-value").schema == WIDER
    assert latest.resolve(RECORD, subject="t-value").schema == WIDER, "WIDER reads what RECORD writes: b has a default"


def test_latest_version_that_cannot_read_the_given_schema_is_refused(fake: FakeRegistry) -> None:
    registry = connect(fake)
    registry.resolve(RECORD, subject="t-value")
    with pytest.raises(SerializationError, match="a: long cannot read string"):
        registry.resolve(OTHER, subject="t-value", use_latest_version=True)
    tolerant = connect(fake, **{"latest.compatibility.strict": "false", "use.latest.version": "true"})
    assert tolerant.resolve(OTHER, subject="t-value").schema == RECORD


def test_schema_of_an_id_is_used(fake: FakeRegistry) -> None:
    registry = connect(fake)
    registry.resolve(RECORD, subject="t-value")
    registry.resolve(WIDER, subject="t-value")
    by_id = connect(fake, **{"use.schema.id": "100"})
    assert by_id.resolve(None, subject="t-value").schema == RECORD
    with pytest.raises(SerializationError, match=r"id\.compatibility\.strict"):
        by_id.resolve(OTHER, subject="t-value")
    with pytest.raises(SchemaRegistryError, match="Schema 99 not found"):
        by_id.resolve(None, subject="t-value", use_schema_id=99)


def test_schema_of_another_kind_is_refused(fake: FakeRegistry) -> None:
    registry = connect(fake)
    registry.resolve('{"type":"object"}', "JSON", subject="t-value")
    assert registry.latest("t-value").schema.kind == "JSON"
    with pytest.raises(SerializationError, match="is of the kind JSON, not AVRO"):
        registry.resolve(None, subject="t-value", use_latest_version=True)


def test_contradictory_choices_are_refused(fake: FakeRegistry) -> None:
    registry = connect(fake)
    with pytest.raises(ConfigError, match=r"auto\.register\.schemas and use\.latest\.version are both set"):
        registry.resolve(RECORD, subject="s", auto_register=True, use_latest_version=True)
    with pytest.raises(ConfigError, match=r"use\.latest\.version and use\.schema\.id are both set"):
        registry.resolve(RECORD, subject="s", use_schema_id=1, use_latest_version=True)
    with pytest.raises(ConfigError, match="give a schema"):
        registry.resolve(None, subject="s")
    assert fake.seen == []


def test_each_refusal_names_the_subject_of_the_request(fake: FakeRegistry) -> None:
    registry = connect(fake)
    missing = SchemaReference("n.Far", "far", 1)
    for call in (
        lambda: registry.latest("none"),
        lambda: registry.by_id(99, "none"),
        lambda: registry.resolve(RECORD, subject="none", use_latest_version=True),
        lambda: registry.resolve(RECORD, subject="none", auto_register=False),
    ):
        with pytest.raises(SchemaRegistryError, match=r"^subject 'none': .*404"):
            call()
    with pytest.raises(SchemaRegistryError, match=r"^subject 'far': .*404"):
        registry.resolve(RECORD, subject="none", references=[missing])
    fake.faults = [422]
    with pytest.raises(SchemaRegistryError, match=r"^subject 'none': .*422"):
        registry.resolve(RECORD, subject="none")


def test_option_of_a_call_overrides_that_of_the_settings(fake: FakeRegistry) -> None:
    connect(fake).resolve(RECORD, subject="s")
    looking = connect(fake, **{"auto.register.schemas": "false"})
    for options in ({}, {"use_latest_version": False}, {"auto_register": False}):
        with pytest.raises(SchemaRegistryError, match="Schema not found"):
            looking.resolve(WIDER, subject="s", **options)  # type: ignore[arg-type]
    assert looking.resolve(None, subject="s", use_latest_version=True).schema == RECORD
    assert looking.resolve(None, subject="s", use_schema_id=100).schema == RECORD
    latest = connect(fake, **{"use.latest.version": "true"})
    assert latest.resolve(None, subject="s", auto_register=False).schema == RECORD
    assert latest.resolve(WIDER, subject="s", auto_register=True).schema == WIDER
    assert latest.resolve(None, subject="s", use_schema_id=100).schema == RECORD


def test_time_out_may_be_as_long_as_max_block_ms(fake: FakeRegistry) -> None:
    assert connect(fake).resolve(RECORD, subject="s", timeout=(2**63 - 1) / 1000).id == 100


def test_texts_of_references_come_before_those_that_refer_to_them(fake: FakeRegistry) -> None:
    registry = connect(fake)
    inner = '{"type":"enum","name":"E","namespace":"n","symbols":["x"]}'
    middle = '{"type":"record","name":"M","namespace":"n","fields":[{"name":"e","type":"n.E"}]}'
    outer = '{"type":"record","name":"O","namespace":"n","fields":[{"name":"m","type":"n.M"}]}'
    registry.resolve(inner, subject="e")
    registry.resolve(middle, subject="m", references=[SchemaReference("n.E", "e", 1)])
    resolved = registry.resolve(outer, subject="t-value", references=[SchemaReference("n.M", "m", 1)])
    assert resolved.references == (("n.E", inner), ("n.M", middle))
    other = connect(fake, **{"use.latest.version": True})
    assert other.resolve(outer, subject="t-value", references=[SchemaReference("n.M", "m", 1)]) == resolved


def test_circle_of_references_ends(fake: FakeRegistry) -> None:
    reference = {"name": "n.R", "subject": "t-value", "version": 1}
    fake.subjects["t-value"] = [{"schema": RECORD, "id": 1, "version": 1, "references": [reference]}]
    assert connect(fake, **{"use.latest.version": True}).resolve(None, subject="t-value").id == 1


def test_guid_goes_into_the_header(fake: FakeRegistry) -> None:
    registry = connect(fake, **{"schema.id.framing": "header"})
    resolved = registry.resolve(RECORD, subject="t-key", field="key")
    assert resolved.prefix == b""
    assert resolved.header is not None
    assert resolved.header[0] == "__key_schema_id"
    assert registry.by_guid(str(resolved.guid)).text == RECORD
    by_id = registry.resolve(None, subject="t-key", field="key", use_schema_id=resolved.id)
    assert by_id == resolved, "the response of an id may lack the guid"
    assert "deleted=true" in fake.seen[-1].path.lower(), "the schema of an id may be a deleted version"


def test_registry_without_guids_is_an_error_of_the_header() -> None:
    with running(FakeRegistry(guids=False)) as fake:
        registry = connect(fake, **{"schema.id.framing": "header"})
        with pytest.raises(SchemaRegistryError, match="set it to prefix"):
            registry.resolve(RECORD, subject="t-value")


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_incompatible_schema_is_told_in_the_words_of_the_registry(fake: FakeRegistry) -> None:
    registry = connect(fake)
    registry.resolve(RECORD, subject="t-value")
    fake.compatible = False
    with pytest.raises(SchemaRegistryError, match="incompatible: TYPE_MISMATCH") as caught:
        registry.resolve(OTHER, subject="t-value")
    assert (caught.value.status, caught.value.error_code) == (409, 409)
    assert fake.url in str(caught.value)
    assert len(fake.seen) == 2, "a refusal is not repeated"


def test_invalid_schema_is_told_in_the_words_of_the_registry(fake: FakeRegistry) -> None:
    with pytest.raises(SchemaRegistryError, match="Invalid schema: it is not JSON") as caught:
        connect(fake).resolve("{bad", subject="t-value")
    assert (caught.value.status, caught.value.error_code) == (422, 42201)


@pytest.mark.parametrize("fault", [500, 502, 503, 504, 408, 429, "close"])
def test_passing_fault_is_retried(fake: FakeRegistry, fault: object) -> None:
    fake.faults = [fault, fault]
    assert connect(fake).resolve(RECORD, subject="t-value").id == 100
    assert len(fake.seen) == 3


def test_retries_end(fake: FakeRegistry) -> None:
    fake.faults = [503] * 9
    with pytest.raises(SchemaRegistryError, match="fault 503") as caught:
        connect(fake, **{"max.retries": 2}).resolve(RECORD, subject="t-value")
    assert caught.value.retriable
    assert len(fake.seen) == 3


@pytest.mark.parametrize("fault", ["silent", "drip"])
def test_registry_that_does_not_answer_fails_in_time(fake: FakeRegistry, fault: str) -> None:
    fake.faults = [fault] * 9
    registry = SchemaRegistry({"schema.registry.url": fake.url, "max.retries": 0})
    started = time.monotonic()
    with pytest.raises(NetworkError, match=r"within 0\.(3|2\d+) s|ReadTimeout|timed out") as caught:
        registry.resolve(RECORD, subject="t-value", timeout=0.3)
    assert time.monotonic() - started < 5, "far less than the time-out of a read, 60 s"
    assert fake.url in str(caught.value)


def test_time_out_names_the_last_error(fake: FakeRegistry) -> None:
    fake.faults = [503] * 99
    registry = connect(fake, **{"max.retries": 50})
    with pytest.raises(TimeoutError, match=r"within 10 s: .*fault 503"):
        registry.resolve(RECORD, subject="t-value", timeout=10)
    assert 3 <= len(fake.seen) <= 6, "the pauses double"


def test_registry_that_is_down_names_its_url() -> None:
    with running(FakeRegistry()) as fake:
        pass
    with pytest.raises(NetworkError, match="ConnectionRefusedError") as caught:
        connect(fake).resolve(RECORD, subject="t-value", timeout=30)
    assert fake.url in str(caught.value)


def test_next_url_is_asked_and_remembered(fake: FakeRegistry) -> None:
    with running(FakeRegistry()) as down:
        pass
    registry = connect(fake, **{"schema.registry.url": f"{down.url},{fake.url}", "max.retries": 0})
    assert registry.resolve(RECORD, subject="t-value").id == 100
    assert registry.resolve(WIDER, subject="t-value").id == 101
    fake.faults = [503]
    with pytest.raises(KafkaError, match=f"{fake.url}: fault 503.*; {down.url}: ConnectionRefusedError"):
        registry.latest("t-value")


def test_url_that_is_silent_leaves_time_for_the_next(fake: FakeRegistry) -> None:
    with running(FakeRegistry()) as silent:
        silent.faults = ["silent"] * 9
        settings = {"schema.registry.url": f"{silent.url},{fake.url}", "max.retries": 0}
        registry = SchemaRegistry(settings)
        assert registry.resolve(RECORD, subject="t-value", timeout=4).id == 100
        silent.released.set()


def test_redirect_is_not_followed(fake: FakeRegistry) -> None:
    with running(FakeRegistry()) as elsewhere:
        fake.faults = [("redirect", f"{elsewhere.url}/subjects")]
        registry = connect(fake, **{"basic.auth.user.info": f"me:{SECRET}"})
        with pytest.raises(SchemaRegistryError, match="redirects are not followed") as caught:
            registry.resolve(RECORD, subject="t-value")
        assert caught.value.status == 301
        assert elsewhere.seen == [], "the credentials stay with the host they are meant for"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'"x"',
        b'{"id":"1"}',
        b'{"id":true}',
        b'{"id":-1}',
        b'{"id":4294967296}',
        b"[" * 9999,
        b'{"id":1,"guid":"x"}',
        b'{"id":1,"guid":7}',
        b'{"id":1,"version":"1"}',
    ],
)
def test_response_of_something_else_is_an_error(fake: FakeRegistry, content: bytes) -> None:
    fake.faults = [("body", 200, content)]
    with pytest.raises(SchemaRegistryError, match=r"does schema\.registry\.url name a Schema Registry"):
        connect(fake).resolve(RECORD, subject="t-value")


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"", b"null", b"{}"])
def test_refusal_without_words_has_its_status(fake: FakeRegistry, content: bytes) -> None:
    fake.faults = [("body", 403, content)]
    with pytest.raises(SchemaRegistryError, match="status 403") as caught:
        connect(fake).resolve(RECORD, subject="t-value")
    assert (caught.value.status, caught.value.error_code) == (403, -1)
    assert pickle.loads(pickle.dumps(caught.value)).status == 403


# ---- what is remembered ----------------------------------------------------------------------------------------------


def test_latest_version_is_stale_after_its_lifetime(fake: FakeRegistry) -> None:
    clock = ManualClock()
    settings = {"schema.registry.url": fake.url, "latest.cache.ttl.sec": 60}
    registry = SchemaRegistry(settings, clock=clock)
    registry.resolve(RECORD, subject="t-value")
    assert registry.latest("t-value").schema.text == RECORD
    connect(fake).resolve(WIDER, subject="t-value")
    clock.advance(59)
    assert registry.latest("t-value").schema.text == RECORD
    clock.advance(2)
    assert registry.latest("t-value").schema.text == WIDER


def test_deleted_subject_is_registered_again_after_the_lifetime(fake: FakeRegistry) -> None:
    clock = ManualClock()
    registry = SchemaRegistry({"schema.registry.url": fake.url}, clock=clock)
    registry.resolve(RECORD, subject="t-value")
    fake.subjects.clear()
    clock.advance(301)
    registry.resolve(RECORD, subject="t-value")
    assert "t-value" in fake.subjects


def test_schema_of_an_id_is_never_stale(fake: FakeRegistry) -> None:
    clock = ManualClock()
    registry = SchemaRegistry({"schema.registry.url": fake.url}, clock=clock)
    registry.resolve(RECORD, subject="t-value")
    registry.by_id(100)
    asked = len(fake.seen)
    clock.advance(1e9)
    assert registry.by_id(100).text == RECORD
    assert len(fake.seen) == asked


def test_stale_answer_serves_while_the_registry_is_down(fake: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    settings = {"schema.registry.url": fake.url, "max.retries": 0, "retries.max.wait.ms": 20_000}
    registry = SchemaRegistry(settings, clock=clock)
    first = registry.resolve(RECORD, subject="t-value")
    clock.advance(301)
    fake.faults = [503]
    with caplog.at_level(logging.WARNING, "kafkabuf"):
        assert registry.resolve(RECORD, subject="t-value") == first
        clock.advance(19)
        assert registry.resolve(RECORD, subject="t-value") == first
    assert [record.levelname for record in caplog.records if record.name == "kafkabuf.formats"] == ["WARNING"]
    assert len(fake.seen) == 2, "the registry is left alone for a while"
    clock.advance(2)
    registry.resolve(RECORD, subject="t-value")
    assert len(fake.seen) == 3


def test_remembered_responses_are_bounded(fake: FakeRegistry) -> None:
    registry = connect(fake, **{"cache.capacity": 2})
    for subject in ("a", "b", "a", "c"):
        registry.resolve(RECORD, subject=subject)
    asked = len(fake.seen)
    registry.resolve(RECORD, subject="a")
    assert len(fake.seen) == asked
    registry.resolve(RECORD, subject="b")
    assert len(fake.seen) == asked + 1, "b was used least lately"


def test_forked_child_does_not_wait_for_a_lock_of_its_parent(
    fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect(fake)
    registry.resolve(RECORD, subject="s")
    registry._cache._lock.acquire()  # as another thread may at the fork
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert registry.resolve(RECORD, subject="s").id == 100


def test_threads_may_share_a_registry(fake: FakeRegistry) -> None:
    registry = connect(fake, **{"cache.capacity": 2})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: registry.resolve(RECORD, subject=f"s-{n % 4}"), range(24)))
    assert {(each.id, each.schema) for each in found} == {(100, RECORD)}


def test_what_is_no_text_is_refused(fake: FakeRegistry) -> None:
    registry = connect(fake)
    for schema, subject in ((7, "s"), (b"x", "s"), (RECORD, ""), (RECORD, None)):
        with pytest.raises(ConfigError, match="must be text"):
            registry.resolve(schema, subject=subject)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="found 'XML'"):
        registry.resolve(RECORD, "XML", subject="s")
    assert fake.seen == []


# ---- credentials -----------------------------------------------------------------------------------------------------


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


@pytest.mark.parametrize("in_url", [False, True])
def test_user_and_password_are_sent(in_url: bool) -> None:
    with running(FakeRegistry(authorization=_basic(f"me:{SECRET}"))) as fake:
        url = fake.url.replace("://", f"://me:{SECRET.replace('/', '%2F')}@")
        settings = {"schema.registry.url": url} if in_url else {"basic.auth.user.info": f"me:{SECRET}"}
        assert connect(fake, **settings).resolve(RECORD, subject="t-value").id == 100


def test_token_is_sent() -> None:
    with running(FakeRegistry(authorization=f"Bearer {SECRET}")) as fake:
        settings = {"bearer.auth.token": SECRET, "bearer.auth.logical.cluster": "lsrc-1"}
        settings["bearer.auth.identity.pool.id"] = "pool-1"
        assert connect(fake, **settings).resolve(RECORD, subject="t-value").id == 100
        assert fake.seen[0].headers["target-sr-cluster"] == "lsrc-1"
        assert fake.seen[0].headers["confluent-identity-pool-id"] == "pool-1"


def test_secret_is_in_no_log_and_no_error_and_no_text(fake: FakeRegistry, caplog: pytest.LogCaptureFixture) -> None:
    fake.authorization = "another"  # its refusal repeats the credentials that it got
    texts: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for settings in (
            {"basic.auth.user.info": f"me:{SECRET}"},
            {"schema.registry.url": fake.url.replace("://", f"://me:{SECRET.replace('/', '%2F')}@")},
            {"bearer.auth.token": SECRET, "bearer.auth.logical.cluster": "c"},
        ):
            registry = connect(fake, **settings)
            with pytest.raises(SchemaRegistryError, match="Unauthorized") as caught:
                registry.resolve(RECORD, subject="t-value")
            assert caught.value.status == 401
            texts += [str(caught.value), repr(caught.value), str(registry), repr(registry), repr(registry.settings)]
            texts.append(repr(caught.value.__context__))
    texts += [record.getMessage() for record in caplog.records]
    for hidden in (SECRET, SECRET.replace("/", "%2F"), _basic(f"me:{SECRET}").removeprefix("Basic ")):
        assert all(hidden not in text for text in texts)
    assert len(fake.seen) == 3


def test_pickle_of_a_result_has_no_secret_and_that_of_a_registry_works() -> None:
    with running(FakeRegistry(authorization=_basic(f"me:{SECRET}"))) as fake:
        registry = connect(fake, **{"basic.auth.user.info": f"me:{SECRET}"})
        resolved = registry.resolve(RECORD, subject="t-value")
        pickled = pickle.dumps(resolved)
        assert SECRET.encode() not in pickled
        assert pickle.loads(pickled) == resolved
        copy = pickle.loads(pickle.dumps(registry))
        assert copy.settings == registry.settings
        assert copy.resolve(RECORD, subject="t-value") == resolved
        assert len(fake.seen) == 2, "the pickle has nothing that was remembered"


@pytest.mark.parametrize("field", ["key", "value"])
def test_confluent_kafka_reads_and_writes_the_same_header(fake: FakeRegistry, field: str) -> None:
    schema = '{"type":"object","title":"T","properties":{"a":{"type":"integer"}}}'
    registry = connect(fake, **{"schema.id.framing": "header"})
    resolved = registry.resolve(schema, "JSON", subject=registry.subject("t", field), field=field)
    with SchemaRegistryClient({"url": fake.url}) as theirs:
        options: dict[str, Any] = {"subject.name.strategy.type": "TOPIC"}
        read = JSONDeserializer(None, schema_registry_client=theirs, conf=options)
        assert resolved.header is not None
        context = SerializationContext("t", MessageField(field), [resolved.header])
        assert read(resolved.prefix + b'{"a":7}', context) == {"a": 7}
        options |= {"auto.register.schemas": False, "schema.id.serializer": header_schema_id_serializer}
        context = SerializationContext("t", MessageField(field), [])
        assert JSONSerializer(schema, theirs, conf=options)({"a": 7}, context) == b'{"a":7}'
        assert context.headers == [resolved.header]


def test_endless_references_are_refused(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 20
    monkeypatch.setattr("kafkabuf.formats.registry.registry._MOST_REFERENCES", most)
    for number in range(most + 2):
        reference = {"name": f"n.R{number + 1}", "subject": f"s{number + 1}", "version": 1}
        fake.subjects[f"s{number}"] = [{"schema": RECORD, "id": number + 1, "version": 1, "references": [reference]}]
    registry = SchemaRegistry({"schema.registry.url": fake.url})
    with pytest.raises(SchemaRegistryError, match=f"refers to more than {most} others"):
        registry.resolve(None, subject="s0", use_latest_version=True)


@pytest.mark.parametrize("url", ["http://a b", "http://a/b c", "http://a\u200b"])
def test_url_with_a_blank_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="blank or a control character"):
        SchemaRegistry({"schema.registry.url": url})
