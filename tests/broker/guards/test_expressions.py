"""Regular expressions for topics and transactional ids: RE2's syntax, whole names, bounded time."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.guards.expressions import Pattern
from kafkabuf.errors import InvalidRegularExpressionError
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import RawClient
from tests.effort import effort

# Pieces that mean the same in Python's syntax.
PIECES = (
    r"a b \. _ - . [ab] [^a] [a-] []a] [\d_] \w \W \d \s \b \B ^ $ (a|b) (?:ab)* (|a) (a+)+ (?i:A)"
    r" a{2} b{1,2}? a{0,} .* .+?"
).split()
expressions = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
names = st.text("abA1._-", min_size=1, max_size=8)
# Pieces about other characters, and ids of them.
OTHER_PIECES = (
    *PIECES,
    ":",
    "[^:]",
    "[!-/]",
    "ä",
    "[à-ü]",
    "(?s:.)",
    r"\s",
    r"\S",
    r"\t",
    r"\x{e4}",
    "日|本",
)
other_expressions = st.lists(st.sampled_from(OTHER_PIECES), min_size=1, max_size=6).map("".join)
ids = st.text("aA1:/ \t\näÄ日", min_size=1, max_size=6)


@settings(max_examples=effort(1000), deadline=None)
@given(st.lists(expressions, min_size=1, max_size=3).map("|".join), st.lists(names, max_size=30))
def test_expression_matches_the_names_that_pythons_matches_whole(expression: str, topics: list[str]) -> None:
    wanted = {topic for topic in topics if re.fullmatch(expression, topic)}
    assert Pattern(expression).matching(topics) == wanted


@settings(max_examples=effort(1000), deadline=None)
@given(other_expressions, st.lists(ids, max_size=30))
def test_expression_matches_ids_of_any_characters(expression: str, found: list[str]) -> None:
    # In Python's syntax a code point has another escape, and $ matches before a last line end.
    theirs = expression.replace(r"\x{e4}", r"\xe4").replace("$", r"\Z")
    wanted = {name for name in found if re.fullmatch(theirs, name, re.ASCII)}
    assert Pattern(expression).matching(found) == wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        (r"\p{Latin}+", {"Grüße"}),
        (r"\p{Lo}+", {"注文"}),
        (r"[[:^ascii:]]+", {"注文"}),
        (r"[[:alpha:]]+[[:punct:]]\d", {"shop:1"}),
        (r"[[:alpha:]]+[[:space:]].*", {"my shop", "two\nlines"}),
        (r"\Qshop:1\E", {"shop:1"}),
        ("(?i)GRÜSSE|gRÜßE", {"Grüße"}),
        (".*", {"shop:1", "my shop", "Grüße", "注文"}),
        ("(?s).*", {"shop:1", "my shop", "Grüße", "注文", "two\nlines"}),
        ("(?s:.)*", {"shop:1", "my shop", "Grüße", "注文", "two\nlines"}),
        ("(?s:t).*", set()),
    ],
)
def test_classes_know_characters_that_no_topic_has(expression: str, wanted: set[str]) -> None:
    found = ["shop:1", "my shop", "Grüße", "注文", "two\nlines"]
    assert Pattern(expression).matching(found) == wanted


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("orders", {"orders"}),
        ("order", set()),
        ("orders.*", {"orders", "orders-eu"}),
        ("(?i)ORDERS", {"orders"}),
        ("(?i:O)RDERS", set()),
        (r"\Qorders-eu\E", {"orders-eu"}),
        (r"[[:alpha:]]+", {"orders"}),
        (r"[[:^alpha:]]+", {"1.5"}),
        (r"\pL+", {"orders"}),
        (r"\p{Nd}\.\p{Nd}", {"1.5"}),
        (r"\PL+", {"1.5"}),
        (r"\x6frders", {"orders"}),
        (r"\157rders", {"orders"}),
        (r"(?P<kind>orders)-(?<region>eu)", {"orders-eu"}),
        (r"\Aorders\z", {"orders"}),
        (r"orders\b.*", {"orders", "orders-eu"}),
        (r"ä*orders", {"orders"}),
        ("", set()),
        ("a{,3}", set()),
    ],
)
def test_expression_has_re2s_syntax(expression: str, wanted: set[str]) -> None:
    assert Pattern(expression).matching(["orders", "orders-eu", "1.5"]) == wanted


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(", "`(` is not a valid regular expression: missing )"),
        ("a)", "unexpected )"),
        ("[a", "missing ]"),
        ("[b-a]", "invalid character class range"),
        ("[[:no:]]", "invalid character class range"),
        (r"\p{No such}", "invalid character class range"),
        ("*a", "no argument for repetition operator: *"),
        ("a|{2}", "no argument for repetition operator: {2}"),
        ("a**", "bad repetition operator: **"),
        ("a{1001}", "invalid repetition size"),
        ("a{2,1}", "invalid repetition size"),
        ("(?=a)", "invalid perl operator: (?="),
        ("(?<!a)", "invalid perl operator: (?<!"),
        ("(?P<a", "invalid named capture"),
        (r"(a)\1", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        ("\\", "trailing \\"),
        ("((){1000}){1000}", "invalid repetition size"),
        ("(.{0,100}){0,100}x", "invalid repetition size"),
        ("(.{0,30}){0,33}(.{0,30}){0,33}x", "pattern too large"),
        ("\ud800", "not Unicode"),
        ("a" * 5000, "4096 are allowed"),
    ],
)
def test_invalid_expression_is_refused_with_the_reason(expression: str, reason: str) -> None:
    with pytest.raises(InvalidRegularExpressionError, match=re.escape(reason)):
        Pattern(expression)


@settings(max_examples=effort(1000), deadline=None)
@given(st.text(r"ab.*+?()[]{}|\^$-:,<>P=!iQEpx019é", max_size=20))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    topics = ["a", "ab-1", "b.b"]
    with contextlib.suppress(InvalidRegularExpressionError):
        assert Pattern(text).matching(topics) <= set(topics)


def test_expression_that_makes_a_backtracking_matcher_hang_is_matched_at_once() -> None:
    start = time.process_time()
    assert Pattern("(a+)+b|((a*)*)*c").matching(["a" * 249 + str(index) for index in range(100)]) == frozenset()
    assert time.process_time() - start < 1


def test_expression_that_takes_too_long_is_refused() -> None:
    start = time.process_time()
    with pytest.raises(InvalidRegularExpressionError, match="too long"):
        Pattern("(.{0,30}){0,30}x").matching(["ab" * 100 + str(index) for index in range(10_000)])
    assert time.process_time() - start < 5


def test_step_of_the_work_matches_few_names_where_the_expression_is_large() -> None:
    def steps(expression: str) -> int:
        return sum(1 for _ in Pattern(expression).matching_in_steps("ab" * 100 for _ in range(50)))

    assert steps("a.*") <= 1 < 49 < steps("(.{0,30}){0,30}x")


def test_consumer_learns_which_extra_its_expression_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with EmbeddedCluster(brokers=1) as cluster, RawClient(cluster.bootstrap_servers) as client:
        member = {"group_id": "g", "member_id": "one", "member_epoch": 0, "rebalance_timeout": 60_000}
        topics: dict[str, Any] = {"subscribed_topic_names": [], "subscribed_topic_regex": "a", "topic_partitions": []}
        answer = client.ask(m.CONSUMER_GROUP_HEARTBEAT, 1, **member, **topics)
        assert answer.error_code == InvalidRegularExpressionError.code
        assert 'pip install "kafkabuf[broker]"' in answer.error_message
        assert client.ask(m.LIST_TRANSACTIONS, 2, transactional_id_pattern="a").error_code == answer.error_code
