"""The settings of a node of Kafka, by name: kafka-4.1.2.txt, which `python -m tools.kafka_configs` makes.

The file is read when a client or a test first asks for settings of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kafkabuf.broker.configs.kinds import PASSWORD, TYPE_NAMES

PATH = Path(__file__).with_name("kafka-4.1.2.txt")
_TYPES = {name: kind for kind, name in TYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A setting of nodes in Kafka. `dynamic`: a running node can change it."""

    type: int
    dynamic: bool
    default: str | None

    @property
    def sensitive(self) -> bool:
        return self.type == PASSWORD


@cache
def node_kinds() -> dict[str, NodeKind]:
    """Kafka's settings of nodes, in the order of their names."""
    kinds = {}
    for line in PATH.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        head, equals, default = line.partition(" =")
        name, kind, *flags = head.split()
        kinds[name] = NodeKind(_TYPES[kind], "dynamic" in flags, default.removeprefix(" ") if equals else None)
    return kinds
