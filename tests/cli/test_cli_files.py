"""Files of other programs, for `kafkabuf produce`: CSV with line feeds and faulty rows, lines that grow, odd JSON."""

from __future__ import annotations

import bz2
import csv
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main
from kafkabuf.cli.produce.inputs.block import Columns
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.tables import rows_of

pytest_plugins = ["tests.cli.cli_fixtures"]


def produce(cluster: EmbeddedCluster, topic: str, path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["produce", topic, str(path), *options, "-b", cluster.bootstrap_servers])


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.messages(topic)]


def test_csv_fields_with_line_feeds_cross_the_readers_blocks(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    texts = [f'a "quote",\nline two {number}\n\n{"y" * (number % 50)}' for number in range(40_000)]
    path = tmp_path / "in.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text"])
        writer.writerows([text] for text in texts)
    assert path.stat().st_size > 1 << 20  # pyarrow's block
    result = produce(cluster, topic, path)
    assert result.exit_code == 0, result.output
    assert [json.loads(value or b"")["text"] for value in values(cluster, topic)] == texts


FAULTY_CSV = b'id,t\n\n1,"a\nb"\n2,b,c\n3\n4,d\n5,e,f\n'


def test_faulty_rows_of_csv_are_left_out_with_their_numbers(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path, letters = tmp_path / "in.csv", tmp_path / "letters"
    path.write_bytes(FAULTY_CSV)
    policy = ["--on-error", "dead-letter", "--dead-letter-file", str(letters), "--resume"]
    result = produce(cluster, topic, path, *policy)
    assert result.exit_code == 0, result.output
    assert [line.partition(" is")[0] for line in result.output.splitlines()[:3]] == ["row 2", "row 3", "row 5"]
    assert values(cluster, topic) == [b'{"id":"1","t":"a\\nb"}', b'{"id":"4","t":"d"}']
    assert letters.read_bytes() == b"2,b,c\n3\n5,e,f\n"
    assert produce(cluster, topic, path, *policy).exit_code == 0  # all is done: also the faulty rows
    assert letters.read_bytes() == b"2,b,c\n3\n5,e,f\n"
    assert len(values(cluster, topic)) == 2


def test_first_faulty_row_of_csv_ends_the_run_behind_the_rows_before_it(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(FAULTY_CSV)
    result = produce(cluster, topic, path, "--resume")
    assert result.exit_code == 1
    assert "Error: row 2: it has 3 columns, the header has 2; 1 record acknowledged" in result.output
    assert values(cluster, topic) == [b'{"id":"1","t":"a\\nb"}']
    assert json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())["count"] == 0


def test_row_that_is_too_large_has_its_number_behind_faulty_rows(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"id,t\n1,a,b\n2,%b\n3,c\n" % (b"x" * 5000))
    limits = ["-X", "max.request.size=4000", "-X", "batch.size=1000"]
    result = produce(cluster, topic, path, "--on-error", "skip", *limits)
    assert result.exit_code == 0, result.output
    assert "row 2 is left out: " in result.output
    assert values(cluster, topic) == [b'{"id":"3","t":"c"}']


def test_csv_that_is_not_utf_8_is_refused_instead_of_sent_as_base64(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes("id,t\n1,café\n".encode("latin-1"))
    result = produce(cluster, topic, path)
    assert result.exit_code == 1
    assert r"row 1: near b'id,t\n1,caf\xe9\n' it is not UTF-8: iconv" in result.output
    assert values(cluster, topic) == []


@pytest.mark.parametrize(
    ("added", "sent"),
    [
        (b"", [b"a", b"b"]),
        (b"\n", [b"a", b"b"]),
        (b"\nc\n", [b"a", b"b", b"c"]),
        (b"etter\nc", [b"a", b"b", b"better", b"c"]),
    ],
)
def test_line_that_had_no_line_feed_is_not_cut_by_a_resumed_run(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, added: bytes, sent: list[bytes]
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\nb")
    assert produce(cluster, topic, path, "--resume").exit_code == 0
    with path.open("ab") as file:
        file.write(added)
    assert produce(cluster, topic, path, "--resume").exit_code == 0
    assert values(cluster, topic) == sent
    state = json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())
    assert state["count"] == len(path.read_bytes().splitlines())


def test_overlong_last_line_is_left_out_once_and_its_letter_ends_with_a_line_feed(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path, letters = tmp_path / "in.txt", tmp_path / "letters"
    overlong = b"z" * 2_000_000
    path.write_bytes(b"a\n" + overlong)
    policy = ["--on-error", "dead-letter", "--dead-letter-file", str(letters), "--resume"]
    for _ in range(2):
        assert produce(cluster, topic, path, *policy).exit_code == 0
        assert letters.read_bytes() == overlong + b"\n"
    assert values(cluster, topic) == [b"a"]


def test_letter_behind_a_torn_letter_has_a_line_of_its_own(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path, letters = tmp_path / "in.jsonl", tmp_path / "letters"
    path.write_bytes(b"x\n")
    policy = ["--key", "id", "--on-error", "dead-letter", "--dead-letter-file", str(letters)]
    letters.write_bytes(b"whole\ntor")  # as kill -9 leaves it
    for behind in (b"\nx\n", b"\nx\nx\n"):
        assert produce(cluster, topic, path, *policy).exit_code == 0
        assert letters.read_bytes() == b"whole\ntor" + behind


@pytest.mark.parametrize(
    ("head", "advice"),
    [
        (bz2.compress(b"a\n"), "bzip2 -dc {} | kafkabuf produce TOPIC --format lines"),
        (lzma.compress(b"a\n"), "xz -dc {} | kafkabuf produce TOPIC --format lines"),
        (b"PAR1", "give --format parquet"),
        (b"ARROW1", "give --format arrow"),
    ],
)
def test_file_without_lines_is_refused_with_the_way_to_send_it(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, head: bytes, advice: str
) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(head)
    result = produce(cluster, topic, path)
    assert result.exit_code == 2
    assert advice.format(path) in " ".join(result.output.split())
    assert values(cluster, topic) == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"id":NaN}', "it is not JSON: NaN is no number of JSON"),
        (b'{"id":-Infinity}', "it is not JSON: -Infinity is no number of JSON"),
        (b'{"id":"\\ud800"}', "UTF-8 has no half of a surrogate pair"),
        (b'{"id":"\xe9"}', "it is not UTF-8: iconv"),
    ],
)
def test_line_that_only_python_takes_for_json_is_faulty(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, line: bytes, reason: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line + b'\n{"id":1}\n')
    result = produce(cluster, topic, path, "--key", "id", "--on-error", "skip")
    assert result.exit_code == 0
    assert f"line 1 is left out: {reason}" in " ".join(result.output.split())
    assert values(cluster, topic) == [b'{"id":1}']


def test_parquet_takes_no_more_memory_with_more_row_groups(tmp_path: Path) -> None:
    group = pa.table({"id": pa.array(range(20_000)), "value": [f"{number:0100d}" for number in range(20_000)]})
    path = tmp_path / "in.parquet"
    with parquet.ParquetWriter(path, group.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(20):
            writer.write_table(group)
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    with path.open("rb") as file:
        source = InputBytes(file.fileno(), lambda: None)
        for found in rows_of(str(path), source, "parquet", Columns()):
            most, rows = max(most, pa.total_allocated_bytes() - before), rows + found.batch.num_rows
    assert rows == 20 * group.num_rows
    assert most < 4 * group.nbytes
