"""No name is a word that STYLE.md bans: `python -m tools.check_names [ROOT]` exits 1 and names each place.

The words are those of the line of STYLE.md that ends "are not names". `ast` tells which names a Python file binds:
variables, attributes, parameters, functions and classes. In a Cython file each bare name counts: a file that uses a
name has bound it, too. Neither `_found` nor `found_` escapes. Words in comments, strings and longer names are free.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_BANNED = re.compile(r"^- ((?:`\w+`(?:, | and )?)+) are not names", re.MULTILINE)
_TEXT = re.compile(r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL)
_BARE = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def check(root: Path) -> list[str]:
    """Every banned name below `root`, as `path:line: what`."""
    words = banned((root / "STYLE.md").read_text(encoding="utf-8"))
    return [
        f"{path.relative_to(root)}:{line}: {name!r} does not say what the thing is (STYLE.md, Names)"
        for path in sorted((root / "kafkabuf").rglob("*"))
        if path.suffix in _READERS
        for line, name in sorted(set(_READERS[path.suffix](path.read_text(encoding="utf-8"))))
        if name.strip("_") in words
    ]


def banned(style: str) -> frozenset[str]:
    match = _BANNED.search(style)
    if match is None:
        raise ValueError('STYLE.md has no line of words that "are not names"')
    return frozenset(re.findall(r"\w+", match[1].replace(" and ", " ")))


def _bound_in_python(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def _bare_in_cython(text: str) -> Iterator[tuple[int, str]]:
    code = _TEXT.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        for name in _BARE.findall(line):
            yield number, name


_READERS = {
    ".py": _bound_in_python,
    ".pyi": _bound_in_python,
    ".pyx": _bare_in_cython,
    ".pxd": _bare_in_cython,
}


def main() -> int:
    faults = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent)
    print("\n".join(faults) or "No name is a word that STYLE.md bans.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
