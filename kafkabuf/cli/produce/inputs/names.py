"""What the name of a file says of its content, for `kafkabuf produce`."""

from __future__ import annotations

from pathlib import Path

_FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow",
    ".feather": "arrow",
}  # fmt: skip
_COMPRESSED = {".gz", ".zst", ".zstd", ".bz2", ".xz"}


def format_of_name(file: str) -> str | None:
    """The format that the suffix of a file says; None: none."""
    return _FORMATS.get(_suffix(file))


def delimiter_of_name(file: str) -> str:
    """What stands between two fields of CSV, as long as nobody says otherwise."""
    return "\t" if _suffix(file) == ".tsv" else ","


def _suffix(file: str) -> str:
    """The suffix before that of a compression."""
    path = Path(file)
    return (Path(path.stem) if path.suffix.lower() in _COMPRESSED else path).suffix.lower()
