"""SASL mechanisms: from the sasl.* settings to credentials, and PLAIN. The other mechanisms have their own files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kafkabuf.clock import Clock
from kafkabuf.config.java_names import IAM_MODULE, KERBEROS_MODULE, OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE, unshaded
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ConfigError, SaslAuthenticationError
from kafkabuf.network.sasl import msk, oauth
from kafkabuf.network.sasl.jaas import unsupported
from kafkabuf.network.sasl.scram import HASHES, Scram

TOKEN_OPTION = "tokenauth"


class Step(Protocol):
    """A message to the broker that another thread computes."""

    @property
    def done(self) -> bool: ...
    def result(self) -> bytes | None:
        """The message to send. Raises KafkaError."""


class Exchange(Protocol):
    """One authentication on one connection."""

    @property
    def slow(self) -> bool:
        """Whether the next `respond` may take long. The Sender's thread must not call it then."""

    def respond_in_background(self, challenge: bytes, on_done: Callable[[], None]) -> Step:
        """Run the next, slow `respond` in another thread, which calls `on_done` at the end."""

    def respond(self, challenge: bytes) -> bytes | None:
        """The message to send after the broker's challenge (at first empty). None: the exchange is over.

        Raises SaslAuthenticationError.
        """


class Mechanism(Protocol):
    """A mechanism with its credentials. No `repr` shows them."""

    @property
    def name(self) -> str: ...
    @property
    def slow_step(self) -> str:
        """The reason that an error gives if a connection times out during a slow step."""

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses the credentials. Empty: its reason is enough."""

    def begin(self, host: str) -> Exchange:
        """An authentication with the broker of that name, as the client connects to it."""

    def renew(self, on_done: Callable[[], None]) -> float:
        """Start a renewal of the credentials that is due, in another thread, which calls `on_done` at the end.

        Returns when to call again, by the monotonic clock. Infinite: not before the next authentication.
        """


def mechanism(config: ProducerConfig, clock: Clock, random: Callable[[], float]) -> Mechanism:
    """The mechanism that `sasl.mechanism` names, whatever other mechanisms the broker offers. Raises ConfigError."""
    name = config.sasl_mechanism
    options = {} if config.sasl_jaas_config is None else jaas_options(config.sasl_jaas_config.get_secret_value(), name)
    if name == "GSSAPI":
        from kafkabuf.network.sasl import kerberos

        return kerberos.mechanism(config, options, clock, random)
    if config.signs_for_msk:
        return oauth.OAuthBearer(msk.token_provider(config.bootstrap_servers, options), config, clock, random)
    if name == "OAUTHBEARER":
        return oauth.mechanism(config, options, clock, random)
    if name == "PLAIN":
        return Plain(*_credentials(config, options))
    is_token = _is_token(options)
    return Scram(
        name, *_credentials(config, {k: v for k, v in options.items() if k != TOKEN_OPTION}), is_token=is_token
    )


def _is_token(options: Mapping[str, str]) -> bool:
    """Whether the JAAS text of a ScramLoginModule has a delegation token in place of user and password (KIP-48)."""
    text = options.get(TOKEN_OPTION, "false")
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"sasl.jaas.config: {TOKEN_OPTION} must be true or false")
    return text.lower() == "true"


def _credentials(config: ProducerConfig, options: Mapping[str, str]) -> tuple[str, str]:
    username = options.get("username") if config.sasl_username is None else config.sasl_username
    password = options.get("password") if config.sasl_password is None else config.sasl_password.get_secret_value()
    if not username or not password:
        raise ConfigError(
            f"sasl.mechanism={config.sasl_mechanism} needs sasl_username and sasl_password, or a sasl.jaas.config with "
            "username and password"
        )
    if unknown := options.keys() - {"username", "password"}:
        raise unsupported(unknown, {"username", "password"})
    if config.sasl_mechanism == "PLAIN" and "\0" in username + password:
        raise ConfigError("sasl.mechanism=PLAIN cannot carry a NUL in the user name or password")
    return username, password


class Plain:
    """User name and password in the clear (RFC 4616): use it over TLS only, unless the network is trusted."""

    name = "PLAIN"
    slow_step = ""
    advice = ""

    def __init__(self, username: str, password: str) -> None:
        self.username = username
        self._password = password

    def begin(self, host: str) -> Exchange:
        return _PlainExchange(f"\0{self.username}\0{self._password}".encode())

    def renew(self, on_done: Callable[[], None]) -> float:
        return float("inf")


class _PlainExchange:
    slow = False

    def respond_in_background(self, challenge: bytes, on_done: Callable[[], None]) -> Step:
        raise NotImplementedError("PLAIN has no slow step")

    def __init__(self, message: bytes) -> None:
        self._message: bytes | None = message

    def respond(self, challenge: bytes) -> bytes | None:
        message, self._message = self._message, None
        if message is None and challenge:
            raise SaslAuthenticationError("PLAIN: the broker sent a challenge, but this mechanism has no challenges")
        return message


# ---- JAAS ------------------------------------------------------------------------------------------------------------

_LOGIN_MODULES = {
    "GSSAPI": KERBEROS_MODULE,
    "PLAIN": PLAIN_MODULE,
    "OAUTHBEARER": OAUTH_MODULE,
    msk.MECHANISM: IAM_MODULE,
    **dict.fromkeys(HASHES, SCRAM_MODULE),
}
_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_SINGLE_QUOTED = r"'((?:[^'\\]|\\.)*)'"
_OPTION = re.compile(rf"""\s+([\w.$-]+)\s*=\s*(?:{_QUOTED}|{_SINGLE_QUOTED}|([^\s;"']+))""", re.S)
_ENTRY = re.compile(rf"\s*([\w.$]+)\s+(?i:required|requisite|sufficient|optional)((?:{_OPTION.pattern})*)\s*;\s*", re.S)


def jaas_options(text: str, name: str) -> dict[str, Any]:
    """The options of `LoginModule required key="value" ... ;`. Raises ConfigError without any value in its text."""
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise ConfigError(
            'sasl.jaas.config is not of the form: LoginModuleClass required name="value" ... ; (found text withheld)'
        )
    module = unshaded(match[1])
    if module != _LOGIN_MODULES[name]:
        raise ConfigError(f"sasl.jaas.config names {module}; sasl.mechanism={name} needs {_LOGIN_MODULES[name]}")
    return {option[1]: _value(option) for option in _OPTION.finditer(match[2])}


def _value(option: re.Match[str]) -> str:
    quoted = option[2] if option[3] is None else option[3]
    return option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
