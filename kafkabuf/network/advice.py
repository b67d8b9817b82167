"""What a user should check when a connection fails before the client could use it."""

from __future__ import annotations

import errno

from kafkabuf.errors import KafkaError, NetworkError, ProtocolError
from kafkabuf.network.connection_state import NodeConnection, State

_ANSWERED = "the broker responded before: is it down, or too busy to respond?"


def advised(
    error: KafkaError, node: NodeConnection, security_protocol: str, *, seen_brokers: bool, has_answered: bool
) -> KafkaError:
    """The error with advice added, if it has no advice yet and the state of the connection shows what may be wrong.

    `has_answered`: an earlier connection to the address could be used. The settings are right then.
    """
    if not isinstance(error, NetworkError) or isinstance(error, ProtocolError) or "security.protocol" in str(error):
        return error
    usable = node.state in (State.AUTHENTICATING, State.READY)
    advice = _ANSWERED if has_answered and not usable else _advice(node, security_protocol, seen_brokers)
    return NetworkError(f"{error}; {advice}") if advice else error


def own_lack(error: Exception) -> str:
    """Advice where no broker has a part in the error, since this process lacks something. Empty for other errors."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "; close some files, or raise the limit of this process (ulimit -n)"
    return ""


def _advice(node: NodeConnection, security_protocol: str, seen_brokers: bool) -> str:
    right_protocol = f"is security.protocol={security_protocol} right for this port?"
    if node.connection is None or not node.connection.reached:
        if node.node_id < 0:
            return "is a broker listening there? check bootstrap.servers"
        return "can this host reach the address? the cluster names it: check the broker's advertised.listeners"
    match node.state:
        case State.CONNECTING:
            return f"the peer does not respond to the TLS handshake: {right_protocol}"
        case State.HANDSHAKING if seen_brokers:  # with the same settings
            return (
                "other brokers of the cluster have responded: is this one starting, or too busy to respond? Or does it "
                f"advertise a port that is not for security.protocol={security_protocol}?"
            )
        case State.HANDSHAKING:
            # TLS 1.3 tells of a refused certificate behind the handshake, or not at all.
            refused = " Does it refuse this client's certificate (ssl.keystore.location)?"
            return (
                f"the peer did not respond as a broker does: {right_protocol}{refused * ('SSL' in security_protocol)}"
            )
        case State.AUTHENTICATING if not node.established:
            return "the broker may have refused the credentials: check them, sasl.mechanism, and the broker's log"
        case State.READY if not seen_brokers and "SASL" not in security_protocol:
            return f"does this port want SASL? security.protocol is {security_protocol}"
        case _:
            return ""
