"""One file per API key. Each registers its handler and versions with `dispatch.api`; its header says what it does and
where it deviates from Kafka."""

from __future__ import annotations

import pkgutil
from importlib import import_module


def load() -> None:
    """Imports, and so registers, every API."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
