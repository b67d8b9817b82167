"""Producer settings under Kafka's names, checked before anything is started.

A setting may be written as Kafka's documentation does (`"linger.ms"`) or as a Python name (`linger_ms`). Values may be
strings, as Spark options are. Milliseconds and bytes are Kafka's units. Nothing in a value is expanded (`${env:...}`
stays as it is) and nothing is imported by a name in it.
"""

from __future__ import annotations

from kafkabuf.config.model import ProducerConfig
from kafkabuf.config.values import INT32_MAX, Serializer, dotted, parse_address

__all__ = ["INT32_MAX", "ProducerConfig", "Serializer", "dotted", "parse_address"]
