"""docs/delivery.md: its table has each public error class once, and says truly which errors are retried."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from kafkabuf import errors
from kafkabuf.errors import KafkaError

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"


def classes() -> dict[str, type[KafkaError]]:
    return {
        name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, KafkaError)
    }


def rows() -> list[list[str]]:
    """The cells of the table of errors."""
    table = PAGE.read_text(encoding="utf-8").split("\n| error |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_each_error_stands_in_the_table_once() -> None:
    named = Counter(name for row in rows() for name in re.findall(r"`(\w+)`", row[0]))
    assert named == Counter(classes().keys())


def test_table_says_which_errors_are_retried() -> None:
    for row in rows():
        for name in re.findall(r"`(\w+)`", row[0]):
            assert row[1] == ("yes" if classes()[name].retriable else "no"), name


def test_each_error_has_a_reason_and_advice() -> None:
    for row in rows():
        assert len(row) == 5, row[0]
        assert row[2], row[0]
        assert row[4], row[0]
