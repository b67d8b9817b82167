"""librdkafka's settings of OAUTHBEARER in the confluent face: each is mapped, or refused with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kafkabuf.compat.confluent.settings import translated
from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.secret import SecretStr
from kafkabuf.errors import ConfigError

PREFIX = "sasl.oauthbearer."
OIDC = {
    "bootstrap.servers": "localhost:9092",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    f"{PREFIX}method": "oidc",
    f"{PREFIX}token.endpoint.url": "https://login.example.com/token",
}
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION = {
    "assertion.algorithm": "ES256",
    "assertion.private.key.file": "/key.pem",
    "assertion.private.key.passphrase": "secret",
    "assertion.claim.aud": "an audience",
    "assertion.claim.exp.seconds": 60,
    "assertion.claim.iss": "an issuer",
    "assertion.claim.jti.include": True,
    "assertion.claim.nbf.seconds": 5,
    "assertion.claim.sub": "a subject",
}


def config(settings: Mapping[str, Any]) -> ProducerConfig:
    return ProducerConfig.from_mapping(translated({**OIDC, **settings}).own)


def test_every_setting_of_assertions_has_its_value() -> None:
    given = {**ASSERTION, "grant.type": JWT_BEARER, "assertion.jwt.template.file": "/template.json"}
    found = config({PREFIX + name: value for name, value in given.items()})
    for name, value in ASSERTION.items():
        field = getattr(found, f"sasl_oauthbearer_{name.replace('.', '_')}")
        assert (field.get_secret_value() if isinstance(field, SecretStr) else field) == value
    assert found.sasl_oauthbearer_assertion_template_file == "/template.json"
    assert str(found.sasl_oauthbearer_jwt_retriever_class).endswith("JwtBearerJwtRetriever")


def test_client_credentials_have_both_names_of_librdkafka() -> None:
    for names in (("client.id", "client.secret"), ("client.credentials.client.id", "client.credentials.client.secret")):
        own = translated({**OIDC, PREFIX + names[0]: "me", PREFIX + names[1]: "secret"}).own
        assert own["sasl_oauthbearer_client_credentials_client_id"] == "me"
        assert own["sasl_oauthbearer_client_credentials_client_secret"] == "secret"


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("assertion.private.key.pem", "-----BEGIN", "assertion.private.key.file"),
        ("extensions", "a=b", "oauth_cb"),
        ("metadata.authentication.type", "azure_imds", "oauth_cb"),
        ("grant.type", "password", "Invalid value"),
    ],
)
def test_setting_without_a_counterpart_is_refused_with_advice(name: str, value: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        translated({**OIDC, PREFIX + name: value})


def test_settings_at_librdkafkas_defaults_are_taken() -> None:
    translated({**OIDC, f"{PREFIX}metadata.authentication.type": "none", f"{PREFIX}grant.type": "client_credentials"})


def test_oauth_cb_may_return_principal_and_extensions() -> None:
    for returned, taken in (
        (("token", 5.0), ("token", 5.0)),
        (("token", 5.0, "me"), ("token", 5.0)),
        (("token", 5.0, "me", {"a": "b"}), ("token", 5.0, {"a": "b"})),
    ):
        own = translated({"oauth_cb": lambda argument, returned=returned: returned}).own
        assert own["sasl_oauthbearer_token_provider"]() == taken
