"""`python -m tools.file_map` writes the map of folders in DESIGN.md. With --check it writes nothing, and says what is
wrong. With folders, `python -m tools.file_map kafkabuf/sending`, it lists their files.

A line of the map is the first sentence of a folder's `__init__.py`. A line of a list is the first line of a module's
docstring, or of the comment that a header begins with. A folder or a module that has no such line is a fault.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "kafkabuf"
BEGIN = "<!-- begin: python -m tools.file_map -->\n"
END = "<!-- end -->\n"
_MODULES = {".py", ".pyx", ".pxd"}
_DOCSTRING = re.compile(r'(?:#[^\n]*\n|\s)*r?"""([^\n]*?)(?:"""|\n|$)')
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z`])")
_COMMENT = re.compile(r"/\*\s*(.*?)(?:\*/|\n|$)")


def first_line(path: Path) -> str:
    """The first line of the docstring of a module, or of the comment that a header begins with; empty without one."""
    text = path.read_text(encoding="utf-8")
    found = (_COMMENT if path.suffix == ".h" else _DOCSTRING).match(text)
    return found[1].strip() if found else ""


def folders(root: Path) -> list[Path]:
    """Every folder of the package that has code, each after the folder that it lies in."""
    return sorted({path.parent for path in (root / PACKAGE).rglob("*") if path.suffix in _MODULES})


def faults(root: Path) -> Iterator[str]:
    """What the map cannot say, because a folder or a module does not say it."""
    for folder in folders(root):
        if not (folder / "__init__.py").exists():
            yield f"{folder.relative_to(root)} has no __init__.py that says what it holds"
        for path in _files(folder):
            line = first_line(path)
            name = path.relative_to(root)
            if not line:
                yield f"{name} has no docstring that says what it holds"
            elif not line.endswith(".") and path.suffix in _MODULES:
                yield f"the first line of {name}'s docstring is not a whole sentence"


def folder_map(root: Path) -> str:
    """The folders of the package as a tree, a line for each."""
    lines = []
    for folder in folders(root):
        parts = folder.relative_to(root).parts
        lines.append(("  " * (len(parts) - 1) + parts[-1] + "/", _first_sentence(folder / "__init__.py")))
    return f"```text\n{_columns(lines)}```\n"


def listing(folder: Path) -> str:
    """The files of a folder, a line for each."""
    return _columns((path.name, first_line(path)) for path in _files(folder))


def page(old: str, root: Path = ROOT) -> str:
    """DESIGN.md with the map as it must be now."""
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError("DESIGN.md lacks the marks of the map")
    return head + begin + folder_map(root) + end + tail


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in {*_MODULES, ".h"})


def _first_sentence(path: Path) -> str:
    return _SENTENCE_END.split(first_line(path))[0].rstrip(".") if path.exists() else ""


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:{width}}  {text}".rstrip() + "\n" for name, text in rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.file_map", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if the map would change")
    parser.add_argument("folder", nargs="*", type=Path, help="list the files of this folder")
    arguments = parser.parse_args()
    for folder in arguments.folder:
        print(listing(folder), end="")
    if arguments.folder:
        return 0
    wrong = list(faults(ROOT))
    design = ROOT / "DESIGN.md"
    old = design.read_text(encoding="utf-8")
    new = page(old)
    if not arguments.check:
        design.write_text(new, encoding="utf-8")
    elif new != old:
        wrong.append("the map in DESIGN.md is out of date: run python -m tools.file_map")
    print("\n".join(wrong) or "Each folder and module says what it holds.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
