"""Loads kio's schemas in a thread of their own, once a process.

kio imports hypothesis where that is installed, which takes 130 ms or more. In the event loop this time would pass in
the first request that needs kio, such as a group's first, and every client would wait.
"""

from __future__ import annotations

import os
from functools import cache
from threading import Thread

from kafkabuf.protocol.messages import load_schemas


@cache
def load_soon() -> None:
    """Returns at once. A fork waits for the end of the loading: the child would otherwise inherit the locks of modules
    that its copy of the thread never releases."""
    thread = Thread(target=load_schemas, name="kafkabuf-schemas", daemon=True)
    thread.start()
    os.register_at_fork(before=thread.join)
