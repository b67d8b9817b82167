"""Texts that can always be shown: no value of a row or of a setting makes the error about it fail."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kafkabuf import ProducerConfig, shown
from kafkabuf.errors import ConfigError


def texts(*values: bytes, kind: Any = None) -> pa.Array:
    """A column of text with these bytes, UTF-8 or not."""
    found = pa.array(values, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind or pa.string(), len(values), found.buffers())


BAD = texts(b"ok", b"\xffA")
# Values that as_py(), repr() or str() of pyarrow cannot show, as json.loads() reads the text of each.
VALUES: dict[str, tuple[Any, Any]] = {
    "text": (BAD[1], "\udcffA"),
    "large text": (texts(b"\xed\xa0\x80", kind=pa.large_string())[0], "\udced\udca0\udc80"),
    "dictionary": (pa.DictionaryArray.from_arrays(pa.array([1]), BAD)[0], "\udcffA"),
    "list": (pa.ListArray.from_arrays(pa.array([0, 2]), BAD)[0], ["ok", "\udcffA"]),
    "fixed list": (pa.FixedSizeListArray.from_arrays(BAD, 2)[0], ["ok", "\udcffA"]),
    "struct": (pa.StructArray.from_arrays([BAD, pa.array([1, 2])], ["a", "b"])[1], {"a": "\udcffA", "b": 2}),
    "map": (pa.MapArray.from_arrays(pa.array([0, 2]), BAD, BAD)[0], [["ok", "ok"], ["\udcffA", "\udcffA"]]),
    "list of lists": (
        pa.ListArray.from_arrays(pa.array([0, 1]), pa.ListArray.from_arrays(pa.array([0, 2]), BAD))[0],
        [["ok", "\udcffA"]],
    ),
    "day": (pa.array([10**9], pa.date32())[0], "1000000000 (date32[day])"),
    "instant": (pa.array([2**62], pa.timestamp("us", "UTC"))[0], f"{2**62} (timestamp[us, tz=UTC])"),
    "local time": (pa.array([2**62], pa.timestamp("us"))[0], f"{2**62} (timestamp[us])"),
    "unknown zone": (
        pa.array([2**62], pa.timestamp("us", "Nowhere/Zone"))[0],
        f"{2**62} (timestamp[us, tz=Nowhere/Zone])",
    ),
    "time of day": (pa.array([2**62], pa.time64("us"))[0], f"{2**62} (time64[us])"),
    "duration": (pa.array([2**62], pa.duration("s"))[0], f"{2**62} (duration[s])"),
}
FINE: dict[str, tuple[Any, Any]] = {
    "null": (pa.array([None], pa.string())[0], None),
    "good text": (pa.array(["grüße"])[0], "grüße"),
    "bytes": (pa.array([b"\xff"])[0], "/w=="),
    "number": (pa.array([5])[0], 5),
    "not a number": (pa.array([float("nan")])[0], "nan"),
    "infinite": (pa.array([float("-inf")])[0], "-inf"),
    "date": (pa.array([1], pa.date32())[0], "1970-01-02"),
    "void": (pa.nulls(1)[0], None),
    "list of void": (pa.array([[None]], pa.list_(pa.null()))[0], [None]),
    "decimal": (pa.array([Decimal("9" * 38)], pa.decimal128(38, 0))[0], "9" * 38),
}


@pytest.mark.parametrize("name", [*VALUES, *FINE])
def test_every_value_has_a_text(name: str) -> None:
    scalar, expected = (VALUES | FINE)[name]
    found = shown.json_object({"a": scalar})
    read = json.loads(found.decode("utf-8", "surrogateescape"))["a"]
    assert read == expected
    assert shown.text(scalar).isprintable()
    shown.text(scalar).encode()


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_that_pyarrow_cannot_show(name: str) -> None:
    """Otherwise these tests show nothing."""
    scalar, _ = VALUES[name]
    with pytest.raises((ValueError, OverflowError)):
        scalar.as_py()


def test_bytes_of_a_text_stay_as_they_are() -> None:
    assert shown.json_object({"a": BAD[1]}) == b'{"a":"\xffA"}'
    assert shown.raw(BAD[1]) == b"\xffA"
    assert shown.raw(pa.DictionaryArray.from_arrays(pa.array([1]), BAD)[0]) == b"\xffA"
    assert shown.raw(pa.array([None], pa.string())[0]) is None
    assert shown.escaped(BAD[1]) == "\\xffA"


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NoText(str):
    def __repr__(self) -> str:
        return "\udce4"


@pytest.mark.parametrize("value", [Unshowable(), NoText("x"), "\udce4", "a\nb", [Unshowable()], "x" * 5000])
def test_error_of_a_setting_can_be_shown_whatever_its_value_is(value: Any) -> None:
    for name in ProducerConfig.model_fields:
        given = {"bootstrap.servers": "h:1", name: value}
        if name == "bootstrap_servers":
            del given["bootstrap.servers"]
        with contextlib.suppress(ConfigError):
            ProducerConfig(given)
            continue
        with pytest.raises(ConfigError) as caught:
            ProducerConfig(given)
        text = str(caught.value)
        assert text.isprintable()
        text.encode()
        assert len(text) < 3000
