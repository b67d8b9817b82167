"""compat.confluent: settings have the names, the values and the errors of librdkafka."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from kafkabuf.compat import confluent
from kafkabuf.compat.confluent import Producer
from kafkabuf.compat.confluent import settings as confluent_settings
from kafkabuf.errors import ConfigError
from tests.compat.reports import knows


def own_settings(settings: dict[str, Any]) -> dict[str, Any]:
    return confluent_settings.translated(settings).own


def test_settings_have_their_meaning() -> None:
    found = own_settings(
        {
            "bootstrap.servers": "a,b:1",
            "request.required.acks": "all",
            "queue.buffering.max.ms": "7.4",
            "message.timeout.ms": 0,
            "compression.codec": "gzip",
            "compression.level": 5,
            "max.in.flight": 10,
            "message.send.max.retries": 3,
            "ssl.ca.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "connections.max.idle.ms": 0,
            "socket.send.buffer.bytes": 0,
            "debug": "all",
            "default.topic.config": {"partitioner": "murmur2"},
        }
    )
    expected = {
        "bootstrap_servers": "a:9092,b:1",
        "acks": "all",
        "linger_ms": 7,
        "delivery_timeout_ms": 2**31 - 1,
        "compression_type": "gzip",
        "compression_gzip_level": 5,
        "max_in_flight_requests_per_connection": 10,
        "enable_idempotence": False,
        "retries": 3,
        "ssl_truststore_location": "ca.pem",
        "ssl_endpoint_identification_algorithm": "",
        "connections_max_idle_ms": -1,
        "send_buffer_bytes": -1,
        "partitioner_class": "murmur2",
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("timeout", [1, 10, 100, 1000])
@pytest.mark.parametrize("linger", [0, 0.5, 5, 900])
def test_any_time_out_of_records_goes_with_any_linger(timeout: int, linger: float) -> None:
    Producer({"message.timeout.ms": timeout, "linger.ms": linger, "socket.timeout.ms": 10})._producer.close(0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"should.fail": False}, 'No such configuration property: "should.fail"'),
        ({"partitioner": "murmur"}, 'Invalid value for configuration property "partitioner": murmur'),
        ({"linger.ms": "x"}, "linger.ms"),
        ({"enable.ssl.certificate.verification": "false"}, "ssl.ca.location"),
        ({"acks": 7}, "acks"),
        ({"ssl.key.location": "/nowhere"}, "cannot be read"),
    ],
)
def test_a_wrong_setting_raises_kafka_exception(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaException, match=text) as raised:
        Producer(settings)
    assert raised.value.args[0].code() == KafkaError._INVALID_ARG


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("error_cb", TypeError),
        ("stats_cb", TypeError),
        ("oauth_cb", TypeError),
        ("throttle_cb", ValueError),
        ("on_delivery", KafkaException),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_as_confluent_does(name: str, kind: type[Exception]) -> None:
    for module in (confluent, confluent_kafka):
        with pytest.raises(kind, match="callable"):
            module.Producer({name: 1})


def test_none_means_the_default() -> None:
    names = [*confluent_settings._SAME, *confluent_settings._NO_EFFECT, *confluent_settings._CALLBACKS, "linger.ms"]
    names += confluent_settings._FLAGS
    names += confluent_settings._CONSUMERS
    assert own_settings(dict.fromkeys([*names, "message.timeout.ms", "partitioner", "logger"])) == own_settings({})


def test_settings_may_be_keywords_which_win() -> None:
    producer = Producer({"client.id": "a", "acks": "all"}, **{"client.id": "b"})
    assert producer._producer.config.client_id == "b"
    producer.close()


def test_no_more_memory_is_reserved_than_the_machine_has() -> None:
    Producer({"queue.buffering.max.kbytes": 2**31 - 1}).close()


@pytest.mark.parametrize("arguments", [(), ("x",), ({}, {})])
def test_settings_come_in_a_dict(arguments: Any) -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        Producer(*arguments)


def test_every_setting_of_the_documentation_of_librdkafka_is_known_or_refused() -> None:
    """These are the settings of a producer; librdkafka's own check says whether they exist."""
    names = [
        *confluent_settings._SAME,
        *confluent_settings._FLAGS,
        *confluent_settings._FILES,
        *confluent_settings._BUFFERS,
        *confluent_settings._NO_EFFECT,
        *confluent_settings._REFUSED,
        *confluent_settings._CONSUMERS,
    ]
    unknown = []
    for name in names:
        try:
            confluent_kafka.Producer({name: "\0"})
        except KafkaException as error:
            if "No such configuration property" in str(error):
                unknown.append(name)
        except Exception:
            pass
    assert unknown == []


def names_in_librdkafka() -> list[str]:
    """The settings that the installed librdkafka itself knows: texts of its file that it does not call unknown."""
    (library,) = (Path(confluent_kafka.__path__[0]).parent / "confluent_kafka.libs").glob("librdkafka*")
    texts = re.findall(rb"(?<=\0)[a-z][a-z0-9]*(?:\.[a-z0-9]+)+(?=\0)", library.read_bytes())
    return [name for name in sorted({text.decode() for text in texts}) if knows(confluent_kafka.Producer, name)]


def test_every_setting_of_the_installed_librdkafka_is_known() -> None:
    names = names_in_librdkafka()
    assert len(names) > 130, "the file of the library was read"
    assert [name for name in names if not knows(Producer, name)] == []


@pytest.mark.parametrize("value", ["1", 1, "t", "TRUE", True, "0", 0, "f", "False", False])
@pytest.mark.parametrize("name", list(confluent_settings._FLAGS))
def test_a_flag_is_what_librdkafka_takes_for_one(name: str, value: Any) -> None:
    confluent_kafka.Producer({name: value})
    wanted = str(value).lower() in ("1", "t", "true")
    assert own_settings({name: value})[confluent_settings._FLAGS[name]] is wanted
    with pytest.raises(ConfigError, match="true or false"):
        own_settings({name: "yes"})


def test_values_that_switch_a_setting_off_are_taken() -> None:
    own = own_settings({"topic.metadata.refresh.interval.ms": -1, "transactional.id": ""})
    assert own["metadata_max_age_ms"] == 2**31 - 1
    assert "transactional_id" not in own


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("oauthbearer_token_refresh_cb", "use oauth_cb"),
        ("ssl.truststore.location", "use ssl.ca.location"),
        ("sasl.jaas.config", "use sasl.username and sasl.password"),
        ("transactional.timeout.ms", "did you mean transaction.timeout.ms?"),
        ("bootstrap_servers", "did you mean bootstrap.servers?"),
        ("linger_ms", "did you mean linger.ms?"),
    ],
)
def test_the_error_of_an_unknown_setting_names_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(KafkaException, match=re.escape(f'No such configuration property: "{name}": {meant}')):
        Producer({name: 1})


@pytest.mark.parametrize(
    ("returned", "found"),
    [(None, "a NoneType"), ("token", "a str"), (("token",), "a tuple of 1"), ((1,) * 5, "a tuple of 5")],
)
def test_oauth_cb_that_returns_something_else_is_told_what_to_return(returned: Any, found: str) -> None:
    provide = own_settings({"oauth_cb": lambda argument: returned})["sasl_oauthbearer_token_provider"]
    with pytest.raises(TypeError, match=rf"^oauth_cb must return a tuple .*; it returned {found}$"):
        provide()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "none"])
@pytest.mark.parametrize("level", [-1, 0, 1, 9, 12])
def test_every_level_of_librdkafka_is_taken_by_every_codec(codec: str, level: int) -> None:
    confluent_kafka.Producer({"compression.type": codec, "compression.level": level})
    Producer({"compression.type": codec, "compression.level": level}).close()


@pytest.mark.parametrize("level", [-2, 13])
def test_a_level_that_librdkafka_does_not_have_is_refused(level: int) -> None:
    for module in (confluent, confluent_kafka):
        with pytest.raises(KafkaException, match=r"outside allowed range -1\.\.12"):
            module.Producer({"compression.type": "zstd", "compression.level": level})
