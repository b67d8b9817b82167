"""The table of Kafka's KIPs (tools/kips.tsv) is in order, what it cites exists, and docs/kips.md shows it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from kafkabuf.config import table
from tools import kips_page
from tools.kips_page import ROOT, STATES, Kip, read_table

KIPS = read_table()
SETTINGS = {row.name for row in table.rows()}
NEWEST = (4, 4)


@cache
def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def exists(evidence: str) -> bool:
    name, _, test = evidence.partition("::")
    if "/" not in name:
        return evidence in SETTINGS
    path = ROOT / name
    return path.is_file() and (not test or (path.name.startswith("test_") and test in names_of_tests(path)))


def test_page_is_that_of_the_table() -> None:
    assert kips_page.PAGE.read_text(encoding="utf-8") == kips_page.page(), "run python -m tools.kips_page"


def test_each_kip_is_listed_once_in_the_order_of_the_numbers() -> None:
    numbers = [int(kip.kip) for kip in KIPS]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("kip", KIPS, ids=lambda kip: f"KIP-{kip.kip}")
def test_entry_is_whole_and_its_evidence_exists(kip: Kip) -> None:
    assert kip.title
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", kip.kafka)
    assert tuple(map(int, kip.kafka.split("."))) <= NEWEST
    states = {kip.producer, kip.broker}
    assert states <= set(STATES)
    assert states != {"-"}, "a KIP that concerns neither is not listed"
    assert kip.note or not states & {"partly", "no"}, "the note must say what is missing, or why"
    assert kip.note.endswith(".") or not kip.note
    assert kip.evidence
    assert [entry for entry in kip.evidence.split(" ") if not exists(entry)] == []


@pytest.mark.parametrize(
    "evidence",
    ["linger.us", "kafkabuf/gone.py", "tests/house", "tests/house/test_kips.py::test_gone", "tools/kips_page.py::page"],
)
def test_evidence_that_does_not_exist_is_found(evidence: str) -> None:
    assert not exists(evidence)


@pytest.mark.parametrize(
    ("text", "fault"),
    [("number\ttitle\n", "the first line must have kip, title"), ("", "the line must have 7 columns")],
)
def test_table_of_another_form_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    head = kips_page.TABLE.read_text(encoding="utf-8").partition("\n")[0]
    path = tmp_path / "kips.tsv"
    path.write_text(text or f"{head}\n98\tIdempotence\n", encoding="utf-8")
    with pytest.raises(ValueError, match=fault):
        read_table(path)
