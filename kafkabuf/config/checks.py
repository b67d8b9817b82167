"""Settings that go together: defaults that give way to what was given, contradictions, and warnings.

As Java's ProducerConfig does it, where it has the setting.
"""

from __future__ import annotations

import logging
from typing import Any

from kafkabuf.config.settings import ProducerSettings
from kafkabuf.config.values import dotted
from kafkabuf.errors import ConfigError

log = logging.getLogger("kafkabuf.config")

_PAUSES = (
    ("retry_backoff_ms", "retry_backoff_max_ms"),
    ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
    ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
    ("sasl_login_retry_backoff_ms", "sasl_login_retry_backoff_max_ms"),
)
# Of so many batches of a partition brokers remember the numbers.
MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5


def dependent_defaults(settings: ProducerSettings) -> dict[str, Any]:
    """The fields that the user did not set and whose default depends on the fields that the user set."""
    given, found = settings.model_fields_set, dict[str, Any]()
    if "delivery_timeout_ms" not in given:
        needed = settings.linger_ms + settings.request_timeout_ms
        found["delivery_timeout_ms"] = max(needed, settings.delivery_timeout_ms)
    if "reconnect_backoff_ms" in given and "reconnect_backoff_max_ms" not in given:
        found["reconnect_backoff_max_ms"] = settings.reconnect_backoff_ms
    if "enable_idempotence" not in given:
        possible = settings.retries > 0 and settings.acks == -1 and settings.record_magic != 1
        found["enable_idempotence"] = settings.enable_idempotence and possible
    return found


def check(settings: ProducerSettings) -> None:
    """Raises ConfigError for settings that contradict one another."""
    _check_idempotence(settings)
    _check_transactions(settings)
    _check_delivery(settings)
    _check_idle(settings)
    _check_keys(settings)
    if settings.security_protocol.startswith("SASL_"):
        _check_sasl(settings)


def warn(settings: ProducerSettings) -> None:
    """Logs what is allowed and hardly meant. Names alone: a value may be a secret."""
    for name, longest in _PAUSES:
        if getattr(settings, name) > getattr(settings, longest):
            log.warning("%s is above %s, which is what holds, without growing", dotted(name), dotted(longest))
    for prefix, protocols in (("ssl_", ("SSL", "SASL_SSL")), ("sasl_", ("SASL_PLAINTEXT", "SASL_SSL"))):
        unused = sorted(dotted(name) for name in settings.model_fields_set if name.startswith(prefix))
        if unused and settings.security_protocol not in protocols:
            log.warning("security.protocol is %s: %s without effect", settings.security_protocol, ", ".join(unused))


def _check_idle(settings: ProducerSettings) -> None:
    if settings.connections_max_idle_ms == 0:
        raise ConfigError("connections.max.idle.ms is 0, and no connection would last: -1 keeps idle ones for ever")


def _check_idempotence(settings: ProducerSettings) -> None:
    if not settings.enable_idempotence:
        return
    wrong, in_flight = None, settings.max_in_flight_requests_per_connection
    if settings.acks != -1:
        wrong = f"acks=all, found {settings.acks}"
    elif settings.retries == 0:
        wrong = "retries above 0"
    elif in_flight > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
        wrong = f"max.in.flight.requests.per.connection of at most {MAX_IN_FLIGHT_WITH_IDEMPOTENCE}, found {in_flight}"
    elif settings.record_magic == 1:
        wrong = "record.magic 2 (or auto): the older format has no numbers"
    if wrong is not None:
        raise ConfigError(f"enable.idempotence needs {wrong}; set it to false to do without")


def _check_transactions(settings: ProducerSettings) -> None:
    if settings.transactional_id is not None and not settings.enable_idempotence:
        raise ConfigError(
            "transactional.id needs idempotence: leave out enable.idempotence, and with it retries=0 and acks below all"
        )
    if settings.transaction_two_phase_commit_enable and "transaction_timeout_ms" in settings.model_fields_set:
        raise ConfigError(
            "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable=true, whose transactions "
            "never expire: leave one of them out"
        )


def _check_delivery(settings: ProducerSettings) -> None:
    if settings.delivery_timeout_ms < settings.linger_ms + settings.request_timeout_ms:
        raise ConfigError(
            f"delivery.timeout.ms ({settings.delivery_timeout_ms}) must be at least linger.ms ({settings.linger_ms}) "
            f"+ request.timeout.ms ({settings.request_timeout_ms})"
        )
    if settings.compression_gzip_level == 0:
        raise ConfigError("compression.gzip.level is 1 to 9, or -1 for gzip's own default; found 0")
    if settings.compression_type == "zstd" and settings.record_magic == 1:
        raise ConfigError("compression.type=zstd needs record.magic 2: brokers take no zstd in the older format")


def _check_keys(settings: ProducerSettings) -> None:
    """As Java's DefaultSslEngineFactory."""
    chain, key = settings.ssl_keystore_certificate_chain, settings.ssl_keystore_key
    if (chain is None) != (key is None):
        raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain: both are needed, or neither")
    if key is not None and settings.ssl_keystore_location is not None:
        raise ConfigError("ssl.keystore.location and ssl.keystore.key both give a private key: leave one out")
    if settings.ssl_truststore_certificates is not None and settings.ssl_truststore_location is not None:
        raise ConfigError(
            "ssl.truststore.location and ssl.truststore.certificates both give the trusted CAs: leave one out"
        )


def _check_sasl(settings: ProducerSettings) -> None:
    named = settings.sasl_username is not None or settings.sasl_password is not None
    if settings.sasl_mechanism == "GSSAPI":
        raise ConfigError(
            "sasl.mechanism is GSSAPI (Kerberos) unless it is given, which is not supported: use PLAIN, SCRAM-SHA-256, "
            "SCRAM-SHA-512 or OAUTHBEARER"
        )
    if settings.sasl_jaas_config is not None and named:
        raise ConfigError("sasl.jaas.config and sasl.username, sasl.password both give a user: leave one out")
    if settings.sasl_mechanism == "OAUTHBEARER":
        if settings.sasl_oauthbearer_token_provider is None and settings.sasl_oauthbearer_token_endpoint_url is None:
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url, or a callable that returns a "
                "token as sasl_oauthbearer_token_provider"
            )
    elif settings.sasl_jaas_config is None and (settings.sasl_username is None or settings.sasl_password is None):
        raise ConfigError(
            f"sasl.mechanism={settings.sasl_mechanism} needs sasl_username and sasl_password, or a sasl.jaas.config"
        )
