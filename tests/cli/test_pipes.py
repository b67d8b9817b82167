"""`kafkabuf produce` of tables that come from a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, ipc

from kafkabuf.broker import EmbeddedCluster
from tests.cli.produce_support import COMMAND, objects, piped

pytest_plugins = ["tests.cli.fixtures"]

MIB = 1 << 20
TABLE = pa.table({"id": [1, 2, 3], "t": ["a", 'b"\n,', None], "d": pa.array(["x", "y", "x"]).dictionary_encode()})


def as_bytes(kind: str, table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    if kind == "csv":
        csv.write_csv(table, sink)
    else:
        with (ipc.new_file if kind == "file" else ipc.new_stream)(sink, table.schema) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("kind", ["csv", "stream", "file"])
def test_rows_of_a_pipe_are_those_of_a_file(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str, named: bool
) -> None:
    """Also what is behind the last row is read: else the program that writes the pipe fails."""
    content = as_bytes(kind, TABLE)
    options = ["--format", "csv" if kind == "csv" else "arrow"]
    if named:
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        status, error = piped(cluster, topic, str(path), *options, text=b"")
        writer.join(60)
    else:
        status, error = piped(cluster, topic, *options, text=content)
    assert status == 0, error
    assert [(int(str(row["id"])), row["t"] or None, row["d"]) for row in objects(cluster, topic)] == [
        (1, "a", "x"),
        (2, 'b"\n,', "y"),
        (3, None, "x"),
    ]


@pytest.mark.parametrize("kind", ["csv", "arrow"])
def test_rows_are_sent_as_they_come_and_ctrl_c_ends_the_reading(
    cluster: EmbeddedCluster, topic: str, kind: str
) -> None:
    first = pa.table({"id": range(2_000), "t": ["x" * 1_000] * 2_000})
    content = as_bytes(kind, first)
    command = [*COMMAND, topic, "--format", kind, "-b", cluster.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            process.stdin.write(content.removesuffix(b"\xff\xff\xff\xff\0\0\0\0"))
            process.stdin.flush()
            cluster.wait_for_messages(topic, 2_000, timeout=60)
            if kind == "csv":
                process.stdin.write(b'7,"more"\n')
                process.stdin.flush()
                cluster.wait_for_messages(topic, 2_001, timeout=60)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    sent = "2,001" if kind == "csv" else "2,000"
    assert (process.returncode, error.decode().startswith(f"Error: interrupted; {sent} records")) == (130, True), error


def test_streams_one_behind_another_are_all_sent(cluster: EmbeddedCluster, topic: str) -> None:
    """As `cat a b` writes them."""
    content = as_bytes("stream", pa.table({"a": [1]})) + as_bytes("stream", pa.table({"a": [2], "b": ["x"]}))
    status, error = piped(cluster, topic, "--format", "arrow", text=content)
    assert status == 0, error
    assert objects(cluster, topic) == [{"a": 1}, {"a": 2, "b": "x"}]


@pytest.mark.parametrize("behind", [b"", b"garbage behind it"])
def test_torn_stream_ends_the_run_behind_its_whole_batches(cluster: EmbeddedCluster, topic: str, behind: bytes) -> None:
    whole = as_bytes("stream", pa.table({"a": [1]}))
    torn = whole + behind if behind else whole[:-8] + whole[-200:-100]
    status, error = piped(cluster, topic, "--format", "arrow", text=torn)
    assert (status, "the arrow file cannot be read: " in error, "1 record acknowledged" in error) == (1, True, True)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "parquet"], "parquet, whose directory is at its end, needs a FILE"),
        (["--format", "csv", "--resume"], "--resume needs a FILE"),
        (["--format", "arrow", "--resume-file", "state"], "--resume needs a FILE"),
    ],
)
def test_what_needs_a_file_is_refused_of_a_pipe(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, options: list[str], reason: str, named: bool
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    status, error = piped(cluster, topic, str(path) if named else "-", *options, text=b"")
    assert (status, reason in error) == (2, True), error


def test_csv_row_without_end_is_refused_before_it_fills_the_memory(cluster: EmbeddedCluster, topic: str) -> None:
    content = b'a,b\n1,"x"\n2,"' + b"y\n" * (9 * MIB)
    status, error = piped(cluster, topic, "--format", "csv", text=content)
    assert (status, "it is longer than 16 MiB; is a quote not closed?" in error) == (1, True), error
    assert "the csv file cannot be read: row 2, b'2,\"y" in error
    assert objects(cluster, topic) == [{"a": "1", "b": "x"}]


def test_rows_of_later_blocks_have_their_numbers(cluster: EmbeddedCluster, topic: str) -> None:
    """A row with one column too many, and text where others have numbers. The mark is no part of a name."""
    good = b"".join(b"%d,%s\n" % (n, b"x" * 1_000) for n in range(1, 3_001))
    content = b"\xef\xbb\xbfid,t\n\n" + good + b"3001,y,z\n3002,y\n"
    options = ["--format", "csv", "--on-error", "skip", "--key", "id"]
    status, error = piped(cluster, topic, *options, text=content)
    assert error.startswith("row 3001 is left out: it has 3 columns, the header has 2 3,001 records acknowledged")
    assert status == 0
    assert cluster.messages(topic)[-1].key == b"3002"
    faulty = content.replace(b"3001,y,z\n", b"3001,y\n") + b"word,y\n"
    status, error = piped(cluster, topic, "--format", "csv", "--types", "id=int64", text=faulty)
    assert (status, "row 3003: column 'id': 'word' is no int64" in error) == (1, True), error
