"""Producer settings under Kafka's names. The producer checks them before it starts.

A setting may be written as in Kafka's documentation (`"linger.ms"`) or as a Python name (`linger_ms`). Values may be
strings, as Spark options are. Units are Kafka's, milliseconds and bytes. kafkabuf expands nothing in a value
(`${env:...}` stays as it is) and imports nothing that a value names.

Importing this package loads no module but lazy_names.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.lazy_names import lazy_names

if TYPE_CHECKING:
    from kafkabuf.config.kinds import INT32_MAX as INT32_MAX
    from kafkabuf.config.kinds import dotted as dotted
    from kafkabuf.config.model import ProducerConfig as ProducerConfig
    from kafkabuf.config.values import Serializer as Serializer
    from kafkabuf.config.values import parse_address as parse_address

_HOMES = {
    "INT32_MAX": "kafkabuf.config.kinds",
    "ProducerConfig": "kafkabuf.config.model",
    "Serializer": "kafkabuf.config.values",
    "dotted": "kafkabuf.config.kinds",
    "parse_address": "kafkabuf.config.values",
}
__all__ = [*_HOMES]  # noqa: PLE0604

__getattr__ = lazy_names(globals(), _HOMES)
