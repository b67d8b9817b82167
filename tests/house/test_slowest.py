"""The table of the slowest tests."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import LENGTHY
from tools.slowest import slowest

ROOT = Path(__file__).parents[2]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.broker.log.test_log" name="test_append[1]" time="1.5"/>
<testcase classname="tests.broker.log.test_log" name="test_append[2]" time="2.5"/>
<testcase classname="tests.broker.log.test_log" name="test_read" time="{read}"/>
</testsuite></testsuites>"""


def test_parameters_and_reports_are_added_up_and_the_slowest_test_is_first(tmp_path: Path) -> None:
    reports = [tmp_path / "kafka.xml", tmp_path / "python.xml"]
    for report, seconds in zip(reports, (0.5, 1.0), strict=True):
        report.write_text(REPORT.format(read=seconds))
    append, read = "tests/broker/log/test_log.py::test_append", "tests/broker/log/test_log.py::test_read"
    assert slowest(reports, 5) == [(append, 8.0, 4), (read, 1.5, 2)]
    assert slowest(reports, 1) == [(append, 8.0, 4)]


def test_every_lengthy_test_exists() -> None:
    for name in LENGTHY:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), name
