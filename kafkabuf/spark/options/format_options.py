"""Options of formats: `valueFormat` and `keyFormat` with what belongs to them, and `schema.registry.*`.

The driver parses them, and resolves them once for a write or a micro-batch: it derives a schema that the user has not
given, and asks the Schema Registry. The tasks get the result (record_formats.py), and none of the registry's settings,
unless they must ask about topics that only rows name (topic_formats.py).

This file loads no extension until a write has a format: the driver imports it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.types import StructType

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.spark.options import row_types
from kafkabuf.spark.options.choices import choice, yes_or_no
from kafkabuf.spark.options.option_names import REGISTRY_PREFIX, Settings
from kafkabuf.spark.options.record_formats import RecordFormats, key_argument

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkabuf.formats.registry import SchemaRegistry
    from kafkabuf.formats.rows.format import Format, ResolvedFormat, Source

Field = Literal["key", "value"]


class FormatName(StrEnum):
    """What `valueFormat` and `keyFormat` may name."""

    RAW = "raw"
    AVRO = "avro"
    JSON = "json"
    PROTOBUF = "protobuf"


_TOPIC = "name it with .option('topic', ...)"
_NEEDED = "set option '{}Format' to 'avro', 'json' or 'protobuf'"
_OF_PROTOBUF = ("valueMessage", "valueDescriptors", "keyMessage", "keyDescriptors")
_OF_JSON = ("timestampFormat", "timestampNTZFormat", "dateFormat", "ignoreNullFields", "timeZone")


class ExtraColumns(StrEnum):
    """What happens to a column for which the schema has no field."""

    ERROR = "error"
    IGNORE = "ignore"


@dataclass(frozen=True)
class FormatOptions:
    """Checked options of formats. Without a format a key or value is a column of text or bytes, as it is.

    `key_columns` are the columns that make the key, none for the column `key`. `time_zone` is that in which JSON writes
    timestamps; None: the session's, which the driver's Python workers do not know. `registry` holds the settings of the
    Schema Registry, with its secrets: the repr leaves it out, and no task gets it.
    """

    value: Format | None
    key: Format | None
    key_columns: tuple[str, ...] = ()
    time_zone: str | None = None
    registry: Settings = field(default=(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FormatOptions | None:
        """None where no option is about formats. Raises ConfigError. Spark gives the names in lower case."""
        value, key, key_columns = _format(options, "value"), _format(options, "key"), _key_columns(options)
        registry = tuple(sorted(item for item in options.items() if item[0].startswith(REGISTRY_PREFIX)))
        if len(key_columns) > 1 and key is None:
            raise ConfigError(
                f"option 'keyColumns' names {len(key_columns)} columns, which need a keyFormat: {_NEEDED.format('key')}"
                ", or name one column of text or bytes"
            )
        _check_unused(options, {format.kind for format in (value, key) if format is not None})
        if registry:
            _check_registry(options, registry, value, key)
        if value is None and key is None and not key_columns:
            return None
        return cls(value, key, key_columns, options.get("timezone"), registry)

    @property
    def registry_names_schemas(self) -> bool:
        """Whether the settings of the registry say which schemas a write has, whatever its columns are."""
        return bool(self.registry) and _registry(self.registry).names_schema

    @property
    def names_schemas_in_headers(self) -> bool:
        """Whether the registry's schemas are named in headers of the records, not in front of keys and values."""
        from kafkabuf.config.schema_registry import FRAMINGS  # late: few writes have a registry

        return bool(self.registry) and _registry(self.registry).settings.schema_id_framing == FRAMINGS[1]

    def resolved(self, schema: StructType, topic: str | None, timeout: float) -> RecordFormats:
        """What the tasks need to encode rows of this schema. Asks the registry for at most `timeout` seconds a field.

        Raises SerializationError where columns and schema do not fit, and the errors of SchemaRegistry.resolve().
        """
        from kafkabuf.formats.plan import Formats
        from kafkabuf.formats.rows._encoded import columns_of

        arguments = Formats(self.value, self.key, key_argument(self.key_columns))
        is_json = all(format is None or format.kind == "JSON" for format in (self.value, self.key))
        for column in schema:
            row_types.check(column.name, column.dataType, void_keys=is_json)
        sources = arguments.sources(columns_of(arrow_schema(row_types.nullable(schema))))
        return RecordFormats(
            self._resolved("value", self.value, sources.value, topic, timeout),
            self._resolved("key", self.key, sources.key, topic, timeout),
            self.key_columns,
            self.time_zone is None,
        )

    def _resolved(
        self, name: Field, format: Format | None, source: Source | None, topic: str | None, timeout: float
    ) -> ResolvedFormat | None:
        from kafkabuf.formats.rows.format import ResolvedFormat

        if format is None or source is None:
            return None
        if self.registry:
            from kafkabuf.formats.registry.resolving import resolve_format

            if topic is None:
                raise ConfigError(f"the Schema Registry has a subject for each topic, and no topic is named: {_TOPIC}")
            return resolve_format(_registry(self.registry), format, topic, name, source, timeout)
        format.program(source)  # raises the error of columns that do not fit
        # Each task gets the driver's schema: that of its own Arrow data may differ in what is nullable.
        return ResolvedFormat(format.with_schema(format.schema_text(source), b""), None)


def key_rule(options: Mapping[str, str]) -> str:
    """The options that say what the key is, as a text; "" where the column `key` is, as it is.

    Names and values are compared as they were given: `align` and the write need the same options.
    """
    given = {name.lower(): value.strip() for name, value in options.items()}
    is_raw = given.get("keyformat", FormatName.RAW).lower() == FormatName.RAW
    of_json = [name.lower() for name in _OF_JSON] if given.get("keyformat", "").lower() == FormatName.JSON else []
    of_key = ["keycolumns", "keyformat", "keyschema", "keymessage", "keydescriptors"]
    names = ["keycolumns"] if is_raw else [*of_key, *of_json]
    return ", ".join(f"{name} {given[name]}" for name in names if name in given)


def schema_for(schema: StructType, options: Mapping[str, str], field: Field) -> str:
    """See kafkabuf.spark.schema_for."""
    formats = FormatOptions.parse(
        {name.lower(): value for name, value in options.items() if not name.lower().startswith(REGISTRY_PREFIX)}
    )
    resolved = None if formats is None else getattr(formats.resolved(schema, None, 0.0), field)
    if resolved is None or resolved.format.schema is None:
        raise ConfigError(f"the options give the {field} no format with a schema: {_NEEDED.format(field)}")
    return str(resolved.format.schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the Arrow data that a task gets for a DataFrame with this schema.

    Raises SerializationError for a column that Spark cannot turn into Arrow.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 4.0 and older have no argument for the zone, and take UTC. Without a zone a timestamp would not be an
    # instant.
    zoned: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    fields = []
    for column in schema.fields:
        try:
            fields += to_arrow_schema(StructType([column]), **zoned)
        except (PySparkException, TypeError) as error:  # PySpark 3.4 raises a TypeError
            raise SerializationError(f"column '{column.name}': {error}: cast the column, or drop it") from None
    return pa.schema(fields)


@functools.lru_cache(16)
def _registry(settings: Settings) -> SchemaRegistry:
    """One registry for all micro-batches in this Python worker: it remembers the responses."""
    from kafkabuf.formats.registry import SchemaRegistry

    return SchemaRegistry(dict(settings))


# ---- parsing ---------------------------------------------------------------------------------------------------------


def _format(options: Mapping[str, str], name: Field) -> Format | None:
    kind = choice(FormatName, f"{name}Format", options.get(f"{name}format", FormatName.RAW))
    schema = options.get(f"{name}schema")
    if kind is FormatName.RAW:
        if schema is not None:
            raise ConfigError(f"option '{name}Schema' needs a format: {_NEEDED.format(name)}")
        return None
    if kind is FormatName.PROTOBUF:
        return _protobuf(options, name)
    make = _avro if kind is FormatName.AVRO else _json
    return make(options, name, schema)


def _avro(options: Mapping[str, str], name: Field, schema: str | None) -> Format:
    from kafkabuf.formats import Avro  # late: it loads an extension

    extra_columns = _extra_columns(options)
    try:
        return Avro(schema, extra_columns=extra_columns.value)
    except ConfigError as error:
        raise ConfigError(f"option '{name}Schema': {error}") from None


def _json(options: Mapping[str, str], name: Field, schema: str | None) -> Format:
    from kafkabuf.formats import Json  # late, as above

    ignores = yes_or_no("ignoreNullFields", options.get("ignorenullfields"), default=True)
    arguments: dict[str, tuple[str, Any]] = {
        "timestamp_format": ("timestampFormat", options.get("timestampformat")),
        "timestamp_ntz_format": ("timestampNTZFormat", options.get("timestampntzformat")),
        "date_format": ("dateFormat", options.get("dateformat")),
        "time_zone": ("timeZone", options.get("timezone")),
        "schema": (f"{name}Schema", schema),
    }
    for argument, (option, given) in arguments.items():
        try:
            Json(dialect="spark", **{argument: given})
        except ConfigError as error:
            raise ConfigError(f"option '{option}': {error}") from None
    given = {argument: value for argument, (_, value) in arguments.items()}
    return Json(dialect="spark", ignore_null_fields=ignores, **given)


def _protobuf(options: Mapping[str, str], name: Field) -> Format:
    from kafkabuf.formats import Protobuf  # late, as above

    message, path = options.get(f"{name}message"), options.get(f"{name}descriptors")
    if not message or not path or f"{name}schema" in options:
        raise ConfigError(
            f"{name}Format 'protobuf' needs the options '{name}Message', the full name of a message, and "
            f"'{name}Descriptors', a file of `protoc --include_imports --descriptor_set_out`, and takes no "
            f"'{name}Schema'"
        )
    extra_columns = _extra_columns(options)
    try:
        return Protobuf.from_descriptor_set(path, message, extra_columns=extra_columns.value)
    except (ConfigError, OSError) as error:
        raise ConfigError(f"options '{name}Message' and '{name}Descriptors': {error}") from None


def _extra_columns(options: Mapping[str, str]) -> ExtraColumns:
    return choice(ExtraColumns, "extraColumns", options.get("extracolumns", ExtraColumns.ERROR))


def _check_unused(options: Mapping[str, str], kinds: AbstractSet[str]) -> None:
    """Raises ConfigError for an option of a format that the write does not use."""
    for name, users in (
        ("extraColumns", ("AVRO", "PROTOBUF")),
        *((name, ("JSON",)) for name in _OF_JSON),
        *((name, ("PROTOBUF",)) for name in _OF_PROTOBUF),
    ):
        if name.lower() in options and not kinds & set(users):
            formats = " or ".join(f"'{kind.lower()}'" for kind in users)
            raise ConfigError(f"option '{name}' needs a format that uses it: set option 'valueFormat' to {formats}")


def _key_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    given = options.get("keycolumns")
    if given is None:
        return ()
    names = tuple(name.strip() for name in given.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(
            f"option 'keyColumns' is '{given}': name one column, or several different ones between commas"
        )
    return names


def _check_registry(options: Mapping[str, str], registry: Settings, value: Format | None, key: Format | None) -> None:
    from kafkabuf.formats.registry.settings import RegistrySettings  # late: few writes have a registry

    if value is None and key is None:
        raise ConfigError(f"the options 'schema.registry.*' need a format: {_NEEDED.format('value')}")
    try:
        RegistrySettings(dict(registry))
    except ConfigError as error:
        raise ConfigError(f"among the options 'schema.registry.*': {error}") from None
