"""The calls of the GSS-API (RFC 2743, 2744) that Kerberos needs, by the package gssapi: the extra `kafkabuf[gssapi]`.

Each call may take long, because the library asks a KDC or DNS: none of them runs in the Sender's thread. They release
the GIL while the library asks.
Errors of the library leave here as KafkaErrors (gss_errors.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafkabuf.errors import MissingExtraError, SaslAuthenticationError
from kafkabuf.extras import install
from kafkabuf.network.sasl.gss_errors import Situation, explained

_MISSING = (
    f"sasl.mechanism=GSSAPI (Kerberos) needs the package gssapi: {install('gssapi')}; it is compiled while it is "
    "installed, which needs a C compiler and Kerberos's headers (Debian, Ubuntu: apt install libkrb5-dev; Fedora: dnf "
    "install krb5-devel)"
)


class Credentials(NamedTuple):
    """A handle of the library's, and the seconds until its ticket ends."""

    handle: Any
    lifetime: float


class Step(NamedTuple):
    """A context after a step of it: the token for the broker, and whether the context is complete."""

    context: Any
    token: bytes
    complete: bool
    mutual: bool  # whether the broker has proved who it is


class Gss:
    """The library. Raises MissingExtraError if it is not installed."""

    def __init__(self) -> None:
        try:
            # By name: with the package or without it, type checkers find the same.
            library: Any = importlib.import_module("gssapi")
        except ImportError as error:
            raise MissingExtraError(f"{_MISSING} ({error})") from None
        self._raw = library.raw
        self._error: type[Exception] = library.exceptions.GSSError
        self._kerberos = library.MechType.kerberos
        self._names = library.NameType
        flags = library.RequirementFlag
        self._mutual = flags.mutual_authentication
        # The broker's last token is protected (RFC 4752, 3.1), which needs integrity.
        self._flags = self._mutual | flags.integrity | flags.out_of_sequence_detection

    def log_in(self, principal: str, keytab: str, cache: str, situation: Situation) -> Credentials:
        """Get a ticket for the principal with its key, into an empty cache."""
        return self._acquire(principal, {b"client_keytab": keytab.encode(), b"ccache": cache.encode()}, situation)

    def from_cache(self, principal: str | None, cache: str | None, situation: Situation) -> Credentials:
        """The ticket in a cache. None: the first principal, or the user's default cache."""
        return self._acquire(principal, {} if cache is None else {b"ccache": cache.encode()}, situation)

    def _acquire(self, principal: str | None, store: dict[bytes, bytes], situation: Situation) -> Credentials:
        with self._explained(situation):
            name = (
                None if principal is None else self._raw.import_name(principal.encode(), self._names.kerberos_principal)
            )
            if not store:
                acquired = self._raw.acquire_cred(name, mechs=[self._kerberos], usage="initiate")
            elif (acquire := getattr(self._raw, "acquire_cred_from", None)) is not None:
                acquired = acquire(store, name, mechs=[self._kerberos], usage="initiate")
            else:
                raise SaslAuthenticationError(
                    "GSSAPI: the Kerberos library of this system opens neither a keytab nor a named ticket cache: run "
                    "kinit, and leave out both"
                )
        return Credentials(acquired.creds, acquired.lifetime or 0)

    def service(self, service: str, host: str, situation: Situation) -> Any:
        """The principal of a broker: exactly this host, and the realm to which krb5.conf maps it."""
        with self._explained(situation):
            by_host = self._raw.import_name(f"{service}@{host}".encode(), self._names.hostbased_service)
            canonical = self._raw.canonicalize_name(by_host, self._kerberos)
            principal, _, realm = self._raw.display_name(canonical, name_type=False).name.decode().rpartition("@")
            if principal == f"{service}/{host}":
                return canonical
            # The library has replaced the host by what DNS calls it (dns_canonicalize_hostname, rdns).
            exact = f"{service}/{host}@{realm}".encode()
            return self._raw.import_name(exact, self._names.kerberos_principal)

    def step(self, credentials: Credentials, service: Any, context: Any, token: bytes, situation: Situation) -> Step:
        """Begin a context with the broker (None), or continue it with the broker's token."""
        with self._explained(situation):
            result = self._raw.init_sec_context(
                service, credentials.handle, context, self._kerberos, self._flags, input_token=token or None
            )
        return Step(result.context, result.token or b"", not result.more_steps, self._mutual in result.flags)

    def principal(self, context: Any, situation: Situation) -> str:
        """Whose context it is, with the realm. The context knows that even if the ticket has ended since it began."""
        with self._explained(situation):
            unasked = dict.fromkeys(("target_name", "lifetime", "mech", "flags", "locally_init", "complete"), False)
            name = self._raw.inquire_context(context, **unasked).initiator_name
            return str(self._raw.display_name(name, name_type=False).name.decode())

    def unwrap(self, context: Any, message: bytes, situation: Situation) -> bytes:
        with self._explained(situation):
            return bytes(self._raw.unwrap(context, message).message)

    def wrap(self, context: Any, message: bytes, situation: Situation) -> bytes:
        """Protected against changes, and not encrypted."""
        with self._explained(situation):
            return bytes(self._raw.wrap(context, message, confidential=False).message)

    @contextmanager
    def _explained(self, situation: Situation) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise explained(error, situation) from None
