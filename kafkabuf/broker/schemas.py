"""Loads kio's schemas before the first node listens: in the event loop every client would wait meanwhile.

kio imports hypothesis where that is installed, which takes 130 ms or more. A start does not wait for that: the first
request that needs kio, such as a group's first, then does. A thread could load both meanwhile, but until CPython 3.11.8
two threads that parse Python, as hypothesis and pytest do, break each other (python/cpython #106905).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from kafkabuf.protocol.messages import load_schemas


def load_early() -> None:
    if "hypothesis" in sys.modules or find_spec("hypothesis") is None:
        load_schemas()
