"""A Kerberos library for tests, in the shape of the package gssapi, with the KDC in it. Its tokens are plain text.

    C: AP-REQ client service        B: AP-REP        C: empty
    B: wrapped layers               C: wrapped choice and client      B: empty

A wrapped message begins with `W:`.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.network.security_support import Refused, ServerExchange

MIT = -1765328384  # the base of MIT's table of error codes
UNREACHABLE, NO_PRINCIPAL, NO_BROKER, SKEW, NO_CACHE = 156, 6, 7, 37, 195
FAILURE, NO_CREDENTIALS, EXPIRED, EXPIRED_CONTEXT, BAD_MIC, DEFECTIVE = (n << 16 for n in (13, 7, 11, 12, 6, 9))


class GSSError(Exception):
    def __init__(self, maj_code: int, code: int = 0) -> None:
        super().__init__(f"Major {maj_code}, Minor {code}")
        self.maj_code = maj_code
        self.min_code = (MIT + code) % (1 << 32) if code else 0

    def get_all_statuses(self, code: int, is_major: bool) -> list[str]:
        return ["Unspecified GSS failure" if is_major else f"the library's text of {code}\n"]


class Flag(enum.IntFlag):
    mutual_authentication = 2
    out_of_sequence_detection = 8
    integrity = 32


class FakeGssapi:
    """The module gssapi, its KDC, and its DNS."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(GSSError=GSSError)
        self.MechType = SimpleNamespace(kerberos="krb5")
        self.NameType = SimpleNamespace(kerberos_principal="principal", hostbased_service="service")
        self.RequirementFlag = Flag
        self.raw = self
        self.lifetime = 36_000  # of the next ticket, in seconds
        self.age = 0  # seconds that have passed since all tickets were made
        self.caches: dict[str, tuple[str, int]] = {}  # the principal and the end of the ticket
        self.aliases: dict[str, str] = {}  # hosts that DNS calls otherwise
        self.realm = "REALM"
        self.proves = True
        self.errors: dict[str, GSSError] = {}  # by function
        self.initiator = ""  # the principal of the newest context
        self.calls: list[str] = []
        self.threads: set[str] = set()
        self.open = threading.Event()  # while it is not set, a KDC does not answer
        self.open.set()
        self.unreachable = False

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)
        if (error := self.errors.get(call.split()[0])) is not None:
            raise error

    def import_name(self, name: bytes, kind: str) -> bytes:
        self._note(f"import_name {name.decode()} {kind}")
        if kind == "principal":
            return name
        service, _, host = name.decode().partition("@")
        return f"{service}/{self.aliases.get(host, host)}@{self.realm}".encode()

    def canonicalize_name(self, name: bytes, mech: str) -> bytes:
        return name

    def display_name(self, name: bytes, name_type: bool) -> Any:
        return SimpleNamespace(name=name)

    def acquire_cred(self, name: bytes | None, mechs: list[str], usage: str) -> Any:
        return self.acquire_cred_from({b"ccache": b"DEFAULT"}, name, mechs, usage)

    def acquire_cred_from(self, store: dict[bytes, bytes], name: bytes | None, mechs: list[str], usage: str) -> Any:
        cache, keytab = store[b"ccache"].decode(), store.get(b"client_keytab")
        self._note(f"{'log_in' if keytab else 'acquire'} {cache}")
        if keytab:
            self._ask_kdc()
            assert name is not None
            self.caches[cache] = name.decode(), self.age + self.lifetime
        if cache not in self.caches:
            raise GSSError(NO_CREDENTIALS, NO_CACHE)
        principal, end = self.caches[cache]
        return SimpleNamespace(creds=principal, lifetime=max(end - self.age, 0))

    def _ask_kdc(self) -> None:
        assert self.open.wait(20)
        if self.unreachable:
            raise GSSError(FAILURE, UNREACHABLE)

    def init_sec_context(
        self, service: bytes, creds: str, context: Any, mech: str, flags: Flag, input_token: bytes | None
    ) -> Any:
        self._note(f"init_sec_context {service.decode()}")
        assert flags == Flag(2 | 8 | 32)
        granted = flags if self.proves else Flag(32)
        if context is None:
            self._ask_kdc()
            self.initiator = creds
            token = f"AP-REQ {creds} {service.decode()}".encode()
            return SimpleNamespace(context="begun", token=token, more_steps=self.proves, flags=granted)
        if input_token == b"AP-REP more":
            return SimpleNamespace(context="begun", token=b"again", more_steps=True, flags=granted)
        if input_token != b"AP-REP":
            raise GSSError(DEFECTIVE)
        return SimpleNamespace(context="complete", token=None, more_steps=False, flags=granted)

    def inquire_context(self, context: str, **unasked: bool) -> Any:
        self._note("inquire_context")
        assert context == "complete"
        assert not any(unasked.values())
        return SimpleNamespace(initiator_name=self.initiator.encode())

    def wrap(self, context: str, message: bytes, confidential: bool) -> Any:
        self._note("wrap")
        assert context == "complete"
        assert not confidential
        return SimpleNamespace(message=b"W:" + message)

    def unwrap(self, context: str, message: bytes) -> Any:
        self._note("unwrap")
        if not message.startswith(b"W:"):
            raise GSSError(BAD_MIC)
        return SimpleNamespace(message=message[2:])


def kerberos_server(
    principal: str, service: str, *, proof: bytes = b"AP-REP", layers: bytes = b"W:\x07\x00\x10\x00", end: bytes = b""
) -> Callable[[], ServerExchange]:
    """A broker's side. The last arguments make it lie."""

    def begin() -> ServerExchange:
        answers = iter([(f"AP-REQ {principal} {service}", proof), ("", layers), (f"W:\1\0\0\0{principal}", end)])

        def exchange(token: bytes) -> bytes:
            expected, answer = next(answers)
            if token != expected.encode():
                raise Refused(f"found {token!r}, and not {expected!r}")
            return answer

        return exchange

    return begin
