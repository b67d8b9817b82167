"""docs/security.md: its examples work, and its table of errors has texts that the code has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.clock import SystemClock
from kafkabuf.config import ProducerConfig
from kafkabuf.network import sasl
from tests.network.fake_gssapi import FakeGssapi

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


class Checked:
    """Stands for a producer of a cluster that tests do not reach: it takes settings that a producer takes."""

    opened: ClassVar[list[str]] = []

    def __init__(self, settings: dict[str, str]) -> None:
        config = ProducerConfig(settings)
        Checked.opened.append(sasl.mechanism(config, SystemClock(), lambda: 0.5).name)

    def __enter__(self) -> Checked:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def send(self, topic: str, value: bytes) -> Checked:
        return self

    def result(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


def test_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "gssapi", FakeGssapi())
    signer = SimpleNamespace(MSKAuthTokenProvider=None)
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    (shell,) = blocks("sh")
    subprocess.run(["sh", "-euc", shell], check=True, capture_output=True)
    names: dict[str, Any] = {}
    for example in blocks("python"):
        elsewhere = "example.com" in example or "amazonaws.com" in example or "by_jaas" in example
        if names:
            names["KafkaProducer"] = Checked if elsewhere else KafkaProducer
        exec(compile(example, str(PAGE), "exec"), names)
    assert Checked.opened == ["SCRAM-SHA-256", "GSSAPI", "GSSAPI", "OAUTHBEARER", "OAUTHBEARER"]


def test_properties_are_settings() -> None:
    (properties,) = blocks("properties")
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
