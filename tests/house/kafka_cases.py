"""Which of our tests does the work of which test of Kafka's own: the table kafka_cases.tsv, and how it is kept.

A comment says it, above a test or in it::

    # Kafka: testSimple, test{Default,Custom}ErrorMessage

Where two of Kafka's classes share a name it is written with its class (`SenderTest.testSimple`), which is allowed
anywhere. The table has a line for each case: class, name, and our tests or `n/a:` and the reason why there can be none.
`python -m tests.house.kafka_cases` brings the table up to what the comments say, and names what has neither.
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
    """What one comment says, of one of our tests. `test` is None where the comment belongs to none."""

    test: str | None
    names: tuple[str, ...]
    where: str


def read_table() -> dict[Case, str]:
    """Case: where it is, as it stands in the table. Raises ValueError for a line that is not three fields."""
    table: dict[Case, str] = {}
    for number, line in enumerate(TABLE.read_text().splitlines(), 1):
        fields = line.split("\t")
        if len(fields) != 3 or not all(fields) or (fields[0], fields[1]) in table:
            raise ValueError(f"{TABLE.name}:{number}: not class, case and place, or a second time: {line!r}")
        table[fields[0], fields[1]] = fields[2]
    return table


def expand(name: str) -> list[str]:
    """`a{B,C}` as aB and aC."""
    braces = re.search(r"\{([^{}]*)\}", name)
    if braces is None:
        return [name]
    options = braces[1].split(",")
    return [one for option in options for one in expand(name[: braces.start()] + option + name[braces.end() :])]


def read_claims() -> list[Claim]:
    """Every `# Kafka:` comment of the test files."""
    return [claim for path in sorted(TESTS.rglob("test_*.py")) for claim in _claims_of(path)]


def _claims_of(path: Path) -> Iterator[Claim]:
    source = path.read_text()
    lines = source.splitlines()
    owners = _owners(source, lines)
    number = 0
    while number < len(lines):
        found = re.search(r"# Kafka: (.*)", lines[number])
        number += 1
        if found is None:
            continue
        text, first = found[1], number
        while lines[first - 1].startswith("#") and number < len(lines) and lines[number].startswith("#"):
            text += " " + lines[number].removeprefix("#")  # the comment goes on
            number += 1
        owner = owners.get(first)
        words = re.findall(r"[\w.{][\w.{},]*[\w}]", text)
        names = tuple(one for word in words for one in expand(word.strip(".,")) if _is_name(one))
        file = _name(path)
        yield Claim(owner and f"{file}::{owner}", names, f"{file}:{first}")


def _name(path: Path) -> str:
    return path.relative_to(TESTS.parent).as_posix()


def _is_name(word: str) -> bool:
    return re.fullmatch(r"(\w+Test\.)?([a-z]+[A-Z]\w*)", word) is not None


def _owners(source: str, lines: list[str]) -> dict[int, str]:
    """Line number: the test that this line, if it is a comment, belongs to."""
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
    """Every test there is, as path::name."""
    return {
        f"{_name(path)}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def case_of(name: str, table: dict[Case, str]) -> Case | None:
    """The case that a comment means; None for one of a class that the table does not cover. Raises ValueError."""
    kind, _, method = name.rpartition(".")
    if kind and kind not in {known for known, _ in table}:
        return None
    found = [case for case in table if case[1] == method and kind in ("", case[0])]
    if len(found) != 1:
        what = "is no case of Kafka's" if not found else f"may be of {' or '.join(case[0] for case in found)}"
        raise ValueError(f"{name} {what}")
    return found[0]


def claimed(table: dict[Case, str]) -> tuple[dict[Case, list[str]], list[str]]:
    """Our tests by case, and what is wrong with the comments."""
    tests: dict[Case, list[str]] = {}
    faults = []
    for claim in read_claims():
        if claim.test is None or not claim.names:
            faults.append(f"{claim.where}: " + ("no test" if claim.test is None else "no case") + " goes with it")
            continue
        for name in claim.names:
            try:
                case = case_of(name, table)
            except ValueError as error:
                faults.append(f"{claim.where}: {error}")
                continue
            if case is not None and claim.test not in tests.setdefault(case, []):
                tests[case].append(claim.test)
    return tests, faults


def main() -> int:
    table = read_table()
    tests, faults = claimed(table)
    for case, where in table.items():
        if case in tests:
            table[case] = " ".join(sorted(tests[case]))
        elif not where.startswith(NOT_APPLICABLE):
            table[case] = PENDING
    TABLE.write_text("".join(f"{kind}\t{name}\t{where}\n" for (kind, name), where in table.items()))
    faults += [f"pending: {kind}.{name}" for (kind, name), where in table.items() if where == PENDING]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
