"""kafka-python's settings: their defaults, and the settings of kafkabuf that they stand for."""

from __future__ import annotations

import math
import selectors  # a name of its DefaultSelector is compared, and none is made  # noqa: TID251
import socket
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafkabuf.compat.shared.file import OF_THE_FILE
from kafkabuf.compat.shared.names import as_number, file_text, in_whole_ms, with_port
from kafkabuf.config.kinds import INT32_MAX
from kafkabuf.errors import ConfigError

if TYPE_CHECKING:
    import ssl

# Under kafka-python's names, with the defaults of its version 3; the last four are of version 2. Without effect are
# receive_message_max_bytes, bounds on responses in place of which kafkabuf has its own, and
# api_version_auto_timeout_ms, sock_chunk_bytes and sock_chunk_buffer_count, for which kafkabuf has no use.
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
    "bootstrap_timeout_ms": 30_000,
    "metric_reporters": [],
    "metrics_enabled": True,
    "metrics_num_samples": 2,
    "metrics_sample_window_ms": 30_000,
    "selector": selectors.DefaultSelector,
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
    "buffer_memory": 32 * 1024 * 1024,
    "api_version_auto_timeout_ms": 2000,
    "sock_chunk_bytes": 4096,
    "sock_chunk_buffer_count": 1000,
}
# These have the same name and meaning in kafkabuf; None means kafkabuf's default.
_SAME = (
    "client_id transactional_id transaction_timeout_ms delivery_timeout_ms acks "
    "batch_size linger_ms buffer_memory connections_max_idle_ms max_block_ms max_request_size metadata_max_age_ms "
    "client_dns_lookup retry_backoff_ms reconnect_backoff_ms reconnect_backoff_max_ms "
    "max_in_flight_requests_per_connection security_protocol metrics_num_samples metrics_sample_window_ms"
).split()
# A value other than the default changes something: the reason for which kafkabuf refuses it.
_REFUSED = {
    "allow_auto_create_topics": "kafkabuf always asks for a topic in the way that lets brokers create it: switch "
    "auto.create.topics.enable off on the brokers",
    "ssl_crlfile": "give an ssl_context that has loaded the list (verify_flags VERIFY_CRL_CHECK_LEAF)",
    "ssl_ciphers": "give an ssl_context on which set_ciphers() was called",
    "metric_reporters": "read producer.metrics(), or use kafkabuf.prometheus or kafkabuf.opentelemetry",
    "sasl_kerberos_name": "give sasl_kerberos_service_name: a broker's own host and its realm go with it",
    "sasl_kerberos_domain_name": "kafkabuf takes a broker's own host for its principal: leave it out",
    "proxy_url": "kafkabuf connects to brokers without a proxy",
    "socks5_proxy": "kafkabuf connects to brokers without a proxy",
    "kafka_client": "kafkabuf has a network client of its own",
    "selector": "kafkabuf polls its sockets itself",
    "socket_options": "kafkabuf always sets TCP_NODELAY and SO_KEEPALIVE, and sets no other options: "
    "send_buffer_bytes and receive_buffer_bytes give the sizes of a socket's buffers",
}
_USUAL_OPTIONS = {(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)}


def complete(configs: Mapping[str, Any]) -> dict[str, Any]:
    """A complete configuration of kafka-python. Raises ConfigError for names that kafka-python does not have.

    The settings of a file, which are kafkabuf's, are in it if they are given. None means the default. `acks` and
    `api_version` have kafka-python's form.
    """
    if unknown := configs.keys() - DEFAULTS.keys() - set(OF_THE_FILE):
        names = ", ".join(sorted(unknown))
        raise ConfigError(f"Unrecognized configs: kafka-python's KafkaProducer has no setting {names}")
    config = DEFAULTS | {name: value for name, value in configs.items() if value is not None}
    for name in ("security_protocol", "sasl_mechanism"):  # kafkabuf takes both in any case
        if isinstance(config[name], str):
            config[name] = config[name].upper()
    version = config["api_version"]
    if isinstance(version, str):
        config["api_version"] = None if version == "auto" else tuple(map(int, version.split(".")))
    return config


def settings_of(config: dict[str, Any], configs: Mapping[str, Any]) -> dict[str, Any]:
    """kafkabuf's settings for a complete configuration of kafka-python. The user gave `configs`. Raises ConfigError."""
    given = {name for name, value in configs.items() if value is not None}
    _refuse(config, given)
    config = in_whole_ms(config)
    own = {name: config[name] for name in (*_SAME, *OF_THE_FILE) if name in config}
    own["bootstrap_servers"] = with_port(config["bootstrap_servers"])
    own["compression_type"] = config["compression_type"] or "none"
    own["retries"] = INT32_MAX if config["retries"] == math.inf else config["retries"]
    for name in ("send_buffer_bytes", "receive_buffer_bytes"):
        own[name] = -1 if config[name] is None else config[name]
    # In kafka-python, too, a request ends with the time of its records. Java and kafkabuf refuse to be given more.
    own["request_timeout_ms"] = min(config["request_timeout_ms"], config["delivery_timeout_ms"] - config["linger_ms"])
    own |= _idempotence(config, given)
    if _is_secured(config) and config["ssl_context"] is None:
        own |= _tls(config)
    if config["security_protocol"] in ("SASL_PLAINTEXT", "SASL_SSL"):
        own |= _sasl(config)
    if partitioner_in(config) is None:  # else the face calls the serializers: the partitioner sees what they return
        own |= {name: config[name] for name in ("key_serializer", "value_serializer")}
    return own


def _refuse(config: dict[str, Any], given: Collection[str]) -> None:
    for name, reason in _REFUSED.items():
        if name in given and config[name] != DEFAULTS[name] and not _has_usual_options(name, config[name]):
            raise ConfigError(f"{name}: {reason}")


def _has_usual_options(name: str, value: Any) -> bool:
    return name == "socket_options" and {tuple(option) for option in value} <= _USUAL_OPTIONS


def _idempotence(config: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """As in kafka-python, settings that contradict the default switch idempotence off; an explicit wish does not."""
    if "enable_idempotence" in given:
        return {"enable_idempotence": config["enable_idempotence"]}
    # kafkabuf itself switches it off for acks and retries.
    name = "max_in_flight_requests_per_connection"
    too_many = as_number(name, config[name]) > 5
    return {"enable_idempotence": False} if too_many and config["transactional_id"] is None else {}


def _is_secured(config: dict[str, Any]) -> bool:
    return config["security_protocol"] in ("SSL", "SASL_SSL")


def ssl_context_in(config: dict[str, Any]) -> ssl.SSLContext | None:
    """The user's SSLContext; kafka-python ignores it where no TLS is in use."""
    return config["ssl_context"] if _is_secured(config) else None


def _tls(config: dict[str, Any]) -> dict[str, Any]:
    own = {"ssl_truststore_location": config["ssl_cafile"], "ssl_key_password": config["ssl_password"]}
    if not config["ssl_check_hostname"]:
        own["ssl_endpoint_identification_algorithm"] = ""
    if config["ssl_certfile"] is not None:
        own["ssl_keystore_certificate_chain"] = chain = file_text("ssl_certfile", config["ssl_certfile"])
        # The file of the certificate may hold the key, too.
        keyfile = config["ssl_keyfile"]
        own["ssl_keystore_key"] = chain if keyfile is None else file_text("ssl_keyfile", keyfile)
    return own


def _sasl(config: dict[str, Any]) -> dict[str, Any]:
    own = {"sasl_mechanism": config["sasl_mechanism"]}
    own |= {name: config[f"sasl_plain_{name.removeprefix('sasl_')}"] for name in ("sasl_username", "sasl_password")}
    if config["sasl_mechanism"] == "GSSAPI":
        own["sasl_kerberos_service_name"] = config["sasl_kerberos_service_name"]
    provider = config["sasl_oauth_token_provider"]
    if provider is not None:
        extensions = getattr(provider, "extensions", dict)
        own["sasl_oauthbearer_token_provider"] = lambda: (provider.token(), None, extensions() or {})
    return own


def partitioner_in(config: dict[str, Any]) -> Any:
    """The user's own partitioner. kafka-python's default has murmur2 too, which needs no call from here."""
    partitioner = config["partitioner"]
    module = getattr(type(partitioner), "__module__", "")
    return None if partitioner is None or module.startswith("kafka.partitioner") else partitioner
