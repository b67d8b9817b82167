"""Trust stores and key stores in Java's formats, made by keytool, by the cryptography package and by hand."""

from __future__ import annotations

import hashlib
import logging
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.errors import ConfigError
from kafkabuf.network.tls import context as tls
from kafkabuf.network.tls import jks
from rigs.jars import java
from tests.network.security_support import SecureBroker, secured, server_context
from tests.network.support import config_for
from tests.network.tls.certificates import Authority, Identity
from tests.network.tls.java_stores import encrypt, jks_store

PASSWORD = "sentinel-пароль"
ASCII_PASSWORD = "sentinel-store"  # keytool's command line
KEY_PASSWORD = "sentinel-key"


class Made:
    """A CA, the certificates that it signed, and stores in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = Authority(folder)
        self.server = self.ca.issue("server", "DNS:kafka.test", "DNS:localhost", "IP:127.0.0.1")
        self.client = self.ca.issue("client", "DNS:client.test")
        self.stranger = Authority(folder, "stranger").issue("other", "DNS:other.test")

    def certificate(self, identity: Identity | Authority) -> x509.Certificate:
        return x509.load_pem_x509_certificate(identity.certificate.read_bytes())

    def der(self, identity: Identity | Authority) -> bytes:
        return self.certificate(identity).public_bytes(Encoding.DER)

    def key(self, identity: Identity) -> Any:
        return load_pem_private_key(identity.key.read_bytes(), None)

    def pkcs8(self, identity: Identity) -> bytes:
        encoded: bytes = self.key(identity).private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return encoded

    def write(self, name: str, content: bytes) -> str:
        path = self.folder / f"{hashlib.sha1(content).hexdigest()}.{name}"
        path.write_bytes(content)
        return str(path)

    def pkcs12(self, key: Any, certificate: Any, cas: list[Any], password: str | None = PASSWORD) -> str:
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        return self.write("p12", pkcs12.serialize_key_and_certificates(b"one", key, certificate, cas, encryption))

    def jks(self, keys: dict[str, tuple[bytes, list[bytes]]], trusted: list[bytes], **passwords: str) -> str:
        return self.write("jks", jks_store(keys, trusted, **{"password": PASSWORD, **passwords}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("stores"))


# ---- stores that Java's keytool made ---------------------------------------------------------------------------------


class Stores:
    """Trust stores and key stores of each format. The JKS key has a password of its own."""

    def __init__(self, made: Made) -> None:
        self._folder = made.folder
        source = made.pkcs12(
            made.key(made.client), made.certificate(made.client), [made.certificate(made.ca)], ASCII_PASSWORD
        )
        given = ("-srckeystore", source, "-srcstoretype", "PKCS12", "-srcstorepass", ASCII_PASSWORD, "-srcalias", "one")
        self.trust, self.keys = {}, {}
        for kind, flags in {
            "JKS": (),
            "PKCS12": (),
            "PKCS12 of Java 8": ("-J-Dkeystore.pkcs12.legacy",),
        }.items():
            store = ("-storetype", kind[:6].strip(), "-storepass", ASCII_PASSWORD, *flags)
            self.trust[kind] = self._keytool(
                f"{kind}.trust", "-importcert", "-alias", "ca", "-file", str(made.ca.certificate), *store
            )
            target = ("-deststoretype", kind[:6].strip(), "-deststorepass", ASCII_PASSWORD, *flags)
            password = KEY_PASSWORD if kind == "JKS" else ASCII_PASSWORD
            self.keys[kind] = self._keytool(
                f"{kind}.keys", "-importkeystore", *given, *target, "-destkeypass", password, destination=True
            )
        none = ("-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE", "-J-Dkeystore.pkcs12.macAlgorithm=NONE")
        self.without_password = self._keytool(
            "open.trust", "-importcert", "-alias", "ca", "-file", str(made.ca.certificate),
            "-storetype", "PKCS12", "-storepass", ASCII_PASSWORD, *none,
        )  # fmt: skip

    def _keytool(self, name: str, *arguments: str, destination: bool = False) -> str:
        path = str(self._folder / name)
        command = [str(Path(java()).with_name("keytool")), "-noprompt", *arguments]
        command += ["-destkeystore" if destination else "-keystore", path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return path


@pytest.fixture(scope="module")
def stores(made: Made) -> Stores:
    return Stores(made)


@pytest.fixture(scope="module")
def cluster(made: Made) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, security=Security(ssl_certfile=made.server.store)) as cluster:
        cluster.create_topic("t", 1)
        yield cluster


FORMATS = ["JKS", "PKCS12", "PKCS12 of Java 8"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("named", [None, "JKS", "PKCS12"])
def test_producer_trusts_the_cas_of_a_store_of_keytool(
    cluster: EmbeddedCluster, stores: Stores, kind: str, named: str | None
) -> None:
    """The content tells the format, whatever type the settings name (Java's keystore.type.compat)."""
    settings = {"ssl.truststore.location": stores.trust[kind], "ssl.truststore.password": ASCII_PASSWORD}
    settings |= {} if named is None else {"ssl.truststore.type": named}
    with KafkaProducer(settings, bootstrap_servers=cluster.bootstrap_servers, security_protocol="SSL") as producer:
        assert producer.send("t", b"v").result(10).partition == 0


@pytest.mark.parametrize("kind", FORMATS)
def test_client_sends_the_certificate_of_a_store_of_keytool(made: Made, stores: Stores, kind: str) -> None:
    settings = {"ssl_keystore_location": stores.keys[kind], "ssl_keystore_password": ASCII_PASSWORD}
    settings |= {"ssl_key_password": KEY_PASSWORD} if kind == "JKS" else {}
    assert sent_certificate(made, settings) == made.der(made.client)


def test_trust_store_without_password_is_read(made: Made, stores: Stores) -> None:
    """Java reads both kinds without a password: JKS unchecked, and PKCS12 if neither encryption nor MAC is in it."""
    for path in (stores.without_password, stores.trust["JKS"]):
        assert trusted({"ssl_truststore_location": path}) == [made.der(made.ca)]


def sent_certificate(made: Made, settings: dict[str, str]) -> bytes | None:
    """The client's certificate that a broker gets, which trusts the CA."""
    context = server_context(made.server, client_ca=str(made.ca.certificate))
    settings = {"ssl_truststore_location": str(made.ca.certificate), **settings}
    with secured(SecureBroker(context), **settings) as (rigged, broker):
        rigged.connect(0)
        sock = broker.sockets[1]
        assert isinstance(sock, ssl.SSLSocket)
        return sock.getpeercert(binary_form=True)


def trusted(settings: dict[str, str]) -> list[bytes]:
    return tls.client_context(config_for(security_protocol="SSL", **settings)).get_ca_certs(binary_form=True)


# ---- stores made without Java ----------------------------------------------------------------------------------------


def key_store(path: str, password: str = PASSWORD, **more: str) -> dict[str, str]:
    return {"ssl_keystore_location": path, "ssl_keystore_password": password, **more}


def trust_store(path: str, password: str = PASSWORD) -> dict[str, str]:
    return {"ssl_truststore_location": path, "ssl_truststore_password": password}


def test_certificate_chain_and_key_are_read_from_each_format(made: Made) -> None:
    chain = [made.der(made.client), made.der(made.ca)]
    own = made.pkcs8(made.client), chain
    p12 = made.pkcs12(made.key(made.client), made.certificate(made.client), [made.certificate(made.ca)])
    for settings in (
        key_store(p12),
        key_store(made.jks({"client": own}, [])),
        key_store(made.jks({"client": own}, [], key_password=KEY_PASSWORD), ssl_key_password=KEY_PASSWORD),
    ):
        assert sent_certificate(made, settings) == made.der(made.client)


def test_first_of_several_keys_is_used_with_a_warning(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    keys = {
        "this": (made.pkcs8(made.client), [made.der(made.client)]),
        "that": (made.pkcs8(made.stranger), [made.der(made.stranger)]),
    }
    caplog.set_level(logging.WARNING, "kafkabuf.network")
    assert sent_certificate(made, key_store(made.jks(keys, []))) == made.der(made.client)
    assert "has the private keys 'this', 'that': the client uses 'this'" in caplog.text


def test_every_trusted_certificate_is_trusted_and_no_signer_of_the_stores_own_key(made: Made) -> None:
    """As in Java: a key store that serves as a trust store vouches for the key's own certificate alone."""
    own = {"client": (made.pkcs8(made.client), [made.der(made.client), made.der(made.ca)])}
    assert trusted(trust_store(made.jks({}, [made.der(made.ca), made.der(made.stranger)]))) == [made.der(made.ca)]
    named = pkcs12.PKCS12Certificate(made.certificate(made.ca), b"ca")
    assert trusted(trust_store(made.pkcs12(None, None, [named]))) == [made.der(made.ca)]
    key, certificate = made.key(made.client), made.certificate(made.client)
    assert trusted(trust_store(made.pkcs12(key, certificate, [named]))) == [made.der(made.ca)]
    assert trusted(trust_store(made.jks(own, []))) == []
    assert trusted(trust_store(made.pkcs12(key, certificate, [made.certificate(made.ca)]))) == []


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_wrong_password_and_missing_file_are_named(made: Made, store: str) -> None:
    own = {"client": (made.pkcs8(made.client), [made.der(made.client)])}
    key, certificate = made.key(made.client), made.certificate(made.client)
    for path, kind in (
        (made.jks(own, [made.der(made.ca)]), "JKS"),
        (made.pkcs12(key, certificate, [made.certificate(made.ca)]), "PKCS12"),
    ):
        for wrong in ("sentinel-wrong", "sentinel-\0"):
            text = problem({f"ssl_{store}_location": path, f"ssl_{store}_password": wrong})
            assert f"ssl.{store}.location ({path}) cannot be read as {kind}" in text
            assert f"ssl.{store}.password" in text
    text = problem({f"ssl_{store}_location": "/nowhere.jks", f"ssl_{store}_password": PASSWORD})
    assert text == f"ssl.{store}.location (/nowhere.jks): No such file or directory"


def problem(settings: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        tls.client_context(config_for(security_protocol="SSL", **settings))
    assert "sentinel" not in str(caught.value)
    return str(caught.value)


def test_unusable_store_is_refused_with_advice(made: Made) -> None:
    key, certificate, ca = made.key(made.client), made.certificate(made.client), made.certificate(made.ca)
    own = {"client": (made.pkcs8(made.client), [made.der(made.client)])}
    keyless_p12, keyless_jks = made.pkcs12(None, None, [ca]), made.jks({}, [made.der(made.ca)])
    for path in (keyless_p12, keyless_jks):
        assert "has no private key: is it a trust store" in problem(key_store(path))
    for path in (made.pkcs12(key, None, []), made.jks({"client": (made.pkcs8(made.client), [])}, [])):
        assert "has a private key without a certificate" in problem(key_store(path))
        assert "has no certificate: import the CA's" in problem(trust_store(path))
    other_key = made.jks(own, [], key_password=KEY_PASSWORD)
    assert "the password of the private key is wrong; set ssl.key.password to the password of 'client'" in problem(
        key_store(other_key)
    )
    assert "is a JKS store: set ssl.keystore.password" in problem({"ssl_keystore_location": other_key})
    unnamed = {"ssl_keystore_location": made.pkcs12(key, certificate, [])}
    assert "ssl.keystore.password is missing, or the file is damaged" in problem(unnamed)
    jceks = made.write("jceks", b"\xce\xce\xce\xce" + bytes(40))
    assert "is a JCEKS store: convert it with keytool" in problem(trust_store(jceks))


def test_password_of_a_pem_file_is_refused(made: Made) -> None:
    pem = str(made.client.store)
    assert "leave out ssl.truststore.password" in problem(trust_store(pem))
    text = problem(key_store(pem))
    assert text.endswith("leave out ssl.keystore.password; the password of a private key is ssl.key.password")


def test_pkcs12_names_the_extra_that_it_needs(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made.pkcs12(None, None, [made.certificate(made.ca)])
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    assert problem(trust_store(path)).endswith('which needs a package: pip install "kafkabuf[pkcs12]"')


def test_damaged_jks_is_a_config_error_at_every_length(made: Made) -> None:
    own = {"client": (made.pkcs8(made.client), [made.der(made.client)])}
    whole = jks_store(own, [made.der(made.ca)], PASSWORD)
    for length in range(4, len(whole)):
        with pytest.raises(ValueError, match="damaged"):
            jks.read(whole[:length], None if length % 2 else PASSWORD)
    encrypted = encrypt(b"key", KEY_PASSWORD)
    for length in range(len(encrypted)):
        with pytest.raises(ValueError, match="damaged"):
            jks.decrypt(encrypted[:length], KEY_PASSWORD)
    for number in range(len(encrypted)):
        flipped = bytearray(encrypted)
        flipped[number] ^= 0x55
        try:
            assert jks.decrypt(bytes(flipped), KEY_PASSWORD) == b"key", "an altered key was accepted"
        except ValueError:
            pass
