"""kafka-python's settings: their defaults, and the settings of kafkabuf that they stand for."""

from __future__ import annotations

import math
import socket
from collections.abc import Collection
from typing import Any

from kafkabuf.compat._names import file_text, with_port
from kafkabuf.config.kinds import INT32_MAX
from kafkabuf.errors import ConfigError

# Under kafka-python's names, with its defaults (version 3).
DEFAULTS: dict[str, Any] = {
    "bootstrap_servers": "localhost",
    "client_id": None,
    "key_serializer": None,
    "value_serializer": None,
    "enable_idempotence": True,
    "transactional_id": None,
    "transaction_timeout_ms": 60_000,
    "delivery_timeout_ms": 120_000,
    "acks": -1,
    "compression_type": None,
    "retries": math.inf,
    "batch_size": 16_384,
    "linger_ms": 0,
    "partitioner": None,
    "buffer_memory": 32 * 1024 * 1024,
    "connections_max_idle_ms": 540_000,
    "max_block_ms": 60_000,
    "max_request_size": 1_048_576,
    "allow_auto_create_topics": True,
    "metadata_max_age_ms": 300_000,
    "client_dns_lookup": "use_all_dns_ips",
    "retry_backoff_ms": 100,
    "request_timeout_ms": 30_000,
    "receive_message_max_bytes": 100_000_000,
    "receive_buffer_bytes": None,
    "send_buffer_bytes": None,
    "socket_options": [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 30_000,
    "max_in_flight_requests_per_connection": 5,
    "security_protocol": "PLAINTEXT",
    "ssl_context": None,
    "ssl_check_hostname": True,
    "ssl_cafile": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_crlfile": None,
    "ssl_password": None,
    "ssl_ciphers": None,
    "api_version": None,
    "api_version_auto_timeout_ms": 2000,
    "bootstrap_timeout_ms": 30_000,
    "metric_reporters": [],
    "metrics_enabled": True,
    "metrics_num_samples": 2,
    "metrics_sample_window_ms": 30_000,
    "selector": None,
    "sasl_mechanism": None,
    "sasl_plain_username": None,
    "sasl_plain_password": None,
    "sasl_kerberos_name": None,
    "sasl_kerberos_service_name": "kafka",
    "sasl_kerberos_domain_name": None,
    "sasl_oauth_token_provider": None,
    "proxy_url": None,
    "socks5_proxy": None,
    "kafka_client": None,
}
# These have the same name and meaning in kafkabuf; None means kafkabuf's default.
_SAME = (
    "client_id key_serializer value_serializer transactional_id transaction_timeout_ms delivery_timeout_ms acks "
    "batch_size linger_ms buffer_memory connections_max_idle_ms max_block_ms max_request_size metadata_max_age_ms "
    "client_dns_lookup retry_backoff_ms request_timeout_ms reconnect_backoff_ms reconnect_backoff_max_ms "
    "max_in_flight_requests_per_connection security_protocol metrics_num_samples metrics_sample_window_ms "
    "sasl_mechanism"
).split()
# These have the same meaning in kafkabuf, under another name.
_RENAMED = {
    "ssl_cafile": "ssl_truststore_location",
    "ssl_password": "ssl_key_password",
    "sasl_plain_username": "sasl_username",
    "sasl_plain_password": "sasl_password",
}
# A value that changes something: the reason for which kafkabuf refuses it.
_REFUSED = {
    "allow_auto_create_topics": "kafkabuf always asks for a topic in the way that lets brokers create it: switch "
    "auto.create.topics.enable off on the brokers",
    "ssl_crlfile": "give an ssl_context that has loaded the list (verify_flags VERIFY_CRL_CHECK_LEAF)",
    "ssl_ciphers": "give an ssl_context on which set_ciphers() was called",
    "metric_reporters": "read producer.metrics(), or use kafkabuf.prometheus or kafkabuf.opentelemetry",
    "sasl_kerberos_name": "kafkabuf does not support Kerberos: use PLAIN, SCRAM or OAUTHBEARER, or TLS certificates",
    "sasl_kerberos_domain_name": "kafkabuf does not support Kerberos",
    "proxy_url": "kafkabuf connects to brokers without a proxy",
    "socks5_proxy": "kafkabuf connects to brokers without a proxy",
    "kafka_client": "kafkabuf has a network client of its own",
}


def settings_of(config: dict[str, Any], given: Collection[str]) -> tuple[dict[str, Any], Any]:
    """kafkabuf's settings for a complete configuration of kafka-python, and the user's own partitioner or None.

    `given` are the names that the user gave. Raises ConfigError.
    """
    _check(config, given)
    own = {name: config[name] for name in _SAME if config[name] is not None}
    own |= {new: config[name] for name, new in _RENAMED.items() if config[name] is not None}
    own["bootstrap_servers"] = with_port(config["bootstrap_servers"])
    own["compression_type"] = config["compression_type"] or "none"
    own["retries"] = INT32_MAX if config["retries"] == math.inf else config["retries"]
    for name in ("send_buffer_bytes", "receive_buffer_bytes"):
        own[name] = -1 if config[name] is None else config[name]
    own |= _idempotence(config, given)
    own |= _security(config)
    if "request_timeout_ms" not in given:  # Java's rule, which kafka-python does not have
        longest = config["delivery_timeout_ms"] - config["linger_ms"]
        own["request_timeout_ms"] = max(min(config["request_timeout_ms"], longest), 1)
    if config["ssl_context"] is not None:  # it takes the place of all other ssl_* settings
        own = {name: value for name, value in own.items() if not name.startswith("ssl_")}
    partitioner = _partitioner_in(config)
    if partitioner is not None:  # the face calls the serializers, because the partitioner sees what they return
        own.pop("key_serializer", None)
        own.pop("value_serializer", None)
    return own, partitioner


def _check(config: dict[str, Any], given: Collection[str]) -> None:
    if unknown := sorted(config.keys() - DEFAULTS.keys()):
        raise ConfigError(f"kafka-python's KafkaProducer has no setting {', '.join(unknown)}")
    for name, reason in _REFUSED.items():
        if name in given and config[name] not in (DEFAULTS[name], None):
            raise ConfigError(f"{name}: {reason}")


def _idempotence(config: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """As in kafka-python, settings that contradict the default switch idempotence off; an explicit wish does not."""
    if "enable_idempotence" in given:
        return {"enable_idempotence": config["enable_idempotence"]}
    # kafkabuf itself switches it off for acks and retries.
    too_many = config["max_in_flight_requests_per_connection"] > 5
    return {"enable_idempotence": False} if too_many and config["transactional_id"] is None else {}


def _security(config: dict[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if not config["ssl_check_hostname"]:
        own["ssl_endpoint_identification_algorithm"] = ""
    if config["ssl_certfile"] is not None:
        own["ssl_keystore_certificate_chain"] = chain = file_text("ssl_certfile", config["ssl_certfile"])
        # The file of the certificate may hold the key, too.
        keyfile = config["ssl_keyfile"]
        own["ssl_keystore_key"] = chain if keyfile is None else file_text("ssl_keyfile", keyfile)
    provider = config["sasl_oauth_token_provider"]
    if provider is not None:
        own["sasl_oauthbearer_token_provider"] = provider.token
    return own


def _partitioner_in(config: dict[str, Any]) -> Any:
    """The user's own partitioner. kafka-python's default has murmur2 too, which needs no call from here."""
    partitioner = config["partitioner"]
    module = getattr(type(partitioner), "__module__", "")
    return None if partitioner is None or module.startswith("kafka.partitioner") else partitioner
