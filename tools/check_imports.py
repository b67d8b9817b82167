"""Imports run one way only: `python -m tools.check_imports [ROOT]` exits 1 and names every import that does not.

`ast` reads Python files, and regular expressions read Cython files (.pyx, .pxd) with their cimports. The check imports
nothing, so that nothing needs to be built. It holds that

- a module imports only from its own layer and from the layers below it;
- no modules import each other in a circle, annotations (TYPE_CHECKING, .pyi) included;
- no folders do so either, at any depth: a folder counts without its subfolders and without its `__init__`;
- the broker shares with the client only what BROKER_MAY_USE names, indirect imports included;
- `pyspark_kafkabuf` loads no extension, and no Cython file needs NumPy's C headers;
- bench/, rigs/ and the package import nothing from tests/.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

# From the ground up: a module may import from its own layer and from those above it in this list. A folder counts with
# all that is in it; "" is kafkabuf/__init__.py.
LAYERS = (
    {"errors", "extras", "lazy_names", "hints", "record_metadata", "shown", "tracebacks", "version", "wire", "cpython"}
    | {"process"},
    {"clock", "config", "_records", "memory", "_pool", "backoff"},
    {"arrow", "protocol"},
    {"network"},
    {"metadata"},
    {"batches"},
    {"transactions", "admin"},
    {"_partition", "serialization", "interceptors", "partitioner"},
    {"append", "formats", "sending", "metrics", "spool"},
    {"producer", "sharing", "typing"},
    {""},
    {"spark", "cli", "aio", "testing", "prometheus", "opentelemetry", "pytest_plugin", "broker"}
    | {"compat", "__main__"},
    {"parts"},
)
# The broker checks the client's encoder instead of agreeing with it.
BROKER_MAY_USE = ("broker", "protocol", "errors", "extras", "clock", "lazy_names", "memory._view", "process")
PACKAGES = ("kafkabuf", "pyspark_kafkabuf")
# Folders beside the packages that may import them, but not tests/.
BESIDE = ("bench", "rigs")


class When(Enum):
    """When an import runs: as its module is loaded, later in a function, or never (for type checkers only)."""

    LOADED = "loaded"
    CALLED = "called"
    NEVER = "never"


@dataclass(frozen=True)
class Import:
    """One module that one import statement names."""

    target: str
    line: int
    when: When
    cimport: bool = False


@dataclass(frozen=True)
class Source:
    """One file of a module; a .pyx shares its module with its .pxd and .pyi."""

    path: Path
    module: str
    imports: tuple[Import, ...]


def check(root: Path) -> list[str]:
    """Everything wrong with the imports below `root`, as `path:line: what`."""
    sources = list(_read(root))
    graph: dict[str, list[Import]] = {}
    for source in sources:
        graph.setdefault(source.module, []).extend(source.imports)
    native = {source.module for source in sources if source.path.suffix == ".pyx"}
    faults = [fault for source in sources for fault in _check_layers(root, source)]
    loading = {module: [i for i in imports if i.when is When.LOADED] for module, imports in graph.items()}
    faults += _check_tests_are_last(root)
    # A circle of modules is one of folders too: it is named once.
    faults += list(_check_circles(graph)) or list(_check_circles(_by_folder(sources), "folders"))
    return [*faults, *_check_broker(graph), *_check_spark_discovery(loading, native)]


def _layer(module: str) -> int | None:
    top = module.partition(".")[2].partition(".")[0]
    return next((rank for rank, names in enumerate(LAYERS) if top in names), None)


def _check_layers(root: Path, source: Source) -> Iterator[str]:
    where = source.path.relative_to(root)
    own = len(LAYERS) if source.module.startswith("pyspark_kafkabuf") else _layer(source.module)
    if own is None:
        yield f"{where}:1: {source.module} is in no layer; say in tools/check_imports.py where it belongs"
        return
    for found in source.imports:
        if found.cimport and found.target.partition(".")[0] == "numpy":
            yield f"{where}:{found.line}: cimports {found.target}; use typed memoryviews, not NumPy's C headers"
        if found.target.partition(".")[0] != "kafkabuf":
            continue
        layer = _layer(found.target)
        if layer is None:
            yield f"{where}:{found.line}: imports {found.target}, which is in no layer of tools/check_imports.py"
        elif layer > own:
            yield f"{where}:{found.line}: {source.module} imports upward, from {found.target}"


def _check_tests_are_last(root: Path) -> Iterator[str]:
    """Nothing but tests, and the tools that run them, imports tests/."""
    for path in sorted(path for folder in (*PACKAGES, *BESIDE) for path in (root / folder).rglob("*.py")):
        for _, found in _python_imports(path.read_text(encoding="utf-8")):
            if found.target.partition(".")[0] == "tests":
                where = path.relative_to(root)
                yield f"{where}:{found.line}: imports {found.target}; move what both use to rigs/"


def _by_folder(sources: list[Source]) -> dict[str, list[Import]]:
    """The imports between folders. Each module of the package's own folder counts for itself."""
    packages = {source.module for source in sources if source.path.stem == "__init__"}

    def folder(module: str) -> str:
        parent = module.rpartition(".")[0]
        return module if module in packages or "." not in parent else parent

    graph: dict[str, list[Import]] = {}
    for source in sources:
        graph.setdefault(folder(source.module), []).extend(
            replace(each, target=folder(each.target)) for each in source.imports
        )
    return graph


def _check_circles(graph: dict[str, list[Import]], kind: str = "modules") -> Iterator[str]:
    """One message for each circle: the shortest through each import that lies on any. A module's own .pxd is none."""
    edges = {module: sorted({found.target for found in imports} - {module}) for module, imports in graph.items()}
    circles = set()
    for module in sorted(edges):
        for target in edges[module]:
            way = _shortest_way(edges, target, module)
            if way:
                first = way.index(min(way))
                circles.add((*way[first:], *way[:first]))
    for circle in sorted(circles):
        steps = list(zip(circle, (*circle[1:], circle[0]), strict=True))
        typed = [f"{start} -> {end}" for start, end in steps if _is_for_types(graph[start], end)]
        note = f" (for types only: {', '.join(typed)})" if typed else ""
        yield f"{kind} import each other: " + " -> ".join([*circle, circle[0]]) + note


def _shortest_way(edges: dict[str, list[str]], start: str, end: str) -> list[str]:
    """The modules from `start` to `end`, both included; empty where no imports lead there."""
    ways = {start: [start]}
    waiting = deque([start])
    while waiting and end not in ways:
        module = waiting.popleft()
        for target in edges.get(module, ()):
            if target not in ways:
                ways[target] = [*ways[module], target]
                waiting.append(target)
    return ways.get(end, [])


def _is_for_types(imports: list[Import], target: str) -> bool:
    return all(found.when is When.NEVER for found in imports if found.target == target)


def _check_broker(graph: dict[str, list[Import]]) -> Iterator[str]:
    roots = [module for module in graph if module.startswith("kafkabuf.broker")]
    for target, chain in _reachable(graph, roots).items():
        if target.startswith("kafkabuf.") and not _broker_may_use(target.removeprefix("kafkabuf.")):
            yield f"the broker must not depend on {target}: {' -> '.join(chain)}"
        elif target == "kafkabuf" and len(chain) == 2:
            yield f"the broker must not depend on the package's face: {' -> '.join(chain)}"


def _broker_may_use(target: str) -> bool:
    """Whether `target` is one of BROKER_MAY_USE, lies in one, or is the package of one."""
    return any(f"{target}.".startswith(f"{name}.") or name.startswith(f"{target}.") for name in BROKER_MAY_USE)


def _check_spark_discovery(graph: dict[str, list[Import]], native: set[str]) -> Iterator[str]:
    reached = _reachable(graph, ["pyspark_kafkabuf"], root_package_too=True)
    for target in sorted(native & reached.keys()):
        yield f"Spark's discovery must load no extension: {' -> '.join(reached[target])}"


def _reachable(
    graph: dict[str, list[Import]], roots: list[str], *, root_package_too: bool = False
) -> dict[str, list[str]]:
    """Every module reached from `roots`, each with the chain of imports that leads to it.

    Importing a.b.c runs a/b/__init__ as well and, which only `root_package_too` counts, a/__init__.
    """
    chains = {root: [root] for root in roots}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        targets = {found.target for found in graph.get(module, ())}
        for target in tuple(targets):
            parts = target.split(".")
            targets |= {".".join(parts[:n]) for n in range(1 if root_package_too else 2, len(parts))}
        for target in sorted(targets - chains.keys()):
            chains[target] = [*chains[module], target]
            waiting.append(target)
    return chains


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read(root: Path) -> Iterator[Source]:
    paths = [
        path
        for package in PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}
    ]
    modules = {_module_name(root, path) for path in paths}
    for path in paths:
        module = _module_name(root, path)
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        reader = _cython_imports if path.suffix in {".pyx", ".pxd"} else _python_imports
        imports: list[Import] = []
        for names, found in reader(path.read_text(encoding="utf-8")):
            base = _absolute(found.target, package)
            # `from package import name` means the module package.name where there is one, else the package.
            targets = {f"{base}.{name}" if f"{base}.{name}" in modules else base for name in names} or {base}
            when = When.NEVER if path.suffix == ".pyi" else found.when
            imports += [replace(found, target=target, when=when) for target in sorted(targets)]
        yield Source(path, module, tuple(imports))


def _module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _absolute(base: str, package: str) -> str:
    dots = len(base) - len(base.lstrip("."))
    if not dots:
        return base
    parts = package.split(".")
    return ".".join(filter(None, [*parts[: len(parts) - dots + 1], base[dots:]]))


Statement = tuple[list[str], Import]  # the names taken from a module, whose own name may still begin with dots


def _python_imports(text: str) -> Iterator[Statement]:
    def walk(node: ast.AST, when: When) -> Iterator[Statement]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (([], Import(alias.name, child.lineno, when)) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = "." * child.level + (child.module or "")
                yield [alias.name for alias in child.names], Import(base, child.lineno, when)
            elif isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
                yield from walk(child, When.NEVER)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, When.CALLED if when is When.LOADED else when)
            else:
                yield from walk(child, when)

    return walk(ast.parse(text), When.LOADED)


_STRING = re.compile(r'("""|\'\'\')(?:\\.|(?!\1).)*\1', re.DOTALL)
_FROM = re.compile(r"^[ \t]*from[ \t]+([\w.]+)[ \t]+(c?)import[ \t]+(\([^)]*\)|[^\n#]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*(c?)import[ \t]+([^\n#]+)", re.MULTILINE)


def _cython_imports(text: str) -> Iterator[Statement]:
    """Imports inside functions count as run on loading: extensions keep none worth telling apart."""
    text = _STRING.sub(lambda match: "\n" * match[0].count("\n"), text)  # a docstring may show an import
    for match in _FROM.finditer(text):
        names = re.sub(r"#[^\n]*|\\\n", "", match[3]).strip("()").split(",")
        line = text.count("\n", 0, match.start()) + 1
        yield [name.split()[0] for name in names if name.strip()], Import(match[1], line, When.LOADED, match[2] == "c")
    for match in _IMPORT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield from (([], Import(name.split()[0], line, When.LOADED, match[1] == "c")) for name in match[2].split(","))


def main() -> int:
    faults = check(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent)
    print("\n".join(faults) or "Imports run one way.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
