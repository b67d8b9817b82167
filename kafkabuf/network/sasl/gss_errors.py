"""What an error of the Kerberos library means, and what to do about it.

The numbers are the error codes of RFC 4120 (7.5.9), and of MIT's library, after the base of its error table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkabuf.errors import KafkaError, NetworkError, SaslAuthenticationError, printable

_TABLE = -1765328384  # MIT's ERROR_TABLE_BASE_krb5; Heimdal has the same numbers of RFC 4120 there
_LONGEST_TEXT = 400
# The routine errors of RFC 2744 that need no Kerberos code beside them.
_BAD_MIC, _DEFECTIVE_TOKEN, _NO_CREDENTIALS = 6, 9, 7
_EXPIRED = {11, 12}  # the credentials, or the context that they have begun


class Situation(NamedTuple):
    """What was tried when the error came. An error names these, never a key."""

    attempt: str  # such as "to log in"
    principal: str | None = None
    keytab: str | None = None
    cache: str | None = None
    broker: str = ""  # its principal

    @property
    def who(self) -> str:
        return f"principal {self.principal}" if self.principal else "the principal"

    @property
    def where(self) -> str:
        return f"ticket cache {self.cache}" if self.cache else "the default ticket cache"


_CLOCKS = (
    "the clocks of this machine and of the KDC or the broker differ too much (usually by more than 5 minutes): "
    "synchronise them, for instance by NTP"
)
_LOCKED = "{who} is expired or locked: its administrator must unlock it"
_OLD_KEY = (
    "the key in the keytab is not the present key of {who}: export the keytab again (each `ktadd` makes a new key, "
    "unless it has -norandkey)"
)
_UNKNOWN_BROKER = (
    "the KDC does not know the broker as {broker}: check sasl.kerberos.service.name, and that bootstrap.servers and "
    "the broker's advertised.listeners have the host name of the broker's keytab"
)
_NO_TYPE = "{who} and the KDC have no type of encryption in common: export the keytab again, with a type of both"
_NO_KDC = "krb5.conf names no KDC of the realm: add the realm to it, or name another file in the variable KRB5_CONFIG"
_NO_ANSWER = "no KDC answers: is one running, and does a firewall let port 88 through? krb5.conf names the KDCs"
_NO_REALM = "the principal has no realm, and krb5.conf names no default realm: write user@REALM, or set KRB5_CONFIG"
_NO_TICKET = "{where} has no ticket: run kinit, or give sasl.kerberos.keytab and sasl.kerberos.principal"
_NO_KEY = "the keytab {keytab} has no key of {who}: `klist -k` lists those that it has"
_EXPIRED_CACHE = (
    "the ticket in {where} has expired: run kinit again, or give sasl.kerberos.keytab and sasl.kerberos.principal"
)
_EXPIRED_TICKET = "the ticket of {who} has expired"

_ADVICE = {
    1: _LOCKED,
    2: "{broker} has expired: its administrator must renew it",
    6: "the KDC does not know {who}: check its name and its realm",
    7: _UNKNOWN_BROKER,
    12: "the KDC's policy refuses {who} a ticket",
    14: _NO_TYPE,
    18: _LOCKED,
    23: "the password of {who} has expired: change it, and export the keytab again",
    24: _OLD_KEY,
    31: _OLD_KEY,
    33: _CLOCKS,
    37: _CLOCKS,
    68: "the KDC does not serve the realm of {who}: check the realm, and krb5.conf",
    148: _CLOCKS,  # the KDC's reply has another time: without preauthentication the client notices it first
    154: _NO_KDC,
    156: _NO_ANSWER,
    224: _NO_REALM,
}
# Trouble of the network or of a server, which may pass. All else needs somebody to change something.
_PASSING = {28, 29, 52, 154, 156}  # also: SVC_UNAVAILABLE, the KDC's answer timed out or was too long for UDP


def explained(error: Any, situation: Situation) -> KafkaError:
    """The library's GSSError as ours: a NetworkError if a later attempt may succeed, else SaslAuthenticationError."""
    code = _signed(error.min_code) - _TABLE
    routine = (error.maj_code >> 16) & 0xFF
    # The next attempt with a keytab logs in again, and gets a new ticket.
    passing = code in _PASSING or (situation.keytab is not None and _is_expired(code, routine))
    advice = _advice(code, routine, situation)
    if advice:
        values = situation._asdict() | {"who": situation.who, "where": situation.where}
        advice = advice.format_map(values) + " "
    text = f"GSSAPI: it failed {situation.attempt}: {advice}({_words(error)})"
    return NetworkError(text) if passing else SaslAuthenticationError(text)


def _advice(code: int, routine: int, situation: Situation) -> str:
    from_keytab = situation.keytab is not None
    if _is_expired(code, routine):
        return _EXPIRED_TICKET if from_keytab else _EXPIRED_CACHE
    if code in _ADVICE:
        return _ADVICE[code]
    if routine == _NO_CREDENTIALS:
        return _NO_KEY if from_keytab else _NO_TICKET
    if routine in (_BAD_MIC, _DEFECTIVE_TOKEN):
        return "the broker sent a token that is not Kerberos's, or that was changed on its way"
    return ""


def _is_expired(code: int, routine: int) -> bool:
    return routine in _EXPIRED or code == 32


def _signed(code: int) -> int:
    """The package gives the library's negative codes without their sign."""
    return code - (1 << 32) if code >= 1 << 31 else code


def _words(error: Any) -> str:
    """The library's own words, those of Kerberos before those of the GSS-API."""
    try:
        texts = [*error.get_all_statuses(error.min_code, False), *error.get_all_statuses(error.maj_code, True)]
    except Exception:  # the library has no text for a code of its own
        texts = [str(error)]
    return printable("; ".join(text for text in texts if text not in ("Success", "Unknown error")), _LONGEST_TEXT)
