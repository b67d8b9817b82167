"""A Kerberos KDC (MIT's krb5kdc) of its own realm, in a temporary folder and on a free port, without root's rights.

    with Kdc() as kdc:
        keytab = kdc.keytab("kafka/localhost")
        kdc.environment  # for the processes that use it

`python -m rigs.kdc` fails where a program that this and the package gssapi need is missing, and says how to install it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rigs.ports import free_ports
from rigs.real_kafka import die_with_parent

REALM = "KAFKABUF.TEST"
# The last program belongs to the headers with which the package gssapi is compiled.
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "faketime", "krb5-config")
_HOST = "127.0.0.1"
_PATIENCE = 30.0
# Debian has the KDC's programs where only root's PATH leads.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))

# By TCP alone: a KDC that is stopped then refuses connections at once.
_CLIENT = """\
[libdefaults]
default_realm = {realm}
dns_lookup_kdc = false
dns_lookup_realm = false
udp_preference_limit = 1
{more}
[realms]
{realm} = {{
    kdc = {host}:{port}
}}
"""
_SERVER = """\
[realms]
{realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    kdc_listen = ""
    kdc_tcp_listen = {host}:{port}
    max_life = 10h
    max_renewable_life = 7d
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
}}
[logging]
kdc = FILE:{folder}/kdc.log
"""


class KdcError(RuntimeError):
    """A program of Kerberos's failed. The message has its output."""


class Kdc:
    """A realm with its KDC."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kafkabuf-kdc-"))
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.krb5_conf = self.write_conf("krb5.conf")
        names = {"realm": REALM, "folder": self.folder, "host": _HOST, "port": self._port}
        (self.folder / "kdc.conf").write_text(_SERVER.format(**names))

    def __enter__(self) -> Self:
        try:
            self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs find this KDC."""
        return {"KRB5_CONFIG": str(self.krb5_conf), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}

    def write_conf(self, name: str, more: str = "", port: int | None = None) -> Path:
        """A krb5.conf with further lines in [libdefaults], or with another port."""
        path = self.folder / name
        path.write_text(_CLIENT.format(realm=REALM, host=_HOST, port=port or self._port, more=more))
        return path

    def start(self, clock: str | None = None) -> None:
        """Start the KDC, and wait until it listens. `clock` is its time as faketime writes it, such as `+1h`."""
        command = [*(["faketime", "-f", clock] if clock else []), "krb5kdc", "-n", "-r", REALM]
        main = threading.current_thread() is threading.main_thread()
        # faketime runs the KDC as its child, in whose group both end.
        self._process = subprocess.Popen(
            command,
            env=self._all_variables(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent if main else None,
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                socket.create_connection((_HOST, self._port), timeout=1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise KdcError(f"krb5kdc does not listen: {self.log()}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Nobody listens on the KDC's port any more."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """The kernel still accepts connections, and the KDC answers nothing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        path = self.folder / "kdc.log"
        return path.read_text(errors="replace") if path.is_file() else ""

    def add(self, principal: str, *options: str, password: str | None = None) -> None:
        """Create a principal, with a random key or a password. Options are kadmin's, such as -maxlife."""
        key = ["-randkey"] if password is None else ["-pw", password]
        self.admin(" ".join(["addprinc", *key, *map(_quoted, options), principal]))

    def keytab(self, principal: str, *, name: str | None = None) -> Path:
        """A file with a new key of the principal: keytabs that were made before lose their worth."""
        path = self.folder / (name or principal.replace("/", "-") + ".keytab")
        path.unlink(missing_ok=True)
        self.admin(f"ktadd -q -k {path} {principal}")
        return path

    def admin(self, query: str) -> None:
        done = self.run("kadmin.local", "-r", REALM, "-q", query)
        # kadmin.local ends with status 0 whatever happens.
        if any(word in done for word in ("does not exist", "Unable", "usage:", "Invalid", "while ")):
            raise KdcError(f"{query}: {done}")

    def run(self, *command: str, text: str = "", environment: dict[str, str] | None = None) -> str:
        """Run a program of Kerberos's, and return its output."""
        variables = self._all_variables() | (environment or {})
        done = subprocess.run(command, env=variables, input=text, capture_output=True, text=True, timeout=_PATIENCE)
        if done.returncode != 0:
            raise KdcError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def succeeds(self, *command: str) -> bool:
        """Whether a program ends with status 0."""
        return subprocess.run(command, env=self._all_variables(), capture_output=True).returncode == 0

    def _all_variables(self) -> dict[str, str]:
        return {**os.environ, "PATH": _PATH, **self.environment}


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option


def missing() -> str:
    """What this machine lacks, and how to install it. Empty: nothing."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if not absent:
        return ""
    return (
        f"The tests of Kerberos start a KDC of their own, and find no {', '.join(absent)}. Debian, Ubuntu: apt install "
        "--no-install-recommends krb5-kdc krb5-admin-server krb5-user libkrb5-dev faketime. Fedora: dnf install "
        "krb5-server krb5-workstation krb5-devel libfaketime."
    )


if __name__ == "__main__":
    sys.exit(missing() or None)
