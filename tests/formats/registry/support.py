"""A Schema Registry of a few lines over real sockets, with the faults that a test asks for."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import NAMESPACE_URL, uuid5

from kafkabuf.clock import ManualClock
from kafkabuf.formats.registry import SchemaRegistry

RECORD = '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":"long"}]}'
WIDER = RECORD.replace("}]}", '},{"name":"b","type":"long","default":0}]}')
OTHER = RECORD.replace("long", "string")


class Seen(NamedTuple):
    """A request as the registry saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class FakeRegistry:
    """The REST API of a registry. `faults` are used up, one a request: a status, or a name of `_FAULTS`."""

    def __init__(self, *, guids: bool = True, authorization: str | None = None) -> None:
        self.guids = guids
        self.authorization = authorization
        self.faults: list[Any] = []
        self.seen: list[Seen] = []
        self.subjects: dict[str, list[dict[str, Any]]] = {}
        self.compatible = True
        self.serialized: dict[str, str] = {}  # the descriptors of .proto texts
        self.tokens: list[str] = []  # what the token endpoint gives, one after the other
        self.lifetime: int | None = 3600
        self.url = ""
        self.released = threading.Event()  # ends the fault "silent"

    def serve(self, seen: Seen) -> tuple[int, Any]:
        """The status and the answer to a request."""
        if urlsplit(seen.path).path == "/token":
            return 200, {"access_token": self.tokens.pop(0)} | ({"expires_in": self.lifetime} if self.lifetime else {})
        if self.authorization is not None and seen.headers.get("authorization") != self.authorization:
            return 401, {"error_code": 401, "message": f"Unauthorized: {_shown(seen.headers.get('authorization', ''))}"}
        parts = [unquote(part) for part in urlsplit(seen.path).path.strip("/").split("/")]
        query = {name: values[0] for name, values in parse_qs(urlsplit(seen.path).query).items()}
        match seen.method, parts:
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, json.loads(seen.body), query)
            case "POST", ["subjects", subject]:
                return self._lookup(subject, json.loads(seen.body))
            case "GET", ["subjects", subject, "versions", version]:
                return self._formatted(query, self._version(subject, version))
            case "GET", ["schemas", "ids", number]:
                return self._formatted(query, self._one("id", int(number)))
            case "GET", ["schemas", "guids", guid]:
                return self._one("guid", guid)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _register(self, subject: str, body: dict[str, Any], query: dict[str, str]) -> tuple[int, Any]:
        try:
            if body.get("schemaType", "AVRO") == "AVRO":
                json.loads(body["schema"])
        except ValueError:
            return 422, {"error_code": 42201, "message": "Invalid schema: it is not JSON"}
        versions = self.subjects.setdefault(subject, [])
        known = next((each for each in versions if each["schema"] == body["schema"]), None)
        if known is None:
            if versions and not self.compatible:
                return 409, {"error_code": 409, "message": "Schema being registered is incompatible: TYPE_MISMATCH"}
            known = body | {"subject": subject, "version": len(versions) + 1, "id": self._id(body["schema"])}
            if self.guids:
                known["guid"] = str(uuid5(NAMESPACE_URL, body["schema"]))
            versions.append(known)
        return 200, {name: known[name] for name in ("id", "guid") if name in known}

    def _formatted(self, query: dict[str, str], answer: tuple[int, Any]) -> tuple[int, Any]:
        """As Confluent's registry does it for Protobuf: text, unless the request asks for the descriptor."""
        status, body = answer
        serialized = self.serialized.get(body.get("schema"))
        return status, body | {"schema": serialized} if serialized and query.get("format") == "serialized" else body

    def _lookup(self, subject: str, body: dict[str, Any]) -> tuple[int, Any]:
        for each in self.subjects.get(subject, ()):
            if each["schema"] == body["schema"]:
                return 200, each
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self.subjects.get(subject)
        if not versions:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        return 200, versions[-1 if version == "latest" else int(version) - 1]

    def _one(self, name: str, value: object) -> tuple[int, Any]:
        for each in (each for versions in self.subjects.values() for each in versions):
            if each.get(name) == value:
                return 200, each
        return 404, {"error_code": 40403, "message": f"Schema {value} not found"}

    def _id(self, text: str) -> int:
        texts = [each["schema"] for versions in self.subjects.values() for each in versions]
        return 100 + (texts.index(text) if text in texts else len(texts))


def _shown(authorization: str) -> str:
    """The credentials as they came, and the password as a server reads it."""
    kind, _, content = authorization.partition(" ")
    password = base64.b64decode(content).decode().partition(":")[2] if kind == "Basic" else ""
    return f"{authorization} {password}"


@contextmanager
def running(registry: FakeRegistry, context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    """Serve the registry on a free loopback port; with a context over TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(registry, self)

        do_POST = do_CONNECT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that went away

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    registry.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _answer(registry: FakeRegistry, handler: BaseHTTPRequestHandler) -> None:
    headers = {name.lower(): value for name, value in handler.headers.items()}
    body = handler.rfile.read(int(headers.get("content-length", "0")))
    seen = Seen(handler.command, handler.path, headers, body)
    registry.seen.append(seen)
    handler.close_connection = True
    fault = registry.faults.pop(0) if registry.faults else None
    match fault:
        case None:
            status, answer = registry.serve(seen)
            _send(handler, status, json.dumps(answer).encode())
        case int():
            _send(handler, fault, json.dumps({"error_code": fault * 100 + 1, "message": f"fault {fault}"}).encode())
        case _:
            _misbehave(registry, handler, fault)


def _misbehave(registry: FakeRegistry, handler: BaseHTTPRequestHandler, fault: Any) -> None:
    match fault:
        case "close":
            pass
        case "silent":
            registry.released.wait(30)
        case "drip":
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            while not registry.released.wait(0.02):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        case ("redirect", location):
            handler.send_response(301)
            handler.send_header("Location", location)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        case ("body", status, content):
            _send(handler, status, content)
        case ("raw", content):
            handler.wfile.write(content)
        case ("endless", head, piece, pause):
            handler.wfile.write(head)
            while not registry.released.wait(pause):
                handler.wfile.write(piece)
                handler.wfile.flush()


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def connect(fake: FakeRegistry, **settings: Any) -> SchemaRegistry:
    """A client whose pauses take no time: its clock moves by itself."""
    clock = ManualClock(auto_advance=True)
    return SchemaRegistry({"schema.registry.url": fake.url} | settings, clock=clock)
