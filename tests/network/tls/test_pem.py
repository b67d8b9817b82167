"""PEM as people keep it, with text around its blocks. OpenSSL's count of the certificates in a file is the judge."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkabuf import ProducerConfig
from kafkabuf.compat.confluent import settings as confluent_settings
from kafkabuf.errors import ConfigError
from kafkabuf.formats.registry import transport
from kafkabuf.formats.registry.settings import RegistrySettings
from kafkabuf.network.tls import context as tls
from kafkabuf.network.tls import pem
from tests.network.tls.certificates import Authority, openssl

Arrange = Callable[[list[str]], str]

BAG = """Bag Attributes
    friendlyName: CN=Some CA
    localKeyID: 54 69 6D 65 20 31 36
subject=CN = Some CA
issuer=CN = Some CA
"""
EXPLAINED = """Certificate:
    Data:
        Version: 3 (0x2)
        Signature Algorithm: ecdsa-with-SHA256
"""


class Made:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authorities = [Authority(folder, name) for name in ("first", "second", "third")]
        self.texts = [authority.certificate.read_text() for authority in self.authorities]
        # The server knows the root alone: it trusts the client only if the client sends the certificate between them.
        self.middle = self._middle()
        self.client = self.middle.issue("client", "DNS:client.test")
        self.encrypted = self.middle.issue("locked", "DNS:client.test", password="sentinel")
        self.server = self.authorities[0].issue("server", "DNS:server.test")

    def _middle(self) -> Authority:
        root, made = self.authorities[0], Authority(self.folder, "middle")
        request, extensions = self.folder / "middle.csr", self.folder / "middle.ext"
        openssl("req", "-new", "-key", made.key, "-subj", "/CN=middle", "-out", request)
        extensions.write_text("basicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\nkeyUsage=keyCertSign\n")
        signer = "-CA", root.certificate, "-CAkey", root.key, "-CAcreateserial", "-days", "30"
        openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", made.certificate)
        return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("pem"))


def commented_out(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())


def other_blocks(text: str) -> str:
    """Blocks of other kinds, which nobody takes for certificates."""
    return "".join(text.replace("CERTIFICATE", kind) for kind in ("PUBLIC KEY", "CERTIFICATE REQUEST"))


ARRANGEMENTS: dict[str, Arrange] = {
    "alone": "".join,
    "a comment between": "# and the next\n".join,
    "a comment in front": lambda texts: "# the CAs\n" + "".join(texts),
    "a comment behind": lambda texts: "".join(texts) + "# the end",
    "bag attributes": lambda texts: "".join(BAG + text for text in texts),
    "openssl x509 -text": lambda texts: "".join(EXPLAINED + text for text in texts),
    "blank lines": lambda texts: "\n\n" + "\n\n \n".join(texts) + "\n\n",
    "no last line end": lambda texts: "".join(texts).rstrip(),
    "line ends of Windows": lambda texts: "# CAs\n".join(texts).replace("\n", "\r\n"),
    "blanks behind each line": lambda texts: "# CAs\n".join(texts).replace("\n", "  \n"),
    "a comment that is not ASCII": lambda texts: "# Zertifizierungsstelle für Ärzte\n" + "# ☃\n".join(texts),
    "a certificate that is commented out": lambda texts: commented_out(texts[0]) + "".join(texts[1:]),
    "another kind between": lambda texts: texts[0] + other_blocks(texts[0]) + "".join(texts[1:]),
    "twice": lambda texts: "# again\n".join(texts + texts),
    "the older name": lambda texts: "# old\n".join(texts).replace(" CERTIFICATE", " X509 CERTIFICATE"),
}
# OpenSSL reads fewer of these from a file than Java does: it passes over a block whose line begins with something else.
OF_JAVA: dict[str, Arrange] = {
    "in one line": lambda texts: "".join(texts).replace("\n", " "),
    "in one line with comments": lambda texts: ("# CAs\n" + "# next\n".join(texts)).replace("\n", " "),
    "in one line with bag attributes": lambda texts: "".join(BAG + text for text in texts).replace("\n", " "),
    "one line for each": lambda texts: "\n".join(text.replace("\n", " ") for text in texts),
    "indented": lambda texts: "".join(f"    {line}\n" for text in texts for line in text.splitlines()),
    "the mark of Windows in front": lambda texts: "\ufeff" + "".join(texts),
    "behind a comment on its line": lambda texts: "CA: " + "CA: ".join(texts),
}


def trusted_from_text(text: str, folder: Path) -> ssl.SSLContext:
    return tls.client_context(ProducerConfig(bootstrap_servers="localhost:9092", ssl_truststore_certificates=text))


def trusted_from_file(text: str, folder: Path) -> ssl.SSLContext:
    return tls.client_context(
        ProducerConfig(bootstrap_servers="localhost:9092", ssl_truststore_location=str(saved(text, folder)))
    )


def trusted_by_the_registry(text: str, folder: Path) -> ssl.SSLContext:
    url = {"schema.registry.url": "https://localhost:8081"}
    return transport.tls_context(RegistrySettings(url | {"ssl.ca.location": str(saved(text, folder))}))


def trusted_by_confluents_name(text: str, folder: Path) -> ssl.SSLContext:
    given = {"bootstrap.servers": "localhost:9092", "security.protocol": "SSL", "ssl.ca.pem": text}
    return tls.client_context(ProducerConfig(confluent_settings.translated(given).own))


def trusted_by_spark(text: str, folder: Path) -> ssl.SSLContext:
    pytest.importorskip("pyspark")
    from kafkabuf.spark.options.options import SinkOptions

    given = {"kafka.bootstrap.servers": "localhost:9092", "kafka.ssl.truststore.certificates": text, "topic": "t"}
    return tls.client_context(ProducerConfig(dict(SinkOptions.parse(given).producer)))


def trusted_at_the_token_endpoint(text: str, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.trust(context, str(saved(text, folder)))
    return context


def saved(text: str, folder: Path) -> Path:
    path = folder / "cas.pem"
    path.write_bytes(text.encode())
    return path


WAYS = [
    trusted_from_text,
    trusted_from_file,
    trusted_by_the_registry,
    trusted_by_confluents_name,
    trusted_by_spark,
    trusted_at_the_token_endpoint,
]


def subjects(context: ssl.SSLContext) -> list[str]:
    return sorted(str(certificate["subject"]) for certificate in context.get_ca_certs())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_certificate_that_openssl_finds_in_a_file_is_trusted(
    made: Made, tmp_path: Path, name: str, way: Callable[[str, Path], ssl.SSLContext]
) -> None:
    text = ARRANGEMENTS[name](made.texts)
    judge = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    judge.load_verify_locations(saved(text, tmp_path))
    assert len(judge.get_ca_certs()) == (2 if "commented out" in name else 3)
    assert subjects(way(text, tmp_path)) == subjects(judge)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OF_JAVA)
def test_every_certificate_that_java_finds_in_a_text_is_trusted(
    made: Made, tmp_path: Path, name: str, way: Callable[[str, Path], ssl.SSLContext]
) -> None:
    assert len(way(OF_JAVA[name](made.texts), tmp_path).get_ca_certs()) == 3


@pytest.mark.parametrize("memfd", [True, False])
def test_certificate_with_openssls_trust_settings_is_trusted(
    made: Made, tmp_path: Path, memfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not memfd:  # as on macOS
        monkeypatch.delattr("os.memfd_create")
    marked = tmp_path / "marked.pem"
    openssl("x509", "-in", made.authorities[0].certificate, "-trustout", "-out", marked)
    text = "# one\n".join([marked.read_text(), made.texts[1]])
    assert "BEGIN TRUSTED CERTIFICATE" in text
    for way in WAYS:
        assert len(way(text, tmp_path).get_ca_certs()) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("-----END", "----END"),
        lambda text: text.replace("-----BEGIN CERT", "-----BEGIN DIRT"),
        lambda text: text.replace("\nM", "\n#M"),
        lambda text: text.replace("-----BEGIN CERTIFICATE-----\n", ""),
        lambda text: "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        lambda text: text[: len(text) // 2] + "\n",
        lambda text: text.replace("\nM", "\nN"),
    ],
)
def test_damaged_certificate_among_others_is_refused(
    made: Made, tmp_path: Path, way: Callable[[str, Path], ssl.SSLContext], damage: Callable[[str], str]
) -> None:
    first, second, third = made.texts
    for in_one_line in (False, True):
        text = first + damage(second) + third
        with pytest.raises(ConfigError, match=r"damaged|PEM"):
            way(text.replace("\n", " ") if in_one_line else text, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "text", ["# nothing", "certificate", "-----BEGIN PRIVATE KEY-----\nTUlJ\n-----END PRIVATE KEY-----"]
)
def test_text_without_a_certificate_is_refused(
    tmp_path: Path, text: str, way: Callable[[str, Path], ssl.SSLContext]
) -> None:
    with pytest.raises(ConfigError, match="no certificate") as caught:
        way(text, tmp_path)
    assert "TUlJ" not in str(caught.value)


# ---- the client's own key and certificates ---------------------------------------------------------------------------


def is_taken(context: ssl.SSLContext, made: Made) -> bool:
    """Whether a server that trusts the first authority alone takes the certificates that the context sends."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made.server.certificate, made.server.key)
    server.load_verify_locations(made.authorities[0].certificate)
    server.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        context.wrap_bio(to_client, to_server, server_hostname="server.test"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return sides[1].getpeercert() is not None


def keystore(key: str, chain: str, made: Made, password: str | None = None) -> ssl.SSLContext:
    config = ProducerConfig(
        bootstrap_servers="localhost:9092",
        ssl_truststore_certificates=made.texts[0],
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=chain,
        ssl_key_password=password,
    )
    return tls.client_context(config)


@pytest.mark.parametrize("in_one_line", [False, True])
@pytest.mark.parametrize("separator", ["", "# and\n", BAG, EXPLAINED, "\n \n", "# für\n"])
def test_whole_chain_is_sent_with_text_between_its_certificates(made: Made, separator: str, in_one_line: bool) -> None:
    chain = separator.join(["", made.client.certificate.read_text(), made.middle.certificate.read_text()])
    key = separator + made.client.key.read_text()
    if in_one_line:
        key, chain = key.replace("\n", " "), chain.replace("\n", " ")
    assert is_taken(keystore(key, chain, made), made)
    assert not is_taken(keystore(key, made.client.certificate.read_text(), made), made), "the server proves nothing"


@pytest.mark.parametrize("in_one_line", [False, True])
def test_output_of_openssl_pkcs12_serves_as_key_and_as_chain(made: Made, tmp_path: Path, in_one_line: bool) -> None:
    store, text = tmp_path / "client.p12", tmp_path / "client.txt"
    given = "-inkey", made.client.key, "-in", made.client.certificate, "-certfile", made.middle.certificate
    openssl("pkcs12", "-export", *given, "-out", store, "-passout", "pass:secret")
    openssl("pkcs12", "-in", store, "-passin", "pass:secret", "-nodes", "-out", text)
    shown = text.read_text()
    assert "Bag Attributes" in shown
    shown = shown.replace("\n", " ") if in_one_line else shown
    assert is_taken(keystore(shown, shown, made), made)
    as_file = {"ssl_keystore_location": str(text), "ssl_truststore_certificates": made.texts[0]}
    assert is_taken(tls.client_context(ProducerConfig(bootstrap_servers="localhost:9092", **as_file)), made)


@pytest.mark.parametrize("in_one_line", [False, True])
@pytest.mark.parametrize("older", [False, True])
def test_encrypted_key_is_read_with_text_around_it(made: Made, tmp_path: Path, older: bool, in_one_line: bool) -> None:
    key = made.encrypted.key
    if older:  # RFC 1421's headers, Proc-Type and DEK-Info
        key = tmp_path / "older.key"
        plain = made.folder / "locked.key"
        openssl("ec", "-in", plain, "-aes256", "-passout", "pass:sentinel", "-out", key)
        assert "DEK-Info" in key.read_text()
    text = "# the key\n" + key.read_text() + "# its end\n"
    chain = made.encrypted.certificate.read_text() + made.middle.certificate.read_text()
    text = text.replace("\n", " ") if in_one_line else text
    assert is_taken(keystore(text, chain, made, "sentinel"), made)


@pytest.mark.parametrize("name", ["ssl.keystore.key", "ssl.keystore.certificate.chain"])
def test_setting_without_its_blocks_is_named(made: Made, name: str) -> None:
    key, chain = made.client.key.read_text(), made.client.certificate.read_text()
    with pytest.raises(ConfigError, match=f"^{name}: not readable as PEM .no "):
        keystore(*((chain, chain) if name == "ssl.keystore.key" else (key, key)), made)


def test_headers_and_content_of_a_block_stay(made: Made) -> None:
    headers = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0A1B\n\n"
    text = f"-----BEGIN RSA PRIVATE KEY-----\n{headers}TUlJ\n-----END RSA PRIVATE KEY-----\n"
    assert [block.text for block in pem.blocks("text\n" + text)] == [text]
    assert [block.text for block in pem.blocks(text.replace("\n", " "))] == [text]
