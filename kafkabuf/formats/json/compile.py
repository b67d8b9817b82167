"""Compiles the types of Arrow columns into a program that writes JSON (_program.pxd, _columns.pxd)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafkabuf.arrow import types as arrow_types
from kafkabuf.arrow.types import BINARIES, INTEGERS, REALS, TEXTS, ArrowType, Column, type_name
from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats.json import pattern as json_pattern
from kafkabuf.formats.json._columns import JsonEncoder
from kafkabuf.formats.json.names import escaped, padded
from kafkabuf.formats.rows.program import Program, Step, joined, make_program

MAX_SCALE = 76
DAY = 86_400
UUID = "arrow.uuid"
# As in _columns.pxd.
NULL_REFUSED, NULL_WRITTEN, NULL_LEFT_OUT = -1, 0, 1
QUOTED, SPARK = 1, 2
# The days of the years 1 to 9999, which Python's datetime has; and those whose years the writer can compute.
_PYTHON_DAYS = {"low": -719_162, "high": 2_932_896}
_ALL_DAYS = {"low": -(2**31), "high": 2**31 - 1}

Steps = list[Step]
# What a leaf is written as: read, write, the target's name for errors, further fields, and the table behind the name.
Leaf = tuple[str, str, str, dict[str, Any], bytes]


@dataclass(frozen=True)
class Choices:
    """The arguments of Json that change its bytes. `zone` is that of Spark's session, `local_format` the pattern of
    timestamps without time zone."""

    spark: bool
    ignore_null_fields: bool
    timestamp_format: str | None
    local_format: str | None
    date_format: str | None
    zone: str


def compile_rows(columns: Sequence[Column], prefix: bytes, choices: Choices) -> Program:
    """A row is an object with a member for each column. Raises SerializationError."""
    return make_program("JSON", JsonEncoder, _Compiler(choices).members(columns, ""), prefix, one_column=False)


def compile_column(column: Column, prefix: bytes, choices: Choices) -> Program:
    """A column is the whole value; its nulls are Kafka's null. Raises SerializationError."""
    number, kind = column
    steps = _Compiler(choices).value(number, kind, "", kind.name, NULL_REFUSED)
    return make_program("JSON", JsonEncoder, steps, prefix, one_column=True)


class _Compiler:
    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._spark = choices.spark
        self._flags = SPARK if choices.spark else 0

    def members(self, columns: Sequence[Column], path: str) -> Steps:
        steps: Steps = []
        names = set()
        null = NULL_LEFT_OUT if self._choices.ignore_null_fields else NULL_WRITTEN
        for number, kind in columns:
            where = joined(path, kind.name)
            if kind.name in names:
                raise SerializationError(f"there are two columns '{where}': rename or drop one of them")
            names.add(kind.name)
            name = f',"{escaped(kind.name, spark=self._spark)}":'
            steps += self.value(number, kind, name, where, null)
        return steps

    def value(self, child: int, kind: ArrowType, name: str, path: str, null: int) -> Steps:
        """The steps of a column; `name` is what stands before its value."""
        values = kind.dictionary or kind
        parts: Steps = []
        if nested := self._nested(values, path):
            read, write, target, parts, items = nested
            fields: dict[str, Any] = {"width": items}
            table = b""
        else:
            read, write, target, fields, table = self._leaf(values, path)
        return [self._step(read, write, target, fields, table, child, kind, name, path, null, len(parts)), *parts]

    def _step(
        self, read: str, write: str, target: str, fields: dict[str, Any], table: bytes, child: int, kind: ArrowType,
        name: str, path: str, null: int, parts: int,
    ) -> Step:  # fmt: skip
        text = name.encode("utf-8", "replace")
        values = {"value_branch": self._flags} | fields
        return Step(
            read, write, path, type_name(kind), target, child, 1 + parts, null_branch=null, to_width=len(text),
            constant=padded(text) + table, **values,
        )  # fmt: skip

    # ---- nested values -----------------------------------------------------------------------------------------------

    def _nested(self, kind: ArrowType, path: str) -> tuple[str, str, str, Steps, int] | None:
        """Read, write, target, the steps of the parts, and the items of a fixed-size list."""
        if kind.format == "+s":
            return "struct", "record", "object", self.members(list(enumerate(kind.children)), path), 0
        if (reader := arrow_types.list_reader(kind)) is not None:
            parts = self.value(0, kind.children[0], ",", f"{path}[]", NULL_WRITTEN)
            return reader[0], "array", "array", parts, reader[1]
        if (pair := arrow_types.entries(kind, path)) is not None:
            key, item = pair
            parts = self._key(key, f"{path}{{key}}")
            parts += self.value(1, item, ":", f"{path}{{}}", NULL_WRITTEN)
            return "map", "map", "object", parts, 0
        return None

    def _key(self, kind: ArrowType, path: str) -> Steps:
        """A key is a string: a number stands in quotes. Spark writes its own numbers of times."""
        values = kind.dictionary or kind
        leaf = self._spark_key(values) if self._spark else None
        read, write, _, fields, table = leaf or self._leaf(values, path)
        if write == "bytes":
            raise SerializationError(
                f"column '{path}' has the type {type_name(kind)}, which cannot be the key of a JSON object: cast it to "
                f"text"
            )
        flags = self._flags | (QUOTED if write in {"long", "float", "double", "decimal", "boolean"} else 0)
        fields = fields | {"value_branch": flags}
        return [self._step(read, write, "key", fields, table, 0, kind, ",", path, NULL_REFUSED, 0)]

    def _spark_key(self, kind: ArrowType) -> Leaf | None:
        """Days of dates, nanoseconds of times, and microseconds of timestamps and durations."""
        if kind.format == "tdD":
            return "int32", "long", "key", {}, b""
        for family, units in (("tt", 10**9), ("ts", 10**6), ("tD", 10**6)):
            if (unit := arrow_types.unit(kind, family)) is not None:
                factor = units // unit if units >= unit else -(unit // units)
                return arrow_types.time_reader(kind), "long", "key", {"factor": factor}, b""
        return None

    # ---- values without parts ----------------------------------------------------------------------------------------

    def _leaf(self, kind: ArrowType, path: str) -> Leaf:
        text = kind.format
        if text == "n":
            return "null", "constant", "null", {}, b""
        if text == "b":
            return "bool", "boolean", "boolean", {}, b""
        if text in INTEGERS:
            return INTEGERS[text][0], "long", "number", {}, b""
        if text in REALS:
            # A float's shortest text is Java's; Python has doubles alone.
            write = "float" if self._spark and text != "g" else "double"
            return REALS[text], write, "number", {}, b""
        if text in TEXTS:
            return "bytes", "string", "string", {}, b""
        leaf = self._bytes(kind) or self._decimal(kind) or self._time(kind)
        if leaf is None:
            raise SerializationError(
                f"column '{path}' has the type {type_name(kind)}, which kafkabuf does not write as JSON: cast the "
                f"column, or leave it out"
            )
        return leaf

    def _bytes(self, kind: ArrowType) -> Leaf | None:
        size = arrow_types.fixed_width(kind)
        if size == 16 and kind.extension == UUID:
            return "bytes", "uuid", "string", {"width": 16}, b""
        if size is not None or kind.format in BINARIES:
            return "bytes", "bytes", "base64", {"width": size or 0}, b""
        return None

    def _decimal(self, kind: ArrowType) -> Leaf | None:
        number = arrow_types.decimal(kind)
        if number is None or abs(number.scale) > MAX_SCALE:
            return None
        return "decimal", "decimal", "number", {"width": number.width, "factor": number.scale}, b""

    def _time(self, kind: ArrowType) -> Leaf | None:
        days = _ALL_DAYS if self._spark else _PYTHON_DAYS
        if kind.format in {"tdD", "tdm"}:
            fields = {"factor": -DAY if kind.format == "tdD" else 1000} | days
            read = "int32" if kind.format == "tdD" else "int64"
            return read, "pattern", "date", fields, self._table(self._date_ops(), None)
        if (unit := arrow_types.unit(kind, "tD")) is not None:
            return "int64", "duration", "duration", {"factor": unit}, b""
        if (unit := arrow_types.unit(kind, "tt")) is not None:
            table = self._table(json_pattern.SPARK_TIME if self._spark else json_pattern.ORJSON_TIME, None)
            return arrow_types.time_reader(kind), "pattern", "time", {"factor": unit, "low": 0, "high": 0}, table
        if (unit := arrow_types.unit(kind, "ts")) is not None:
            zone = self._zone(kind)
            table = self._table(self._timestamp_ops(instant=zone is not None), zone)
            return "int64", "pattern", "timestamp", {"factor": unit} | days, table
        return None

    def _table(self, ops: Sequence[json_pattern.Op], zone: str | None) -> bytes:
        return json_pattern.encoded(ops, zone, spark=self._spark)

    def _zone(self, kind: ArrowType) -> str | None:
        """Spark shows instants in the session's zone, Python in the zone of the column. None: no instant."""
        if not arrow_types.with_zone(kind):
            return None
        zone = self._choices.zone if self._spark else kind.format[4:]
        try:
            json_pattern.zone_of(zone, spark=self._spark)
        except ConfigError as error:
            raise SerializationError(f"column '{kind.name}' has the type {type_name(kind)}: {error}") from None
        return zone

    def _date_ops(self) -> list[json_pattern.Op]:
        if self._choices.date_format is None:
            return json_pattern.DATE
        return json_pattern.pattern_ops(self._choices.date_format, time=False, offset=False)

    def _timestamp_ops(self, *, instant: bool) -> list[json_pattern.Op]:
        pattern = self._choices.timestamp_format if instant else self._choices.local_format
        if pattern is not None:
            try:
                return json_pattern.pattern_ops(pattern, time=True, offset=instant)
            except ConfigError as error:
                raise SerializationError(f"a timestamp without time zone: {error}") from None
        if self._spark:
            return json_pattern.SPARK_INSTANT if instant else json_pattern.SPARK_LOCAL
        return json_pattern.ORJSON_INSTANT if instant else json_pattern.ORJSON_LOCAL
