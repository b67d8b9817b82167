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
from kafkabuf.formats.json.pattern import zone_of
from kafkabuf.spark.options.format_options import FormatOptions
from tests.effort import effort

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


def _table(drawn: random.Random) -> pa.Table:
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


def _options(drawn: random.Random) -> dict[str, str]:
    """Any of the options of to_json that the sink has, with any value or not given."""
    patterns = ["yy/M/d 'o''clock' H:mm:s.SSSSS[XXX]", "yyyy[ XX]", "d.M.yyyyy[ HH:mm]", "y-MM-dd'T'HH:mm:ss.SSSSSSSSS"]
    values = {
        "timestampFormat": [*patterns, "HH:mm:ss XXX yyyyyy", "XX X"],
        "timestampNTZFormat": patterns,
        "dateFormat": ["d.M.yyyyy", "yy MM[ HH:mm]", "'day 'd"],
        "ignoreNullFields": ["true", "false"],
        "timeZone": ["UTC", "America/St_Johns", "+05:30", "Pacific/Apia"],
    }
    return {name: drawn.choice(values[name]) for name in values if drawn.random() < 0.6}


@pytest.mark.parametrize("seed", range(effort(16)))
def test_any_row_with_any_options_becomes_the_text_of_to_json(spark: SparkSession, seed: int) -> None:
    drawn = random.Random(seed)
    session = spark.newSession()
    zone = drawn.choice(["UTC", "America/St_Johns"])
    session.conf.set("spark.sql.session.timeZone", zone)
    frame = session.createDataFrame(_table(drawn))
    local = "to_timestamp_ntz(substr(cast(instant as string), 1, 19)) + interval '0.001002' second"
    frame = frame.selectExpr("*", f"{local} as local", "array(local) as locals", "cast(null as void) as nothing")
    table = frame.toArrow()
    assert table.schema.field("local").type.tz is None
    options = _options(drawn)
    given = {name.lower(): value for name, value in options.items()}
    parsed = FormatOptions.parse({"timezone": zone, "valueformat": "json", **given})
    assert parsed is not None
    assert isinstance(parsed.value, Json)
    assert parsed.value.encode(table) == _written(frame, **options)


def test_every_zone_of_spark_is_known_with_its_offset(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    # SystemV is the JDK's own; the database of time zones has no such names.
    known = {str(name) for name in jvm.java.time.ZoneId.getAvailableZoneIds() if not name.startswith("SystemV/")}
    names = sorted(known | set(jvm.java.time.ZoneId.SHORT_IDS) | {"+8", "-8:30", "UTC+01:00", "GMT+8", "+083015"})
    moments = [dt.datetime(2015, month, 15, tzinfo=dt.UTC) for month in (1, 7)]
    rows = [(name, int(moment.timestamp())) for name in names for moment in moments]
    frame = spark.createDataFrame(pa.table(dict(zip(("name", "at"), zip(*rows, strict=True), strict=True))))
    local = F.from_utc_timestamp(F.timestamp_seconds("at"), F.col("name"))
    theirs = [row.offset for row in frame.select((F.unix_seconds(local) - F.col("at")).alias("offset")).collect()]
    zones = [zone_of(name, spark=True) for name in names]
    ours = [z if isinstance(z, dt.timedelta) else moment.astimezone(z).utcoffset() for z in zones for moment in moments]
    assert [int(offset.total_seconds()) for offset in ours if offset is not None] == theirs


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
