"""GSSAPI (Kerberos): the client's side of RFC 4752, as Java's client has it. Needs the extra `kafkabuf[gssapi]`.

The tokens of an authentication, from the client (C) and from the broker (B):

    C: the context's first token (AP-REQ)         B: the broker's proof of who it is (AP-REP)
    C: empty                                      B: wrapped: the layers that it offers (1 byte), a size (3 bytes)
    C: wrapped: 1, 0 0 0, the client's principal  B: empty

Layer 1 means no protection: Kafka protects none of the later bytes, so use SASL_SSL. Java's client does not demand the
broker's proof; this client does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import SaslAuthenticationError
from kafkabuf.network.sasl.gss import Credentials, Gss
from kafkabuf.network.sasl.kerberos_host import kerberos_host
from kafkabuf.network.sasl.kerberos_login import Login
from kafkabuf.network.sasl.kerberos_settings import credentials_source, service_name
from kafkabuf.process.background import Call, CallsInTurn

NO_LAYER = 1
# A broker's tokens have some hundred bytes.
LONGEST_TOKEN = 64 * 1024
# A context is complete after the broker's first token. The library decides that; a peer must not go on for ever.
MOST_TOKENS = 4


def mechanism(
    config: ProducerConfig, options: Mapping[str, str], clock: Clock, random: Callable[[], float]
) -> Kerberos:
    """GSSAPI from the settings, or from the JAAS options of Krb5LoginModule.

    Raises ConfigError, and MissingExtraError without the package gssapi.
    """
    service, source = service_name(config, options), credentials_source(config, options)
    gss = Gss()
    return Kerberos(service, Login(source, config, gss, clock, random), gss)


class Kerberos:
    """The mechanism, with the client's credentials."""

    name = "GSSAPI"
    slow_step = "Kerberos has not given a ticket yet: does a KDC of krb5.conf answer, and does DNS?"
    advice = (
        "its log has the reason: most often its keytab lacks the present key of its principal, or its clock is wrong"
    )

    def __init__(self, service: str, login: Login, gss: Gss) -> None:
        self._service = service
        self._login = login
        self._gss = gss
        # Thread: Sender. A KDC that does not answer holds up the calls for a host, and not those for other hosts.
        self._calls: dict[str, CallsInTurn] = {}

    def begin(self, host: str) -> KerberosExchange:
        calls = self._calls.setdefault(host, CallsInTurn("kafkabuf-sasl-gssapi"))
        return KerberosExchange(self._login, self._gss, self._service, host, calls)

    def renew(self, on_done: Callable[[], None]) -> float:
        return self._login.renew(on_done)


class KerberosExchange:
    """One authentication on one connection."""

    def __init__(self, login: Login, gss: Gss, service: str, host: str, calls: CallsInTurn) -> None:
        self._login = login
        self._gss = gss
        self._service = service
        self._host = host
        self._calls = calls
        self._credentials: Credentials | None = None
        self._target: Any = None  # the broker's principal
        self._context: Any = None
        self._tokens = 0  # of the broker, while the context was not complete
        self._complete = False
        self._agreed = False

    @property
    def slow(self) -> bool:
        # Each step calls the library, which may wait for the KDC or for a lock that another thread holds meanwhile.
        return not self._agreed

    def respond_in_background(self, challenge: bytes, on_done: Callable[[], None]) -> Call[bytes | None]:
        return self._calls.start(partial(self.respond, challenge), on_done)

    def respond(self, challenge: bytes) -> bytes | None:
        """The next message. None: broker and client know each other. Raises KafkaError."""
        if len(challenge) > LONGEST_TOKEN:
            raise _refused(f"a token of {len(challenge)} bytes")
        if self._agreed:
            if challenge:
                raise _refused("a further token after the last")
            return None
        if self._complete:
            return self._agree_on_no_layer(challenge)
        if self._credentials is None:
            return self._begin()
        return self._continue(challenge)

    def _begin(self) -> bytes:
        login = self._login
        self._credentials = login.credentials()
        host = kerberos_host(self._host)
        self._target = self._gss.service(self._service, host, login.situation("to name the broker"))
        return self._step(b"")

    def _continue(self, challenge: bytes) -> bytes:
        self._tokens += 1
        if not challenge or self._tokens > MOST_TOKENS:
            raise _refused("no token of Kerberos's, or too many")
        return self._step(challenge)

    def _step(self, challenge: bytes) -> bytes:
        assert self._credentials is not None
        broker = f"{self._service}/{self._host}"
        attempt = "to check the broker's token" if challenge else f"to get a ticket for {broker}"
        situation = self._login.situation(attempt, broker)
        step = self._gss.step(self._credentials, self._target, self._context, challenge, situation)
        self._context, self._complete = step.context, step.complete
        if step.complete and not step.mutual:
            raise _refused("no proof that it is the broker: it may be an impostor")
        return step.token

    def _agree_on_no_layer(self, challenge: bytes) -> bytes:
        situation = self._login.situation("to agree on a security layer")
        offer = self._gss.unwrap(self._context, challenge, situation)
        if len(offer) != 4:
            raise _refused(f"an offer of security layers of {len(offer)} bytes, and not of 4")
        if not offer[0] & NO_LAYER:
            raise _refused(
                f"an offer of security layers ({offer[0]}) without the one that Kafka has, which is none (1)"
            )
        principal = self._gss.principal(self._context, situation)
        message = self._gss.wrap(self._context, bytes([NO_LAYER, 0, 0, 0]) + principal.encode(), situation)
        self._agreed = True
        self._context = self._credentials = None
        return message


def _refused(what: str) -> SaslAuthenticationError:
    return SaslAuthenticationError(f"GSSAPI: the broker sent {what}")
