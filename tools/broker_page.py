"""`python -m tools.broker_page` writes the section "What differs from Kafka" of docs/embedded-broker.md. With --check
it writes nothing, and fails if the section differs.

The section has two sources. tests/conformance/deviations.py lists the differences between responses. A docstring in
kafkabuf/broker says what else its module does differently, in a sentence that begins with "Deviation:" or
"Deviations:" and goes on to the end of its paragraph. The section has both by API, and the docstrings of the other
modules by their folder.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from kafkabuf.broker import apis
from kafkabuf.broker.apis.dispatch import APIS
from kafkabuf.protocol.messages import api_name
from tests.conformance.deviations import DEVIATIONS, NOT_SERVED

PACKAGE = Path(apis.__file__).parents[1]
PAGE = PACKAGE.parents[1] / "docs" / "embedded-broker.md"
BEGIN = "<!-- begin: python -m tools.broker_page -->\n"
END = "<!-- end -->\n"
_WIDTH = 120
_DEVIATION = re.compile(r"\bDeviations?(?: from Kafka)?: (.*?)(?:\n\s*\n|\Z)", re.S)
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z])")
_FILE = re.compile(r" \([\w/]+\.py\)")
# What a folder or a module of kafkabuf/broker is called on the page.
_PARTS = {
    "log": "Logs and records",
    "records": "Logs and records",
    "storage": "Logs and records",
    "replica": "Replication",
    "cluster": "The cluster",
    "nodes": "The cluster",
    "groups": "Groups",
    "transactions": "Transactions",
    "configs": "Settings",
    "guards": "Connections and limits",
    "front": "Connections and limits",
    "telemetry": "The metrics of clients",
}


def section() -> str:
    """The text between the marks."""
    apis.load()
    lines = ["In responses and behaviour, by API:\n\n", *_bullets(_by_api())]
    lines += ["\nElsewhere:\n\n", *_bullets(_by_part())]
    lines += ["\nThe cluster does not serve these APIs of Kafka 4.1.2:\n\n", *_bullets(_not_served())]
    return "".join(lines)


def _by_api() -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for key in sorted(APIS, key=_spelled):
        module = sys.modules[APIS[key].handler.__module__]
        sentences = list(_deviations(module.__doc__ or ""))
        sentences += [deviation.reason for deviation in DEVIATIONS if deviation.api_key == key]
        if sentences:
            told[_spelled(key)] = list(dict.fromkeys(sentences))
    return told


def _by_part() -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        part = _PARTS.get(path.relative_to(PACKAGE).with_suffix("").parts[0])
        if part is not None:
            for docstring in _docstrings(path):
                told.setdefault(part, []).extend(_deviations(docstring))
    return {part: told[part] for part in sorted(told) if told[part]}


def _not_served() -> dict[str, list[str]]:
    return {
        area[0].upper() + area[1:]: [", ".join(f"{_spelled(key)} ({key})" for key in keys) + "."]
        for area, keys in NOT_SERVED.items()
    }


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def _deviations(docstring: str) -> Iterator[str]:
    for match in _DEVIATION.finditer(docstring):
        for sentence in _SENTENCE_END.split(" ".join(_FILE.sub("", match[1]).split())):
            # A setting's name stays as it is.
            yield sentence if "." in sentence.split()[0] else sentence[0].upper() + sentence[1:]


def _spelled(key: int) -> str:
    return "".join(word.capitalize() for word in (api_name(key) or str(key)).split("_"))


def _bullets(told: dict[str, list[str]]) -> Iterable[str]:
    for title, sentences in told.items():
        yield _wrapped(f"- **{title}**: {' '.join(sentences)}")


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = " "
        line = f"{line} {word}" if line else word
    return "\n".join([*lines, line]) + "\n"


def page(old: str) -> str:
    """The page with the section as it must be now."""
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} lacks the marks of the section")
    return head + begin + section() + end + tail


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.broker_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the section differs")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    if check:
        return int(page(old) != old)
    PAGE.write_text(page(old), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
