"""Formats make keys and values of columns and of Python objects.

`producer.send_arrow(table, topic, value_format=Avro())` makes values of Arrow columns.

Importing the package loads no format, since each producer imports modules of it: the first use of a name does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkabuf.lazy_names import lazy_names

if TYPE_CHECKING:
    from kafkabuf.formats.avro.format import Avro as Avro
    from kafkabuf.formats.json.format import Json as Json
    from kafkabuf.formats.protobuf.format import Protobuf as Protobuf
    from kafkabuf.formats.rows.raw import Raw as Raw

_HOMES = {
    "Avro": "kafkabuf.formats.avro.format",
    "Json": "kafkabuf.formats.json.format",
    "Protobuf": "kafkabuf.formats.protobuf.format",
    "Raw": "kafkabuf.formats.rows.raw",
}
__all__ = [*_HOMES]  # noqa: PLE0604

__getattr__ = lazy_names(globals(), _HOMES)
