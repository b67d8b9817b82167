"""Types of Spark's columns, as a schema is derived from them."""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

from kafkabuf.errors import SerializationError


def nullable(schema: StructType) -> StructType:
    """The same columns. Each may be null, and everything that is nested in it too.

    What Spark calls nullable is a matter of its optimizer: the same query has another plan where a constant is
    computed, or where one side of a union has no rows in this micro-batch. The derived schema must not follow that.
    The keys of `map()` are void, and pyarrow makes no such type: they become text, as the map is empty in any case.
    """
    return StructType([StructField(field.name, _nullable(field.dataType), metadata=field.metadata) for field in schema])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return nullable(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        key = StringType() if isinstance(kind.keyType, NullType) else _nullable(kind.keyType)
        return MapType(key, _nullable(kind.valueType))
    return kind


def check(name: str, kind: DataType, *, void_keys: bool) -> None:
    """Raises SerializationError for a column of variants, or unless `void_keys` of `map()`, also nested ones."""
    # Of Spark 4. Arrow has a variant as a struct of bytes, which mean nothing to a format's reader.
    if kind.typeName() == "variant":
        raise SerializationError(
            f"column '{name}' has the type variant, which no format has: make text of it (to_json)"
        )
    if isinstance(kind, StructType):
        for field in kind:
            check(f"{name}.{field.name}", field.dataType, void_keys=void_keys)
    elif isinstance(kind, ArrayType):
        check(f"{name}[]", kind.elementType, void_keys=void_keys)
    elif isinstance(kind, MapType):
        if isinstance(kind.keyType, NullType) and not void_keys:
            raise SerializationError(
                f"column '{name}' is a map whose keys have the type void, which JSON alone writes: cast it, such as "
                f"to map<string, string>"
            )
        check(f"{name}{{key}}", kind.keyType, void_keys=void_keys)
        check(f"{name}{{}}", kind.valueType, void_keys=void_keys)
