"""Patterns of dates and timestamps, and time zones."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.errors import ConfigError, SerializationError
from kafkabuf.formats import Json
from tests.effort import effort
from tests.formats.json.support import texts

# ---- patterns --------------------------------------------------------------------------------------------------------

EPOCH = dt.datetime(1970, 1, 1)
LATE = dt.datetime(2024, 6, 10, 6, 13, 20, 123_456) - EPOCH
# The calendar of the year 12024 is that of 2024: the Gregorian one repeats itself after 400 years.
MOMENTS = pa.array(
    [dt.datetime(9, 2, 13, 4, 5, 6, 70_809) - EPOCH, LATE, LATE + dt.timedelta(25 * 146_097)], pa.duration("us")
).view(pa.timestamp("us", "UTC"))
# Texts of Java's DateTimeFormatter, as Spark calls it.
PATTERNS: dict[str, list[str]] = {
    "yyyy-MM-dd HH:mm:ss": ["0009-02-13 04:05:06", "2024-06-10 06:13:20", "+12024-06-10 06:13:20"],
    "y/M/d H:m:s": ["9/2/13 4:5:6", "2024/6/10 6:13:20", "12024/6/10 6:13:20"],
    "yy yyyyy yyyyyy": ["09 00009 000009", "24 02024 002024", "24 12024 012024"],
    "S SS SSS": ["0 07 070", "1 12 123", "1 12 123"],
    "SSSSSS SSSSSSSSS": ["070809 070809000", "123456 123456000", "123456 123456000"],
    "X XX XXX": ["Z Z Z"] * 3,
    "HH'h'' ''o''clock'": ["04h' 'o'clock", "06h' 'o'clock", "06h' 'o'clock"],
    "ss[.SSS][XXX]": ["06.070Z", "20.123Z", "20.123Z"],
    "d é\"": ["13 é\\\"", "10 é\\\"", "10 é\\\""],
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_timestamp_is_written_by_its_pattern(pattern: str) -> None:
    json_format = Json(dialect="spark", timestamp_format=pattern)
    assert texts(MOMENTS, json_format) == [f'"{text}"' for text in PATTERNS[pattern]]
    within = texts(MOMENTS[:2], Json(timestamp_format=pattern))
    assert within == [f'"{text}"' for text in PATTERNS[pattern][:2]]


@pytest.mark.parametrize(
    ("zone", "offset"),
    [("+05:30", "+0530 +0530 +05:30"), ("-07:00", "-07 -0700 -07:00"), ("Asia/Kolkata", "+0530 +0530 +05:30")],
)
def test_offset_has_the_form_of_its_letters(zone: str, offset: str) -> None:
    json_format = Json(dialect="spark", timestamp_format="X XX XXX", time_zone=zone)
    assert texts(pa.array([0], pa.timestamp("s", "UTC")), json_format) == [f'"{offset}"']


def test_optional_part_without_a_meaning_is_left_out() -> None:
    local = pa.array([0], pa.timestamp("s"))
    assert texts(local, Json(timestamp_format="[XXX] yyyy[ HH[:mm]]")) == ['" 1970 00:00"']
    assert texts(pa.array([0], pa.date32()), Json(date_format="dd.MM.yy")) == ['"01.01.70"']
    assert texts(pa.array([0], pa.date32()), Json(date_format="y[ HH]")) == ['"1970"']
    with pytest.raises(SerializationError, match=r"a timestamp without time zone: .* has 'X'"):
        texts(local, Json(timestamp_format="yyyy XXX"))
    with pytest.raises(ConfigError, match="has 'X'"):
        Json(timestamp_ntz_format="yyyy XXX")


def test_timestamp_without_zone_has_a_pattern_of_its_own() -> None:
    local, instant = pa.array([0], pa.timestamp("s")), pa.array([0], pa.timestamp("s", "UTC"))
    both: Any = {"timestamp_format": "yyyy XXX", "timestamp_ntz_format": "yy[ XXX]"}
    assert texts(local, Json(dialect="spark", **both)) == texts(local, Json(**both)) == ['"70"']
    assert texts(instant, Json(dialect="spark", **both)) == ['"1970 Z"']
    assert texts(local, Json(timestamp_format="yyyy")) == ['"1970"']
    # Spark's timestampFormat is for instants alone.
    assert texts(local, Json(dialect="spark", timestamp_format="yyyy XXX")) == ['"1970-01-01T00:00:00.000"']


def test_first_and_last_timestamp_are_written() -> None:
    column = pa.array([-(2**63), 2**63 - 1], pa.timestamp("us"))
    written = ['"-290308-12-21T19:59:05.224"', '"+294247-01-10T04:00:54.775"']
    assert texts(column, Json(dialect="spark")) == written


@pytest.mark.parametrize(
    "pattern",
    ["MMM", "yyy", "E", "yyyy-'", "[yyyy", "yyyy]", "#", "XXXX", "HHH", "a", "G", "SSSSSSSSSS", "y{", "yyyy\n"],
)
def test_pattern_that_is_not_supported_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(pattern))):
        Json(timestamp_format=pattern)


def test_pattern_of_dates_has_no_time() -> None:
    with pytest.raises(ConfigError, match="has 'H'"):
        Json(date_format="yyyy HH")


def test_long_text_of_a_pattern_is_written_whole() -> None:
    words = "x" * 700
    column = pa.array([0], pa.timestamp("s"))
    assert texts(column, Json(timestamp_format=f"yyyy'{words}'MM'{words}'")) == [f'"1970{words}01{words}"']


# ---- time zones ------------------------------------------------------------------------------------------------------

ZONES = [
    "Europe/Berlin",
    "America/St_Johns",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Australia/Lord_Howe",
]


@given(st.sampled_from(ZONES), st.datetimes(dt.datetime(1800, 1, 2), dt.datetime(9999, 12, 30)))
@settings(max_examples=effort(400), deadline=None)
def test_session_zone_has_the_offset_of_zoneinfo(zone: str, moment: dt.datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=dt.UTC)
    # zoneinfo has the offsets of a table up to 2037, and of a rule without end after it.
    expected = moment.astimezone(zoneinfo.ZoneInfo(zone)).isoformat(timespec="milliseconds")
    column = pa.array([int(moment.timestamp())], pa.timestamp("s", "UTC"))
    written = texts(column, Json(dialect="spark", time_zone=zone))
    assert written == [f'"{expected}"' if not expected.endswith("+00:00") else f'"{expected[:-6]}Z"']


def test_offset_changes_at_its_second() -> None:
    seconds = [1_711_846_799, 1_711_846_800, 1_729_990_799, 1_729_990_800]
    column = pa.array(seconds, pa.timestamp("s", "Europe/Berlin"))
    assert [text[-7:-1] for text in texts(column)] == ["+01:00", "+02:00", "+02:00", "+01:00"]


# Each form that Spark takes, and the offset in its to_json.
SPARKS_FORMS = {
    "Z": "Z", "GMT": "Z", "UT": "Z", "GMT0": "Z", "-00:00": "Z", "+8": "+08:00", "-8": "-08:00", "+18": "+18:00",
    "+8:30": "+08:30", "+8:5": "+08:05", "+12:5": "+12:05", "+0830": "+08:30", "+083015": "+08:30:15",
    "+8:30:15": "+08:30:15", "GMT+8": "+08:00", "GMT+08:30:15": "+08:30:15", "GMT+0800": "+08:00",
    "UTC+01:00": "+01:00", "UT+1:30": "+01:30", "UTC+8:0": "+08:00", "Etc/GMT+8": "-08:00", "PST": "-07:00",
    "CST": "-05:00", "EST": "-05:00", "HST": "-10:00", "MST": "-07:00", "IST": "+05:30", "BST": "+06:00",
    "EST5EDT": "-04:00", "CET": "+02:00", "PRC": "+08:00",
}  # fmt: skip


@pytest.mark.parametrize("zone", SPARKS_FORMS)
def test_zone_has_any_form_that_spark_takes(zone: str) -> None:
    column = pa.array([1_593_561_600], pa.timestamp("s", "UTC"))  # a July
    (text,) = texts(column, Json(dialect="spark", time_zone=zone))
    assert text[len('"2020-07-01T00:00:00.000') : -1] == SPARKS_FORMS[zone]


def test_names_of_three_letters_are_javas_in_sparks_dialect_alone() -> None:
    assert texts(pa.array([0], pa.timestamp("s", "EST"))) == ['"1969-12-31T19:00:00-05:00"']
    with pytest.raises(SerializationError, match="no time zone 'PST'"):
        texts(pa.array([0], pa.timestamp("s", "PST")))


def test_unknown_zone_is_refused() -> None:
    for zone in (
        "Europe/Nowhere",
        "+25:00",
        "+18:01",
        "+05:99",
        "+080",
        "+08:5:3",
        "+",
        "gmt+8",
        "utc",
        "../etc/passwd",
        "",
    ):
        with pytest.raises(ConfigError, match="there is no time zone"):
            Json(dialect="spark", time_zone=zone)
    with pytest.raises(SerializationError, match=r"column 'c' has the type .* no time zone 'Nowhere'"):
        texts(pa.array([0], pa.timestamp("s", "Nowhere")))
