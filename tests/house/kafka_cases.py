"""The table kafka_cases.tsv: which of our tests does the work of which of Kafka's own tests.

A comment above or in a test of ours names Kafka's tests::

    # Kafka: testSimple, test{Default,Custom}ErrorMessage

A name that two of Kafka's classes share needs its class (`SenderTest.testSimple`); any name may have it. The table has
a line for each case: class, name, and either our tests or `n/a:` and the reason why no test of ours is possible.
`python -m tests.house.kafka_cases` updates the table from the comments, and prints the cases that have neither.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".tsv")
PENDING = "pending"
NOT_APPLICABLE = "n/a: "

Case = tuple[str, str]  # Kafka's class, and its method


@dataclass(frozen=True)
class Claim:
    """The names in one comment, and our test that the comment belongs to. `test` is None outside of tests."""

    test: str | None
    names: tuple[str, ...]
    place: str  # file and line


def read_table() -> dict[Case, str]:
    """The third field of each line by case. Raises ValueError for a repeated case, or a line without three fields."""
    table: dict[Case, str] = {}
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        fields = line.split("\t")
        if len(fields) != 3 or not all(fields) or (fields[0], fields[1]) in table:
            raise ValueError(f"{TABLE.name}:{number}: a line is class, case and place, each case once: {line!r}")
        table[fields[0], fields[1]] = fields[2]
    return table


def expand(name: str) -> list[str]:
    """The names that `name` stands for: aB and aC for `a{B,C}`."""
    braces = re.search(r"\{([^{}]*)\}", name)
    if braces is None:
        return [name]
    options = braces[1].split(",")
    before, after = name[: braces.start()], name[braces.end() :]
    return [expanded for option in options for expanded in expand(before + option + after)]


def read_claims() -> list[Claim]:
    """Every `# Kafka:` comment of the test files."""
    return [claim for path in sorted(TESTS.rglob("test_*.py")) for claim in _claims_of(path)]


def _claims_of(path: Path) -> Iterator[Claim]:
    source = path.read_text()
    lines = source.splitlines()
    owners = _owners(source, lines)
    number = 0
    while number < len(lines):
        comment = re.search(r"# Kafka: (.*)", lines[number])
        number += 1
        if comment is None:
            continue
        text, first = comment[1], number
        while lines[first - 1].startswith("#") and number < len(lines) and lines[number].startswith("#"):
            text += " " + lines[number].removeprefix("#")  # a further line of the same comment
            number += 1
        owner = owners.get(first)
        words = re.findall(r"[\w.{][\w.{},]*[\w}]", text)
        names = tuple(name for word in words for name in expand(word.strip(".,")) if _is_name(name))
        file = _name(path)
        yield Claim(owner and f"{file}::{owner}", names, f"{file}:{first}")


def _name(path: Path) -> str:
    return path.relative_to(TESTS.parent).as_posix()


def _is_name(word: str) -> bool:
    return re.fullmatch(r"(\w+Test\.)?([a-z]+[A-Z]\w*)", word) is not None


def _owners(source: str, lines: list[str]) -> dict[int, str]:
    """The test that a comment belongs to, by the comment's line number."""
    owners: dict[int, str] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        owners |= dict.fromkeys(range(first, (node.end_lineno or first) + 1), node.name)
    return owners


def all_tests() -> set[str]:
    """Every test function as path::name."""
    return {
        f"{_name(path)}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def case_of(name: str, table: dict[Case, str]) -> Case | None:
    """The case that a name in a comment means, or None where the table does not cover its class.

    Raises ValueError where no case has the name, and where cases of several classes have it.
    """
    kind, _, method = name.rpartition(".")
    if kind and kind not in {table_kind for table_kind, _ in table}:
        return None
    cases = [case for case in table if case[1] == method and kind in ("", case[0])]
    if len(cases) != 1:
        fault = "is not a test of Kafka's" if not cases else f"may be of {' or '.join(case[0] for case in cases)}"
        raise ValueError(f"{name} {fault}")
    return cases[0]


def claimed(table: dict[Case, str]) -> tuple[dict[Case, list[str]], list[str]]:
    """Our tests by case, and the faults of the comments."""
    tests: dict[Case, list[str]] = {}
    faults = []
    for claim in read_claims():
        if claim.test is None or not claim.names:
            missing = "a test" if claim.test is None else "the name of a case"
            faults.append(f"{claim.place}: the comment lacks {missing}")
            continue
        for name in claim.names:
            try:
                case = case_of(name, table)
            except ValueError as error:
                faults.append(f"{claim.place}: {error}")
                continue
            if case is not None and claim.test not in tests.setdefault(case, []):
                tests[case].append(claim.test)
    return tests, faults


def main() -> int:
    table = read_table()
    tests, faults = claimed(table)
    for case, place in table.items():
        if case in tests:
            table[case] = " ".join(sorted(tests[case]))
        elif not place.startswith(NOT_APPLICABLE):
            table[case] = PENDING
    TABLE.write_text("".join(f"{kind}\t{name}\t{place}\n" for (kind, name), place in table.items()))
    faults += [f"pending: {kind}.{name}" for (kind, name), place in table.items() if place == PENDING]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
