"""Python objects as JSON, by Json as a serializer: orjson's text, and a path in each error."""

from __future__ import annotations

import datetime as dt
import enum
import importlib
import pickle
import subprocess
import sys
import uuid
from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

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

pd: Any = importlib.import_module("pandas")  # it has no types


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


# ---- pandas and NumPy ------------------------------------------------------------------------------------------------


def _frame(nanos: list[int | None]) -> Any:
    """A column of each of the types that pandas has."""
    numbers = range(len(nanos))
    at = pd.Series(pd.to_datetime(nanos, unit="ns"))
    return pd.DataFrame(
        {
            "at": at,
            "berlin": at.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin"),
            "micros": at.astype("M8[us]"),
            "span": pd.Series(pd.to_timedelta(nanos, unit="ns")),
            "count": pd.array([None if nano is None else nano % 7 for nano in nanos], "Int64"),
            "flag": pd.array([None if nano is None else nano > 0 for nano in nanos], "boolean"),
            "text": pd.array([None if nano is None else str(nano) for nano in nanos], "string"),
            "real": [float("nan") if nano is None else nano / 7 for nano in nanos],
            "small": np.array(numbers, np.int8),
            "kind": pd.Categorical([None if nano is None else "ab"[nano % 2] for nano in nanos]),
            "list": [[number, 1] for number in numbers],
        }
    )


@given(st.lists(st.none() | st.integers(-(2**60), 2**60) | st.integers(-(10**6), 10**6), min_size=1, max_size=5))
def test_rows_of_pandas_become_the_text_of_their_columns(nanos: list[int | None]) -> None:
    frame = _frame(nanos)
    expected = Json().encode(pa.Table.from_pandas(frame, preserve_index=False))
    assert [Json().encode_object(row) for row in frame.to_dict("records")] == expected
    assert [Json().encode_object({**row}) for _, row in frame.astype(object).iterrows()] == expected


@pytest.mark.parametrize(
    ("value", "twin"),
    [
        (np.int8(-3), -3),
        (np.longlong(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), None),
        (np.float32("-inf"), None),
        (np.bool_(True), True),
        (np.str_("ä"), "ä"),
        (np.bytes_(b"a"), b"a"),
        (np.void(b"ab"), b"ab"),
        (np.datetime64("2024-06-10T01:02:03.5"), dt.datetime(2024, 6, 10, 1, 2, 3, 500_000)),
        (np.datetime64("2024-06-10T01:02:03"), dt.datetime(2024, 6, 10, 1, 2, 3)),
        (np.datetime64("2024-06", "M"), dt.datetime(2024, 6, 1)),
        (np.datetime64("0001-01-01", "D"), dt.datetime(1, 1, 1)),
        (np.datetime64("2024-06-10T01:02:03.000000007"), "2024-06-10T01:02:03.000000007"),
        (np.datetime64("NaT"), None),
        (np.datetime64("NaT", "s"), None),
        (np.timedelta64(1500, "ms"), dt.timedelta(seconds=1.5)),
        (np.timedelta64(-3, "h"), dt.timedelta(hours=-3)),
        (np.timedelta64(7, "ns"), "PT0.000000007S"),
        (np.timedelta64(2**62, "W"), f"PT{2**62 * 604_800}S"),
        (np.timedelta64("NaT", "s"), None),
        (np.array(5), 5),
        (np.array(np.datetime64("NaT", "s")), None),
        (np.array([[1, 2], [3, 4]])[:, 1], [2, 4]),
        (np.array(["2024-01-01", "NaT"], "M8[s]"), [dt.datetime(2024, 1, 1), None]),
        (np.array([[1], [2]], "m8[s]"), [[dt.timedelta(seconds=1)], [dt.timedelta(seconds=2)]]),
        (np.array([1, "a", None, Decimal("1.10"), np.int8(1), b"a"], object), [1, "a", None, Decimal("1.10"), 1, b"a"]),
        (np.array([1, 2], ">i4"), [1, 2]),
        (np.array(["a", "b"]), ["a", "b"]),
        (pd.Timestamp("2024-06-10 01:02:03.5"), dt.datetime(2024, 6, 10, 1, 2, 3, 500_000)),
        (pd.Timestamp("2024-06-10 01:02:03", tz="UTC"), dt.datetime(2024, 6, 10, 1, 2, 3, tzinfo=dt.UTC)),
        (pd.Timestamp("2024-06-10 01:02:03.123456789", tz="UTC"), "2024-06-10T01:02:03.123456789+00:00"),
        (pd.Timedelta(1, "ns"), "PT0.000000001S"),
        (pd.Timedelta(-1, "ns"), "-PT0.000000001S"),
        (pd.NaT, None),
        (pd.NA, None),
    ],
)
def test_scalar_of_pandas_or_numpy_is_written_as_its_twin_of_python(value: Any, twin: Any) -> None:
    assert Json().encode_object([value]) == Json().encode_object([twin])
    assert Json().encode_object({"a": {"b": value}}) == Json().encode_object({"a": {"b": twin}})


class Moment(dt.datetime):
    pass


@pytest.mark.parametrize("fold", [0, 1])
def test_subclass_of_a_date_or_time_is_written_as_its_base(fold: int) -> None:
    plain = dt.datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
    moment = Moment(2024, 10, 27, 2, 30, fold=fold, tzinfo=plain.tzinfo)
    assert Json().encode_object([moment]) == orjson.dumps([plain])


@pytest.mark.parametrize(
    "value",
    [np.longdouble(1), np.complex128(1), np.timedelta64(2, "Y"), np.timedelta64(2), np.datetime64(2**62, "s"),
     np.datetime64(1, "as"), np.array([1j]), pd.Period("2024-06")],
)  # fmt: skip
def test_what_json_cannot_hold_of_numpy_and_pandas_is_refused_by_its_path(value: Any) -> None:
    with pytest.raises(SerializationError, match=r"^value\['a'\]\[0\] cannot be written as JSON: "):
        Json().encode_object({"a": [value]})


def test_json_imports_neither_numpy_nor_pandas() -> None:
    code = (
        "import sys, datetime as dt; from kafkabuf.formats.json.objects import object_serializer as make\n"
        "class M(dt.datetime): pass\n"
        "before = {'numpy', 'pandas'} & sys.modules.keys()\n"
        "assert make('value', b'')([M(2024, 1, 1), dt.timedelta(1)]) == b'[\"2024-01-01T00:00:00\",\"PT86400S\"]'\n"
        "assert {'numpy', 'pandas'} & sys.modules.keys() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
