"""`Security`: who may connect to an embedded cluster, and how. One protocol for all of its nodes."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Security:
    """TLS if there is an `ssl_certfile`, SASL if there are users or tokens; both together are SASL_SSL.

    Args:
        ssl_certfile: PEM, the chain that nodes show; with the key in it unless `ssl_keyfile` has it.
        ssl_keyfile, ssl_key_password: PEM, and what it is encrypted with.
        ssl_cafile: PEM, whom clients' certificates must be signed by.
        ssl_client_auth: whether clients need a certificate: none, requested (any that is shown must be good), required.
        users: {name: password}, for PLAIN and SCRAM. Passwords appear in no `repr`, log or error.
        sasl_mechanisms: a choice of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER; without it all that can be.
        oauth_validator: for OAUTHBEARER: a callable that returns who a token is, or (who, seconds since the epoch until
            when), and raises for one that is no good; it is called in the cluster's thread. "unsecured" takes unsigned
            JWTs, which anybody can make.
        connections_max_reauth_ms: how long an authentication holds (KIP-368); 0: as long as the token, or for ever.

    ConfigError for what does not go together, and for files that are not what they should be.
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

    def __post_init__(self) -> None:
        possible = BY_PASSWORD * bool(self.users) + ("OAUTHBEARER",) * (self.oauth_validator is not None)
        chosen = (self.sasl_mechanisms,) if isinstance(self.sasl_mechanisms, str) else tuple(self.sasl_mechanisms)
        object.__setattr__(self, "sasl_mechanisms", chosen or possible)
        for one in chosen:
            if one not in MECHANISMS:
                raise ConfigError(f"sasl_mechanisms: {one!r} is not known, {', '.join(MECHANISMS)} are")
            if one not in possible:
                needs = "oauth_validator" if one == "OAUTHBEARER" else "users"
                raise ConfigError(f"sasl_mechanisms: {one} needs {needs}")
        if any(not name or "\0" in name + password or not password for name, password in self.users.items()):
            raise ConfigError("users: neither a name nor a password may be empty or hold a NUL")
        if not (self.oauth_validator in (None, "unsecured") or callable(self.oauth_validator)):
            raise ConfigError(f"oauth_validator={self.oauth_validator!r}: a callable or 'unsecured' is needed")
        if self.connections_max_reauth_ms < 0:
            raise ConfigError(f"connections_max_reauth_ms={self.connections_max_reauth_ms}: 0 and above are allowed")
        self._check_tls()

    def _check_tls(self) -> None:
        if self.ssl_client_auth not in _CLIENT_AUTH:
            raise ConfigError(f"ssl_client_auth={self.ssl_client_auth!r}: {', '.join(_CLIENT_AUTH)} are allowed")
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_cafile or self.ssl_client_auth != "none"):
            raise ConfigError("ssl_keyfile, ssl_cafile and ssl_client_auth need an ssl_certfile: a node shows its own")
        if (self.ssl_cafile is None) != (self.ssl_client_auth == "none"):
            raise ConfigError(
                "ssl_client_auth and ssl_cafile go together: who needs a certificate, and who must have signed it"
            )

    @property
    def protocol(self) -> str:
        """Kafka's security.protocol, which clients must name too."""
        return ("SASL_" if self.sasl_mechanisms else "") + ("PLAINTEXT" if self.ssl_certfile is None else "SSL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS 1.2 and 1.3. ConfigError if the files will not do."""
        if self.ssl_certfile is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # An empty password rather than none: OpenSSL would ask for one on the terminal.
        password = self.ssl_key_password or ""
        try:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password)
            if self.ssl_cafile is not None:
                context.load_verify_locations(self.ssl_cafile)
        except (OSError, ValueError) as error:
            names = ", ".join(str(one) for one in (self.ssl_certfile, self.ssl_keyfile, self.ssl_cafile) if one)
            raise ConfigError(f"TLS: {names}: {error}; PEM files with a chain and its key are needed") from error
        context.verify_mode = _CLIENT_AUTH[self.ssl_client_auth]
        return context


class Mechanisms:
    """The mechanisms of a running cluster. What is derived from the passwords is kept here."""

    def __init__(self, security: Security, clock: Clock) -> None:
        self.names = tuple(security.sasl_mechanisms)
        self.max_reauth_ms = security.connections_max_reauth_ms
        self._passwords = dict(security.users)
        self._scram = {name: ScramUsers(name, self._passwords) for name in HASHES if name in self.names}
        validator = security.oauth_validator
        self._validator = unsecured_tokens(clock) if isinstance(validator, str) else validator

    def begin(self, name: str) -> Exchange:
        """One authentication by a mechanism among `names`."""
        if name in self._scram:
            return self._scram[name].begin()
        if name == "OAUTHBEARER" and self._validator is not None:
            return OAuthBearer(self._validator)
        return Plain(self._passwords)

    def begin_again(self, name: str, before: str) -> Exchange:
        """Another authentication on a connection that has had one: the mechanism must be the same."""
        if name == before:
            return self.begin(name)
        return Refusing(f"authenticating again takes the mechanism {before} as before, not {name}")
