"""`kafkabuf produce` reads what gzip and zstd have compressed, and names the way to send what it cannot read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from kafkabuf.broker import EmbeddedCluster
from tests.cli.produce_support import piped, produce, text_of, values

pytest_plugins = ["tests.cli.fixtures"]

LINES = b"".join(b"%06d\n" % number for number in range(20_000))
SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}


def compressed(codec: str, content: bytes) -> bytes:
    if codec == "gzip":
        return gzip.compress(content)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def arrow_file() -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table({"a": ["1"]})
    with ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("codec", SUFFIXES)
@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".jsonl", b'{"a":"1"}\n'),
        (".csv", b'a\n"1"\n'),
        (".tsv", b"a\n1\n"),
        (".arrow", arrow_file()),
    ],
)
def test_compressed_file_is_read_by_the_suffix_before(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, codec: str, suffix: str, content: bytes
) -> None:
    path = tmp_path / f"in{suffix}{SUFFIXES[codec]}"
    path.write_bytes(compressed(codec, content))
    result = produce(cluster, topic, path)
    assert result.exit_code == 0, result.output
    assert values(cluster, topic) == [b'{"a":"1"}']


@pytest.mark.parametrize("codec", SUFFIXES)
def test_files_and_pipes_that_were_compressed_in_parts_are_read_whole(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, codec: str
) -> None:
    content = compressed(codec, LINES) + compressed(codec, b"last")
    path = tmp_path / "in"
    path.write_bytes(content)
    assert produce(cluster, topic, path).exit_code == 0
    status, error = piped(cluster, topic, text=content)
    assert status == 0, error
    assert values(cluster, topic) == [*LINES.splitlines(), b"last"] * 2


@pytest.mark.parametrize("codec", SUFFIXES)
@pytest.mark.parametrize("behind", [b"", b"garbage"])
def test_torn_data_ends_the_run_with_status_1(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, codec: str, behind: bytes
) -> None:
    content = compressed(codec, LINES)
    path = tmp_path / "in"
    path.write_bytes(content + behind if behind else content[:-9])
    result = produce(cluster, topic, path)
    assert (result.exit_code, f"the {codec} data cannot be read: " in result.output) == (1, True), result.output
    assert values(cluster, topic) == LINES.splitlines()[: len(values(cluster, topic))]


@pytest.mark.parametrize("codec", SUFFIXES)
def test_rows_of_a_compressed_table_go_on_where_a_run_has_ended(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, codec: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(compressed(codec, b"a,p\n1,0\n2,9\n3,0\n"))
    options = ["--partition", "p", "--resume"]
    assert produce(cluster, topic, path, *options).exit_code == 1
    assert json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())["count"] == 0
    assert produce(cluster, topic, path, *options, "--on-error", "skip").exit_code == 0
    assert "0 records acknowledged" in produce(cluster, topic, path, *options).output


@pytest.mark.parametrize("codec", SUFFIXES)
def test_what_cannot_be_read_of_compressed_files_is_refused_with_the_way_to_send_it(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, codec: str
) -> None:
    lines, table = tmp_path / "in.txt", tmp_path / f"in.parquet{SUFFIXES[codec]}"
    lines.write_bytes(compressed(codec, LINES))
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "in.parquet")
    table.write_bytes(compressed(codec, (tmp_path / "in.parquet").read_bytes()))
    for path, options, reason in (
        (lines, ["--resume"], f"--resume goes on in the midst of a file: {codec} -dc {lines} > FILE"),
        (table, [], f"parquet is read from its end: {codec} -dc {table} > FILE.parquet"),
    ):
        result = produce(cluster, topic, path, *options)
        assert (result.exit_code, reason in text_of(result)) == (2, True), result.output


@pytest.mark.parametrize(
    ("name", "head", "advice"),
    [
        ("in.bin", bz2.compress(b"a\n"), "bzip2 -dc {} | kafkabuf produce TOPIC --format lines"),
        ("in.csv.xz", lzma.compress(b"a\n"), "xz -dc {} | kafkabuf produce TOPIC --format csv"),
        ("in.bin", b"PAR1", "give --format parquet"),
        ("in.bin", b"ARROW1", "give --format arrow"),
    ],
)
def test_file_without_lines_is_refused_with_the_way_to_send_it(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str, head: bytes, advice: str
) -> None:
    path = tmp_path / name
    path.write_bytes(head)
    result = produce(cluster, topic, path)
    assert result.exit_code == 2
    assert advice.format(path) in text_of(result)
    assert values(cluster, topic) == []


@pytest.mark.parametrize("piece", [b"\x1f", b"\x1f\x8b", b"\x28\xb5\x2f", b"\x1f\x8b\nx", b"a", b"ab\n"])
def test_pipe_that_begins_nearly_as_gzip_is_lines(cluster: EmbeddedCluster, topic: str, piece: bytes) -> None:
    status, error = piped(cluster, topic, text=piece)
    assert status == 0, error
    assert values(cluster, topic) == piece.removesuffix(b"\n").split(b"\n")
