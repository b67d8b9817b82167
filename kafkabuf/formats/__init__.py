"""Formats make keys and values of Arrow columns: `producer.send_arrow(table, topic, value_format=Avro())`."""

from kafkabuf.formats.avro import Avro
from kafkabuf.formats.json_format import Json
from kafkabuf.formats.protobuf import Protobuf
from kafkabuf.formats.raw import Raw

__all__ = ["Avro", "Json", "Protobuf", "Raw"]
