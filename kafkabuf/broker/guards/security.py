"""`Security`: which clients may connect to an embedded cluster, and how, and whether it has ACLs.

All nodes use one security protocol.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal

from kafkabuf.broker.guards.sasl import Exchange, OAuthBearer, Plain, Refusing, TokenValidator, unsecured_tokens
from kafkabuf.broker.guards.scram import HASHES, ScramUsers
from kafkabuf.clock import Clock
from kafkabuf.errors import ConfigError

BY_PASSWORD = ("PLAIN", *HASHES)
MECHANISMS = (*BY_PASSWORD, "OAUTHBEARER")
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
File = str | PathLike[str]
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Security:
    """An `ssl_certfile` turns TLS on, users or an OAuth validator turn SASL on, and both together give SASL_SSL.

    Args:
        ssl_certfile: PEM file with the certificate chain of the nodes, and with the key unless `ssl_keyfile` has it.
        ssl_keyfile, ssl_key_password: PEM file with the key, and the password that decrypts the key.
        ssl_cafile: PEM file with the authorities that must have signed the certificates of clients.
        ssl_client_auth: whether clients need a certificate: none, requested (a certificate must be valid if the client
            shows one), or required.
        users: {name: password}, for PLAIN and SCRAM. Passwords appear in no `repr`, log or error.
        sasl_mechanisms: a choice of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER. The default is every mechanism
            that `users` and `oauth_validator` allow.
        oauth_validator: for OAUTHBEARER, a callable that takes a token. It returns the principal, or (principal,
            seconds since the epoch when the token expires), and raises to refuse the token. The cluster's thread calls
            it. "unsecured" accepts unsigned JWTs, which anybody can make.
        connections_max_reauth_ms: how long an authentication is valid (KIP-368). 0: as long as the token, or for ever.
        authorizer: whether the cluster has ACLs, which say what each client may do (Kafka's StandardAuthorizer). Off,
            every client may do everything.
        super_users: principals such as User:admin, who may do everything whatever the ACLs say.
        allow_everyone_if_no_acl_found: whether everybody may use a resource without any ACL. Off, nobody may.

    Raises ConfigError for settings that do not go together, and for files that are not valid.
    """

    ssl_certfile: File | None = None
    ssl_keyfile: File | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_cafile: File | None = None
    ssl_client_auth: Literal["none", "requested", "required"] = "none"
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    sasl_mechanisms: Sequence[str] = ()
    oauth_validator: TokenValidator | Literal["unsecured"] | None = None
    connections_max_reauth_ms: int = 0
    authorizer: bool = False
    super_users: Sequence[str] = ()
    allow_everyone_if_no_acl_found: bool = False

    def __post_init__(self) -> None:
        possible = BY_PASSWORD * bool(self.users) + ("OAUTHBEARER",) * (self.oauth_validator is not None)
        chosen = (self.sasl_mechanisms,) if isinstance(self.sasl_mechanisms, str) else tuple(self.sasl_mechanisms)
        object.__setattr__(self, "sasl_mechanisms", chosen or possible)
        for mechanism in chosen:
            if mechanism not in MECHANISMS:
                raise ConfigError(f"sasl_mechanisms: {mechanism!r} is unknown, choose from {', '.join(MECHANISMS)}")
            if mechanism not in possible:
                needed = "oauth_validator" if mechanism == "OAUTHBEARER" else "users"
                raise ConfigError(f"sasl_mechanisms: {mechanism} needs {needed}")
        if any(not name or "\0" in name + password or not password for name, password in self.users.items()):
            raise ConfigError("users: a name and a password must not be empty, nor contain a NUL")
        # At once: the error of the codec would show them where they are encoded.
        if any(map(_SURROGATE.search, (*self.users, *self.users.values(), self.ssl_key_password or ""))):
            raise ConfigError("users, ssl_key_password: a name or a password is no text that UTF-8 can encode")
        if not (self.oauth_validator in (None, "unsecured") or callable(self.oauth_validator)):
            raise ConfigError(f"oauth_validator={self.oauth_validator!r}: a callable or 'unsecured' is needed")
        if self.connections_max_reauth_ms < 0:
            raise ConfigError(f"connections_max_reauth_ms={self.connections_max_reauth_ms}: 0 and above are allowed")
        self._check_tls()
        self._check_authorizer()

    def _check_authorizer(self) -> None:
        principals = (self.super_users,) if isinstance(self.super_users, str) else tuple(self.super_users)
        object.__setattr__(self, "super_users", principals)
        for principal in principals:
            if ":" not in principal:
                raise ConfigError(f"super_users: {principal!r} is not of the form Type:name, such as User:admin")
        if not self.authorizer and (principals or self.allow_everyone_if_no_acl_found):
            raise ConfigError("super_users and allow_everyone_if_no_acl_found need authorizer=True")

    def _check_tls(self) -> None:
        if self.ssl_client_auth not in _CLIENT_AUTH:
            raise ConfigError(f"ssl_client_auth={self.ssl_client_auth!r}: {', '.join(_CLIENT_AUTH)} are allowed")
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_cafile or self.ssl_client_auth != "none"):
            raise ConfigError(
                "ssl_keyfile, ssl_cafile and ssl_client_auth need an ssl_certfile, the certificate of the nodes"
            )
        if (self.ssl_cafile is None) != (self.ssl_client_auth == "none"):
            raise ConfigError(
                "ssl_client_auth and ssl_cafile go together: ssl_cafile has the authorities of clients' certificates"
            )

    @property
    def protocol(self) -> str:
        """Kafka's security.protocol, which clients must set too."""
        return ("SASL_" if self.sasl_mechanisms else "") + ("PLAINTEXT" if self.ssl_certfile is None else "SSL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context for TLS 1.2 and 1.3. Raises ConfigError if it cannot load the files."""
        if self.ssl_certfile is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # An empty password, because with None OpenSSL would ask for a password on the terminal.
        password = self.ssl_key_password or ""
        try:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password)
            if self.ssl_cafile is not None:
                context.load_verify_locations(self.ssl_cafile)
        except (OSError, ValueError) as error:
            names = ", ".join(str(file) for file in (self.ssl_certfile, self.ssl_keyfile, self.ssl_cafile) if file)
            raise ConfigError(f"TLS: {names}: {error}; PEM files with a chain and its key are needed") from error
        context.verify_mode = _CLIENT_AUTH[self.ssl_client_auth]
        return context


class Mechanisms:
    """The mechanisms of a running cluster, with the credentials that they derive from the passwords."""

    def __init__(self, security: Security, clock: Clock) -> None:
        self.names = tuple(security.sasl_mechanisms)
        self.max_reauth_ms = security.connections_max_reauth_ms
        self._passwords = dict(security.users)
        self._scram = {name: ScramUsers(name, self._passwords) for name in HASHES if name in self.names}
        validator = security.oauth_validator
        self._validator = unsecured_tokens(clock) if isinstance(validator, str) else validator

    def begin(self, name: str) -> Exchange:
        """Starts an authentication by a mechanism among `names`."""
        if name in self._scram:
            return self._scram[name].begin()
        if name == "OAUTHBEARER" and self._validator is not None:
            return OAuthBearer(self._validator)
        return Plain(self._passwords)

    def begin_again(self, name: str, before: str) -> Exchange:
        """Starts a re-authentication of a connection. The mechanism must be the same as `before`."""
        if name == before:
            return self.begin(name)
        return Refusing(f"re-authentication takes the mechanism {before} of the first authentication, not {name}")
