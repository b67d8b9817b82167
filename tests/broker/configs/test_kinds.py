"""Values of settings as Java reads and prints them. Kafka's answers: tests/conformance/values.py."""

from __future__ import annotations

import pytest

from kafkabuf.broker.configs.kinds import BOOLEAN, DOUBLE, INT, LIST, LONG, SHORT, Kind, at_least, one_of
from kafkabuf.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("kind", "text", "canonical"),
    [
        (INT, " 5 ", "5"),
        (INT, "+5", "5"),
        (INT, "\x1c-0\x00", "0"),
        (INT, "\u0665", "5"),
        (SHORT, "32767", "32767"),
        (LONG, str(-(2**63)), str(-(2**63))),
        (BOOLEAN, " True\t", "true"),
        (LIST, "", ""),
        (LIST, " a ,\tb,", "a,b,"),
        (DOUBLE, "1", "1.0"),
        (DOUBLE, " .5f", "0.5"),
        (DOUBLE, "0x1p-1", "0.5"),
        (DOUBLE, "1e-4", "1.0E-4"),
        (DOUBLE, "-123456789", "-1.23456789E8"),
        (DOUBLE, "9999999", "9999999.0"),
        (DOUBLE, "1e400", "Infinity"),
        (DOUBLE, "0x1p9999", "Infinity"),
        (DOUBLE, "NaN", "NaN"),
        (DOUBLE, "-Infinity", "-Infinity"),
    ],
)
def test_value_is_listed_as_java_prints_it(kind: int, text: str, canonical: str) -> None:
    assert Kind(kind).canonical("s", text) == canonical


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((INT, text) for text in ("", "1.5", "1_000", "0x10", "5L", "\xa05", str(2**31), "9" * 5000)),
        *((SHORT, "32768"), (LONG, str(2**63)), (BOOLEAN, "yes"), (BOOLEAN, "")),
        *((DOUBLE, text) for text in ("", "inf", "nan", "1_0", "0x1", "d", "1e")),
    ],
)
def test_text_that_java_does_not_read_is_refused(kind: int, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^Invalid value .* for configuration s: "):
        Kind(kind).canonical("s", text)


def test_number_that_is_none_passes_every_range() -> None:
    assert Kind(DOUBLE, at_least(0, 1)).canonical("s", "NaN") == "NaN"
    with pytest.raises(InvalidConfigError, match=r"Value must be no more than 1$"):
        Kind(DOUBLE, at_least(0, 1)).canonical("s", "1.5")
    with pytest.raises(InvalidConfigError, match=r"Value must be at least 0$"):
        Kind(INT, at_least(0)).canonical("s", str(-1))


def test_refused_word_of_a_list_is_named() -> None:
    with pytest.raises(InvalidConfigError, match=r"^Invalid value c for configuration s: String must be one of: a, b$"):
        Kind(LIST, one_of("a", "b")).canonical("s", "a, c ,d")
