"""Runs of `kafkabuf produce` in this process or behind a pipe, and what they have sent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner, Result
from pyarrow import csv, ipc, parquet

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main

COMMAND = [sys.executable, "-m", "kafkabuf", "produce"]
# Batches of so few bytes that a larger record is refused by itself.
SMALL = ["-X", "max.request.size=4000", "-X", "batch.size=1000"]


def produce(cluster: EmbeddedCluster, topic: str, *words: str | Path) -> Result:
    result = CliRunner().invoke(main, ["produce", topic, *map(str, words), "-b", cluster.bootstrap_servers])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def piped(cluster: EmbeddedCluster, topic: str, *words: str, text: bytes) -> tuple[int, str]:
    """The exit status, and what the command wrote to standard error, in one line."""
    command = [*COMMAND, topic, *words, "-b", cluster.bootstrap_servers]
    done = subprocess.run(command, input=text, capture_output=True, check=False, timeout=120)
    return done.returncode, " ".join(done.stderr.decode().split())


def dead_letters(path: Path) -> list[str]:
    return ["--on-error", "dead-letter", "--dead-letter-file", str(path)]


def text_of(result: Result) -> str:
    """What the command printed, in one line."""
    return " ".join(result.output.split())


def timeless(output: str) -> str:
    """What the command printed, without how long it took."""
    return re.sub(r" in \d+\.\d s \([\d,]+/s\)", "", output)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def table_file(path: Path, table: pa.Table) -> Path:
    """CSV, a Parquet file, or an Arrow file or stream, as the suffix says."""
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    elif path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with (ipc.new_stream if path.suffix == ".stream" else ipc.new_file)(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.messages(topic)]


def objects(cluster: EmbeddedCluster, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for value in values(cluster, topic)]
