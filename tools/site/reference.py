"""Compares the API pages of the built site with the public names: each has its place, and nothing private has one.

`python -m tools.site.reference build/site`, after `make docs`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

from kafkabuf.hints import Hint
from tools.site import links

# The modules whose names users import. Those of `compat` are whole modules of other clients' names.
PUBLIC = (
    "kafkabuf",
    "kafkabuf.aio",
    "kafkabuf.broker",
    "kafkabuf.errors",
    "kafkabuf.formats",
    "kafkabuf.formats.registry",
    "kafkabuf.opentelemetry",
    "kafkabuf.partitioner",
    "kafkabuf.parts",
    "kafkabuf.prometheus",
    "kafkabuf.serialization",
    "kafkabuf.spark",
    "kafkabuf.spark.prometheus",
    "kafkabuf.testing",
)
# The classes of which each method, inherited ones too, has its place. Parts show the methods that their page explains.
WHOLE = ("KafkaProducer", "AIOKafkaProducer", "EmbeddedCluster", "RecordFuture")
# What modules of kafkabuf call of each other, and Spark of them: users do not.
NOT_FOR_USERS = frozenset(
    {
        "kafkabuf.errors.error_for_code",
        "kafkabuf.errors.host_port",
        "kafkabuf.errors.printable",
        "kafkabuf.errors.shown",
        "kafkabuf.serialization.serialize_with",
        "kafkabuf.producer.KafkaProducer.prepare",
        "kafkabuf.spark.DefaultSource",
    }
)


def faults(anchors: Collection[str]) -> Iterator[str]:
    """A sentence for each public class, function or method without an anchor, and for each private name with one."""
    for module in map(importlib.import_module, PUBLIC):
        for name in public_names(module):
            known = places(module, name)
            if known.isdisjoint(anchors) and known.isdisjoint(NOT_FOR_USERS):
                yield f"the API pages lack {module.__name__}.{name}"
            elif name in WHOLE:
                for method in documented_methods(getattr(module, name)):
                    inside = {f"{place}.{method}" for place in known}
                    if inside.isdisjoint(anchors) and inside.isdisjoint(NOT_FOR_USERS):
                        yield f"the API pages lack {module.__name__}.{name}.{method}"
    for anchor in sorted(anchors):
        name = anchor.rpartition(".")[2]
        if name.startswith("_") and not name.startswith("__"):
            yield f"the API pages have the private name {anchor}"


def public_names(module: ModuleType) -> list[str]:
    """The classes and functions of `__all__`, or else those that the module defines."""
    listed = getattr(module, "__all__", None)
    names = [*listed] if listed is not None else [name for name in vars(module) if not name.startswith("_")]
    values = [(name, getattr(module, name)) for name in names]
    return [
        name
        for name, value in values
        if (inspect.isclass(value) or inspect.isroutine(value))
        and (listed is not None or getattr(value, "__module__", "") == module.__name__)
    ]


def places(module: ModuleType, name: str) -> set[str]:
    """The full names that a public name has: where it is imported from, and where it is defined."""
    value = getattr(module, name)
    return {f"{module.__name__}.{name}", f"{value.__module__}.{getattr(value, '__qualname__', name)}"}


def documented_methods(value: type) -> list[str]:
    """The public methods and properties with a docstring that the class has from our code."""
    ours = [base for base in reversed(value.__mro__) if base.__module__.startswith("kafkabuf")]
    found = {name: member for base in ours for name, member in vars(base).items() if name[0] != "_"}
    return sorted(
        name
        for name, member in found.items()
        if inspect.isroutine(member) and member.__doc__ and not isinstance(member, Hint)
    )


if __name__ == "__main__":
    sys.exit("\n".join(faults(links.anchors(Path(sys.argv[1]) / "api"))) or 0)
