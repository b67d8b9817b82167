"""Python objects as JSON, by Json as a serializer: orjson's text, and a path in each error."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
import sys
import uuid
from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf import KafkaProducer
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.errors import ConfigError, MissingExtraError, SerializationError
from kafkabuf.formats import Json


@dataclass
class Leg:
    start: str
    minutes: int | None


class Seat(NamedTuple):
    row: int
    letter: str


class Model:
    """Stands for a model of pydantic that allows further fields."""

    __pydantic_fields__: ClassVar[dict[str, Any]] = {"id": None}

    def __init__(self, id: int, **extra: Any) -> None:
        self.id = id
        self.__pydantic_extra__ = extra or None


class Root:
    """Stands for a RootModel of pydantic."""

    __pydantic_fields__: ClassVar[dict[str, Any]] = {"root": None}
    __pydantic_root_model__ = True

    def __init__(self, root: Any) -> None:
        self.root = root


class Broken(UserDict[str, int]):
    """Its entries cannot be read."""

    def __iter__(self) -> Any:
        raise RuntimeError("boom")


class Cabin(enum.Enum):
    FIRST = "first"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.dates() | st.times()
    | st.datetimes() | st.uuids(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_text_is_orjsons(value: Any) -> None:
    assert Json().encode_object(value) == (None if value is None else orjson.dumps(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Leg("JFK", None), b'{"start":"JFK","minutes":null}'),
        (Seat(3, "a"), b'{"row":3,"letter":"a"}'),
        ([Seat(3, "a"), (1, 2)], b'[{"row":3,"letter":"a"},[1,2]]'),
        (Model(1), b'{"id":1}'),
        (Model(1, more=[Seat(3, "a")]), b'{"id":1,"more":[{"row":3,"letter":"a"}]}'),
        (Root([Model(1), Root({"a": 2})]), b'[{"id":1},{"a":2}]'),
        ({"cabin": Cabin.FIRST}, b'{"cabin":"first"}'),
        (OrderedDict(b=1, a=2), b'{"b":1,"a":2}'),
        (UserDict({"a": deque([1])}), b'{"a":[1]}'),
        ({"at": dt.datetime(2024, 6, 10, tzinfo=dt.UTC)}, b'{"at":"2024-06-10T00:00:00+00:00"}'),
        ({"id": uuid.UUID(int=1)}, b'{"id":"00000000-0000-0000-0000-000000000001"}'),
        ([float("nan"), np.float32(0.5), np.arange(2)], b"[null,0.5,[0,1]]"),
        ("wärt\u2028", '"wärt\u2028"'.encode()),
    ],
)
def test_objects_become_what_their_fields_say(value: Any, text: bytes) -> None:
    assert Json().encode_object(value) == text


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b"", b"\x00\xff", b"abc"], pa.binary()),
        ([Decimal("1.10"), Decimal("-0.01"), Decimal("1e3"), Decimal("1e-8")], None),
        ([dt.timedelta(0), dt.timedelta(days=1, microseconds=5), dt.timedelta(microseconds=-1)], pa.duration("us")),
    ],
)
def test_what_orjson_does_not_know_is_written_as_a_column_is(values: list[Any], kind: pa.DataType | None) -> None:
    for value in values:
        column = pa.array([value], kind)
        assert Json().encode_object({"c": value}) == Json().encode(pa.table({"c": column}))[0]


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ({"a": [1, {"b": object()}]}, "value['a'][1]['b']", "object"),
        ({"a": {1: 2}}, "value['a']", "Dict key must be"),
        ([Leg("x", 2**64)], "value[0].minutes", "64-bit"),
        (Seat(1, "\ud800"), "value.letter", "surrogates"),
        (Model(1, more=Root([object()])), "value.more.root[0]", "object has no JSON text"),
        ({"d": Decimal("NaN")}, "value['d']", "NaN"),
        ({"d": Decimal("1E+999999999")}, "value['d']", "more than 16384 digits"),
        ({"d": Decimal("-1E-999999999")}, "value['d']", "more than 16384 digits"),
        ({"d": Broken()}, "value['d']", "boom"),
        ({1, 2}, "value", "set"),
        (len, "value", "builtin"),
    ],
)
def test_error_names_the_path_and_the_reason(value: Any, path: str, reason: str) -> None:
    with pytest.raises(SerializationError) as error:
        Json().encode_object(value)
    assert str(error.value).startswith(f"{path} cannot be written as JSON: ")
    assert reason in str(error.value)


def test_endless_object_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SerializationError, match="ecursion"):
        Json().encode_object(endless)


def test_error_of_a_property_is_the_error_of_its_object() -> None:
    class Broken(NamedTuple):
        a: int

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("broken")

    with pytest.raises((SerializationError, RuntimeError)):
        Json().encode_object([Broken(1)])


def test_prefix_and_null() -> None:
    assert Json(prefix=b"\0").encode_object(1) == b"\x001"
    assert Json(prefix=b"\0").encode_object(1, prefix=b"") == b"1"
    assert Json(prefix=b"\0").encode_object(None) is None
    assert Json()({"a": 1}) == b'{"a":1}'


@pytest.mark.parametrize("settings", [{"dialect": "spark"}, {"date_format": "yyyy"}, {"ignore_null_fields": True}])
def test_choices_for_columns_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="for columns"):
        Json(**settings).encode_object(1)
    with pytest.raises(ConfigError, match="for columns"):
        KafkaProducer(bootstrap_servers="localhost:9", value_serializer=Json(**settings))


def test_missing_orjson_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    with pytest.raises(MissingExtraError, match=r"kafkabuf\[json\]"):
        Json().encode_object(1)


def test_producer_sends_objects_as_json(kafkabuf_broker: EmbeddedCluster) -> None:
    settings = {"key_serializer": Json(), "value_serializer": pickle.loads(pickle.dumps(Json()))}
    with KafkaProducer(bootstrap_servers=kafkabuf_broker.bootstrap_servers, **settings) as producer:
        producer.send("t", {"leg": Leg("JFK", 5)}, key=7).result()
        with pytest.raises(SerializationError, match=r"key\['a'\] cannot"):
            producer.send("t", {}, key={"a": object()})
        producer.send_many("t", [{"n": n} for n in range(3)]).result()
        producer.send("t", None, key=7).result()
    found = [(message.key, message.value) for message in kafkabuf_broker.messages("t")]
    assert (b"7", b'{"leg":{"start":"JFK","minutes":5}}') in found
    assert (b"7", None) in found
    assert {(None, b'{"n":%d}' % n) for n in range(3)} < set(found)
