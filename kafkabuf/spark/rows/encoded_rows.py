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
from kafkabuf.spark.options.topic_formats import TopicFormats
from kafkabuf.spark.rows.numbered import Topics
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

    def __init__(self, formats: RecordFormats, schema: pa.Schema, *, has_headers: bool = False) -> None:
        """`has_headers`: other rows of the task have headers. Raises SerializationError if the columns do not fit."""
        self._has_headers = has_headers
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
        if headers or self._has_headers:
            columns["headers"] = with_headers(columns.get("headers"), headers, batch.num_rows)
        if errors:
            texts = [str(errors[row]) if row in errors else None for row in range(batch.num_rows)]
            columns[UNENCODABLE] = pa.array(texts, pa.string())
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


class TopicRowEncoder:
    """Makes records of the batches of one task, each row with the formats of the topic that it names.

    Topics with equal formats share an encoder: most registries have one id for a schema, whatever its subjects are.
    """

    def __init__(self, formats: TopicFormats, schema: pa.Schema) -> None:
        self._formats = formats
        self._schema = schema
        self._of_topic: dict[bytes | None, RowEncoder] = {}
        self._encoders: dict[RecordFormats, RowEncoder] = {}

    def records(self, batch: pa.RecordBatch, timestamp_column: str | None) -> pa.RecordBatch:
        """As `RowEncoder.records`. Asks the registry about each new topic, once in a task."""
        topics = Topics.of(batch)
        # The last is for rows without a topic, which have the number -1.
        encoders = [self._encoder(name) for name in (*topics.names, *([None] if -1 in topics.numbers else []))]
        distinct = list(dict.fromkeys(encoders))
        if len(distinct) == 1:
            return distinct[0].records(batch, timestamp_column)
        number_of_row = np.array([distinct.index(encoder) for encoder in encoders])[topics.numbers]
        places = [np.flatnonzero(number_of_row == number) for number in range(len(distinct))]
        pieces = [
            encoder.records(batch.take(pa.array(rows)), timestamp_column)
            for encoder, rows in zip(distinct, places, strict=True)
        ]
        # A piece has a column of errors only where it has one.
        tables = [pa.Table.from_batches([piece]) for piece in pieces]
        (made,) = pa.concat_tables(tables, promote_options="default").combine_chunks().to_batches()
        return made.take(pa.array(np.argsort(np.concatenate(places))))

    def _encoder(self, topic: bytes | None) -> RowEncoder:
        encoder = self._of_topic.get(topic)
        if encoder is None:
            given = self._formats
            formats = given.without_topic() if topic is None else given.of(topic.decode(errors="replace"))
            encoder = self._encoders.get(formats) or RowEncoder(formats, self._schema, has_headers=given.has_headers)
            self._of_topic[topic] = self._encoders[formats] = encoder
        return encoder


def encoded(
    batches: Iterator[pa.RecordBatch], formats: RecordFormats | TopicFormats, timestamp_column: str | None
) -> Iterator[pa.RecordBatch]:
    """The records of a task's batches."""
    encoder: RowEncoder | TopicRowEncoder | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        if encoder is None:
            encoder = (
                TopicRowEncoder(formats, batch.schema)
                if isinstance(formats, TopicFormats)
                else RowEncoder(formats, batch.schema)
            )
        yield encoder.records(batch, timestamp_column)
