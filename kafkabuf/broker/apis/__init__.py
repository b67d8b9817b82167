"""The handlers of requests: one file for each API of Kafka.

Each file registers its handler and its versions with `dispatch.api`. Its docstring says what the API does and where it
deviates from Kafka.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module


def load() -> None:
    """Imports, and so registers, every API."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
