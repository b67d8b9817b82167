"""Delegation tokens (KIP-48): SCRAM with the token's id as user, its HMAC as password, and the extension tokenauth."""

from __future__ import annotations

from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import ConfigError, SaslAuthenticationError
from kafkabuf.network.sasl.scram import Scram
from tests.network.security_support import ScramServer, SecureBroker, failure, secured

HMAC = "c2VudGluZWwtaG1hYw=="
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def settings(options: str, mechanism: str = "SCRAM-SHA-256", module: str = MODULE) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism, "sasl_jaas_config": f"{module} required {options};"}


def token(tokenauth: str = 'tokenauth="true"', **given: str) -> dict[str, Any]:
    return settings(f'username="tokenID" password="{HMAC}" {tokenauth}', **given)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("tokenauth", ['tokenauth="true"', "tokenauth=true", 'tokenauth="True"'])
def test_token_authenticates_as_javas_does(mechanism: str, tokenauth: str) -> None:
    server = ScramServer(mechanism, HMAC)
    with secured(SecureBroker(exchanges={mechanism: server}), **token(tokenauth, mechanism=mechanism)) as (rigged, _):
        rigged.connect(0)
        assert (server.username, server.extensions) == ("tokenID", ["tokenauth=true"])


def test_first_message_is_kafkas() -> None:
    """Kafka's ScramMessages.ClientFirstMessage writes the extensions last."""
    exchange = Scram("SCRAM-SHA-256", "tokenID", HMAC, is_token=True).begin(nonce="NONCE")
    assert exchange.respond(b"") == b"n,,n=tokenID,r=NONCE,tokenauth=true"


@pytest.mark.parametrize("tokenauth", ["", "tokenauth=false"])
def test_password_is_no_token(tokenauth: str) -> None:
    server = ScramServer("SCRAM-SHA-256", HMAC)
    with secured(SecureBroker(exchanges={"SCRAM-SHA-256": server}), **token(tokenauth)) as (rigged, _):
        rigged.connect(0)
        assert server.extensions == []


def test_refused_token_is_named_with_advice_and_without_its_hmac() -> None:
    broker = SecureBroker(exchanges={"SCRAM-SHA-256": ScramServer("SCRAM-SHA-256", "other")})
    with secured(broker, **token()) as (rigged, _):
        error = failure(rigged)
        assert isinstance(error, SaslAuthenticationError)
        assert "delegation token tokenID: it has expired" in str(error)
        assert HMAC not in str(error) + repr(vars(rigged.client.connections))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (token("tokenauth=yes"), "tokenauth must be true or false"),
        (token(tokenauth="tokenAuth=true"), "options not supported: tokenAuth"),
        (settings("tokenauth=true"), "needs sasl_username and sasl_password, or a sasl.jaas.config with"),
        (
            token(mechanism="PLAIN", module="org.apache.kafka.common.security.plain.PlainLoginModule"),
            "options not supported: tokenauth",
        ),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        KafkaProducer(bootstrap_servers="127.0.0.1:9", security_protocol="SASL_PLAINTEXT", **given)
    assert HMAC not in str(caught.value)


def test_embedded_broker_knows_no_token_even_of_a_users_name() -> None:
    with EmbeddedCluster(security=Security(users={"tokenID": HMAC})) as cluster:
        given: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT"}
        KafkaProducer(check=True, **given, **token("")).close()
        with pytest.raises(SaslAuthenticationError, match="delegation token tokenID"):
            KafkaProducer(check=True, **given, **token())
