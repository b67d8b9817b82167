"""Formats for the API fuzzer: nested tables, lies in these, and Python objects that fit a schema but for some parts.

The parts that do not fit are odd objects (objects.py), which do deeds while a format reads them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from google.type.money_pb2 import Money
from hypothesis import strategies as st

from kafkabuf.formats import Avro, Json, Protobuf
from tests.formats.avro import support as avro_support
from tests.formats.avro import test_lies as test_avro_lies
from tests.formats.avro.test_objects_random import schemas
from tests.formats.protobuf import support as protobuf_support
from tests.formats.protobuf import test_lies as test_protobuf_lies
from tests.hostile.fuzz_api.arrow import Lie, arrow
from tests.hostile.fuzz_api.objects import (
    Odd,
    OddList,
    OddSequence,
    anything,
    deeds,
    listed,
    mapping,
    mostly,
    with_deeds,
)

# ---- tables ----------------------------------------------------------------------------------------------------------

_LIES = [
    *((test_avro_lies.batch, lie) for lie, _ in test_avro_lies.LIES.values()),
    *((test_protobuf_lies.batch, lie) for lie, _ in test_protobuf_lies.LIES.values()),
]
_keys: Any = st.sampled_from([None, "key", "f0", "value", "more", ["f0"], ["f0", "f1"], ["key", "more"], []])


def _formatted(data: Any, fitting: list[Any]) -> st.SearchStrategy[tuple[Any, dict[str, Any]]]:
    """Data with formats, some of which fit the data."""
    derived = [Avro(), Avro(prefix=b"\0\0\0\0\1"), Json(), Json(dialect="spark")]
    zoned = Json(dialect="spark", time_zone="Europe/Berlin")
    formats = mostly(
        st.sampled_from([*fitting, *derived, zoned, None]),
        st.sampled_from([Avro("long"), Avro(["null", "string"]), Protobuf(Money)]) | anything,
    )
    named = {"value_format": formats, "key_format": formats, "key": mostly(_keys)}
    return st.tuples(st.just(data), st.fixed_dictionaries(named))


def _avro_table(drawn: tuple[Any, Any, pa.RecordBatch]) -> st.SearchStrategy[tuple[Any, dict[str, Any]]]:
    schema = drawn[0].avro
    return _formatted(drawn[2], [Avro(schema), Avro(schema, extra_columns="ignore")])


def _protobuf_table(drawn: tuple[Any, Any, pa.RecordBatch]) -> st.SearchStrategy[tuple[Any, dict[str, Any]]]:
    made = Protobuf(drawn[0])
    return _formatted(drawn[2], [made, made, Protobuf(drawn[0], extra_columns="ignore", prefix=b"\0")])


_LYING = Protobuf(test_protobuf_lies.message())
formatted = st.one_of(
    avro_support.tables().flatmap(_avro_table),
    protobuf_support.tables().flatmap(_protobuf_table),
    st.sampled_from(_LIES).flatmap(lambda made: _formatted(Lie(*made), [_LYING])),
    arrow.flatmap(lambda data: _formatted(data, [])),
)


# ---- objects ---------------------------------------------------------------------------------------------------------


class OddFields(Odd):
    """An object with attributes, which does a deed when a format reads one."""

    def __init__(self, names: list[str], fields: dict[str, Any]) -> None:
        super().__init__(names)
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "fields":
            raise AttributeError(name)
        self.deed()
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


@st.composite
def _twisted(draw: st.DrawFn, value: Any) -> Any:
    """The value, some of whose parts are odd objects, or are read through an odd object."""
    choice = draw(st.integers(0, 15))
    if choice == 0:
        return draw(anything)
    if isinstance(value, dict):
        parts = {key: draw(_twisted(part)) for key, part in value.items()}
        if choice == 1 and all(isinstance(key, str) for key in parts):
            return OddFields(draw(deeds), parts)
        return with_deeds(mapping(list(parts.items())), draw(deeds)) if choice < 4 else parts
    if isinstance(value, list):
        items = [draw(_twisted(item)) for item in value]
        if choice == 1:
            return OddSequence(draw(deeds), items, draw(st.lists(st.sampled_from([0, 1, 5]), max_size=2)))
        return listed(with_deeds(OddList(items), draw(deeds)) if choice < 4 else items)
    return value


def _of_protobuf(drawn: tuple[Any, Any, list[Any], Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    message, _, rows, _ = drawn
    made = [Protobuf(message), Protobuf(message, extra_columns="ignore", prefix=b"\0\0\0\0\1\0")]
    return st.tuples(st.sampled_from(made), _twisted(rows[0]) | st.just(message(**rows[0])))


_row: Any = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3), max_leaves=6,
)  # fmt: skip
# A format, and an object for its encode_object().
encodings = st.one_of(
    schemas().flatmap(lambda drawn: st.tuples(st.just(Avro(drawn[0])), drawn[1].flatmap(_twisted))),
    protobuf_support.messages().flatmap(_of_protobuf),
    st.tuples(st.just(Json()), _row.flatmap(_twisted)),
)

# Objects for all of the serializers.
_FIELDS = [
    {"name": "units", "type": ["null", "long", "double"], "default": None},
    {"name": "currency_code", "type": "string", "default": ""},
    {"name": "nanos", "type": "int", "default": 0},
]
serializers = st.sampled_from(
    [Avro({"type": "record", "name": "Money", "fields": _FIELDS}), Json(), Protobuf(Money), Json(prefix=b"\0\0\0\0\1")]
)
objects = st.fixed_dictionaries(
    {}, optional={"units": st.none() | st.integers(0, 2**40), "currency_code": st.text(), "nanos": st.integers(0, 9)}
).flatmap(_twisted)
