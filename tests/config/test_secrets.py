"""Security settings: contradictions are refused, and no secret appears in any output."""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkabuf.broker.guards.security import Security
from kafkabuf.clock import ManualClock
from kafkabuf.compat.confluent import settings as confluent_settings
from kafkabuf.config import ProducerConfig, refused
from kafkabuf.config.kinds import dotted
from kafkabuf.errors import ConfigError
from kafkabuf.formats.registry.settings import RegistrySettings
from kafkabuf.network.http import proxy as http_proxy
from kafkabuf.network.sasl import mechanisms as sasl
from kafkabuf.producer import KafkaProducer
from kafkabuf.spark.options.options import SinkOptions
from tests.config.secret_support import shown_by, whole_chain

SERVERS = {"bootstrap.servers": "localhost:9092"}
SENTINEL = "s3ntin3l"
SECRETS = [name for name, field in ProducerConfig.model_fields.items() if field.type == "password"]
PASSWORDS = [name for name, known in refused.JAVA_ONLY.items() if known.type == "password"]
SCRAM = {"security.protocol": "sasl_ssl", "sasl.mechanism": "scram-sha-512"}
MSK = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
USER = {"sasl.username": "me", "sasl.password": SENTINEL}


@pytest.fixture(autouse=True)
def _all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused, "NOT_YET", ("none",))


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig.from_mapping(SERVERS, settings)


def problem(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig.from_mapping(SERVERS, settings)
    return str(raised.value)


# ---- secrets ---------------------------------------------------------------------------------------------------------


def test_every_secret_has_a_secret_type() -> None:
    kafkas = {name.replace(".", "_") for name in PASSWORDS} | set(SECRETS)
    assert {name for name in ProducerConfig.model_fields if "password" in name or "secret" in name} <= kafkas
    assert len(SECRETS) == 14


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "beside", [{}, {"linger.ms": -1}, {"acks": 7}, {"buffer.memory": 1}, {"sasl.pasword": SENTINEL}]
)
def test_secret_is_never_shown(name: str, beside: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    output = []
    try:
        found = ProducerConfig.from_mapping(SERVERS, {name: SENTINEL}, beside)
        output += [repr(found), str(found), repr(found.given()), repr(found.model_fields_set)]
        assert getattr(found, name).get_secret_value() == SENTINEL
        assert getattr(pickle.loads(pickle.dumps(found)), name).get_secret_value() == SENTINEL
    except ConfigError:
        output.append(traceback.format_exc())
    assert SENTINEL not in "".join(output) + caplog.text


@pytest.mark.parametrize("bad", [b"\xff" + SENTINEL.encode(), [SENTINEL], {"a": SENTINEL}, 5])
@pytest.mark.parametrize("name", [*SECRETS, *PASSWORDS])
def test_secret_of_a_wrong_type_is_never_shown(name: str, bad: Any) -> None:
    text = problem({name: bad})
    assert text.startswith(name.replace("_", "."))
    assert SENTINEL not in text
    assert "found" not in text


def test_config_built_without_from_mapping_shows_no_secret() -> None:
    with pytest.raises(ConfigError) as raised:
        ProducerConfig(bootstrap_servers="h:1", sasl_password=[SENTINEL], linger_ms=-1)
    assert SENTINEL not in str(raised.value) + repr(raised.value)


def test_error_of_a_producer_without_a_mapping_shows_no_value() -> None:
    with pytest.raises(ConfigError, match="found str") as raised:
        KafkaProducer(f"sasl.password={SENTINEL}")  # type: ignore[call-overload]
    assert SENTINEL not in str(raised.value)


def test_spark_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.sasl.password": SENTINEL}
    parsed = SinkOptions.parse(options)
    assert ("sasl.password", SENTINEL) in parsed.producer  # executors need it
    for wrong in (
        {"kafka.linger.ms": "-1"},
        {"kafka.ssl.key.pasword": SENTINEL},
        {"kafka.ssl.key.password.": SENTINEL},
    ):
        with pytest.raises(ConfigError) as raised:
            SinkOptions.parse(options | wrong)
        assert SENTINEL not in "".join(traceback.format_exception(raised.value))
    assert SENTINEL not in repr(parsed) + caplog.text


def test_spark_options_are_checked_by_the_model() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "Sasl_Ssl", "kafka.sasl.mechanism": "PLAIN"}
    with pytest.raises(ConfigError, match=r"'kafka\.\*': sasl\.mechanism=PLAIN needs sasl_username"):
        SinkOptions.parse(options)
    SinkOptions.parse(options | {"kafka.sasl.username": "me", "kafka.sasl.password": "x"})


# ---- nothing is expanded, nothing is imported ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["${env:HOME}", "${file:/etc/passwd:root}", "$HOME", "%(HOME)s", "~", "{0.__class__}"])
def test_value_is_never_expanded(text: str) -> None:
    found = config(client_id=text, ssl_truststore_location=text, sasl_password=text)
    assert found.client_id == found.ssl_truststore_location == text
    assert found.sasl_password is not None
    assert found.sasl_password.get_secret_value() == text


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer", "partitioner.class", "interceptor.classes",
                                  "metric.reporters", "sasl.oauthbearer.token.provider",
                                  "sasl.client.callback.handler.class",
                                  "sasl.login.callback.handler.class"])  # fmt: skip
@pytest.mark.parametrize("text", ["os.system", "builtins.eval", "com.example.Class", "__import__('os')", b"x"])
def test_no_object_is_imported_by_its_name(name: str, text: Any) -> None:
    assert problem({name: text}).startswith(f"{name}: ")


def test_javas_reporter_is_accepted_and_dropped() -> None:
    assert config(metric_reporters="org.apache.kafka.common.metrics.JmxReporter").metric_reporters == ()


# ---- settings that depend on each other ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security.protocol": "SASL_SSL"}, "is GSSAPI (Kerberos), Kafka's default"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}, "or set sasl.mechanism to PLAIN"),
        (SCRAM, "needs sasl_username and sasl_password"),
        (SCRAM | {"sasl.username": "me"}, "needs sasl_username and sasl_password"),
        (SCRAM | {"sasl.password": "x"}, "needs sasl_username and sasl_password"),
        (SCRAM | {"sasl.username": " ", "sasl.password": "x"}, "needs sasl_username and sasl_password"),
        (SCRAM | USER | {"sasl.jaas.config": "x"}, "both give a user"),
        (SCRAM | {"sasl.mechanism": "OAUTHBEARER"}, "token.endpoint.url"),
        ({"sasl.mechanism": "CRAM-MD5"}, "sasl.mechanism: "),
        (MSK | {"sasl.mechanism": "OAUTHBEARER"}, "goes with sasl.mechanism=AWS_MSK_IAM, found OAUTHBEARER"),
        (MSK | {"sasl.oauthbearer.token.endpoint.url": "https://x"}, "leave out the token provider and the token end"),
        (SCRAM | USER | {"sasl.login.callback.handler.class": OAUTH_HANDLER}, "with sasl.mechanism=OAUTHBEARER, found"),
        ({"sasl.login.callback.handler.class": "com.example.Login"}, "a Java class, which cannot run here: leave it o"),
        ({"ssl.keystore.key": "x"}, "both are needed"),
        ({"ssl.keystore.certificate.chain": "x"}, "both are needed"),
        ({"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y", "ssl.keystore.location": "z"}, "leave one"),
        ({"ssl.truststore.certificates": "x", "ssl.truststore.location": "y"}, "leave one out"),
        ({"ssl.keystore.type": "JCEKS"}, "keytool -importkeystore"),
        ({"ssl.truststore.type": "BCFKS"}, "reads stores of type JKS, PKCS12 and PEM"),
        ({"ssl.keystore.password": "x"}, "ssl.keystore.location is not: name the file"),
        ({"ssl.truststore.password": "x"}, "ssl.truststore.location is not: name the file"),
        ({"ssl.enabled.protocols": "TLSv1.2,SSLv3"}, "ssl.enabled.protocols: "),
        ({"connections.max.idle.ms": 0}, "set it to -1 to keep idle connections"),
        ({"transactional.id": ""}, "transactional.id: "),
        ({"transactional.id": "t", "enable.idempotence": "false"}, "transactional.id needs enable.idempotence"),
        ({"transactional.id": "t", "acks": "1"}, "transactional.id needs enable.idempotence"),
        ({"transactional.id": "t", "retries": "0"}, "transactional.id needs enable.idempotence"),
        ({"transaction.two.phase.commit.enable": "TRUE", "transaction.timeout.ms": 5}, "never expire"),
    ],
)  # fmt: skip
def test_contradiction_is_refused(settings: dict[str, Any], message: str) -> None:
    text = problem(settings)
    assert message in text
    assert SENTINEL not in text


def test_settings_that_fit_are_accepted() -> None:
    assert config(**SCRAM, **USER).sasl_mechanism == "SCRAM-SHA-512"
    assert config(security_protocol="ssl", ssl_endpoint_identification_algorithm="HTTPS").security_protocol == "SSL"
    assert config(ssl_endpoint_identification_algorithm="").ssl_endpoint_identification_algorithm == ""
    assert config(ssl_endpoint_identification_algorithm=None).ssl_endpoint_identification_algorithm == "https"
    assert config(**MSK).signs_for_msk
    assert config(ssl_cipher_suites=" a , b,").ssl_cipher_suites == ("a", "b")
    assert config(transactional_id="t", transaction_two_phase_commit_enable=True).enable_idempotence


def test_reconnect_backoff_given_alone_does_not_grow() -> None:
    """As in Java: without a maximum of its own the pause is constant."""
    assert config(reconnect_backoff_ms=200).reconnect_backoff_max_ms == 200
    assert config(reconnect_backoff_ms=200, reconnect_backoff_max_ms=900).reconnect_backoff_max_ms == 900
    assert config(retry_backoff_ms=200).retry_backoff_max_ms == 1000


def test_derived_default_does_not_count_as_given() -> None:
    """Otherwise settings copied from another producer, plus one more, could contradict a default that nobody wrote."""
    first = config(linger_ms=100_000, acks=1)
    again = ProducerConfig.from_mapping(first.given() | {"acks": "all", "request_timeout_ms": 60_000})
    assert (first.delivery_timeout_ms, again.delivery_timeout_ms) == (130_000, 160_000)
    assert (first.enable_idempotence, again.enable_idempotence) == (False, True)


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"retry.backoff.ms": 5000}, "retry.backoff.ms is above retry.backoff.max.ms"),
        ({"socket.connection.setup.timeout.ms": 50_000}, "above socket.connection.setup.timeout.max.ms"),
        (
            {"ssl.truststore.location": SENTINEL},
            "is PLAINTEXT: these settings have no effect: ssl.truststore.location",
        ),
        (
            {"security.protocol": "SSL"} | USER,
            "security.protocol is SSL: these settings have no effect: sasl.password, sasl.username",
        ),
    ],
)
def test_setting_without_effect_is_logged(
    settings: dict[str, Any], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    ProducerConfig.from_mapping(SERVERS, settings)
    assert warning in caplog.text
    assert SENTINEL not in caplog.text


@pytest.mark.parametrize("name", ["schema.registry.url", "schema.registry.proxy"])
@pytest.mark.parametrize("url", ["http://me:{}@host", "http://me:{}@host:port", "ftp://me:{}@host"])
def test_password_in_a_url_is_never_shown(name: str, url: str) -> None:
    output = []
    try:
        found = config(**{name: url.format(SENTINEL)})
        output += [repr(found), repr(found.given())]
    except ConfigError:
        output.append(traceback.format_exc())
    assert output[0]
    assert SENTINEL not in "".join(output)


def test_ordinary_settings_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    config(**SCRAM, **USER, reconnect_backoff_ms=5000)
    assert caplog.text == ""


# ---- any value -------------------------------------------------------------------------------------------------------

NAMES = sorted([*ProducerConfig.model_fields, *refused.JAVA_ONLY])
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.lists(st.text(max_size=3)),
    st.binary(max_size=3), st.sampled_from(["true", "12", "none", "all", "SSL", "SASL_SSL", "PLAIN", "bytes", ""]),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
@example({"schema_registry_bearer_auth_client_id": b""})
def test_strange_value_is_refused_or_survives_a_round_trip(settings: dict[str, Any]) -> None:
    with contextlib.suppress(ConfigError):
        found = ProducerConfig.from_mapping({"bootstrap_servers": "h:1"} | settings)
        assert ProducerConfig.from_mapping(found.given()) == found


# ---- text that UTF-8 cannot encode -----------------------------------------------------------------------------------

REGISTRY = {"schema.registry.url": "http://localhost:8081"}
BROKEN = [f"{SENTINEL}\udce4", f"\udcff{SENTINEL}", f"{SENTINEL}\ud800{SENTINEL}", f"{SENTINEL}\n\udfff\n"]
TEXTS = [
    name
    for name, field in ProducerConfig.model_fields.items()
    if field.type == "string" and not field.valid and name != "schema_registry_proxy"
]
PATHS = [name for name in TEXTS if name.endswith(("_location", "_file", "_keytab", "_cmd", "buffer_path"))]


def refusal(make: Callable[[], object]) -> str:
    """The text of a ConfigError, whose whole chain has no secret."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert SENTINEL not in shown_by(caught.value)
    assert not list(whole_chain(caught.value))[1:], "an error that led to it"
    return str(caught.value)


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("name", [*SECRETS, *PASSWORDS])
def test_secret_that_does_not_encode_is_refused_at_once_without_it(name: str, text: str) -> None:
    found = refusal(lambda: config(**{name: text}))
    assert found.startswith(dotted(name))
    assert "UTF-8" in found or name in PASSWORDS


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("name", [name for name, field in RegistrySettings.fields.items() if field.type == "password"])
def test_secret_of_a_registry_that_does_not_encode_is_refused_at_once_without_it(name: str, text: str) -> None:
    assert refusal(lambda: RegistrySettings(REGISTRY | {name: text})).startswith(dotted(name))


@pytest.mark.parametrize("url", ["http://me:{}@host", "http://{}:secret@host", "http://host/{}"])
@pytest.mark.parametrize("name", ["schema.registry.url", "proxy"])
def test_url_that_does_not_encode_is_refused_without_its_password(name: str, url: str) -> None:
    for text in BROKEN:
        assert refusal(lambda: RegistrySettings(REGISTRY | {name: url.format(text)})).startswith(name)  # noqa: B023


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in PATHS])
def test_text_beside_a_secret_is_refused_where_it_does_not_encode(name: str) -> None:
    """User and password are encoded together: the codec's error would have both."""
    found = refusal(lambda: config(**{name: "caf\udce9"}, sasl_password=SENTINEL))
    assert found.startswith(dotted(name))


@pytest.mark.parametrize("name", PATHS)
def test_path_of_any_bytes_is_accepted(name: str) -> None:
    assert getattr(config(**{name: "/caf\udce9"}), name) == "/caf\udce9"


@pytest.mark.parametrize("own", sorted({*SECRETS, "sasl_username"} & {*confluent_settings._SAME.values()}))
def test_secret_of_confluents_producer_that_does_not_encode_is_refused_without_it(own: str) -> None:
    name = next(name for name, each in confluent_settings._SAME.items() if each == own)
    given = {"bootstrap.servers": "localhost:9092", name: BROKEN[0]}
    with pytest.raises(ConfigError) as caught:
        ProducerConfig(confluent_settings.translated(given).own)
    assert own == "sasl_username" or SENTINEL not in shown_by(caught.value)


@pytest.mark.parametrize(
    "given", [{"users": {"me": BROKEN[0]}}, {"users": {BROKEN[0]: "x"}}, {"ssl_key_password": BROKEN[0]}]
)
def test_password_of_an_embedded_cluster_that_does_not_encode_is_refused_without_it(given: dict[str, Any]) -> None:
    assert "UTF-8" in refusal(lambda: Security(**given))


def test_proxy_of_the_environment_that_does_not_encode_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", f"http://me:{BROKEN[0]}@proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ConfigError, match="https_proxy") as caught:
        http_proxy.of_environment("https", "host")
    assert SENTINEL not in shown_by(caught.value)
    found = RegistrySettings(REGISTRY | {"basic.auth.user.info": "a:b"}).struck(f"refused: me:{BROKEN[0]}")
    assert SENTINEL not in found


# ---- secrets in other settings ---------------------------------------------------------------------------------------

URLS = [name for name, field in ProducerConfig.model_fields.items() if "endpoint_url" in name]


@pytest.mark.parametrize("url", ["https://me:{}@host/token", "https://{}@host", "me:{}@host/token", "http://a:{}@[::1"])
@pytest.mark.parametrize("name", URLS)
def test_user_in_the_url_of_an_endpoint_is_refused_and_not_shown(name: str, url: str) -> None:
    assert len(URLS) == 2
    assert refusal(lambda: config(**{name: url.format(SENTINEL)})).startswith(dotted(name))


@pytest.mark.parametrize("name", URLS)
def test_query_of_the_url_of_an_endpoint_is_not_shown(name: str) -> None:
    found = config(**{name: f"https://host/token?client_secret={SENTINEL}"})
    copied = pickle.loads(pickle.dumps(found))
    for each in (found, copied, ProducerConfig(found.given())):
        assert SENTINEL not in repr(each) + repr(each.given())
        assert getattr(each, name) == f"https://host/token?client_secret={SENTINEL}"
        assert "https://host/token?" in repr(each)


@pytest.mark.parametrize(
    "servers",
    [
        f"good:1,SASL_SSL://me:{SENTINEL}@host:9092",
        f"me:{SENTINEL}@host:9092",
        f"Endpoint=sb://ns.windows.net/;SharedAccessKey={SENTINEL}:9093",
        f"SharedAccessKey={SENTINEL}:9093",
        f'username="me" password="{SENTINEL}";',
        [("host", 1), (f"me:{SENTINEL}@host", 9092)],
        [(SENTINEL, "port")],
        [f"'{SENTINEL}'"],
        ("a:1", f"me:{SENTINEL}@b"),
    ],
)
def test_text_in_bootstrap_servers_that_may_have_a_password_is_not_shown(servers: Any) -> None:
    assert refusal(lambda: ProducerConfig(bootstrap_servers=servers)).startswith("bootstrap.servers: ")


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("OAUTHBEARER", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"),
        ("GSSAPI", "com.sun.security.auth.module.Krb5LoginModule"),
        ("AWS_MSK_IAM", "software.amazon.msk.auth.iam.IAMLoginModule"),
    ],
)
@pytest.mark.parametrize("options", ['password="my" {}=x', "password=my {}=x", 'username="a" {}="b"', "tokenauth={}"])
def test_option_of_jaas_that_may_be_a_part_of_a_password_is_not_shown(
    mechanism: str, module: str, options: str
) -> None:
    endpoint = {"sasl_oauthbearer_token_endpoint_url": "https://localhost:1/"} if mechanism == "OAUTHBEARER" else {}
    found = config(
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_jaas_config=f"{module} required {options.format(SENTINEL)};",
        sasl_kerberos_service_name="kafka" if mechanism == "GSSAPI" else None,
        **endpoint,
    )
    with pytest.raises(ConfigError, match=r"sasl\.jaas\.config|password") as caught:
        sasl.mechanism(found, ManualClock(), lambda: 0.5)
    assert SENTINEL not in shown_by(caught.value)


@pytest.mark.parametrize("name", sorted(refused.JAVA_ONLY))
def test_value_of_a_refused_setting_is_not_repeated(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)) as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092", name: "https://u:s3cret-text@host/"})
    assert "s3cret-text" not in str(caught.value)
