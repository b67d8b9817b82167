"""SASL dialogues, request by request, that a test compares with real Kafka: the responses, or a closed connection.

The test compares only whether there is an error text, not the text.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from typing import Any

from kafkabuf.protocol.messages import API_VERSIONS, METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.raw_client import RawClient

CLOSED = "closed"


class Dialogue:
    """One connection, and the responses that it got so far."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(address, 5)
        self.responses: list[Any] = []

    def note(self, what: Any) -> bool:
        self.responses.append(what)
        return what is not CLOSED

    def ask(self, api_key: int, version: int, *fields: str, **values: Any) -> bool:
        """Notes `fields` of the response. Returns whether there was a response."""
        try:
            answer = self.client.ask(api_key, version, **values)
        except (AssertionError, OSError):
            return self.note(CLOSED)
        return self.note(tuple(getattr(answer, field) for field in fields))

    def versions(self) -> bool:
        return self.ask(API_VERSIONS, 3, "error_code", client_software_name="x", client_software_version="1")

    def metadata(self) -> bool:
        return self.ask(METADATA, 9, topics=[])

    def handshake(self, mechanism: str, version: int = 1) -> bool:
        return self.ask(SASL_HANDSHAKE, version, "error_code", "mechanisms", mechanism=mechanism)

    def token(self, data: bytes, version: int = 2) -> bool:
        try:
            answer = self.client.ask(SASL_AUTHENTICATE, version, auth_bytes=data)
        except (AssertionError, OSError):
            return self.note(CLOSED)
        return self.note((answer.error_code, answer.error_message is not None, answer.auth_bytes))

    def bare(self, data: bytes) -> bool:
        try:
            self.client.send_frame(data)
            answer = self.client.receive_frame()
        except OSError:
            answer = None
        return self.note(CLOSED if answer is None else answer)

    def end(self) -> None:
        """Notes whether the node still serves the connection."""
        self.note("served" if self.responses[-1] is not CLOSED and self.metadata() else "not served")
        self.client.socket.close()


def plain_dialogues(address: str, good: bytes) -> dict[str, list[Any]]:
    """For a SASL_PLAINTEXT listener with PLAIN only; `good` is the token of a user."""
    bad = b"\0alice\0guessed"
    scripts: dict[str, list[tuple[str, *tuple[Any, ...]]]] = {
        "good": [("versions",), ("handshake", "PLAIN"), ("token", good)],
        "good, version 0": [("handshake", "PLAIN"), ("token", good, 0)],
        "good, version 1": [("handshake", "PLAIN"), ("token", good, 1)],
        "wrong password": [("handshake", "PLAIN"), ("token", bad)],
        "unknown user": [("handshake", "PLAIN"), ("token", b"\0nobody\0x")],
        "for another": [("handshake", "PLAIN"), ("token", b"bob" + good)],
        "no token": [("handshake", "PLAIN"), ("token", b"")],
        "no NULs": [("handshake", "PLAIN"), ("token", b"alice")],
        "unknown mechanism": [("handshake", "SCRAM-SHA-256")],
        "nothing before": [("metadata",)],
        "token first": [("token", good)],
        "versions twice": [("versions",), ("versions",)],
        "versions in the middle": [("handshake", "PLAIN"), ("versions",)],
        "another request in the middle": [("handshake", "PLAIN"), ("metadata",)],
        "handshake twice": [("handshake", "PLAIN"), ("handshake", "PLAIN")],
        "bare": [("handshake", "PLAIN", 0), ("bare", good)],
        "bare and wrong": [("handshake", "PLAIN", 0), ("bare", bad)],
        "token afterwards": [("handshake", "PLAIN"), ("token", good), ("token", good)],
        "versions afterwards": [("handshake", "PLAIN"), ("token", good), ("versions",)],
        "again": [("handshake", "PLAIN"), ("token", good), ("handshake", "PLAIN"), ("token", good)],
        "again, wrong": [("handshake", "PLAIN"), ("token", good), ("handshake", "PLAIN"), ("token", bad)],
        "again, another mechanism": [("handshake", "PLAIN"), ("token", good), ("handshake", "SCRAM-SHA-256")],
        "again, in the middle": [("handshake", "PLAIN"), ("token", good), ("handshake", "PLAIN"), ("metadata",)],
        "again and again": [
            *(("handshake", "PLAIN"), ("token", good)),
            *(("handshake", "PLAIN"), ("token", good)),
            ("handshake", "PLAIN"),
        ],
    }
    return {name: run(address, script) for name, script in scripts.items()} | {"large": [large(address)]}


def run(address: str, script: list[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
    dialogue = Dialogue(address)
    for step, *arguments in script:
        if not getattr(dialogue, step)(*arguments):
            break
    dialogue.end()
    return dialogue.responses


def large(address: str) -> str:
    """Announces a frame that is a byte larger than a client may send before it authenticates."""
    with RawClient(address, 5) as client:
        client.socket.sendall(struct.pack(">ih", 512 * 1024 + 1, PRODUCE))
        return CLOSED if client.closed() else "open"


def token_dialogues(address: str) -> dict[str, list[Any]]:
    """For a SASL_PLAINTEXT listener with OAUTHBEARER only, which accepts unsecured tokens."""
    now = time.time()
    tokens = {
        "good": jwt(sub="alice", exp=now + 600),
        "issued": jwt(sub="alice", exp=now + 600, iat=now - 5),
        "expired": jwt(sub="alice", exp=now - 5),
        "nobody's": jwt(exp=now + 600),
        "for ever": jwt(sub="alice"),
        "signed": jwt({"alg": "HS256"}, "c2ln", sub="alice", exp=now + 600),
        "no token": "x",
    }
    responses = {}
    for name, value in tokens.items():
        for other in ("", "a=alice", "a=bob") if name == "good" else ("",):
            first = f"n,{other},\x01auth=Bearer {value}\x01\x01".encode()
            dialogue = Dialogue(address)
            if dialogue.handshake("OAUTHBEARER") and dialogue.token(first):
                error, has_text, answer = dialogue.responses[-1]
                # A refused token gets an error in JSON; the test compares its status.
                dialogue.responses[-1] = error, has_text, json.loads(answer)["status"] if answer else b""
                if answer:
                    dialogue.token(b"\x01")
            dialogue.end()
            responses[f"{name} {other}"] = dialogue.responses
    return responses


def jwt(head: dict[str, Any] | None = None, signature: str = "", **claims: Any) -> str:
    parts = (json.dumps(part).encode() for part in (head or {"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), signature])
