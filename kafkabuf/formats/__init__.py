"""Formats turn rows of Arrow columns into the bytes of keys and values: `producer.send_arrow(..., value_format=Avro())`."""

from kafkabuf.formats.avro import Avro

__all__ = ["Avro"]
