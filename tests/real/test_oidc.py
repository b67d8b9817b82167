"""An identity provider's tokens against Apache Kafka 4.1.2, whose validator checks their signature by a JWKS file.

The endpoint verifies the assertion that kafkabuf signed, and signs the token, with joserfc.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, RSAKey

from kafkabuf import KafkaProducer
from kafkabuf.config.java_names import JWT_BEARER_RETRIEVER
from kafkabuf.errors import SaslAuthenticationError
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_4, RealKafka
from tests.network.sasl.token_server import Answer, Endpoint, TunnelProxy
from tests.network.security_support import server_context
from tests.network.tls.certificates import Authority
from tests.real.consumers import read_with_confluent

_OAUTH = "org.apache.kafka.common.security.oauthbearer"


class OidcKafka(RealKafka):
    """A node that accepts the tokens of an issuer."""

    def __init__(self, jwks: Path) -> None:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{jwks}"
        super().__init__(KAFKA_4, jvm_options=("-XX:+UseSerialGC", allowed))
        self._jwks = jwks
        self.port = 0

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        plain = super()._properties(port, controller_port)
        (self.port,) = free_ports(1)
        handler = f"{_OAUTH}.OAuthBearerValidatorCallbackHandler"
        return plain | {
            "listeners": f"{plain['listeners']},OIDC://127.0.0.1:{self.port}",
            "advertised.listeners": f"{plain['advertised.listeners']},OIDC://localhost:{self.port}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},OIDC:SASL_PLAINTEXT",
            "listener.name.oidc.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.oidc.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
            "listener.name.oidc.oauthbearer.sasl.server.callback.handler.class": handler,
            "listener.name.oidc.sasl.oauthbearer.jwks.endpoint.url": f"file://{self._jwks}",
            "listener.name.oidc.sasl.oauthbearer.expected.audience": "kafka",
            "listener.name.oidc.sasl.oauthbearer.expected.issuer": "https://idp",
        }


class Issuer:
    """Grants a token for an assertion that it can verify."""

    def __init__(self, client: RSAKey) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "signing-1", "use": "sig", "alg": "RS256"}, private=True)
        self.lifetime = 3600
        self.audience = "kafka"
        self._client = client

    def __call__(self, body: bytes) -> Answer:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        try:
            assertion = form.get("assertion") or form["client_assertion"]
            claims = jwt.decode(assertion, self._client, algorithms=["RS256"]).claims
        except (KeyError, JoseError):
            return 401, {}, b'{"error": "invalid_client"}'
        now = int(time.time())
        granted = {
            "iss": "https://idp",
            "aud": self.audience,
            "sub": claims["sub"],
            "scope": "write",
            "iat": now,
            "exp": now + self.lifetime,
        }
        token = jwt.encode({"alg": "RS256", "kid": "signing-1"}, granted, self.key)
        return 200, {}, json.dumps({"access_token": token, "token_type": "Bearer"}).encode()


@pytest.fixture(scope="module")
def client_key() -> RSAKey:
    return RSAKey.generate_key(2048, private=True)


@pytest.fixture(scope="module")
def issuer(client_key: RSAKey) -> Issuer:
    return Issuer(client_key)


@pytest.fixture(scope="module")
def kafka(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcKafka]:
    jwks = tmp_path_factory.mktemp("jwks") / "jwks.json"
    jwks.write_text(json.dumps(KeySet([issuer.key]).as_dict(private=False)))
    with OidcKafka(jwks) as server:
        yield server  # type: ignore[misc]


@pytest.fixture
def settings(
    kafka: OidcKafka, issuer: Issuer, client_key: RSAKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    ca = Authority(tmp_path)
    key = tmp_path / "client.pem"
    key.write_bytes(client_key.as_pem(private=True))
    endpoint = Endpoint(server_context(ca.issue("idp", "DNS:localhost")), issuer)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca.certificate))
    yield {
        "bootstrap_servers": f"localhost:{kafka.port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": endpoint.url,
        "sasl_oauthbearer_assertion_private_key_file": str(key),
        "sasl_oauthbearer_assertion_claim_sub": "alice",
        "max_block_ms": 60_000,
    }
    endpoint.close()


@pytest.mark.parametrize("grant", ["jwt-bearer", "client_credentials"])
def test_records_arrive_with_a_token_that_an_assertion_bought(
    kafka: OidcKafka, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, grant: str
) -> None:
    kafka.create_topic(grant)
    if grant == "jwt-bearer":
        settings["sasl_oauthbearer_jwt_retriever_class"] = JWT_BEARER_RETRIEVER
    with TunnelProxy() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        with KafkaProducer(**settings) as producer:
            producer.send(grant, b"value").result(30)
        assert len(proxy.requests) == 1
    (partition,) = read_with_confluent(kafka, grant)
    assert [record.value for record in partition.values()] == [b"value"]


def test_token_that_kafka_refuses_fails_the_records_at_once(
    kafka: OidcKafka, issuer: Issuer, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.create_topic("refused")
    monkeypatch.setattr(issuer, "audience", "another")
    with KafkaProducer(**settings) as producer, pytest.raises(SaslAuthenticationError, match="invalid_token"):
        producer.send("refused", b"value").result(30)
