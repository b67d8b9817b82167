"""The embedded broker's authorizer decides as Kafka 4.1.2's StandardAuthorizer, in every API."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kafkabuf.broker import EmbeddedCluster, Security, apis
from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.protocol import messages as m
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_4, TEST_JVM, RealKafka
from tests.conformance.acls import administer
from tests.conformance.authorization import (
    ADMIN,
    PASSWORD,
    USERS,
    ask_all,
    ask_in_every_version,
    requests,
    stranger,
)
from tests.conformance.script import differences, versions
from tests.conformance.test_conformance import shared

apis.load()
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# APIs that every client may use.
_FREE = {
    m.API_VERSIONS,
    m.SASL_HANDSHAKE,
    m.SASL_AUTHENTICATE,
    m.GET_TELEMETRY_SUBSCRIPTIONS,
    m.PUSH_TELEMETRY,
}


class AuthorizingKafka(RealKafka):
    """A node with StandardAuthorizer, and a listener for users with passwords. The node itself is ANONYMOUS."""

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        plain = super()._properties(port, controller_port)
        (users_port,) = free_ports(1)
        self.address = f"127.0.0.1:{users_port}"
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in USERS)
        return plain | {
            "listeners": f"{plain['listeners']},USERS://{self.address}",
            "advertised.listeners": f"{plain['advertised.listeners']},USERS://{self.address}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},USERS:SASL_PLAINTEXT",
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f"{_PLAIN} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN};User:ANONYMOUS",
        }


@pytest.fixture(scope="module")
def real() -> Iterator[AuthorizingKafka]:
    kafka = AuthorizingKafka(KAFKA_4, jvm_options=TEST_JVM)
    with kafka:
        yield kafka


def assert_equal(ours: dict[Any, Any], theirs: dict[Any, Any]) -> None:
    assert ours.keys() == theirs.keys()
    different = [
        (key, path, our_value, their_value)
        for key in ours
        for path, our_value, their_value in differences(ours[key], theirs[key])
    ]
    assert different == []


def authorizing_cluster() -> EmbeddedCluster:
    users = dict.fromkeys(USERS, PASSWORD)
    return EmbeddedCluster(security=Security(users=users, authorizer=True, super_users=[f"User:{ADMIN}"]))


def test_every_api_is_asked() -> None:
    asked = {api_key for _, api_key, _, _ in requests(stranger("nothing"))}
    assert set(APIS) - asked == _FREE


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted_as_in_kafka(real: AuthorizingKafka, version: int) -> None:
    with authorizing_cluster() as cluster:
        ours = administer(cluster.bootstrap_servers, version)
    assert_equal(ours, administer(real.address, version))


def test_authorizer_decides_as_kafkas(real: AuthorizingKafka) -> None:
    name = f"auth-{uuid.uuid4().hex[:8]}"
    with authorizing_cluster() as cluster:
        ours = ask_all(cluster.bootstrap_servers, name)
    assert_equal(ours, ask_all(real.address, name))


def test_refusals_equal_kafkas_in_every_version(real: AuthorizingKafka) -> None:
    both = shared(versions(real.bootstrap_servers))
    with authorizing_cluster() as cluster:
        ours = ask_in_every_version(cluster.bootstrap_servers, "nothing", both)
    assert_equal(ours, ask_in_every_version(real.address, "nothing", both))
