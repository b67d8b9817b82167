"""Assertions and JWTs of files: a library of its own, joserfc, verifies what kafkabuf has signed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from kafkabuf.clock import ManualClock
from kafkabuf.config.java_names import RETRIEVERS
from kafkabuf.config.refused import JAVA_ONLY
from kafkabuf.errors import ConfigError, NetworkError
from kafkabuf.network.sasl import oauth
from kafkabuf.network.sasl.oauth import OAuthBearer
from tests.network.sasl.token_server import Endpoint
from tests.network.security_support import server_context
from tests.network.support import config_for
from tests.network.tls.certificates import Authority

PASSPHRASE = "sentinel-passphrase"
DEFAULT, CLIENT_CREDENTIALS, FILE, JWT_BEARER = RETRIEVERS
ANSWER = 200, dict[str, str](), json.dumps({"access_token": "granted", "expires_in": 3600}).encode()
NOW = 1_600_000_000  # of ManualClock
PREFIX = "sasl_oauthbearer_assertion_"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Private keys as `openssl` writes them."""
    folder = tmp_path_factory.mktemp("keys")
    made = {name: folder / f"{name}.pem" for name in ("rsa", "rsa-pkcs1", "rsa-encrypted", "p256", "p384")}
    openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", made["rsa"])
    openssl("rsa", "-in", made["rsa"], "-traditional", "-out", made["rsa-pkcs1"])
    openssl("pkey", "-in", made["rsa"], "-aes256", "-passout", f"pass:{PASSPHRASE}", "-out", made["rsa-encrypted"])
    for curve in ("256", "384"):
        parameter = f"ec_paramgen_curve:P-{curve}"
        openssl("genpkey", "-algorithm", "EC", "-pkeyopt", parameter, "-out", made[f"p{curve}"])
    return made


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    ca = Authority(tmp_path_factory.mktemp("certificates"))
    server = Endpoint(server_context(ca.issue("idp", "DNS:localhost")), [ANSWER])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "localhost")
        patch.setenv("SSL_CERT_FILE", str(ca.certificate))
        yield server
    server.close()


def source(url: str, **settings: Any) -> OAuthBearer:
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    config = config_for(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url, **given)
    return oauth.mechanism(config, {}, ManualClock(), lambda: 0.5)


def form(endpoint: Endpoint, **settings: Any) -> dict[str, str]:
    """The form that a client with these settings sends for a token."""
    endpoint.requests.clear()
    assert source(endpoint.url, **settings).token().value == "granted"
    ((_, headers, body),) = endpoint.requests
    assert "Authorization" not in headers
    return {name: value for name, (value,) in parse_qs(body.decode(), strict_parsing=True).items()}


def verified(assertion: str, key: Path, algorithm: str = "RS256") -> jwt.Token:
    kind = RSAKey if algorithm == "RS256" else ECKey
    public = subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout"], check=True, capture_output=True).stdout
    return jwt.decode(assertion, kind.import_key(public), algorithms=[algorithm])


def test_jwt_bearer_grant_sends_a_signed_assertion(endpoint: Endpoint, keys: dict[str, Path]) -> None:
    sent = form(
        endpoint,
        sasl_oauthbearer_jwt_retriever_class=JWT_BEARER,
        sasl_oauthbearer_scope=" kafka ",
        sasl_oauthbearer_assertion_private_key_file=keys["rsa"],
        sasl_oauthbearer_assertion_claim_aud="https://idp",
        sasl_oauthbearer_assertion_claim_iss="me",
        sasl_oauthbearer_assertion_claim_sub="service",
    )
    assertion = sent.pop("assertion")
    assert sent == {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "scope": "kafka"}
    token = verified(assertion, keys["rsa"])
    assert token.header == {"alg": "RS256", "typ": "JWT"}
    assert token.claims == {
        "aud": "https://idp",
        "iss": "me",
        "sub": "service",
        "iat": NOW,
        "exp": NOW + 300,
        "nbf": NOW - 60,
    }


def test_client_proves_itself_by_an_assertion_before_a_secret(endpoint: Endpoint, keys: dict[str, Path]) -> None:
    sent = form(
        endpoint,
        sasl_oauthbearer_client_credentials_client_id="me",
        sasl_oauthbearer_client_credentials_client_secret="not sent",
        sasl_oauthbearer_assertion_private_key_file=keys["p256"],
        sasl_oauthbearer_assertion_algorithm="es256",
    )
    assertion = sent.pop("client_assertion")
    assert sent == {
        "grant_type": "client_credentials",
        "client_id": "me",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }
    assert verified(assertion, keys["p256"], "ES256").header["alg"] == "ES256"


@pytest.mark.parametrize("key", ["rsa-pkcs1", "rsa-encrypted"])
def test_key_is_read_in_each_pem_format(endpoint: Endpoint, keys: dict[str, Path], key: str) -> None:
    sent = form(
        endpoint,
        sasl_oauthbearer_jwt_retriever_class=JWT_BEARER,
        sasl_oauthbearer_assertion_private_key_file=keys[key],
        sasl_oauthbearer_assertion_private_key_passphrase=PASSPHRASE,
    )
    assert verified(sent["assertion"], keys["rsa"]).claims["exp"] == NOW + 300


@pytest.mark.parametrize("key", ["rsa", "rsa-encrypted"])
def test_key_is_read_with_text_around_it(endpoint: Endpoint, keys: dict[str, Path], tmp_path: Path, key: str) -> None:
    file = tmp_path / "key.pem"
    file.write_text("\ufeff# ENCRYPTED or not, für uns\nBag Attributes\n    x: y\n" + keys[key].read_text() + "# end")
    sent = form(
        endpoint,
        sasl_oauthbearer_jwt_retriever_class=JWT_BEARER,
        sasl_oauthbearer_assertion_private_key_file=file,
        sasl_oauthbearer_assertion_private_key_passphrase=PASSPHRASE,
    )
    assert verified(sent["assertion"], keys["rsa"]).claims["exp"] == NOW + 300


def test_template_adds_headers_and_claims_but_sets_no_times(
    endpoint: Endpoint, keys: dict[str, Path], tmp_path: Path
) -> None:
    template = tmp_path / "template.json"
    header = {"kid": "k1", "alg": "none"}
    template.write_text(json.dumps({"header": header, "payload": {"tid": 7, "iss": "template", "exp": 0}}))
    sent = form(
        endpoint,
        sasl_oauthbearer_jwt_retriever_class=JWT_BEARER,
        sasl_oauthbearer_assertion_private_key_file=keys["rsa"],
        sasl_oauthbearer_assertion_template_file=template,
        sasl_oauthbearer_assertion_claim_iss="setting",
        sasl_oauthbearer_assertion_claim_exp_seconds=10,
        sasl_oauthbearer_assertion_claim_nbf_seconds=0,
    )
    token = verified(sent["assertion"], keys["rsa"])
    assert token.header == {"kid": "k1", "alg": "RS256", "typ": "JWT"}
    assert token.claims == {"tid": 7, "iss": "template", "iat": NOW, "exp": NOW + 10, "nbf": NOW}


def test_each_assertion_has_an_id_of_its_own(endpoint: Endpoint, keys: dict[str, Path]) -> None:
    settings: dict[str, Any] = {
        "sasl_oauthbearer_jwt_retriever_class": JWT_BEARER,
        "sasl_oauthbearer_assertion_private_key_file": keys["rsa"],
        "sasl_oauthbearer_assertion_claim_jti_include": True,
    }
    ids = {verified(form(endpoint, **settings)["assertion"], keys["rsa"]).claims["jti"] for _ in range(2)}
    assert len(ids) == 2


def test_file_of_an_assertion_is_sent_as_it_is_and_read_again(endpoint: Endpoint, tmp_path: Path) -> None:
    file = tmp_path / "assertion"
    file.write_text(f" {unsigned(1)}\n")
    client = source(
        endpoint.url, sasl_oauthbearer_assertion_file=file, sasl_oauthbearer_assertion_private_key_file="/nowhere"
    )
    endpoint.requests.clear()
    for number in (1, 2):
        file.write_text(unsigned(number))
        client.drop(client.token().value)
    sent = [parse_qs(body.decode())["client_assertion"] for _, _, body in endpoint.requests]
    assert sent == [[unsigned(1)], [unsigned(2)]]


def unsigned(number: int) -> str:
    return jwt.encode({"alg": "HS256"}, {"exp": NOW + 3600, "n": number}, OctKey.import_key(b"x" * 32))


@pytest.mark.parametrize("kind", [DEFAULT, FILE])
def test_token_of_a_file_is_read_again_at_its_renewal(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a token"
    file.write_text(unsigned(1))
    client = source(f"file://{tmp_path}/a%20token", sasl_oauthbearer_jwt_retriever_class=kind)
    file.write_text(unsigned(2))
    assert client.token().value == unsigned(2)
    file.write_text("half a tok")
    assert client.token().value == unsigned(2)
    client.drop(unsigned(2))
    with pytest.raises(NetworkError, match=r"a token\) has no JWT") as caught:  # retriable
        client.token()
    assert "half" not in str(caught.value)


@pytest.mark.parametrize(
    "content", ["root:x:0:0:root:/root:/bin/bash", "a.b", "a.b.c", "e30.e30.%%%", "e30.WzFd.e30", "", "\xff.e30.e30"]
)
def test_file_without_a_jwt_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigError, match="has no JWT") as caught:
        source(f"file://{file}")
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize("url", ["https://idp/token", "file:relative", "file://host/path"])
def test_file_retriever_needs_the_url_of_a_file(url: str) -> None:
    with pytest.raises(ConfigError, match="must be file:///path"):
        source(url, sasl_oauthbearer_jwt_retriever_class=FILE)


def test_file_that_is_endless_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    for path, reason in (
        ("/dev/zero", "not a regular file"),
        (tmp_path / "pipe", "not a regular"),
        (tmp_path, "not a"),
    ):
        with pytest.raises(ConfigError, match=reason):
            source(f"file://{path}")
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        source(f"file://{tmp_path}/large")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "set sasl.oauthbearer.assertion.file, or sasl.oauthbearer.assertion.private.key.file"),
        ({"private_key_file": "/nowhere"}, r"private.key.file \(/nowhere\): No such file"),
        ({"private_key_file": "rsa-encrypted"}, "is encrypted: set sasl.oauthbearer.assertion.private.key.passphrase"),
        ({"private_key_file": "rsa-encrypted", "private_key_passphrase": "wrong"}, "passphrase is wrong"),
        ({"private_key_file": "rsa", "algorithm": "ES256"}, "no key of the curve P-256"),
        ({"private_key_file": "p384", "algorithm": "ES256"}, "no key of the curve P-256"),
        ({"private_key_file": "p256"}, "no RSA key"),
        ({"private_key_file": "p256", "template_file": "p384"}, r'must be JSON of the form \{"header": \{\}'),
        ({"file": "rsa"}, "has no JWT"),
    ],
)
def test_assertion_that_cannot_be_made_is_refused_at_the_start(
    keys: dict[str, Path], settings: dict[str, str], reason: str
) -> None:
    given = {PREFIX + name: str(keys.get(value, value)) for name, value in settings.items()}
    with pytest.raises(ConfigError, match=reason) as caught:
        source("https://idp/token", sasl_oauthbearer_jwt_retriever_class=JWT_BEARER, **given)
    assert "wrong" not in str(caught.value).replace("is wrong", "")
    assert "BEGIN" not in str(caught.value)


def test_key_that_is_being_replaced_is_retried(endpoint: Endpoint, keys: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(keys["rsa"].read_bytes())
    client = source(
        endpoint.url,
        sasl_oauthbearer_assertion_private_key_file=file,
        sasl_login_retry_backoff_ms=1,
        sasl_login_retry_backoff_max_ms=5,
    )
    file.write_bytes(keys["rsa"].read_bytes()[:500])
    with pytest.raises(NetworkError, match="no private key in PEM format"):
        client.token()
    file.write_bytes(keys["rsa"].read_bytes())
    assert client.token().value == "granted"


def test_no_output_shows_a_passphrase(keys: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    settings = {
        "sasl_oauthbearer_assertion_private_key_file": str(keys["rsa-encrypted"]),
        "sasl_oauthbearer_assertion_private_key_passphrase": PASSPHRASE,
    }
    client = source("https://localhost:1/token", **settings, sasl_login_retry_backoff_max_ms=0)
    with pytest.raises(NetworkError) as caught:
        client.token()
    config = config_for(**settings)
    assert PASSPHRASE not in f"{caplog.text}{caught.value}{config!r}{client!r}{vars(client)}"
    assert not any("assertion" in name for name in JAVA_ONLY)
