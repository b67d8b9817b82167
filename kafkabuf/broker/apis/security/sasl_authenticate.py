"""SaslAuthenticate (key 36), versions 0 to 2: carries the tokens of a SASL mechanism.

front/authenticator.py answers the requests after a SaslHandshake. This handler answers requests without a
SaslHandshake, with ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import IllegalSaslStateError
from kafkabuf.protocol.messages import SASL_AUTHENTICATE, RequestHeader


@api(SASL_AUTHENTICATE, 0, 2)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    reason = "send SaslHandshake first: it names the mechanism of the tokens"
    return {"error_code": IllegalSaslStateError.code, "error_message": reason}
