"""kio's schemas are loaded beside the event loop, and a fork never meets them half-loaded."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, sys, threading
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.protocol import messages

load, loaders, begun, go = messages._kio, [], threading.Event(), threading.Event()

def held(module):
    loaders.append(threading.current_thread())
    begun.set()
    assert go.wait(60)
    return load(module)

messages._kio = held
"""
_TWO_STARTS = """
go.set()
with EmbeddedCluster():
    assert begun.wait(60)
    loaders[0].join()
    assert "kio.index" in sys.modules
with EmbeddedCluster():
    print([thread.name for thread in loaders])
"""
# The hook of this test runs before that of the broker, and lets the thread go on.
_FORK = """
with EmbeddedCluster():
    assert begun.wait(60)
    assert "kio.index" not in sys.modules
    os.register_at_fork(before=go.set)
    child = os.fork()
    if not child:
        os._exit("kio.index" not in sys.modules)
    print(os.waitpid(child, 0)[1])
"""


def _run(script: str) -> str:
    command = [sys.executable, "-c", _SCRIPT + script]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout.strip()


def test_schemas_are_loaded_once_in_a_thread_of_their_own() -> None:
    assert _run(_TWO_STARTS) == "['kafkabuf-schemas']"


def test_start_does_not_wait_for_the_schemas_and_a_fork_does() -> None:
    assert _run(_FORK) == "0"
