"""A host name that name servers learn late: as in a cluster of containers that starts."""

from __future__ import annotations

import socket
from typing import Any

import pytest

NAME = "late.invalid"


def resolve_after(monkeypatch: pytest.MonkeyPatch, failures: int) -> list[str]:
    """Each lookup of NAME goes into the list. It fails `failures` times, and finds 127.0.0.1 from then on."""
    lookups: list[str] = []

    def lookup(host: Any, *args: Any, **more: Any) -> Any:
        if host == NAME:
            lookups.append(host)
            if len(lookups) <= failures:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            host = "127.0.0.1"
        return lookup_of_the_system(host, *args, **more)

    lookup_of_the_system = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return lookups
