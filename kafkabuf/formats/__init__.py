"""Formats make keys and values of Arrow columns: `producer.send_arrow(table, topic, value_format=Avro())`."""

from kafkabuf.formats.avro import Avro

__all__ = ["Avro"]
