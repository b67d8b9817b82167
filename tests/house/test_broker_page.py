"""The section "What differs from Kafka" of docs/embedded-broker.md: what tools/broker_page.py makes of its sources."""

from __future__ import annotations

import pytest

from kafkabuf.protocol.messages import api_name
from tests.conformance.deviations import DEVIATIONS, NOT_SERVED
from tools import broker_page


def test_page_has_the_section_as_the_tool_writes_it() -> None:
    old = broker_page.PAGE.read_text(encoding="utf-8")
    assert broker_page.page(old) == old, "run python -m tools.broker_page"


def test_page_has_every_deviation_under_its_api() -> None:
    bullets = {
        line.split("**")[1]: line for line in " ".join(broker_page.section().split()).split("- ") if "**" in line
    }
    for deviation in DEVIATIONS:
        name = "".join(word.capitalize() for word in str(api_name(deviation.api_key)).split("_"))
        assert deviation.reason in bullets[name]
    for area, keys in NOT_SERVED.items():
        assert all(f"({key})" in bullets[area[0].upper() + area[1:]] for key in keys)


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        broker_page.page("# A page\n")
