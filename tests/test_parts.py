"""kafkabuf.parts: its names lead to the parts, without the packages of any extra; RecordAppender keeps its promises."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafkabuf import parts
from kafkabuf.errors import ClosedError, InvalidPartitionsError, UnknownTopicOrPartitionError
from rigs.producer import TOPIC, Rig, assert_whole

ROOT = Path(__file__).parents[1]
# Everything that `pip install kafkabuf` brings beside the standard library is NumPy and cramjam.
WITHOUT_EXTRAS = """
import sys
for name in ("kio", "crc32c", "click", "rich", "pyspark", "pyarrow"):
    sys.modules[name] = None
from kafkabuf import parts
loaded = {name for name in sys.modules if name.startswith("kafkabuf.")}
assert loaded == {"kafkabuf.parts", "kafkabuf.lazy_names"}, loaded
for name in parts.__all__:
    getattr(parts, name)
"""


def test_parts_need_no_extra_and_load_at_their_first_use() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], check=True)


def test_name_that_is_no_part_is_an_error() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from kafkabuf.parts import nonsense")


def test_each_part_has_a_docstring_where_it_is_defined() -> None:
    for name in parts.__all__:
        part = getattr(importlib.import_module("kafkabuf.parts"), name)
        assert part.__doc__, name


def test_reference_has_each_part() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    named = set(re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE))
    for name in parts.__all__:
        part = getattr(parts, name)
        assert {part.__module__, f"{part.__module__}.{name}", f"kafkabuf.config.{name}"} & named, name


def test_appender_appends_to_topics_of_the_accumulator_only() -> None:
    rig = Rig()
    appender = parts.RecordAppender(rig.config, rig.accumulator, rig.clock)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"no topic 'other': call its made_topic\(\)"):
        appender.send("other", b"v")
    with pytest.raises(InvalidPartitionsError):
        appender.send(TOPIC, b"v", partition=1)
    future = appender.send(TOPIC, b"v")
    rig.ack_all()
    assert future.result(0).offset == 0
    assert_whole(rig.pool)


def test_closed_appender_takes_no_record_and_sends_those_that_it_took() -> None:
    rig = Rig()
    appender = parts.RecordAppender(rig.config, rig.accumulator, rig.clock)
    future = appender.send(TOPIC, b"v")
    appender.close()
    with pytest.raises(ClosedError):
        appender.send(TOPIC, b"v")
    rig.ack_all()
    assert future.result(0).offset == 0
