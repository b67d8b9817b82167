"""Records beside what a test expects: what counts as equal, and the words for a difference."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from kafkabuf.broker import ConsumerRecord, EmbeddedCluster, Messages
from kafkabuf.testing import assert_messages
from tests.broker.raw_client import NOW, RawClient, batch

pytest_plugins = ["pytester"]
HEAD = "(- missing, + not expected, ! different)"


def records(*values: bytes | None, key: bytes | None = None, headers: Any = ()) -> Messages:
    return Messages(
        ConsumerRecord("t", 0, offset, NOW + offset, key, value, list(headers)) for offset, value in enumerate(values)
    )


@pytest.mark.parametrize(
    "item",
    [
        "ä".encode(),
        "ä",
        (b"key", "ä"),
        ("key", ANY),
        ("key", ANY, [("h", b"1"), ("n", None)]),
        ("key", ANY, {"h": "1", "n": None}),
        {"offset": 0, "timestamp": NOW},
        {"headers": ANY, "value": "ä", "producer_id": -1},
        {},
        ANY,
        records("ä".encode(), key=b"key", headers=[("h", b"1"), ("n", None)])[0],
    ],
)
def test_expected_item_may_be(item: Any) -> None:
    found = records("ä".encode(), key=b"key", headers=[("h", b"1"), ("n", None)])
    assert found == [item]
    assert [item] == found
    assert (found != [item]) is False
    assert item in found
    assert found.differences([item]) == []
    assert found.differences([item], any_order=True) == []


@pytest.mark.parametrize(
    "item",
    [
        b"other",
        "other",
        None,
        (b"other", b"value"),
        ("key", b"value", []),
        ("key", "value", {"h": "2"}),
        ("key", "value", [("g", b"1")]),
        {"offset": 1},
        records(b"value")[0],
        ["value"],
    ],
)
def test_other_item_is_not_equal(item: Any) -> None:
    found = records(b"value", key=b"key", headers=[("h", b"1")])
    assert found != [item]
    assert item not in found
    assert found.differences([item])
    assert found.differences([item], any_order=True)


def test_lists_of_other_lengths_are_not_equal() -> None:
    assert records(b"a") != []
    assert records(b"a") != [b"a", b"a"]
    assert records() == []
    assert records(None) == [None]
    assert records(b"a") == (b"a",)
    assert records(b"a") != b"a"


def test_unknown_field_is_an_error() -> None:
    with pytest.raises(TypeError, match="a record has no field 'valeu': its fields are topic, partition, offset"):
        records(b"a").__eq__([{"valeu": b"a"}])


def test_part_of_the_messages_compares_too() -> None:
    found = records(b"a", b"b", b"c")
    assert found[1:] == [b"b", b"c"]
    assert found[-1].value == b"c"
    assert found.values == [b"a", b"b", b"c"]
    assert found.keys == [None] * 3


def test_records_are_counted_and_found_by_expected_items() -> None:
    found = records(b"x", b"y", b"x")
    assert (found.count("x"), found.count({"offset": 1}), found.count("z"), found.count(ANY)) == (2, 1, 0, 3)
    assert (found.index("x"), found.index("x", 1), found.index("x", -3, -1)) == (0, 2, 0)
    for arguments in (("z",), ("y", 2), ("y", 0, 1)):
        with pytest.raises(ValueError, match="no record matches"):
            found.index(*arguments)


def test_missing_and_superfluous_records_are_named() -> None:
    assert records(b"a", b"b", b"d", b"e").differences([b"a", b"b", "c", b"d"]) == [
        f"4 messages, 4 expected {HEAD}",
        "  partition 0, offset 0: value b'a'",
        "  partition 0, offset 1: value b'b'",
        "- expected value 'c'",
        "  partition 0, offset 2: value b'd'",
        "+ partition 0, offset 3: value b'e'",
    ]
    assert records(b"a").differences([]) == [f"1 message, 0 expected {HEAD}", "+ partition 0, offset 0: value b'a'"]
    assert records().differences([(b"k", None), {"offset": 3}, records(b"x")[0]]) == [
        f"0 messages, 3 expected {HEAD}",
        "- expected key b'k', value None",
        "- expected offset 3",
        "- expected partition 0, offset 0: value b'x'",
    ]


def test_fields_that_differ_are_named() -> None:
    found = records(b"a", b"b", key=b"k", headers=[("h", b"1")])
    assert found.differences([("l", "x"), ("k", "b", {"h": "2"})]) == [
        f"2 messages, 2 expected {HEAD}",
        "! partition 0, offset 0: key is b'k', expected b'l'; value is b'a', expected b'x'",
        "! partition 0, offset 1: headers is [('h', b'1')], expected {'h': '2'}",
    ]


def test_long_values_are_shown_where_they_differ() -> None:
    long = b"x" * 1000
    _, line = records(long + b"tail").differences([long + b"TAIL"])
    assert "value differs from byte 1,000 on: ...b'xxxxxxxxxxxxxxxxxxxxtail'..., expected" in line
    assert "1,004 bytes, 1,004 expected" in line
    assert all(len(line) < 300 for line in records(long).differences([]))


def test_equal_parts_of_long_lists_are_left_out() -> None:
    values = [b"%d" % number for number in range(100_000)]
    found = records(*values)
    values[50_000] = b"other"
    lines = found.differences(values)
    assert lines == [
        f"100,000 messages, 100,000 expected {HEAD}",
        "  ... 49,998 as expected",
        "  partition 0, offset 49998: value b'49998'",
        "  partition 0, offset 49999: value b'49999'",
        "! partition 0, offset 50000: value is b'50000', expected b'other'",
        "  partition 0, offset 50001: value b'50001'",
        "  partition 0, offset 50002: value b'50002'",
        "  ... 49,997 as expected",
    ]
    lines = found.differences([b"x"] * 50)
    assert len(lines) < 50
    assert lines[-2:] == ["- ... and 30 more", "+ ... and 99,980 more"]


def test_order_may_be_free() -> None:
    found = records(b"a", b"b", b"b")
    assert found.differences([b"b", b"a", b"b"], any_order=True) == []
    assert found.differences([b"b", b"a", b"c"], any_order=True) == [
        f"3 messages, 3 expected {HEAD}",
        "- expected value b'c'",
        "+ partition 0, offset 2: value b'b'",
    ]


# ---- with a cluster


def send(cluster: EmbeddedCluster, *values: bytes, partition: int = 0) -> None:
    with RawClient(cluster.bootstrap_servers) as client:
        assert client.produce("t", batch(values), partition=partition).error_code == 0


def test_assertion_waits_and_returns_the_messages(kafkabuf_broker: EmbeddedCluster) -> None:
    kafkabuf_broker.create_topic("t", 2)
    assert assert_messages(kafkabuf_broker, "t", []) == []
    send(kafkabuf_broker, b"b", partition=1)
    send(kafkabuf_broker, b"a")
    assert assert_messages(kafkabuf_broker, "t", ["a", "b"])[0].partition == 0
    assert_messages(kafkabuf_broker, "t", ["b", "a"], any_order=True)
    assert_messages(kafkabuf_broker, "t", ["b"], partition=1)


def test_assertion_says_what_is_wrong(kafkabuf_broker: EmbeddedCluster) -> None:
    kafkabuf_broker.create_topic("t")
    send(kafkabuf_broker, b"a", b"b")
    with pytest.raises(AssertionError) as raised:
        assert_messages(kafkabuf_broker, "t", ["b", "a"])
    assert str(raised.value).splitlines()[:2] == [
        "the messages of topic 't' are not the expected ones",
        f"2 messages, 2 expected {HEAD}",
    ]
    with pytest.raises(AssertionError, match="the messages of t-0 are not the expected ones\n2 messages, 1 expected"):
        assert_messages(kafkabuf_broker, "t", ["a"], partition=0)
    with pytest.raises(AssertionError, match=r"(?s)- expected value 'c'.*2 of 3 messages arrived in topic 't'"):
        assert_messages(kafkabuf_broker, "t", ["a", "b", "c"], timeout=0)
    with pytest.raises(AssertionError, match="there is no topic 'u': the cluster has 't'"):
        assert_messages(kafkabuf_broker, "u", ["a"], timeout=0)


def test_failed_comparison_is_explained_by_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(
        """
        from kafkabuf import KafkaProducer
        from kafkabuf.testing import assert_messages

        def test_it(kafkabuf_broker):
            with KafkaProducer(bootstrap_servers=kafkabuf_broker.bootstrap_servers) as producer:
                producer.send("orders", b"one").result(10)
                producer.send("orders", b"two").result(10)
            assert kafkabuf_broker.messages("orders") == [b"one", b"three"]

        def test_other_way_round(kafkabuf_broker):
            kafkabuf_broker.create_topic("orders")
            assert [b"one"] == kafkabuf_broker.messages("orders")

        def test_helper(kafkabuf_broker):
            kafkabuf_broker.create_topic("orders")
            assert_messages(kafkabuf_broker, "orders", ["one"], timeout=0)

        def test_other_lists():
            assert ["a"] == ["b"]
        """
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.runpytest_subprocess("-p", "kafkabuf.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "E *the messages are not the expected ones",
            "E *2 messages, 2 expected (- missing, + not expected, ! different)",
            "E *partition 0, offset 0: value b'one'",
            "E *! partition 0, offset 1: value is b'two', expected b'three'",
            "E *0 messages, 1 expected (- missing, + not expected, ! different)",
            "E *- expected value b'one'",
            '>*assert_messages(kafkabuf_broker, "orders", *',
            "E *AssertionError: the messages of topic 'orders' are not the expected ones",
            "E *0 of 1 messages arrived in topic 'orders' within 0 s",
            "E *At index 0 diff: 'a' != 'b'",
        ]
    )


@pytest.mark.parametrize("header", [("h", b"1", b"more"), ("h",), (), "h1", None])
def test_header_is_a_name_and_a_value(header: Any) -> None:
    found = records(b"v", headers=[("h", b"1")])
    assert found != [{"headers": [header]}]
    assert len(found.differences([{"headers": [header]}])) == 2


def test_lone_surrogate_is_no_value() -> None:
    found = records(b"v")
    assert found != ["\ud800"]
    assert found.differences(["\ud800"]) == [
        f"1 message, 1 expected {HEAD}",
        r"! partition 0, offset 0: value is b'v', expected b'\xed\xa0\x80'",
    ]


def test_unknown_fields_of_any_type_are_named() -> None:
    with pytest.raises(TypeError, match="no field 'x'"):
        records(b"v").differences([{"x": 1, 5: 2}])


@pytest.mark.parametrize("expected", ["one", b"one", {"value": b"one"}, None, 5])
def test_single_item_is_no_list_of_items(kafkabuf_broker: EmbeddedCluster, expected: Any) -> None:
    with pytest.raises(TypeError, match=r"put the item into \[\]"):
        assert_messages(kafkabuf_broker, "t", expected)
