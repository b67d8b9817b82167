"""A port of rigs.ports stays free for the server that it is for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rigs import ports
from rigs.ports import free_ports


def test_port_is_given_once_in_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    other = f"from rigs import ports; ports._WANTED = range({port}, {port + 1}); ports.free_ports(1)"
    refused = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True)
    assert "No 1 free ports" in refused.stderr
    monkeypatch.setattr(ports, "_WANTED", range(port, port + 1))
    with pytest.raises(OSError, match="No 1 free ports"):
        free_ports(1)


def test_kernel_gives_no_port_of_them_to_anybody() -> None:
    low, high = map(int, ports._GIVEN_BY_THE_KERNEL.read_text().split())
    assert not any(low <= port <= high for port in free_ports(20))
