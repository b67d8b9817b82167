"""librdkafka's settings, and the settings of kafkabuf that they stand for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from kafkabuf._partition import KEY_RULES
from kafkabuf.compat.shared.file import OF_THE_FILE
from kafkabuf.compat.shared.names import file_text, with_port
from kafkabuf.config.kinds import INT32_MAX
from kafkabuf.errors import ConfigError

DEFAULT_PARTITIONER = "consistent_random"
# librdkafka's default of 1,000,000 bytes leaves the caches of most CPUs.
BATCH_SIZE = 128 * 1024
# A name that no server resolves (RFC 2606): librdkafka's producer may be opened without bootstrap.servers.
NO_SERVERS = "bootstrap-servers-not-set.invalid:9092"

# librdkafka's names that are kafkabuf's too, with the same meaning of the values.
_OF_BOTH = (
    "client.id acks retries retry.backoff.ms retry.backoff.max.ms max.in.flight.requests.per.connection "
    "compression.type batch.size transactional.id transaction.timeout.ms reconnect.backoff.ms "
    "reconnect.backoff.max.ms socket.connection.setup.timeout.ms client.dns.lookup metadata.recovery.strategy "
    "metadata.recovery.rebootstrap.trigger.ms security.protocol ssl.key.password ssl.keystore.location "
    "ssl.keystore.password sasl.mechanism sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin "
    "sasl.kerberos.principal sasl.kerberos.service.name sasl.username sasl.password "
    "sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.client.credentials.client.id "
    "sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.scope sasl.oauthbearer.assertion.algorithm "
    "sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file "
    "sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.claim.aud "
    "sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss "
    "sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub"
).split()
# By librdkafka's names: kafkabuf's. Values have the same meaning.
_SAME = {name: name.replace(".", "_") for name in _OF_BOTH} | {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "max.in.flight": "max_in_flight_requests_per_connection",
    "compression.codec": "compression_type",
    "message.max.bytes": "max_request_size",
    "ssl.ca.location": "ssl_truststore_location",
    "ssl.ca.pem": "ssl_truststore_certificates",
    "ssl.key.pem": "ssl_keystore_key",
    "ssl.certificate.pem": "ssl_keystore_certificate_chain",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.oauthbearer.client.id": "sasl_oauthbearer_client_credentials_client_id",
    "sasl.oauthbearer.client.secret": "sasl_oauthbearer_client_credentials_client_secret",
    "sasl.oauthbearer.assertion.jwt.template.file": "sasl_oauthbearer_assertion_template_file",
}
# kafkabuf's own, which librdkafka has not.
_OWN = {f"kafkabuf.{name.replace('_', '.')}": name for name in OF_THE_FILE}
# The same for flags, which librdkafka reads from more words than Java does.
_FLAGS = {
    "enable.idempotence": "enable_idempotence",
    "enable.metrics.push": "enable_metrics_push",
    "sasl.oauthbearer.assertion.claim.jti.include": "sasl_oauthbearer_assertion_claim_jti_include",
}
_GRANT = "sasl.oauthbearer.grant.type"
# librdkafka's grant types, and Java's classes for them.
_GRANTS = {
    "client_credentials": None,
    "urn:ietf:params:oauth:grant-type:jwt-bearer": (
        "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
    ),
}
_FILES = {"ssl.certificate.location": "ssl_keystore_certificate_chain", "ssl.key.location": "ssl_keystore_key"}
# 0 means the system's size, kafkabuf's -1.
_BUFFERS = {"socket.send.buffer.bytes": "send_buffer_bytes", "socket.receive.buffer.bytes": "receive_buffer_bytes"}
_KERBEROS = (None, "GSSAPI", "gssapi")  # librdkafka's default too
# They tune parts of librdkafka that kafkabuf does not have. They change no guarantee.
_NO_EFFECT = frozenset(
    "api.version.fallback.ms api.version.request api.version.request.timeout.ms batch.num.messages "
    "broker.address.ttl broker.version.fallback builtin.features client.software.name client.software.version debug "
    "enable.random.seed enable.sasl.oauthbearer.unsecure.jwt enable.sparse.connections internal.termination.signal "
    "log.connection.close log.queue log.thread.name log_level "
    "message.copy.max.bytes metadata.max.age.ms metadata.request.timeout.ms produce.offset.report "
    "queue.buffering.backpressure.threshold receive.message.max.bytes reconnect.backoff.jitter.ms "
    "request.timeout.ms sasl.kerberos.kinit.cmd sasl.oauthbearer.method sasl.oauthbearer.sub.claim.name "
    "socket.blocking.max.ms socket.keepalive.enable socket.max.fails socket.nagle.disable "
    "sticky.partitioning.linger.ms topic.blacklist topic.metadata.refresh.fast.cnt "
    "topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.sparse".split()
)
# Settings of consumers: librdkafka's producer accepts them, and warns.
_CONSUMERS = frozenset(
    "allow.auto.create.topics auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs client.rack "
    "consume.callback.max.messages "
    "consume_cb coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof "
    "fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms "
    "fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor "
    "heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records "
    "offset.store.method "
    "offset.store.path offset.store.sync.interval.ms offset_commit_cb partition.assignment.strategy "
    "queued.max.messages.kbytes queued.min.messages rebalance_cb session.timeout.ms "
    "share.acknowledgement.mode".split()
)
_OPENSSL = "kafkabuf uses the OpenSSL of Python's ssl module, with its defaults"
_ENDPOINT = "kafkabuf trusts the system's CAs at the token endpoint: add the CA there, or get the token in oauth_cb"
_IGNORED = "Configuration property {} is a consumer property and will be ignored by this producer instance"
# A value that changes something, and why kafkabuf refuses it.
_REFUSED = {
    "broker.address.family": ("any", "kafkabuf tries the addresses of both families"),
    "enable.ssl.certificate.verification": (True, "kafkabuf always checks the broker's certificate: trust its CA with "
                                            "ssl.ca.location"),
    "enable.gapless.guarantee": (False, "kafkabuf has no such guarantee"),
    "https.ca.location": ("", _ENDPOINT),
    "https.ca.pem": ("", _ENDPOINT),
    "plugin.library.paths": ("", "kafkabuf loads no plugins of librdkafka"),
    "sasl.oauthbearer.assertion.private.key.pem": ("", "kafkabuf reads the key from a file: name it with "
                                                   "sasl.oauthbearer.assertion.private.key.file"),
    "sasl.oauthbearer.extensions": ("", "give the extensions with the token, as the fourth item of what oauth_cb "
                                    "returns"),
    "sasl.oauthbearer.metadata.authentication.type": ("none", "kafkabuf asks no metadata service of a cloud: give "
                                                      "oauth_cb"),
    "ssl.ca.certificate.stores": ("Root", "they are a store of Windows: trust a CA with ssl.ca.location"),
    "ssl.crl.location": ("", "kafkabuf reads no revocation lists"),
    "ssl.curves.list": ("", _OPENSSL),
    "ssl.engine.id": ("", _OPENSSL),
    "ssl.engine.location": ("", _OPENSSL),
    "ssl.providers": ("", _OPENSSL),
    "ssl.sigalgs.list": ("", _OPENSSL),
    "test.mock.broker.rtt": ("0", "kafkabuf.broker.EmbeddedCluster is a cluster for tests"),
    "test.mock.num.brokers": ("0", "kafkabuf.broker.EmbeddedCluster is a cluster for tests"),
    "queuing.strategy": ("fifo", "kafkabuf sends records in their order"),
}  # fmt: skip
# Names that librdkafka does not take from a Python program, and what has their meaning there.
_INSTEAD = {
    "dr_msg_cb": "on_delivery",
    "oauthbearer_token_refresh_cb": "oauth_cb",
    "partitioner_cb": "partitioner, or an argument of produce()",
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.password": "ssl.ca.location with a PEM file, which has no password",
}
# Advice that does not fit librdkafka's settings, and what does.
_PHRASES = {
    "identification.algorithm to an empty string": "identification.algorithm to none",
    ", or a sasl.jaas.config": "",
    "a callable that returns a token as oauth_cb": "oauth_cb",
}
# The peer's error for a value that is not callable.
_CALLBACKS: dict[str, type[Exception]] = {
    "on_delivery": ConfigError,
    "dr_cb": ConfigError,
    "error_cb": TypeError,
    "stats_cb": TypeError,
    "throttle_cb": ValueError,
    "oauth_cb": TypeError,
    "log_cb": TypeError,
}


class Translated(NamedTuple):
    """Settings of the face itself, and `own`, those of the kafkabuf producer below it. Times are in seconds."""

    own: dict[str, Any]
    on_delivery: Callable[..., object] | None
    error_cb: Callable[[Any], object] | None
    stats_cb: Callable[[str], object] | None
    throttle_cb: Callable[[Any], object] | None
    stats_interval: float
    """statistics.interval.ms; 0: never."""
    logger: Any
    """None, or an object with a method log(level, format, *arguments)."""
    only_errors: bool
    max_messages: int
    propagation: float
    """topic.metadata.propagation.max.ms."""
    warnings: list[str]


def translated(config: Mapping[str, Any]) -> Translated:
    """kafkabuf's settings for those of a confluent-kafka producer; None means the default.

    Raises ConfigError; for a callback that is not callable TypeError or ValueError, as confluent-kafka does.
    """
    rest = dict(config) | (config.get("default.topic.config") or {})
    rest = {name: value for name, value in rest.items() if value is not None and name != "default.topic.config"}
    own = _own_settings(rest)
    callbacks = {name: _callback(name, rest.pop(name, None)) for name in _CALLBACKS}
    warnings = [_IGNORED.format(name) for name in sorted(_CONSUMERS & rest.keys()) if rest.pop(name) is not None]
    argument = rest.pop("sasl.oauthbearer.config", "")
    if callbacks["oauth_cb"] is not None:
        own["sasl_oauthbearer_token_provider"] = _provider(callbacks["oauth_cb"], argument)
    result = Translated(
        own,
        callbacks["on_delivery"] or callbacks["dr_cb"],
        callbacks["error_cb"],
        callbacks["stats_cb"],
        callbacks["throttle_cb"],
        _number("statistics.interval.ms", rest.pop("statistics.interval.ms", 0)) / 1000,
        _logger(rest.pop("logger", None)),
        _flag(rest.pop("delivery.report.only.error", False)),
        _number("queue.buffering.max.messages", rest.pop("queue.buffering.max.messages", 100_000)) or INT32_MAX,
        _number("", rest.pop("topic.metadata.propagation.max.ms", 30_000)) / 1000,
        warnings,
    )
    _refuse_rest(rest)
    return result


def in_librdkafkas_names(text: str) -> str:
    """An error's text with librdkafka's names for settings: the user gave these, and can set no others.

    Names in quotes stay: they are what the user wrote.
    """
    text = _kafkas_names().sub(lambda match: _librdkafkas_names()[match[0]], text)
    for kafkas, librdkafkas in _PHRASES.items():
        text = text.replace(kafkas, librdkafkas)
    return text


@cache
def _librdkafkas_names() -> dict[str, str]:
    """librdkafka's name by Kafka's, where the two differ and librdkafka does not have Kafka's."""
    names = {
        "buffer.memory": "queue.buffering.max.kbytes",
        "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
        "partitioner.class": "partitioner",
        "request.timeout.ms": "socket.timeout.ms",
        "sasl.oauthbearer.token.provider": "oauth_cb",
    }
    for name, field in (_SAME | _FLAGS).items():
        kafkas = field.replace("_", ".")
        if kafkas not in _SAME and kafkas not in _FLAGS:
            names.setdefault(kafkas, name)
        if "_" in field:  # the spelling of keywords
            names.setdefault(field, names.get(kafkas, kafkas))
    return names | {"sasl_oauthbearer_token_provider": "oauth_cb"}


@cache
def _kafkas_names() -> re.Pattern[str]:
    names = sorted(map(re.escape, _librdkafkas_names()), key=len, reverse=True)
    return re.compile(rf"(?<![\w.'\"])(?:{'|'.join(names)})(?![\w'\"]|\.\w)")


def _callback(name: str, value: Any) -> Any:
    if value is not None and not callable(value):
        raise _CALLBACKS[name](f"expected {name} property as a callable function")
    return value


def _logger(value: Any) -> Any:
    if value is not None and not callable(getattr(value, "log", None)):
        raise TypeError("expected logger property as an object with a method log(level, format, *arguments)")
    return value


def _own_settings(rest: dict[str, Any]) -> dict[str, Any]:
    """Takes out of `rest` what kafkabuf has a setting for."""
    own: dict[str, Any] = {}
    servers = rest.pop("bootstrap.servers", None) or rest.pop("metadata.broker.list", None)
    own["bootstrap_servers"] = with_port(servers) if servers else NO_SERVERS
    own["partitioner_class"] = _partitioner(rest.pop("partitioner", DEFAULT_PARTITIONER), own)
    own["buffer_memory"] = _memory(_number("", rest.pop("queue.buffering.max.kbytes", 1_048_576)) * 1024)
    own |= {new: rest.pop(name) for name, new in (_SAME | _OWN).items() if name in rest}
    own |= {new: _strict_flag(name, rest.pop(name)) for name, new in _FLAGS.items() if name in rest}
    if own.get("transactional_id") == "":  # as an empty variable of the environment gives it
        del own["transactional_id"]
    own |= {new: file_text(name, rest.pop(name)) for name, new in _FILES.items() if name in rest}
    own |= {new: _number(name, rest.pop(name)) or -1 for name, new in _BUFFERS.items() if name in rest}
    if "connections.max.idle.ms" in rest:
        own["connections_max_idle_ms"] = _number("", rest.pop("connections.max.idle.ms")) or -1
    if "topic.metadata.refresh.interval.ms" in rest:
        interval = _number("topic.metadata.refresh.interval.ms", rest.pop("topic.metadata.refresh.interval.ms"))
        own["metadata_max_age_ms"] = INT32_MAX if interval == -1 else interval
    if (grant := rest.pop(_GRANT, "client_credentials")) not in _GRANTS:
        raise ConfigError(f'Invalid value "{grant}" for configuration property "{_GRANT}"')
    if (retriever := _GRANTS[grant]) is not None:
        own["sasl_oauthbearer_jwt_retriever_class"] = retriever
    if "ssl.cipher.suites" in rest:
        own["ssl_cipher_suites"] = str(rest.pop("ssl.cipher.suites")).replace(":", ",")
    if "ssl.endpoint.identification.algorithm" in rest:
        algorithm = rest.pop("ssl.endpoint.identification.algorithm")
        own["ssl_endpoint_identification_algorithm"] = "" if algorithm == "none" else algorithm
    if str(own.get("security_protocol", "")).upper().startswith("SASL_") and own.get("sasl_mechanism") in _KERBEROS:
        own.setdefault("sasl_kerberos_service_name", "kafka")
    _translate_level(rest, own)
    _translate_times(rest, own)
    _translate_sizes(own)
    if _number("", own.get("max_in_flight_requests_per_connection", 5)) > 5:
        own.setdefault("enable_idempotence", False)
    return own


def _memory(wanted: int) -> int:
    """kafkabuf reserves its buffer's addresses at once, librdkafka as records come: no more than the machine has."""
    return min(wanted, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def _partitioner(name: Any, own: dict[str, Any]) -> str | None:
    if name in KEY_RULES:
        return str(name)
    if name == "random":  # librdkafka's changes its partition every sticky.partitioning.linger.ms; ours by the batch
        own["partitioner_ignore_keys"] = True
        return None
    raise ConfigError(f'Invalid value for configuration property "partitioner": {name}')


def _translate_level(rest: dict[str, Any], own: dict[str, Any]) -> None:
    level = _number("compression.level", rest.pop("compression.level", -1))
    codec = str(own.get("compression_type", "none")).lower()
    if not -1 <= level <= 12:
        raise ConfigError(f'Configuration property "compression.level" value {level} is outside allowed range -1..12')
    if level != -1 and codec in ("gzip", "lz4", "zstd"):  # a level above the codec's own is its highest
        own[f"compression_{codec}_level"] = max(min(level, 9 if codec == "gzip" else 12), 1)


def _translate_times(rest: dict[str, Any], own: dict[str, Any]) -> None:
    """linger, time-outs of requests and records: librdkafka takes any three; Java's rule needs two below the third."""
    linger = rest.pop("linger.ms", rest.pop("queue.buffering.max.ms", 5))
    linger = round(_float("linger.ms", linger))
    timeout = rest.pop("message.timeout.ms", rest.pop("delivery.timeout.ms", 300_000))
    timeout = _number("message.timeout.ms", timeout) or INT32_MAX
    request = _number("socket.timeout.ms", rest.pop("socket.timeout.ms", 60_000))
    own["delivery_timeout_ms"] = timeout
    own["linger_ms"] = linger = min(linger, timeout // 2)
    own["request_timeout_ms"] = max(min(request, timeout - linger), 1)
    own["reconnect_backoff_ms"] = own.get("reconnect_backoff_ms", 100)
    own["reconnect_backoff_max_ms"] = own.get("reconnect_backoff_max_ms", 10_000)


def _translate_sizes(own: dict[str, Any]) -> None:
    largest = _number("message.max.bytes", own.setdefault("max_request_size", 1_000_000))
    batch = _number("batch.size", own.get("batch_size", BATCH_SIZE))
    own["batch_size"] = min(batch, largest)
    own["buffer_memory"] = max(own["buffer_memory"], 4 * max(own["batch_size"], largest))


def _provider(oauth_cb: Callable[[str], Any], argument: str) -> Callable[[], tuple[Any, ...]]:
    """`oauth_cb` returns a token, its expiry, and perhaps the principal, which nobody needs here, and extensions."""

    def provide() -> tuple[Any, ...]:
        returned = oauth_cb(argument)
        if not isinstance(returned, tuple) or not 2 <= len(returned) <= 4:
            shape = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
            raise TypeError(
                "oauth_cb must return a tuple of the token, its expiry in seconds since the epoch, and perhaps the "
                f"principal and a mapping of extensions; it returned {shape}"
            )
        token, expires_at, *more = returned
        return (token, expires_at, *more[1:2])

    return provide


def _refuse_rest(rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if name in _NO_EFFECT:
            continue
        if name not in _REFUSED:
            raise ConfigError(f'No such configuration property: "{name}"{_hint(name)}')
        allowed, reason = _REFUSED[name]
        same = _flag(value) is allowed if isinstance(allowed, bool) else value in (allowed, None, "")
        if not same:
            raise ConfigError(f'Invalid value for configuration property "{name}": {reason}')


def _hint(name: str) -> str:
    """What the user may have meant by an unknown name, or nothing."""
    if name in _INSTEAD:
        return f": use {_INSTEAD[name]}"
    import difflib  # late: only an error needs it

    own = ("bootstrap.servers", "delivery.timeout.ms", "linger.ms", "message.timeout.ms", "partitioner")
    known = [*own, *_SAME, *_OWN, *_FLAGS, *_FILES, *_BUFFERS, *_NO_EFFECT, *_CALLBACKS]
    near = difflib.get_close_matches(name.replace("_", "."), known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _strict_flag(name: str, value: Any) -> bool:
    """The words that librdkafka takes for a flag."""
    text = str(value).strip().lower()
    if text not in ("true", "t", "1", "false", "f", "0"):
        raise ConfigError(f'Expected bool value for "{name}": true or false')
    return text in ("true", "t", "1")


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in ("true", "t", "1")


def _number(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigError(f'Invalid value for configuration property "{name}": {json.dumps(str(value))}') from None


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f'Invalid value for configuration property "{name}": {json.dumps(str(value))}') from None
