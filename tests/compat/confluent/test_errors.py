"""compat.confluent: errors have the classes, the codes and the flags of confluent-kafka."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from kafkabuf import errors
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.compat import confluent
from kafkabuf.compat.confluent import Producer
from kafkabuf.compat.confluent.errors import LOCAL, OwnKafkaError, OwnKafkaException, _names, call_error, record_error
from kafkabuf.protocol.messages import INIT_PRODUCER_ID
from tests.compat import TOPIC
from tests.compat.reports import PATIENCE, dead_address, knows


def test_own_error_has_the_names_and_codes_of_confluents() -> None:
    for name, code in LOCAL.items():
        assert getattr(KafkaError, name) == code
    for code, name in _names().items():
        if hasattr(KafkaError, name):
            assert getattr(KafkaError, name) == getattr(OwnKafkaError, name) == code
        peer = KafkaError(code)
        assert peer.name() == name or code > 100, (peer.name(), name)


def test_own_error_has_every_code_of_confluents() -> None:
    """A program names codes of consumers too; where confluent-kafka is missing, the name must not be."""
    codes = {name: code for name, code in vars(KafkaError).items() if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)}
    assert len(codes) > 150
    assert {name: getattr(OwnKafkaError, name, None) for name in codes} == codes
    assert {name: OwnKafkaError(code).name() for name, code in codes.items()} == {name: name for name in codes}


@pytest.mark.parametrize("flags", [{}, {"fatal": True}, {"retriable": True}, {"txn_requires_abort": True}])
def test_own_error_behaves_as_confluents(flags: dict[str, bool]) -> None:
    own, peer = OwnKafkaError(-192, "text", **flags), KafkaError(-192, "text", **flags)
    for method in ("code", "name", "str", "fatal", "retriable", "txn_requires_abort"):
        assert getattr(own, method)() == getattr(peer, method)(), method
    assert own == OwnKafkaError(-192)
    assert own == -192
    assert own != -191
    assert (str(own), bool(own)) == (str(peer), bool(peer))
    assert OwnKafkaException(own).args == (own,)


def test_every_error_of_kafkabuf_has_a_code() -> None:
    pending = [errors.KafkaError]
    while pending:
        own = pending.pop()
        pending += [child for child in own.__subclasses__() if child.__module__ == "kafkabuf.errors"]
        assert call_error(own("text")).code() != 0
        assert "text" in record_error(own("text")).str()


def test_error_classes_are_confluents_own() -> None:
    assert confluent.KafkaError is KafkaError
    assert confluent.KafkaException is KafkaException


@pytest.mark.processes
def test_without_confluent_kafka_errors_are_of_the_same_shape() -> None:
    code = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from kafkabuf.compat.confluent import KafkaError, KafkaException, Producer\n"
        "try: Producer({'should.fail': 1})\n"
        "except KafkaException as error: assert error.args[0].code() == KafkaError._INVALID_ARG, error\n"
        "else: raise SystemExit('no error')\n"
        "seen = []\n"
        "producer = Producer({'message.timeout.ms': 10})\n"
        "producer.produce('t', 'v', on_delivery=lambda error, message: seen.append(error))\n"
        "assert producer.flush() == 0\n"
        "assert seen[0].code() == KafkaError._MSG_TIMED_OUT == -192 and seen[0].name() == '_MSG_TIMED_OUT'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.processes
def test_a_producer_without_errors_never_imports_confluent_kafka(cluster: EmbeddedCluster) -> None:
    code = (
        "import sys\n"
        "from kafkabuf.compat.confluent import Producer\n"
        "seen = []\n"
        f"producer = Producer({{'bootstrap.servers': '{cluster.bootstrap_servers}'}})\n"
        f"producer.produce('{TOPIC}', 'v', on_delivery=lambda error, message: seen.append(error))\n"
        "assert producer.flush(20) == 0 and seen == [None]\n"
        "assert 'confluent_kafka' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_idempotence_is_on_unless_a_setting_contradicts_it(
    new: Callable[..., Producer], cluster: EmbeddedCluster
) -> None:
    for settings, expected in (({}, True), ({"acks": 1}, False), ({"max.in.flight": 100}, False)):
        cluster.clear_requests()
        producer = new(**settings)
        producer.produce(TOPIC, b"v")
        assert producer.flush(PATIENCE) == 0
        assert bool(cluster.requests(INIT_PRODUCER_ID)) is expected


def test_only_errors_of_transactions_tell_whether_they_are_retriable() -> None:
    """As librdkafka's: a program that gives up on an error that is not retriable decides as before."""
    found = []
    for kind in (confluent_kafka.Producer, confluent.Producer):
        failed: list[Any] = []
        producer = kind({"bootstrap.servers": dead_address(), "error_cb": failed.append, "message.timeout.ms": 300})
        reports: list[Any] = []
        producer.produce("t", b"v", on_delivery=lambda error, _: reports.append(error))  # noqa: B023
        while not failed or not reports:
            producer.poll(0.1)
        with pytest.raises(KafkaException) as raised:
            producer.list_topics(timeout=0.2)
        kinds = [failed[0], reports[0], raised.value.args[0]]
        found.append([(error.code(), error.retriable(), error.fatal()) for error in kinds[:2]])
        assert not kinds[2].retriable()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("name the CA in ssl.truststore.location", "name the CA in ssl.ca.location"),
        ("ssl.truststore.certificates: not readable as PEM", "ssl.ca.pem: not readable as PEM"),
        (
            "set ssl.endpoint.identification.algorithm to an empty string",
            "set ssl.endpoint.identification.algorithm to none",
        ),
        ("more than max.request.size (9)", "more than message.max.bytes (9)"),
        (
            "PLAIN needs sasl_username and sasl_password, or a sasl.jaas.config",
            "PLAIN needs sasl.username and sasl.password",
        ),
        ("or a callable that returns a token as sasl_oauthbearer_token_provider", "or oauth_cb"),
        ("the user wrote 'max.request.size'", "the user wrote 'max.request.size'"),
        (
            "own.max.request.size, max.request.size.own, max.request.sizes",
            "own.max.request.size, max.request.size.own, max.request.sizes",
        ),
    ],
)
def test_errors_name_the_settings_that_a_program_of_confluent_can_set(text: str, wanted: str) -> None:
    for error in (errors.ConfigError(text), errors.SslAuthenticationError(text)):
        assert call_error(error).str() == wanted
    assert record_error(errors.TimeoutError(text)).str().endswith(wanted)


def test_no_advice_names_a_setting_that_is_refused(tmp_path: Path) -> None:
    """What kafkabuf advises where TLS or SASL is set up wrong, tried: the settings that a text names exist."""
    store = tmp_path / "store.pem"
    store.write_text("nothing")
    faults: list[dict[str, Any]] = [
        {"security.protocol": "SSL", "ssl.ca.location": str(store)},
        {"security.protocol": "SSL", "ssl.ca.pem": "x"},
        {"security.protocol": "SSL", "ssl.key.pem": "x"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "a", "sasl.password": "b", "sasl.mechanism": "GSSAPI"},
    ]
    for settings in faults:
        with pytest.raises(KafkaException) as raised:
            Producer(settings).produce("t")
        text = raised.value.args[0].str()
        for name in re.findall(r"\b(?:ssl|sasl|max|message)[._][a-z._]*[a-z]", text):
            assert knows(Producer, name), (name, text)
