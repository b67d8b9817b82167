"""SaslHandshake (key 17), versions 0 and 1: names the SASL mechanism.

front/authenticator.py answers the request on a connection that may begin to authenticate. This handler answers the
other requests, with ILLEGAL_SASL_STATE: the node has no SASL, or the client authenticates again too soon.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.nodes.node import Node
from kafkabuf.errors import IllegalSaslStateError
from kafkabuf.protocol.messages import SASL_HANDSHAKE, RequestHeader


@api(SASL_HANDSHAKE, 0, 1)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    return {"error_code": IllegalSaslStateError.code}
