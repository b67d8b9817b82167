"""How a task makes keys and values of columns, before it does anything else with its rows.

From then on a row is the bytes of its record, as in a write without formats: its partition, its checksum, the limits of
the topic and a dead letter are about these bytes. Only tasks import this: it loads the extensions.

A row that cannot be encoded stays among the others, with its columns as JSON text in place of the bytes, and with its
error in a column of its own. The task refuses it (task.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from kafkabuf.errors import ConfigError, KafkaError
from kafkabuf.formats import Json
from kafkabuf.formats.rows._encoded import columns_of, encode_batch
from kafkabuf.formats.rows.format import ResolvedFormat, Source
from kafkabuf.formats.rows.program import Program
from kafkabuf.shown import json_object
from kafkabuf.spark.options.record_formats import UNENCODABLE, RecordFormats
from kafkabuf.spark.rows.schema import as_record
from kafkabuf.spark.rows.schema_headers import Flags, Header, with_headers

_AS_THEY_ARE = ("topic", "partition", "timestamp", "headers")


class _Encoder:
    """Encodes the keys or the values of batches."""

    def __init__(self, resolved: ResolvedFormat, source: Source) -> None:
        self._program: Program = resolved.format.program(source)
        self._columns = [number for number, _ in source.columns]
        self.header: Header | None = resolved.header

    def encode(self, batch: pa.RecordBatch) -> tuple[pa.Array, Flags, dict[int, KafkaError]]:
        """The bytes of the rows, the rows that are not null, and the errors by row. Such a row is JSON text."""
        offsets, encoded, valid, errors = encode_batch(self._program, batch)
        missing = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        # pa.array() would import pandas, which takes longer than many a task.
        column = pa.Array.from_buffers(
            pa.large_binary(), batch.num_rows, [missing, pa.py_buffer(offsets), pa.py_buffer(encoded)]
        )
        if errors:
            texts: list[bytes | None] = [None] * batch.num_rows
            names = batch.schema.names
            for row in errors:
                texts[row] = json_object({names[column]: batch.column(column)[row] for column in self._columns})
            import pyarrow.compute as pc  # late: few tasks need it

            column = pc.coalesce(column, pa.array(texts, pa.large_binary()))
        return column, valid, errors


def _in_zone(resolved: ResolvedFormat, zone: str | None) -> ResolvedFormat:
    """The format with the time zone of the session, if it is JSON."""
    known = resolved.format
    if zone is None or not isinstance(known, Json):
        return resolved
    try:
        format = known.in_zone(zone)
    except ConfigError as error:
        raise ConfigError(f"the session's time zone: {error}. Name another with option 'timeZone'") from None
    return resolved._replace(format=format)


def session_zone(schema: pa.Schema) -> str | None:
    """The time zone of the schema's timestamps, also nested ones: Spark gives all of them the session's."""
    kinds = deque(schema.types)
    while kinds:
        kind = kinds.popleft()
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            return str(kind.tz)
        kinds.extend(kind.field(number).type for number in range(kind.num_fields))
    return None


class RowEncoder:
    """Makes records of the batches of one task, which have one schema."""

    def __init__(self, formats: RecordFormats, schema: pa.Schema) -> None:
        """Raises SerializationError where the columns do not fit."""
        sources = formats.arguments().sources(columns_of(schema))
        zone = session_zone(schema) if formats.in_session_zone else None
        self._encoders: dict[str, _Encoder] = {}
        if formats.value is not None and sources.value is not None:
            self._encoders["value"] = _Encoder(_in_zone(formats.value, zone), sources.value)
        if formats.key is not None and sources.key is not None:
            self._encoders["key"] = _Encoder(_in_zone(formats.key, zone), sources.key)
        self._key_column = sources.key_column

    def records(self, batch: pa.RecordBatch, timestamp_column: str | None) -> pa.RecordBatch:
        """The batch with nothing but the columns of a record, and that of errors where a row has an error."""
        own = as_record(batch, timestamp_column)
        columns = {name: own.column(name) for name in _AS_THEY_ARE if own.schema.names.count(name) == 1}
        for name, source in (("value", "value"), ("key", self._key_column)):
            if source is not None and source in batch.schema.names and name not in self._encoders:
                columns[name] = batch.column(source)
        errors: dict[int, KafkaError] = {}
        headers: list[tuple[Header, Flags]] = []
        for name, encoder in self._encoders.items():
            columns[name], valid, errors_of_column = encoder.encode(batch)
            errors |= errors_of_column
            if encoder.header is not None:
                headers.append((encoder.header, valid))
        if headers:
            columns["headers"] = with_headers(columns.get("headers"), headers, batch.num_rows)
        if errors:
            texts = [str(errors[row]) if row in errors else None for row in range(batch.num_rows)]
            columns[UNENCODABLE] = pa.array(texts, pa.string())
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def encoded(
    batches: Iterator[pa.RecordBatch], formats: RecordFormats, timestamp_column: str | None
) -> Iterator[pa.RecordBatch]:
    """The records of a task's batches."""
    encoder: RowEncoder | None = None
    for batch in batches:
        if encoder is None:
            encoder = RowEncoder(formats, batch.schema)
        yield encoder.records(batch, timestamp_column)
