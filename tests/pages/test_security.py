"""docs/security.md: its settings are settings, and its table of errors has texts that the code has."""

from __future__ import annotations

import re
from pathlib import Path

from kafkabuf.config import ProducerConfig
from tests.pages.blocks import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_properties_are_settings() -> None:
    (properties,) = (block.text for block in blocks("docs/security.md") if block.language == "properties")
    lines = dict(line.split("=", 1) for line in properties.splitlines())
    assert ProducerConfig({"bootstrap.servers": "kafka1.example.com:9093", **lines}).sasl_mechanism == "OAUTHBEARER"


def test_errors_of_the_table_are_those_of_the_code() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "kafkabuf").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", sources)  # adjacent literals are one text
    rows = TEXT.split("| the error has |")[1].splitlines()[2:]
    assert len(rows) > 15
    for row in rows:
        texts = re.findall(r"`([^`]+)`", row.split(" | ")[0])
        assert texts, row
        assert [text for text in texts if text not in code and text != "certificate verify failed"] == [], row
