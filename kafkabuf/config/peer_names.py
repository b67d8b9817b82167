"""Settings that kafka-python, aiokafka and librdkafka (confluent-kafka) have and Kafka's producer does not have.

Each name leads to Kafka's setting, with a sentence where the meaning or the unit differs, or to what stands in its
place. The error for an unknown setting says so (`advice`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PeerName(NamedTuple):
    """`kafka` names Kafka's settings, separated by commas; it is empty if no setting has this meaning."""

    kafka: str
    note: str = ""


_ONE_FILE = "give one PEM file with the private key and its certificates together"
_ALWAYS = "leave it out: kafkabuf always does that"
_INSIDE = "leave it out: it tunes the inside of librdkafka"
_CONSUMER = "kafkabuf only produces; give it to the consumer of another library, beside kafkabuf"
_CALLBACK = "give send() a callback(metadata, error), or wait for the future that send() returns"
_LOG = "kafkabuf logs with Python's logging: set up the logger 'kafkabuf'"
_METRICS = "call producer.metrics(), or give objects as metric.reporters"
_VERSIONS = "leave it out: kafkabuf asks each broker for the versions that it supports"
_OPENSSL = "leave it out: kafkabuf uses the OpenSSL of Python's ssl module, with its defaults"
_BROKER = "its host is the name that the client connects to, and its realm that of krb5.conf"
_NO_REVOCATION = "leave it out: kafkabuf reads no revocation lists"
_NO_PROXY = "leave it out: kafkabuf connects to brokers without a proxy"
_AUTO_CREATE = "leave it out: the broker's auto.create.topics.enable decides, as with Java's producer"
_RESPONSE_SIZE = "leave it out: kafkabuf limits each response by the request that it answers"
_SYSTEM_SIZE = "-1 is the system's default, not 0"
_TOKEN = "sasl.oauthbearer.token.provider"
_PARTITIONER = (
    "it takes a callable(topic, key, value, partitions), or a name; without it the murmur2 hash of the key decides, as "
    "in Java's producer"
)

_KAFKA_PYTHON = {
    "allow_auto_create_topics": PeerName("", _AUTO_CREATE),
    "api_version_auto_timeout_ms": PeerName("", _VERSIONS),
    "bootstrap_timeout_ms": PeerName("max.block.ms", "it bounds the first send() as well"),
    "kafka_client": PeerName("", "leave it out: the network client cannot be replaced"),
    "metrics_enabled": PeerName("", "leave it out: kafkabuf always keeps metrics, and producer.metrics() returns them"),
    "proxy_url": PeerName("", _NO_PROXY),
    "receive_message_max_bytes": PeerName("", _RESPONSE_SIZE),
    "sasl_kerberos_name": PeerName("sasl.kerberos.service.name", _BROKER),
    "selector": PeerName("", "leave it out: kafkabuf polls its sockets itself"),
    "sock_chunk_buffer_count": PeerName("", "leave it out: kafkabuf chooses how much it reads at a time"),
    "sock_chunk_bytes": PeerName("", "leave it out: kafkabuf chooses how much it reads at a time"),
    "socket_options": PeerName("send.buffer.bytes, receive.buffer.bytes", "other options of sockets cannot be set"),
    "socks5_proxy": PeerName("", _NO_PROXY),
    "ssl_cafile": PeerName("ssl.truststore.location", "the PEM file of CAs may stay as it is"),
    "ssl_certfile": PeerName("ssl.keystore.location", _ONE_FILE),
    "ssl_check_hostname": PeerName("ssl.endpoint.identification.algorithm", "an empty string stands for False"),
    "ssl_ciphers": PeerName("ssl.cipher.suites", "commas, not colons, separate the names"),
    "ssl_crlfile": PeerName("", _NO_REVOCATION),
    "ssl_keyfile": PeerName("ssl.keystore.location", _ONE_FILE),
    "ssl_password": PeerName("ssl.key.password"),
}
_AIOKAFKA = {
    "loop": PeerName("", "leave it out: start() takes the running event loop"),
    "max_batch_size": PeerName("batch.size"),
}
_KAFKA_PYTHON_AND_AIOKAFKA = {
    "api_version": PeerName("", _VERSIONS),
    "sasl_kerberos_domain_name": PeerName("", f"leave it out: the broker's principal: {_BROKER}"),
    "sasl_oauth_token_provider": PeerName(
        _TOKEN, "it is a callable that returns a token: give the method `token` of the provider, if it is no coroutine"
    ),
    "sasl_plain_password": PeerName("sasl.password"),
    "sasl_plain_username": PeerName("sasl.username"),
    "ssl_context": PeerName("", "give it to KafkaProducer as a keyword, not in the mapping"),
}
_LIBRDKAFKA = {
    "api.version.fallback.ms": PeerName("", _VERSIONS),
    "api.version.request": PeerName("", _VERSIONS),
    "api.version.request.timeout.ms": PeerName("", _VERSIONS),
    "background_event_cb": PeerName("", _LOG),
    "batch.num.messages": PeerName("batch.size", "it is in bytes; the number of records in a batch has no limit"),
    "broker.address.family": PeerName("", "leave it out: kafkabuf tries every address of a broker's name"),
    "broker.address.ttl": PeerName("", "leave it out: kafkabuf looks a name up for each connection"),
    "broker.version.fallback": PeerName("", _VERSIONS),
    "builtin.features": PeerName("", "leave it out: it describes a build of librdkafka"),
    "closesocket_cb": PeerName("", _INSIDE),
    "compression.codec": PeerName("compression.type"),
    "compression.level": PeerName(
        "compression.gzip.level, compression.lz4.level, compression.zstd.level", "each codec has a level of its own"
    ),
    "connect_cb": PeerName("", _INSIDE),
    "debug": PeerName("", f"{_LOG} with the level DEBUG"),
    "default_topic_conf": PeerName("", "give its entries as settings of the producer: topics have no other settings"),
    "default.topic.config": PeerName("", "give its entries as settings of the producer: topics have no other settings"),
    "delivery.report.only.error": PeerName("", _CALLBACK),
    "dr_cb": PeerName("", _CALLBACK),
    "dr_msg_cb": PeerName("", _CALLBACK),
    "enable.gapless.guarantee": PeerName("transactional.id", "a transaction that loses a record cannot be committed"),
    "enable.random.seed": PeerName("", _INSIDE),
    "enable.sasl.oauthbearer.unsecure.jwt": PeerName(_TOKEN, "a callable may return an unsecured token in a test"),
    "enable.ssl.certificate.verification": PeerName(
        "ssl.truststore.location", "kafkabuf always verifies certificates: name the file of the CA that signed them"
    ),
    "enabled_events": PeerName("", _INSIDE),
    "error_cb": PeerName("", f"{_LOG}; errors of records reach the callback of send()"),
    "https.ca.location": PeerName("sasl.jaas.config", "its option ssl.truststore.location names the endpoint's CAs"),
    "https.ca.pem": PeerName("sasl.jaas.config", "its option ssl.truststore.location names a file of these CAs"),
    "interceptors": PeerName("interceptor.classes", "it takes objects with on_send and on_acknowledgement"),
    "internal.termination.signal": PeerName("", _INSIDE),
    "log.connection.close": PeerName("", _LOG),
    "log.queue": PeerName("", _LOG),
    "log.thread.name": PeerName("", _LOG),
    "log_cb": PeerName("", _LOG),
    "log_level": PeerName("", _LOG),
    "logger": PeerName("", _LOG),
    "max.in.flight": PeerName("max.in.flight.requests.per.connection"),
    "message.copy.max.bytes": PeerName("", _INSIDE),
    "message.max.bytes": PeerName("max.request.size", "it also bounds each record, before compression"),
    "message.send.max.retries": PeerName("retries"),
    "message.timeout.ms": PeerName(
        "delivery.timeout.ms", "0 is not infinite here: the longest time is 2147483647, about 25 days"
    ),
    "metadata.broker.list": PeerName("bootstrap.servers"),
    "msg_order_cmp": PeerName("", "leave it out: kafkabuf keeps the order of send() in each partition"),
    "oauth_cb": PeerName(_TOKEN, "it is a callable that returns a token"),
    "oauthbearer_token_refresh_cb": PeerName(_TOKEN, "it is a callable that returns a token"),
    "on_delivery": PeerName("", _CALLBACK),
    "opaque": PeerName("", "give the object to send(opaque=...): it comes back in `on_acknowledged`"),
    "open_cb": PeerName("", _INSIDE),
    "partitioner_cb": PeerName("partitioner.class", _PARTITIONER),
    "plugin.library.paths": PeerName("interceptor.classes", "it takes objects with on_send and on_acknowledgement"),
    "produce.offset.report": PeerName("", "leave it out: RecordMetadata always has the offset, unless acks is 0"),
    "queue.buffering.backpressure.threshold": PeerName("", _INSIDE),
    "queue.buffering.max.kbytes": PeerName("buffer.memory", "it is in bytes: multiply by 1024"),
    "queue.buffering.max.messages": PeerName("buffer.memory", "it is in bytes; the number of records has no limit"),
    "queue.buffering.max.ms": PeerName("linger.ms"),
    "queuing.strategy": PeerName("", "leave it out: kafkabuf keeps the order of send() in each partition"),
    "receive.message.max.bytes": PeerName("", _RESPONSE_SIZE),
    "reconnect.backoff.jitter.ms": PeerName(
        "reconnect.backoff.ms, reconnect.backoff.max.ms", "kafkabuf adds jitter to the back-off by itself"
    ),
    "request.required.acks": PeerName("acks"),
    "resolve_cb": PeerName("", _INSIDE),
    "sasl.mechanisms": PeerName("sasl.mechanism"),
    "sasl.oauthbearer.assertion.jwt.template.file": PeerName("sasl.oauthbearer.assertion.template.file"),
    "sasl.oauthbearer.assertion.private.key.pem": PeerName(
        "sasl.oauthbearer.assertion.private.key.file", "it names a file with the key"
    ),
    "sasl.oauthbearer.client.id": PeerName("sasl.oauthbearer.client.credentials.client.id"),
    "sasl.oauthbearer.client.secret": PeerName("sasl.oauthbearer.client.credentials.client.secret"),
    "sasl.oauthbearer.config": PeerName(_TOKEN, "it is a callable that returns a token"),
    "sasl.oauthbearer.extensions": PeerName(
        _TOKEN, "the callable returns a tuple: the token, its expiry in seconds or None, and a dict of the extensions"
    ),
    "sasl.oauthbearer.grant.type": PeerName(
        "sasl.oauthbearer.jwt.retriever.class",
        "JwtBearerJwtRetriever stands for jwt-bearer, the default for client_credentials",
    ),
    "sasl.oauthbearer.metadata.authentication.type": PeerName(
        _TOKEN, "give a callable that asks the cloud for the token; sasl.mechanism=AWS_MSK_IAM does so for MSK"
    ),
    "sasl.oauthbearer.method": PeerName(
        "sasl.oauthbearer.token.endpoint.url", "its presence alone stands for the method oidc"
    ),
    "socket.blocking.max.ms": PeerName("", _INSIDE),
    "socket.keepalive.enable": PeerName("", _ALWAYS),
    "socket.max.fails": PeerName("", "leave it out: kafkabuf closes a connection at the first request that times out"),
    "socket.nagle.disable": PeerName("", _ALWAYS),
    "socket.receive.buffer.bytes": PeerName("receive.buffer.bytes", _SYSTEM_SIZE),
    "socket.send.buffer.bytes": PeerName("send.buffer.bytes", _SYSTEM_SIZE),
    "socket.timeout.ms": PeerName("request.timeout.ms"),
    "socket_cb": PeerName("", _INSIDE),
    "ssl.ca.certificate.stores": PeerName("", "leave it out: it is for Windows"),
    "ssl.ca.location": PeerName("ssl.truststore.location", "name a file (PEM, JKS or PKCS12), not a folder"),
    "ssl.ca.pem": PeerName("ssl.truststore.certificates"),
    "ssl.certificate.location": PeerName("ssl.keystore.location", _ONE_FILE),
    "ssl.certificate.pem": PeerName("ssl.keystore.certificate.chain"),
    "ssl.certificate.verify_cb": PeerName("", "leave it out: OpenSSL alone verifies certificates"),
    "ssl.crl.location": PeerName("", _NO_REVOCATION),
    "ssl.curves.list": PeerName("", _OPENSSL),
    "ssl.engine.id": PeerName("", _OPENSSL),
    "ssl.engine.location": PeerName("", _OPENSSL),
    "ssl.key.location": PeerName("ssl.keystore.location", _ONE_FILE),
    "ssl.key.pem": PeerName("ssl.keystore.key"),
    "ssl.providers": PeerName("", _OPENSSL),
    "ssl.sigalgs.list": PeerName("", _OPENSSL),
    "ssl_ca": PeerName("ssl.truststore.certificates", "it is PEM text"),
    "ssl_certificate": PeerName("ssl.keystore.certificate.chain", "it is PEM text"),
    "ssl_engine_callback_data": PeerName("", _OPENSSL),
    "ssl_key": PeerName("ssl.keystore.key", "it is PEM text"),
    "statistics.interval.ms": PeerName("", _METRICS),
    "stats_cb": PeerName("", _METRICS),
    "sticky.partitioning.linger.ms": PeerName(
        "", "leave it out: records without key change the partition after batch.size bytes (KIP-794)"
    ),
    "throttle_cb": PeerName("", _METRICS),
    "topic.blacklist": PeerName("", "leave it out: kafkabuf requests metadata of the topics in use, and of no others"),
    "topic.metadata.propagation.max.ms": PeerName("max.block.ms", "send() waits that long for a new topic's metadata"),
    "topic.metadata.refresh.fast.cnt": PeerName("", _INSIDE),
    "topic.metadata.refresh.fast.interval.ms": PeerName("retry.backoff.ms"),
    "topic.metadata.refresh.interval.ms": PeerName("metadata.max.age.ms"),
    "topic.metadata.refresh.sparse": PeerName("", _ALWAYS),
}
_CONSUMERS = dict.fromkeys(
    (
        "auto.commit.interval.ms", "auto.offset.reset", "enable.auto.commit", "enable.auto.offset.store",
        "enable.partition.eof", "fetch.max.bytes", "fetch.min.bytes", "group.id", "group.instance.id",
        "heartbeat.interval.ms", "isolation.level", "max.partition.fetch.bytes", "max.poll.interval.ms",
        "max.poll.records", "partition.assignment.strategy", "session.timeout.ms",
    ),
    PeerName("", _CONSUMER),
)  # fmt: skip
PEER_NAMES: Mapping[str, Mapping[str, PeerName]] = {
    "kafka-python": _KAFKA_PYTHON,
    "aiokafka": _AIOKAFKA,
    "kafka-python and aiokafka": _KAFKA_PYTHON_AND_AIOKAFKA,
    "librdkafka": _LIBRDKAFKA,
    "kafka-python, aiokafka and librdkafka": {"partitioner": PeerName("partitioner.class", _PARTITIONER)},
    "consumers": _CONSUMERS,
}


def advice(name: str) -> str | None:
    """What to do instead of setting `name`, in either spelling. None if no peer has a setting of that name."""
    asked = _spelt(name)
    for peer, names in PEER_NAMES.items():
        for known, (kafka, note) in names.items():
            if _spelt(known) == asked:
                use = f"use {' or '.join(kafka.split(', '))}" if kafka else ""
                return f"a setting of {peer}: {'; '.join(filter(None, (use, note)))}"
    return None


def _spelt(name: str) -> str:
    return name.strip().lower().replace("_", ".")
