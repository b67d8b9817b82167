"""Settings that depend on each other: defaults that follow the given settings, contradictions, and warnings.

For settings that Java's producer has, the rules are those of Java's ProducerConfig.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.config.kinds import dotted
from kafkabuf.config.settings import ProducerSettings
from kafkabuf.errors import ConfigError
from kafkabuf.process.producer_log import log_as, producer_log

log = producer_log("kafkabuf.config")

# The first setting of each pair should not exceed the second.
_FIRST_AND_LONGEST = (
    ("retry_backoff_ms", "retry_backoff_max_ms"),
    ("reconnect_backoff_ms", "reconnect_backoff_max_ms"),
    ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"),
    ("sasl_login_retry_backoff_ms", "sasl_login_retry_backoff_max_ms"),
)
_OF_THE_FILE = ("buffer_sync", "buffer_expire", "buffer_full", "buffer_unproven")
# A broker remembers the sequence numbers of this many batches for each producer and partition.
MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5


def dependent_defaults(settings: ProducerSettings) -> dict[str, Any]:
    """The fields that the user did not set and whose default depends on the fields that the user set."""
    given, defaults = settings.model_fields_set, dict[str, Any]()
    if "delivery_timeout_ms" not in given:
        needed = settings.linger_ms + settings.request_timeout_ms
        defaults["delivery_timeout_ms"] = max(needed, settings.delivery_timeout_ms)
    if "reconnect_backoff_ms" in given and "reconnect_backoff_max_ms" not in given:
        defaults["reconnect_backoff_max_ms"] = settings.reconnect_backoff_ms
    if "enable_idempotence" not in given:
        possible = settings.retries > 0 and settings.acks == -1 and settings.record_magic != 1
        defaults["enable_idempotence"] = settings.enable_idempotence and possible
    return defaults


def check(settings: ProducerSettings) -> None:
    """Raises ConfigError for settings that contradict one another."""
    _check_idempotence(settings)
    _check_transactions(settings)
    _check_delivery(settings)
    _check_idle(settings)
    _check_file(settings)
    _check_keys(settings)
    if settings.security_protocol.startswith("SASL_"):
        _check_sasl(settings)


def warn(settings: ProducerSettings) -> None:
    """Log settings that are allowed but probably a mistake. It logs names only, since a value may be a secret."""
    with log_as(settings.client_id):
        _warn(settings)


def _warn(settings: ProducerSettings) -> None:
    for name, longest in _FIRST_AND_LONGEST:
        if getattr(settings, name) > getattr(settings, longest):
            log.warning("%s is above %s: the producer always uses %s", dotted(name), dotted(longest), dotted(longest))
    for prefix, protocols in (("ssl_", ("SSL", "SASL_SSL")), ("sasl_", ("SASL_PLAINTEXT", "SASL_SSL"))):
        unused = sorted(dotted(name) for name in settings.model_fields_set if name.startswith(prefix))
        if unused and settings.security_protocol not in protocols:
            log.warning(
                "security.protocol is %s: these settings have no effect: %s",
                settings.security_protocol,
                ", ".join(unused),
            )
    if settings.partitioner_rack_aware and not settings.client_rack:
        log.warning("partitioner.rack.aware has no effect without client.rack: set it to the zone of this client")


def _check_idle(settings: ProducerSettings) -> None:
    if settings.connections_max_idle_ms == 0:
        raise ConfigError(
            "connections.max.idle.ms is 0, which would close every connection at once: raise it, or set it to -1 to "
            "keep idle connections for ever"
        )


def _check_file(settings: ProducerSettings) -> None:
    defaults = vars(ProducerSettings)
    changed = [name for name in _OF_THE_FILE if getattr(settings, name) != defaults[name].default]
    if settings.buffer_path is None and changed:
        raise ConfigError(f"{dotted(changed[0])} is about the file of kafkabuf.buffer.path, which is missing: name it")
    if settings.buffer_path is not None and settings.acks == 0:
        raise ConfigError(
            "kafkabuf.buffer.path needs acks of 1 or all, found 0: without a response nobody knows whether a record of "
            "the file was delivered"
        )
    if settings.buffer_path is not None and settings.retries == 0:
        raise ConfigError(
            "kafkabuf.buffer.path needs retries of 1 or more, found 0: a record of the file goes again until the "
            "cluster has it"
        )


def _check_idempotence(settings: ProducerSettings) -> None:
    if not settings.enable_idempotence:
        return
    needed, in_flight = None, settings.max_in_flight_requests_per_connection
    if settings.acks != -1:
        needed = f"acks=all, found {settings.acks}"
    elif settings.retries == 0:
        needed = "retries above 0, found 0"
    elif in_flight > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
        needed = f"max.in.flight.requests.per.connection of at most {MAX_IN_FLIGHT_WITH_IDEMPOTENCE}, found {in_flight}"
    elif settings.record_magic == 1:
        needed = "record.magic 2 (or auto), found 1: that format has no sequence numbers"
    if needed is not None:
        raise ConfigError(f"enable.idempotence needs {needed}; or set enable.idempotence to false")


def _check_transactions(settings: ProducerSettings) -> None:
    if settings.transactional_id is not None and not settings.enable_idempotence:
        raise ConfigError(
            "transactional.id needs enable.idempotence: leave out enable.idempotence=false, retries=0 and acks other "
            "than all"
        )
    if settings.transaction_two_phase_commit_enable and "transaction_timeout_ms" in settings.model_fields_set:
        raise ConfigError(
            "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable=true, because such "
            "transactions never expire: leave one of the two settings out"
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
        raise ConfigError("compression.type=zstd needs record.magic 2, found 1: brokers refuse zstd in that format")


def _check_keys(settings: ProducerSettings) -> None:
    """The checks of Java's DefaultSslEngineFactory."""
    chain, key = settings.ssl_keystore_certificate_chain, settings.ssl_keystore_key
    if (chain is None) != (key is None):
        raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain: both are needed: give both, or neither")
    if key is not None and settings.ssl_keystore_location is not None:
        raise ConfigError("ssl.keystore.location and ssl.keystore.key both give a private key: leave one out")
    if settings.ssl_truststore_certificates is not None and settings.ssl_truststore_location is not None:
        raise ConfigError(
            "ssl.truststore.location and ssl.truststore.certificates both give the trusted CAs: leave one out"
        )
    for store in ("truststore", "keystore"):
        has_password = getattr(settings, f"ssl_{store}_password") is not None
        if has_password and getattr(settings, f"ssl_{store}_location") is None:
            raise ConfigError(f"ssl.{store}.password is set, but ssl.{store}.location is not: name the file, too")


def _check_sasl(settings: ProducerSettings) -> None:
    has_user = settings.sasl_username is not None or settings.sasl_password is not None
    if settings.sasl_mechanism == "GSSAPI":
        _check_kerberos(settings, has_user)
    _check_handlers(settings)
    if settings.sasl_jaas_config is not None and has_user:
        raise ConfigError(
            "sasl.jaas.config and sasl.username with sasl.password both give a user: leave one of them out"
        )
    if settings.signs_for_msk or settings.sasl_mechanism == "GSSAPI":
        return
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


def _check_kerberos(settings: ProducerSettings, has_user: bool) -> None:
    """GSSAPI is the default: most who have it without a service name have forgotten sasl.mechanism."""
    if has_user or (settings.sasl_kerberos_service_name is None and settings.sasl_jaas_config is None):
        raise ConfigError(
            "sasl.mechanism is GSSAPI (Kerberos), Kafka's default, which needs sasl.kerberos.service.name, most often "
            "kafka, and takes no sasl.username and sasl.password: set both right, or set sasl.mechanism to PLAIN, "
            "SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"
        )


def _check_handlers(settings: ProducerSettings) -> None:
    for kind, mechanism in (("client", "AWS_MSK_IAM"), ("login", "OAUTHBEARER")):
        handler = getattr(settings, f"sasl_{kind}_callback_handler_class")
        if handler is not None and settings.sasl_mechanism != mechanism:
            raise ConfigError(
                f"sasl.{kind}.callback.handler.class={handler} goes with sasl.mechanism={mechanism}, found "
                f"{settings.sasl_mechanism}: correct one of the two"
            )
    token_sources = settings.sasl_oauthbearer_token_provider, settings.sasl_oauthbearer_token_endpoint_url
    if settings.signs_for_msk and any(token_sources):
        raise ConfigError("AWS's signer gives the tokens for MSK: leave out the token provider and the token endpoint")
