"""A realm with its KDC, and a node of Apache Kafka 4.1.2 whose brokers' side is Java's, for `make test-kerberos`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kafkabuf import KafkaProducer
from rigs.kdc import REALM, Kdc
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka
from tests.network.tls.certificates import Authority, Identity
from tests.real.consumers import read_with_confluent

# ROTATED: a listener whose principal gets a new key that the node's keytab lacks. SESSION: it ends sessions soon.
LISTENERS = {
    "KEYTAB": "SASL_PLAINTEXT",
    "TLS": "SASL_SSL",
    "SESSION": "SASL_PLAINTEXT",
    "ROTATED": "SASL_PLAINTEXT",
}
SESSION_MS = 1500
_MODULE = "com.sun.security.auth.module.Krb5LoginModule"


class KerberosKafka(RealKafka):
    """A node with listeners for GSSAPI. They are advertised as localhost: the principals are SERVICE/localhost."""

    def __init__(self, kdc: Kdc, identity: Identity) -> None:
        super().__init__(KAFKA_4, jvm_options=[*TEST_JVM, f"-Djava.security.krb5.conf={kdc.krb5_conf}"])
        self._identity = identity
        self.ports: dict[str, int] = {}
        self._keytabs = {}
        for service in ("kafka", "rotated"):
            kdc.add(f"{service}/localhost")
            self._keytabs[service] = kdc.keytab(f"{service}/localhost")

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        plain = super()._properties(port, controller_port)
        properties = plain | {
            "listeners": plain["listeners"] + "".join(f",{n}://127.0.0.1:{p}" for n, p in self.ports.items()),
            "advertised.listeners": plain["advertised.listeners"]
            + "".join(f",{n}://localhost:{p}" for n, p in self.ports.items()),
            "listener.security.protocol.map": plain["listener.security.protocol.map"]
            + "".join(f",{n}:{protocol}" for n, protocol in LISTENERS.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._identity.store),
            "sasl.kerberos.service.name": "kafka",
            "listener.name.session.gssapi.connections.max.reauth.ms": str(SESSION_MS),
        }
        for name in self.ports:
            service = "rotated" if name == "ROTATED" else "kafka"
            listener = f"listener.name.{name.lower()}"
            properties[f"{listener}.sasl.enabled.mechanisms"] = "GSSAPI"
            properties[f"{listener}.gssapi.sasl.jaas.config"] = (
                f'{_MODULE} required useKeyTab=true storeKey=true keyTab="{self._keytabs[service]}" '
                f'principal="{service}/localhost@{REALM}";'
            )
        return properties


class World:
    """The KDC, Kafka, and a user `alice` with her keytab."""

    def __init__(self, kdc: Kdc, kafka: KerberosKafka, ca: Authority) -> None:
        self.kdc, self.kafka, self.ca = kdc, kafka, ca
        self.keytab = kdc.folder / "alice.keytab"

    def settings(self, listener: str = "KEYTAB", /, **more: Any) -> dict[str, Any]:
        """The settings of a producer that logs in with the keytab of alice. None takes a setting away."""
        settings: dict[str, Any] = {
            "bootstrap_servers": f"localhost:{self.kafka.ports[listener]}",
            "security_protocol": LISTENERS[listener],
            "ssl_truststore_location": str(self.ca.certificate) if listener == "TLS" else None,
            "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "kafka",
            "sasl_kerberos_keytab": str(self.keytab),
            "sasl_kerberos_principal": f"alice@{REALM}",
            "max_block_ms": 60_000,
        } | more
        return {name: value for name, value in settings.items() if value is not None}

    def assert_delivers(self, topic: str, producer: KafkaProducer[Any, Any], count: int = 100) -> None:
        self.kafka.create_topic(topic)
        values = [b"%d" % number for number in range(count)]
        for value in values:
            producer.send(topic, value)
        producer.flush(60)
        assert self.values_in(topic) == values

    def values_in(self, topic: str) -> list[bytes | None]:
        (partition,) = read_with_confluent(self.kafka, topic)
        return [partition[offset].value for offset in sorted(partition)]

    def kinit(self, cache: Path, *options: str) -> None:
        self.kdc.run("kinit", *options, "-k", "-t", str(self.keytab), "-c", str(cache), f"alice@{REALM}")
