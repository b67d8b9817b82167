"""The HTTP proxy that the environment names (https_proxy, all_proxy, no_proxy), and the tunnel through it.

A tunnel (CONNECT, RFC 9110, 9.3.6) carries TLS from end to end: the proxy sees the name of the host, and no secret.
"""

from __future__ import annotations

import base64
import socket
import urllib.request
from urllib.parse import unquote

from kafkabuf.config.schema_registry import Address, parse_url
from kafkabuf.errors import ConfigError, NetworkError
from kafkabuf.process._time import monotonic

_LONGEST_RESPONSE = 16 * 1024
_END = b"\r\n\r\n"


def of_environment(scheme: str, host: str) -> Address | None:
    """The proxy for a URL of that scheme and host; None without a proxy. Raises ConfigError for one it cannot use."""
    proxies = urllib.request.getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or urllib.request.proxy_bypass(host):
        return None
    try:
        return parse_url(url if "://" in url else f"http://{url}", "http")
    except ValueError as error:
        raise ConfigError(
            f"the environment's proxy for {scheme} (variables {scheme}_proxy and all_proxy): {error}; or name the host "
            "in no_proxy"
        ) from None


def users_of_environment() -> list[str]:
    """The `user:password` of each proxy that the environment names, also of those that only others can use."""
    users = []
    for url in urllib.request.getproxies().values():
        user, at, _ = url.rpartition("://")[2].partition("/")[0].rpartition("@")
        if at and ":" in user:
            users.append(unquote(user))
    return users


def authorization(proxy: Address) -> dict[str, str]:
    """The header that gives the proxy its user and password."""
    if proxy.user is None:
        return {}
    return {"Proxy-Authorization": "Basic " + base64.b64encode(proxy.user.get_secret_value().encode()).decode()}


def tunnel(proxy: Address, host: str, port: int, seconds: float) -> socket.socket:
    """A connection to the host through the proxy. Connection and response together take at most `seconds`.

    Raises NetworkError for a proxy that refuses, and OSError.
    """
    deadline = monotonic() + seconds
    sock = socket.create_connection((proxy.host, proxy.port), timeout=seconds)
    try:
        name = f"[{host}]" if ":" in host else host
        lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
        lines += [f"{header}: {value}" for header, value in authorization(proxy).items()]
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        status = _status(sock, deadline)
        if status is None or not 200 <= status < 300:
            reason = "something that is not HTTP" if status is None else f"status {status}"
            advice = ": give it user and password in its URL, http://user:password@host" if status == 407 else ""
            raise NetworkError(
                f"the proxy {proxy.host}:{proxy.port} answered CONNECT {name}:{port} with {reason}{advice}"
            )
    except BaseException:
        sock.close()
        raise
    return sock


def _status(sock: socket.socket, deadline: float) -> int | None:
    """The status of the response to CONNECT; None for a response that is not HTTP.

    It reads single bytes, because the bytes behind the blank line belong to the host.
    """
    received = bytearray()
    while not received.endswith(_END):
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError("the proxy did not answer CONNECT in time")
        sock.settimeout(left)
        byte = sock.recv(1)
        received += byte
        if not byte or len(received) > _LONGEST_RESPONSE:
            return None
    words = bytes(received).split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit() or len(words[1]) != 3:
        return None
    return int(words[1])
