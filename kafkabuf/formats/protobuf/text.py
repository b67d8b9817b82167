"""Compiles the text of .proto files, as a Schema Registry has it, into descriptors: protoc does it (extra `protobuf`).

protoc runs in a process of its own, because the text is another's: it gets a folder of its own, and a time limit.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from kafkabuf.errors import SerializationError, printable
from kafkabuf.extras import install
from kafkabuf.formats.protobuf.descriptor import descriptor_set, files_in, raw_files

_CACHED = 64
_SECONDS = 30.0
# The name of the outermost file, which no other has: a registry does not tell it.
_OWN = "kafkabuf_schema.proto"


# protoc depends on nothing but these arguments, so that no result gets stale.
@functools.lru_cache(_CACHED)
def compile_text(text: str, references: tuple[tuple[str, str], ...], known: bytes) -> bytes:
    """The descriptor set of a .proto text, first, and of the files that it imports.

    `references` has names and texts of imported files. `known` is a descriptor set of further files that may be
    imported. Raises SerializationError for a text that protoc refuses, and where protoc is not installed.
    """
    if find_spec("grpc_tools") is None:
        raise SerializationError(
            f"the registry has the schema as .proto text, which needs protoc: {install('protobuf')}, or let the "
            f"registry register or look up the schema of the message"
        )
    with tempfile.TemporaryDirectory(prefix="kafkabuf-protoc-") as folder:
        _write(Path(folder), references, text)
        compiled = _compiled(Path(folder), [_OWN, *(name for name, _ in references)], known)
    files = dict(zip((file.text(1) for file in files_in(compiled)), raw_files(compiled), strict=True))
    return descriptor_set([files.pop(_OWN), *files.values()])


def _write(folder: Path, references: tuple[tuple[str, str], ...], text: str) -> None:
    for name, content in (*references, (_OWN, text)):
        parts = PurePosixPath(name).parts
        if not parts or name[0] in "/-@" or ".." in parts or not name.isprintable() or "\\" in name:
            raise SerializationError(f"the registry's schema refers to {name!r:.100}, which is no name of a file")
        path = folder / "files" / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8", newline="\n")
        except (OSError, ValueError) as error:
            raise SerializationError(f"the registry's schema {name!r:.100} cannot be compiled: {error}") from error


def _compiled(folder: Path, names: list[str], known: bytes) -> bytes:
    (folder / "known").write_bytes(known)
    options = ["-Ifiles", "--descriptor_set_in=known", "--include_imports", "--descriptor_set_out=out"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *options, *names]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, cwd=folder, check=False)
    except subprocess.TimeoutExpired:
        raise SerializationError(f"protoc has not compiled the registry's schema within {_SECONDS:.0f} s") from None
    if done.returncode:
        words = printable(done.stderr.decode("utf-8", "replace").replace(f"files/{_OWN}", "schema").strip())
        raise SerializationError(f"protoc refuses the registry's schema: {words[:500] or done.returncode}")
    return (folder / "out").read_bytes()
