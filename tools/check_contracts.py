"""A .pxd lists what its classes expect of their Python subclasses: `python -m tools.check_contracts [ROOT]`.

A Cython class may call a method that only a subclass in Python defines. Its .pxd then lists the method as a comment,
with signature and meaning, in a section of the class:

    # ---- methods that the subclass defines
    # _expire(now: float) -> None: fail the batches whose delivery.timeout.ms is over

The check exits 1 and names each `self.<name>` in a .pyx that neither the class, nor a base of it, nor such a section
declares, and each listed method that the class does not use.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTION = "methods that the subclass defines"

_CLASS = re.compile(r"^(?:cdef )?class (\w+)(?:\(([^)]*)\))?.*:")
_TRIPLE_QUOTED = re.compile(r'"""(?:\\.|[^\\])*?"""', re.DOTALL)
_METHOD = re.compile(r"^    (?:cdef|cpdef|def|async def)\b[^(=]*?(\w+)\(")
_FIELDS = re.compile(r"^    cdef (?:readonly |public )?([^(=]+)$")
_ASSIGNED = re.compile(r"^    (\w+) *(?::[^=]*)?= ")
_USE = re.compile(r"\bself\.([A-Za-z]\w*|_[A-Za-z]\w*)")
_LISTED = re.compile(r"^    # (\w+)\(")


@dataclass
class Class:
    """A Cython class, as its .pyx and its .pxd have it."""

    name: str
    bases: list[str] = field(default_factory=list)
    declared: set[str] = field(default_factory=set)  # fields and methods
    listed: dict[str, str] = field(default_factory=dict)  # method of the subclass: "path:line" in the .pxd
    used: dict[str, str] = field(default_factory=dict)  # attribute of self: "path:line" of its first use in the .pyx


def check(root: Path) -> list[str]:
    """Every fault below `root`, as `path:line: what`."""
    classes: dict[str, Class] = {}
    for path in sorted(root.rglob("kafkabuf/**/*.p[yx][xd]")):
        _read(path, str(path.relative_to(root)), classes)
    return [fault for found in classes.values() for fault in _faults(found, classes)]


def _faults(found: Class, classes: dict[str, Class]) -> Iterator[str]:
    declared, listed = set[str](), set[str]()
    for name in _with_bases(found, classes):
        declared |= classes[name].declared
        listed |= classes[name].listed.keys()
    for name, where in found.used.items():
        if name not in declared and name not in listed:
            yield (
                f"{where}: {found.name} uses self.{name}, which neither it nor a base of it defines: list it in the "
                f'.pxd of {found.name} under "# ---- {SECTION}"'
            )
    for name, where in found.listed.items():
        if name not in found.used:
            yield f"{where}: {found.name} lists {name}() for its subclass, and does not use it"


def _with_bases(found: Class, classes: dict[str, Class]) -> list[str]:
    names = [found.name]
    for base in found.bases:
        if base in classes:
            names += _with_bases(classes[base], classes)
    return names


def _read(path: Path, where: str, classes: dict[str, Class]) -> None:
    text = _TRIPLE_QUOTED.sub(lambda match: "\n" * match[0].count("\n"), path.read_text(encoding="utf-8"))
    found: Class | None = None
    in_section = False
    for number, line in enumerate(text.splitlines(), 1):
        if match := _CLASS.match(line):
            found = classes.setdefault(match[1], Class(match[1]))
            found.bases = [base.strip() for base in (match[2] or "").split(",") if base.strip()] or found.bases
            in_section = False
        elif line[:1].strip() and line[0] not in "#@)":
            found = None
        elif found is not None:
            if line.startswith("    # ----"):
                in_section = SECTION in line
            elif not line.startswith("    #"):
                in_section = False
            if in_section and (listed := _LISTED.match(line)):
                found.listed[listed[1]] = f"{where}:{number}"
            code = line.partition("  #")[0].rstrip()
            found.declared |= _declared(code)
            if path.suffix == ".pyx" and not code.lstrip().startswith("#"):
                for name in _USE.findall(code):
                    found.used.setdefault(name, f"{where}:{number}")


def _declared(code: str) -> set[str]:
    """The fields and methods that a line of a class declares."""
    if match := _METHOD.match(code) or _ASSIGNED.match(code):
        return {match[1]}
    if match := _FIELDS.match(code):
        fields = re.sub(r"\[\w+\]$", "", match[1])  # the length of an array
        return {re.findall(r"\w+", part)[-1] for part in fields.split(",")}
    return set()


def main() -> int:
    faults = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent)
    print("\n".join(faults) or "Each .pxd lists what its classes expect of a subclass.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
