"""Kafka's checkpoint files: a version, the number of entries, and a line for each entry, its fields split by spaces."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from kafkabuf.broker.storage.disk import kind, read_file, write_whole

log = logging.getLogger("kafkabuf.broker")

_VERSION = "0"
Entry = tuple[str | int, ...]


def write_checkpoint(path: Path, entries: Iterable[Entry]) -> None:
    write_lines(path, [" ".join(map(str, entry)) for entry in entries])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """As `write_checkpoint`, with the line of each entry."""
    write_whole(path, "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode())


def read_checkpoint(path: Path, fields: int) -> list[list[str]]:
    """The entries; empty if the file is missing or malformed, because the log can derive them."""
    if (file_kind := kind(path)) not in (None, "a file"):
        log.warning("%s is %s: it is ignored", path, file_kind)
        return []
    lines = (read_file(path) or b"").decode("ascii", "replace").splitlines()
    if not lines:
        return []
    entries = [line.split(" ") for line in lines[2:]]
    if lines[:2] != [_VERSION, str(len(entries))] or any(len(entry) != fields for entry in entries):
        log.warning("%s is not a checkpoint with %d fields: the file is ignored", path, fields)
        return []
    return entries


def read_numbers(path: Path) -> list[tuple[int, int]]:
    """The entries of a checkpoint with two numbers each; empty if any field is not a number."""
    try:
        return [(int(first), int(second)) for first, second in read_checkpoint(path, 2)]
    except ValueError:
        log.warning("%s has fields that are not numbers: the file is ignored", path)
        return []
