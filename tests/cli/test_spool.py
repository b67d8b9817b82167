"""`kafkabuf spool inspect`, `check` and `export`: what a file holds, without a broker and without a change to it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from kafkabuf.batches._stored import SIZE_OF_BATCH
from kafkabuf.cli import main
from kafkabuf.spool.commits import Commit, CommitNote
from kafkabuf.spool.file import Layout, SpoolFile
from kafkabuf.spool.reading import HeldBatch, SpoolReader
from rigs.producer import SLAB, TOPIC, Rig
from tests.spool.test_damage import LAYOUT
from tests.spool.test_recovery import SETTINGS, killed, many_records

NOW = 1_700_000_000_000
# What differs: keys, nulls, bytes that are no text, characters that a terminal obeys, headers, times.
RECORDS: list[dict[str, Any]] = [
    {"value": b"text", "key": b"key", "headers": [("a", b"1"), ("a", None)], "timestamp_ms": NOW},
    {"value": None, "key": b"tombstone", "timestamp_ms": NOW + 1},
    {"value": b"\xff\x00", "key": b"", "timestamp_ms": NOW + 2},
    {"value": "w\u00e4rt \x1b[2J\u009b".encode(), "timestamp_ms": 0},
    {"value": b"", "headers": [("b", b"\xfe")], "timestamp_ms": NOW + 3},
    {"value": b"x" * 3 * SLAB, "timestamp_ms": NOW + 4},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "buffer"


def spool(*arguments: str | Path) -> Result:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(main, ["spool", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def asked(*arguments: str | Path) -> dict[str, Any]:
    result = spool(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


# ---- inspect


def test_inspect_counts_what_waits_and_knows_what_was_acknowledged(path: Path) -> None:
    rig = Rig([1, 1], file=path)
    rig.send(b"acknowledged")
    rig.ack_all()
    rig.fill(batches=2)
    rig.turn()  # one batch goes, and has numbers
    rig.send(b"waits", partition=1)
    found = asked("inspect", path)
    assert (found["records"], found["buffer_memory"], found["batch_size"]) == (3, *LAYOUT)
    assert (found["held_by"], found["last_opened_by"], found["of_this_boot"]) == (os.getpid(), os.getpid(), True)
    assert found["file_bytes"] == path.stat().st_size
    first, second = found["partitions"]
    assert (first["records"], first["batches"], first["last_acknowledged_offset"]) == (2, 2, 0)
    assert (first["producer_id"], first["last_acknowledged_sequence"]) == (77, 0)
    assert first["may_be_in_cluster"] >= 1
    assert (second["topic"], second["records"], second["may_be_in_cluster"]) == (TOPIC, 1, 0)
    assert second["last_acknowledged_offset"] == -1
    assert found["bytes"] == first["bytes"] + second["bytes"]
    assert found["oldest_ms"] == min(first["oldest_ms"], second["oldest_ms"])
    assert "batches" not in found


def test_inspect_shows_people_the_same(path: Path) -> None:
    many_records(rig := Rig(file=path))
    text = spool("inspect", path, "--batches").stdout
    assert f"Process {os.getpid()} has it open" in text
    assert f"buffer.memory={LAYOUT.total}, batch.size={LAYOUT.slab_size}" in text
    assert "300 records" in text
    assert text.count("orders-0") == 1 + len(rig.incomplete())
    rig.ack_all()
    assert "No record waits." in spool("inspect", path).stdout


def test_inspect_names_each_batch_with_its_numbers(path: Path) -> None:
    rig = Rig(file=path, compression_type="gzip")
    rig.fill(batches=2)
    rig.drain_one()
    sent, waiting = asked("inspect", path, "--batches")["batches"]
    assert (sent["base_sequence"], sent["producer_id"], sent["compression"]) == (0, 77, "gzip")
    assert (waiting["base_sequence"], waiting["producer_id"], waiting["compression"]) == (-1, -1, "none")


def test_inspect_reads_a_file_of_other_sizes(path: Path) -> None:
    Rig(file=path, batch_size=5000, buffer_memory=50_003).send(b"x")
    found = asked("inspect", path)
    assert (found["records"], found["buffer_memory"], found["batch_size"]) == (1, 50_003, 5000)


# ---- check


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_whole_file_is_whole(path: Path, settings: dict[str, Any]) -> None:
    many_records(rig := Rig(file=path, **settings))
    rig.turn()
    before = path.read_bytes()
    result = spool("check", path)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"300 records in {len(rig.incomplete())} whole batches, 0 damaged")
    assert path.read_bytes() == before


@pytest.mark.parametrize("settings", [SETTINGS["compressed"], SETTINGS["magic 1"]])
def test_check_sees_a_flipped_bit_in_records_that_have_a_checksum(path: Path, settings: dict[str, Any]) -> None:
    """What gzip and a message of magic 1 say of themselves."""
    rig = Rig(file=path, **settings)
    rig.send(random.Random(0).randbytes(400).hex().encode())
    rig.drain_one()
    left = killed(rig, path.with_name("left"))
    with SpoolReader(left) as reader:
        (batch,) = reader.batches(with_data=True)
        assert isinstance(batch, HeldBatch)
    piece = batch.data[200:300]
    data = left.read_bytes()
    assert piece in data
    left.write_bytes(data.replace(piece, bytes([piece[0] ^ 1]) + piece[1:]))  # in the codec's scratch, too
    result = spool("check", left)
    assert (result.exit_code, "batch 0 is damaged: " in result.stdout) == (1, True), result.output
    assert asked("check", left)["records"] == 0


def test_check_names_what_is_damaged_and_counts_the_rest(path: Path) -> None:
    rig = Rig(file=path)
    rig.fill(batches=3)
    left = killed(rig, path.with_name("left"))
    spoil(left, place=1)
    result = spool("check", left)
    assert result.exit_code == 1
    assert "batch 1 is damaged: its records have an unknown format" in result.stdout
    assert "2 records in 2 whole batches, 1 damaged" in result.stdout
    assert asked("check", left)["damaged"] == [{"place": 1, "reason": "its records have an unknown format"}]
    assert asked("inspect", left)["damaged"] == asked("check", left)["damaged"]
    assert "Batch 1 is damaged" in spool("inspect", left).stdout


def spoil(path: Path, place: int) -> None:
    """Give an entry a format that no records have: `magic` stands behind four fields of eight bytes."""
    at = LAYOUT.batches_at + place * SIZE_OF_BATCH
    with path.open("r+b") as file:
        file.seek(at + 32)
        assert file.read(1) == b"\x02"
        file.seek(at + 32)
        file.write(b"\x09")


# ---- export


def send_all(rig: Rig) -> None:
    for number, record in enumerate(RECORDS):
        rig.send(partition=number % 2, **record)


def test_inspect_names_the_cluster_and_the_commit_that_a_kill_cut_off(path: Path) -> None:
    with SpoolFile(path, Layout(*LAYOUT)) as file:
        assert (asked("inspect", path)["cluster_id"], asked("inspect", path)["commit"]) == ("", None)
        file.note_identity(77, "of-the-shop")
        CommitNote(file.commit).write(Commit("till-1", 77, 3, True, NOW, 5))
        found = asked("inspect", path)
        assert found["cluster_id"] == "of-the-shop"
        assert (found["commit"]["transactional_id"], found["commit"]["outcome"]) == ("till-1", "under way")
        shown = spool("inspect", path).output
        assert "Its records are for the cluster of-the-shop." in shown
        assert "the commit of 5 records of 'till-1' that the process before had begun: under way" in shown
        page = bytearray(file.commit)
        page[20] ^= 1
        file.commit[:] = page
        assert asked("inspect", path)["commit"]["reason"] == "its note in the file is damaged"


def exported(*arguments: str | Path) -> list[dict[str, Any]]:
    result = spool("export", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def as_bytes(value: str | dict[str, str] | None) -> bytes | None:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return None if value is None else value.encode()


def content(record: dict[str, Any]) -> tuple[object, ...]:
    headers = [(name, as_bytes(value)) for name, value in record["headers"]]
    return as_bytes(record["value"]), as_bytes(record["key"]), headers, record["timestamp"]


def sent(partition: int) -> list[tuple[object, ...]]:
    return [
        (record["value"], record.get("key"), record.get("headers", []), record["timestamp_ms"])
        for record in RECORDS[partition::2]
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_export_writes_the_bytes_that_were_sent_in_order(path: Path, compression: str) -> None:
    send_all(rig := Rig([1, 1], file=path, compression_type=compression))
    rig.linger_over()
    rig.turn()
    before = path.read_bytes()
    records = exported(path)
    assert [content(record) for record in records if record["partition"] == 0] == sent(0)
    assert [content(record) for record in records if record["partition"] == 1] == sent(1)
    assert {record["topic"] for record in records} == {TOPIC}
    assert path.read_bytes() == before


def test_exported_line_is_safe_for_a_terminal(path: Path) -> None:
    send_all(Rig([1, 1], file=path))
    text = spool("export", path).stdout
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_parquet_has_the_bytes_that_were_sent_in_order(path: Path, tmp_path: Path) -> None:
    send_all(Rig([1, 1], file=path, compression_type="gzip"))
    table = tmp_path / "records.parquet"
    result = spool("export", path, "--format", "parquet", "--output", table)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    assert "6 records written" in result.stderr
    rows = parquet.read_table(table).to_pylist()
    for partition in (0, 1):
        assert [
            (
                row["value"],
                row["key"],
                [(header["key"], header["value"]) for header in row["headers"]],
                round(row["timestamp"].timestamp() * 1000),
            )
            for row in rows
            if row["partition"] == partition
        ] == sent(partition)


def test_parquet_is_written_in_pieces(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkabuf.cli.spool.export._GROUP_BYTES", 5_000)
    many_records(Rig(file=path))
    spool("export", path, "--format", "parquet", "--output", tmp_path / "t")
    file = parquet.ParquetFile(tmp_path / "t")
    assert file.num_row_groups > 3
    assert [row["value"] for row in file.read().to_pylist()] == [b"%d" % number for number in range(300)]


def test_export_says_which_records_may_be_in_the_cluster(path: Path) -> None:
    rig = Rig(file=path)
    rig.fill(batches=2)
    rig.drain_one()
    assert [record["may_be_in_cluster"] for record in exported(path)] == [True, False]
    assert "2 records written, 1 of which may be in the cluster" in spool("export", path).stderr


def test_export_of_a_topic_has_no_other_topics_records(path: Path) -> None:
    rig = Rig(file=path)
    rig.send(b"order")
    rig.accumulator.topic_queues("other", [1])
    rig.producer.send("other", b"else", partition=0)
    assert [record["value"] for record in exported(path)] == ["order", "else"]
    assert [record["value"] for record in exported(path, "--topic", "other")] == ["else"]
    assert exported(path, "--topic", "third") == []


def test_export_leaves_a_damaged_batch_out_and_says_so(path: Path, tmp_path: Path) -> None:
    rig = Rig(file=path)
    for letter in b"abc":
        rig.send(bytes([letter]) * 800)
    left = killed(rig, path.with_name("left"))
    spoil(left, place=1)
    output = tmp_path / "out"
    result = spool("export", left, "--output", output)
    assert result.exit_code == 1
    assert "batch 1 is damaged and left out: its records have an unknown format" in result.stderr
    assert [json.loads(line)["value"][0] for line in output.read_text().splitlines()] == ["a", "c"]


def test_exported_file_is_new_and_for_this_user_alone(path: Path, tmp_path: Path) -> None:
    Rig(file=path).send(b"secret")
    output = tmp_path / "out"
    exported(path, "--output", output)
    assert output.stat().st_mode & 0o777 == 0o600
    before = output.read_bytes()
    for taken in (output, path):
        result = spool("export", path, "--output", taken)
        assert (result.exit_code, "exists already: name another file" in result.stderr) == (2, True)
    assert output.read_bytes() == before


def test_export_that_fails_leaves_no_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    Rig(file=path).send(b"x")
    monkeypatch.setattr("kafkabuf.cli.spool.export.JsonLines.write", full)
    result = spool("export", path, "--output", output := tmp_path / "out")
    assert (result.exit_code, f"{output} cannot be read or written: No space left" in result.stderr) == (1, True)
    assert not output.exists()


def test_parquet_needs_a_file_and_its_package(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Rig(file=path).send(b"x")
    result = spool("export", path, "--format", "parquet")
    assert (result.exit_code, "--format parquet needs --output FILE" in result.stderr) == (2, True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arguments = ["spool", "export", str(path), "--format", "parquet", "--output", str(tmp_path / "out")]
    missing = CliRunner().invoke(main, arguments)
    assert '--format parquet needs the package pyarrow: pip install "kafkabuf[spark]"' in str(missing.exception)
    assert not (tmp_path / "out").exists()


# ---- transactions


def test_records_of_a_transaction_are_counted_and_not_exported(path: Path) -> None:
    rig = Rig([1, 1], file=path)
    rig.send(b"plain")
    rig.accumulator.transactional = True
    rig.send(b"in a transaction", partition=1)
    rig.send(b"in it, too", partition=1)
    found = asked("inspect", path)
    assert found["records"] == 1
    (transaction,) = found["transactions"]
    assert (transaction["topic"], transaction["partition"], transaction["records"]) == (TOPIC, 1, 2)
    assert "Transactions that are not committed" in spool("inspect", path).stdout
    result = spool("export", path)
    assert [json.loads(line)["value"] for line in result.stdout.splitlines()] == ["plain"]
    assert "2 records of a transaction that is not committed: left out" in result.stderr


# ---- paths that are no file of a buffer


def made(kind: str, folder: Path) -> Path:
    path = folder / "path"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "garbage":
        path.write_bytes(random.Random(0).randbytes(100_000))
    elif kind == "cut short":
        Rig(file=path)
        os.truncate(path, LAYOUT.size - 1)
    elif kind == "huge counts":
        path.write_bytes(Layout(1 << 62, 1).header())
    return path


@pytest.mark.parametrize("command", ["inspect", "check", "export", "drain"])
@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "garbage", "cut short", "huge counts"])
def test_path_that_is_no_file_of_a_buffer_gets_one_error(tmp_path: Path, command: str, kind: str) -> None:
    path = made(kind, tmp_path)
    result = spool(command, path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"Error: Invalid value for PATH: {path} " in result.stderr


@pytest.fixture
def file_of_another(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A file that another process has, with two records."""
    path = tmp_path / "of another"
    script = (
        "import sys; sys.path.insert(0, '.'); from pathlib import Path; from rigs.producer import Rig; "
        f"rig = Rig(file=Path({str(path)!r})); rig.send(b'first'); rig.send(b'second'); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield path, process.pid
        process.kill()


def test_file_that_another_process_has_is_read_and_not_drained(file_of_another: tuple[Path, int]) -> None:
    path, pid = file_of_another
    found = asked("inspect", path)
    assert (found["records"], found["held_by"]) == (2, pid)
    assert asked("check", path)["records"] == 2
    result = spool("export", path)
    assert [json.loads(line)["value"] for line in result.stdout.splitlines()] == ["first", "second"]
    assert f"process {pid} has the file open" in result.stderr
    refused = spool("drain", path, "-b", "127.0.0.1:1")
    assert (refused.exit_code, f"process {pid} has {path} open" in refused.stderr) == (1, True)
