"""Names of a package whose modules are loaded at the first use of a name (PEP 562).

Importing this module loads no other module of kafkabuf.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `package` is the package's globals(); `homes` has the module of each name.

    The first use of a name imports the name's module and keeps the value in `package`. Raises AttributeError for a name
    that `homes` does not have.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(importlib.import_module(home), name)
        return value

    return load
