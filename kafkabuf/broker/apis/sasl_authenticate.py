"""SaslAuthenticate (key 36), versions 0 to 2. After a SaslHandshake authenticator.py answers; here there was none."""

from __future__ import annotations

from typing import Any

from kafkabuf.broker.apis.dispatch import api
from kafkabuf.broker.cluster.node import Node
from kafkabuf.errors import IllegalSaslStateError
from kafkabuf.protocol.messages import SASL_AUTHENTICATE, RequestHeader


@api(SASL_AUTHENTICATE, 0, 2)
def handle(node: Node, header: RequestHeader, request: Any) -> dict[str, Any]:
    reason = "tokens come after a SaslHandshake that names their mechanism"
    return {"error_code": IllegalSaslStateError.code, "error_message": reason}
