"""Producer settings under Kafka's names. The producer checks them before it starts.

A setting may be written as in Kafka's documentation (`"linger.ms"`) or as a Python name (`linger_ms`). Values may be
strings, as Spark options are. Units are Kafka's, milliseconds and bytes. kafkabuf expands nothing in a value
(`${env:...}` stays as it is) and imports nothing that a value names.
"""

from __future__ import annotations

from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.values import INT32_MAX, Serializer, dotted, parse_address

__all__ = ["INT32_MAX", "ProducerConfig", "Serializer", "dotted", "parse_address"]
