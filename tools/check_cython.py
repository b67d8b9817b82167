"""Cython's own advice is an error, and shapes that Cython compiles into code that crashes without memory are errors.

`python -m tools.check_cython` exits 1 on any warning or performance hint, and on each shape of SHAPES. A hint means
that a nogil leaf checks for exceptions or takes the GIL where its signature did not intend it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Compiler import Nodes
from Cython.Compiler.TreeFragment import parse_from_strings

ROOT = Path(__file__).parent.parent

# Where memory is short, an exception may have no traceback. The code that Cython makes for these shapes takes a
# reference from that traceback, or takes one reference twice, and the process crashes.
SHAPES = {
    "return": "an except clause is left by return: keep the result in a variable, and return it behind the clause",
    "break": "an except clause is left by break: set a flag, and leave the loop behind the clause",
    "continue": "an except clause is left by continue: use the clause's else, or a flag",
    "with": "a with block hands over a traceback, which may be missing: use try and finally",
    "list": "a list is made of new objects, and an object would be freed twice if the list cannot grow: use append()",
    "except": "an except clause stands in a .pxd, which this check cannot read: move the function to a .pyx",
}

_LEAVES: dict[type, str] = {
    Nodes.ReturnStatNode: "return",
    Nodes.BreakStatNode: "break",
    Nodes.ContinueStatNode: "continue",
}
_CLAUSE = re.compile(r"\s*except\b.*:\s*(#|$)")
_FREES_TWICE = re.compile(r"__Pyx_ListComp_AppendAndDecref\(__pyx_\w+, __pyx_\w+\).*__PYX_ERR\(\d+, (\d+),")


def advice(source: Path) -> str:
    """What is wrong with one .pyx; empty when nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "out.c"
        command = [sys.executable, "-m", "cython", "-3", "-X", "show_performance_hints=True", "-o", str(target)]
        done = subprocess.run([*command, str(source)], cwd=ROOT, capture_output=True, text=True)
        made = target.read_text() if target.exists() else ""
    lines = sorted({int(found[1]) for found in _FREES_TWICE.finditer(made)})
    said = [_line(source, line, "list") for line in lines]
    return "\n".join([done.stderr.strip(), *shapes_of(source), *said]).strip()


def shapes_of(source: Path) -> list[str]:
    """A line for each shape of SHAPES that stands in the text of a .pyx or .pxd."""
    text = (ROOT / source).read_text()
    if source.suffix == ".pxd":
        lines = enumerate(text.split("\n"), 1)
        return [_line(source, number, "except") for number, line in lines if _CLAUSE.match(line)]
    tree: Nodes.Node = parse_from_strings(source.stem, text)  # type: ignore[no-untyped-call]
    return [_line(source, line, shape) for line, shape in _shapes(tree, in_clause=False, in_loop=False)]


def _line(source: Path, line: int, shape: str) -> str:
    return f"{source}:{line}: {SHAPES[shape]}"


def _shapes(node: Nodes.Node, *, in_clause: bool, in_loop: bool) -> Iterator[tuple[int, str]]:
    """Line and shape, below a node. `in_loop`: a loop within the except clause surrounds the node."""
    if isinstance(node, Nodes.FuncDefNode):
        in_clause = in_loop = False
    elif isinstance(node, Nodes.ExceptClauseNode):
        in_clause, in_loop = True, False
    elif isinstance(node, (Nodes.WhileStatNode, Nodes._ForInStatNode, Nodes.ForFromStatNode)):
        in_loop = True
    elif isinstance(node, Nodes.WithStatNode):
        yield node.pos[1], "with"
    leaves = _LEAVES.get(type(node))
    if in_clause and leaves is not None and (leaves == "return" or not in_loop):
        yield node.pos[1], leaves
    names: list[str] = node.child_attrs or []
    for name in names:
        children = getattr(node, name)
        for child in children if isinstance(children, list) else [children]:
            if isinstance(child, Nodes.Node):
                yield from _shapes(child, in_clause=in_clause, in_loop=in_loop)


def main() -> int:
    sources, contracts = (
        sorted(path.relative_to(ROOT) for path in (ROOT / "kafkabuf").rglob(kind)) for kind in ("*.pyx", "*.pxd")
    )
    with ThreadPoolExecutor(2) as pool:
        said = [text for text in pool.map(advice, sources) if text]
    for contract in contracts:
        said += shapes_of(contract)
    print("\n".join(said) or f"Cython has no advice on {len(sources)} files.")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
