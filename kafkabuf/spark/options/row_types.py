"""Types of Spark's columns, as a schema is derived from them."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from kafkabuf.errors import SerializationError


def nullable(schema: StructType) -> StructType:
    """The same columns. Each may be null, and everything that is nested in it too.

    What Spark calls nullable is a matter of its optimizer: the same query has another plan where a constant is
    computed, or where one side of a union has no rows in this micro-batch. The derived schema must not follow that.
    """
    return StructType([StructField(field.name, _nullable(field.dataType), metadata=field.metadata) for field in schema])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _nullable(kind.valueType))
    return kind


def check(name: str, kind: DataType) -> None:
    """Raises SerializationError for a column of variants, also nested ones."""
    if isinstance(kind, VariantType):  # Arrow has it as a struct of bytes, which mean nothing to a format's reader
        raise SerializationError(
            f"column '{name}' has the type variant, which no format has: make text of it (to_json)"
        )
    if isinstance(kind, StructType):
        for field in kind:
            check(f"{name}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        check(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        check(f"{name}{{key}}", kind.keyType)
        check(f"{name}{{}}", kind.valueType)
