"""Json(dialect="spark") writes what Spark's to_json(struct(*)) writes, byte for byte."""

from __future__ import annotations

import datetime as dt
import json
import random
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from kafkabuf.formats import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest_plugins = ["tests.spark.fixtures"]

ROWS = 200
# The Java from which Double.toString() gives the shortest text (JDK-4511638).
SHORTEST_SINCE = 19
_ALPHABET = 'ab/ "\\\b\f\n\r\t\0\x1b\x7fé\u2028\U0001f600'
_EPOCH = dt.datetime(1970, 1, 1)


def _texts(drawn: random.Random) -> str:
    return "".join(drawn.choices(_ALPHABET, k=drawn.randrange(20)))


def _integers(drawn: random.Random, bits: int) -> int:
    return drawn.getrandbits(drawn.randrange(1, bits)) * drawn.choice([1, -1])


def _cents(drawn: random.Random) -> float:
    """A number of which Java 17 also writes the shortest text, and what is no number."""
    return drawn.choice([round(drawn.uniform(-1e6, 1e6), 2), 0.0, -0.0, float("nan"), float("inf"), -float("inf")])


def _decimals(drawn: random.Random, precision: int, scale: int) -> Decimal:
    return Decimal(drawn.randrange(10 ** drawn.randrange(precision + 1))).scaleb(-scale) * drawn.choice([1, -1])


def _moments(drawn: random.Random) -> dt.datetime:
    """From the year 1, with offsets of seconds before time zones, to the year 9998."""
    return _EPOCH + dt.timedelta(
        days=drawn.randrange(-719_000, 2_932_000), microseconds=drawn.randrange(86_400 * 10**6)
    )


def _column(drawn: random.Random, kind: pa.DataType, make: Any) -> pa.Array:
    return pa.array([None if drawn.random() < 0.2 else make() for _ in range(ROWS)], kind)


def _table(seed: int) -> pa.Table:
    drawn = random.Random(seed)
    part = pa.struct([("a", pa.int32()), ('b "é"', pa.list_(pa.string())), ("c", pa.struct([("d", pa.date32())]))])

    def few(make: Any) -> list[Any]:
        return [None if drawn.random() < 0.2 else make() for _ in range(drawn.randrange(4))]

    def pairs(key: Any, make: Any) -> list[tuple[Any, Any]]:
        return list({key(): item for item in few(make)}.items())

    def parts() -> dict[str, Any]:
        return {
            "a": drawn.choice([None, 1]),
            'b "é"': drawn.choice([None, few(lambda: _texts(drawn))]),
            "c": drawn.choice([None, {"d": None}, {"d": _moments(drawn).date()}]),
        }

    makers: dict[str, tuple[pa.DataType, Any]] = {
        "bool": (pa.bool_(), lambda: drawn.random() < 0.5),
        **{
            f"int{bits}": (getattr(pa, f"int{bits}")(), lambda bits=bits: _integers(drawn, bits))
            for bits in (8, 16, 32, 64)
        },
        "float": (pa.float32(), lambda: drawn.choice([_cents(drawn) / 100, float(drawn.randrange(2**20)), 2.5e-5])),
        "double": (pa.float64(), lambda: _cents(drawn)),
        'text "\\é\n': (pa.string(), lambda: _texts(drawn)),
        "binary": (pa.binary(), lambda: drawn.randbytes(drawn.randrange(9))),
        **{
            f"decimal{precision}_{scale}": (
                pa.decimal128(precision, scale), lambda p=precision, s=scale: _decimals(drawn, p, s)
            )
            for precision, scale in ((1, 0), (5, 5), (18, 7), (38, 0), (28, 10))
        },
        "date": (pa.date32(), lambda: _moments(drawn).date()),
        "instant": (pa.timestamp("us", "UTC"), lambda: _moments(drawn)),
        "interval": (pa.duration("us"), lambda: dt.timedelta(microseconds=_integers(drawn, 60))),
        "list": (pa.list_(pa.int64()), lambda: few(lambda: _integers(drawn, 64))),
        "map": (pa.map_(pa.string(), pa.float64()), lambda: pairs(lambda: _texts(drawn), lambda: _cents(drawn))),
        "map of numbers": (
            pa.map_(pa.int64(), pa.bool_()), lambda: pairs(lambda: _integers(drawn, 64), lambda: True)
        ),
        "map of dates": (
            pa.map_(pa.date32(), pa.int8()), lambda: pairs(lambda: _moments(drawn).date(), lambda: 1)
        ),
        "map of instants": (
            pa.map_(pa.timestamp("us", "UTC"), part), lambda: pairs(lambda: _moments(drawn), parts)
        ),
        "map of decimals": (
            pa.map_(pa.decimal128(18, 7), pa.int8()), lambda: pairs(lambda: _decimals(drawn, 18, 7), lambda: 1)
        ),
        "struct": (part, parts),
        "structs": (pa.list_(part), lambda: few(parts)),
    }  # fmt: skip
    return pa.table({name: _column(drawn, kind, make) for name, (kind, make) in makers.items()})


def _written(frame: DataFrame, **options: str) -> list[bytes]:
    text = F.to_json(F.struct("*"), options)
    return [row.text.encode() for row in frame.select(text.alias("text")).collect()]


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_any_row_becomes_the_text_of_to_json(spark: SparkSession, zone: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    frame = session.createDataFrame(_table(len(zone)))
    local = "to_timestamp_ntz(substr(cast(instant as string), 1, 19)) + interval '0.001002' second"
    frame = frame.selectExpr("*", f"{local} as local", "cast(null as void) as nothing")
    table = frame.toArrow()
    assert table.schema.field("local").type.tz is None
    ours = Json(dialect="spark", time_zone=zone)
    assert ours.encode(table) == _written(frame)
    kept = Json(dialect="spark", time_zone=zone, ignore_null_fields=False)
    assert kept.encode(table) == _written(frame, ignoreNullFields="false")
    pattern, dates = "yy/M/d 'o''clock' H:mm:s.SSSSS[XXX]", "d.M.yyyyy"
    by_pattern = Json(dialect="spark", time_zone=zone, timestamp_format=pattern, date_format=dates)
    options = {"timestampFormat": pattern, "timestampNTZFormat": pattern, "dateFormat": dates}
    assert by_pattern.encode(table) == _written(frame, **options)


def test_number_of_any_bits_reads_as_sparks(spark: SparkSession) -> None:
    """Before Java 19 the text of a number may be longer than need be; it reads as the same number."""
    drawn = random.Random(19)
    doubles = struct.unpack("<2000d", drawn.randbytes(16_000))
    floats = struct.unpack("<2000f", drawn.randbytes(8_000))
    table = pa.table({"double": doubles, "float": pa.array(floats, pa.float32())})
    theirs = _written(spark.createDataFrame(table))
    ours = Json(dialect="spark").encode(table)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    if int(jvm.System.getProperty("java.specification.version")) >= SHORTEST_SINCE:
        assert ours == theirs
    for own, text in zip(ours, theirs, strict=True):
        read, expected = json.loads(own or b""), json.loads(text)
        assert read["double"] == expected["double"]
        assert _narrow(read["float"]) == _narrow(expected["float"])


def _narrow(value: float | str) -> Any:
    return value if isinstance(value, str) else struct.pack("<f", value)
