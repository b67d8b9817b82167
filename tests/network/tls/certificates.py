"""Certificates for tests, made by the `openssl` command: a CA, and the certificates that it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

CURVE = "EC", "-pkeyopt", "ec_paramgen_curve:P-256"  # quick to make
# RFC 5280 demands them, and Python 3.13 and newer do too (ssl.VERIFY_X509_STRICT).
EXTENSIONS = "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


@dataclass(frozen=True)
class Identity:
    """Three files: a private key, its certificate, and both in one file."""

    key: Path
    certificate: Path
    store: Path


class Authority:
    """A certificate authority in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self.key, self.certificate = folder / f"{name}.key", folder / f"{name}.pem"
        openssl("genpkey", "-algorithm", *CURVE, "-out", self.key)
        extensions = "-addext", "keyUsage=critical,keyCertSign,cRLSign"  # beside those of every CA
        subject = "-subj", f"/CN={name}", "-days", "30"
        openssl("req", "-x509", "-key", self.key, *subject, *extensions, "-out", self.certificate)

    def issue(self, name: str, *alternatives: str, expired: bool = False, password: str | None = None) -> Identity:
        """A certificate with subjectAltNames such as `DNS:host` or `IP:address`. A `password` encrypts its key."""
        key, request = self._folder / f"{name}.key", self._folder / f"{name}.csr"
        certificate, extensions = self._folder / f"{name}.pem", self._folder / f"{name}.ext"
        openssl("genpkey", "-algorithm", *CURVE, "-out", key)
        openssl("req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request)
        names = f"subjectAltName={','.join(alternatives)}\n" if alternatives else ""
        extensions.write_text(f"{EXTENSIONS}{names}")
        signer = "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial"
        validity = _of_the_past() if expired else ("-days", "30")
        openssl("x509", "-req", "-in", request, *signer, *validity, "-extfile", extensions, "-out", certificate)
        if password is not None:
            openssl("pkey", "-in", key, "-aes256", "-passout", f"pass:{password}", "-out", f"{key}.encrypted")
            key = Path(f"{key}.encrypted")
        store = self._folder / f"{name}-store.pem"
        store.write_text(key.read_text() + certificate.read_text())
        return Identity(key, certificate, store)


def _of_the_past() -> tuple[str, ...]:
    """The arguments for a certificate that has expired: openssl 3.0 takes no dates, newer versions no negative days."""
    usage = subprocess.run(["openssl", "x509", "-help"], capture_output=True, text=True).stderr
    dates = "-not_before", "20200101000000Z", "-not_after", "20200102000000Z"
    return dates if "-not_after" in usage else ("-days", "-1")


def openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
