"""Odd tables for `kafkabuf produce`: what is faulty has its row and its reason, and the other rows arrive."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli.produce.inputs.block import Columns
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.tables import rows_of
from tests.cli.produce_support import SMALL, dead_letters, produce, table_file, text_of, values

pytest_plugins = ["tests.cli.fixtures"]

# ---- values that no record can have


FAULTS = [
    ("--partition", [0, None, 9, 0], "row 3 is left out: a partition is a number from 0 to 0, found '9'", 3),
    ("--partition", [0, 1 << 40, -1, 0], "row 2 is left out: a partition is a number from 0 to 0", 2),
    ("--partition", ["0", "x", None, "0"], "row 2 is left out: a partition is a number from 0 to 0, found 'x'", 3),
    ("--timestamp", [1, -5, None, 3], "row 2 is left out: a timestamp is milliseconds since 1970", 3),
    ("--timestamp", ["2020-01-01", "never", None, "2020-01-01 00:00:00Z"], "row 2 is left out: a timestamp is", 3),
    (
        "--timestamp",
        [datetime.datetime(1969, 1, 1), None, None, None],
        "row 1 is left out: a timestamp is milliseconds since 1970 or ISO-8601 text, found '1969-01-01 00:00:00'",
        3,
    ),
]


@pytest.mark.parametrize(("option", "column", "reason", "sent"), FAULTS)
def test_row_with_a_partition_or_time_that_no_record_has_is_left_out(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, option: str, column: list[object], reason: str, sent: int
) -> None:
    path = table_file(tmp_path / "in.parquet", pa.table({"id": [1, 2, 3, 4], "c": column}))
    letters = tmp_path / "letters"
    policy = dead_letters(letters)
    result = produce(cluster, topic, path, option, "c", *policy)
    assert (result.exit_code, reason in result.output) == (0, True), result.output
    assert len(values(cluster, topic)) == sent
    lost = {1, 2, 3, 4} - {json.loads(value or b"")["id"] for value in values(cluster, topic)}
    assert {json.loads(line)["id"] for line in letters.read_bytes().splitlines()} == lost


def test_text_of_a_time_is_in_utc_unless_it_names_a_zone(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    texts = ["1970-01-02", "1970-01-01T01:00:00+01:00", "1970-01-01 00:00:01.5Z", "1970-01-01T00:00:00.123456"]
    path = table_file(tmp_path / "in.parquet", pa.table({"id": range(4), "at": texts}))
    result = produce(cluster, topic, path, "--timestamp", "at")
    assert result.exit_code == 0, result.output
    assert [record.timestamp for record in cluster.messages(topic)] == [86_400_000, 0, 1500, 123]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--partition", "p"], "a partition is a number from 0 to 0, found '7'"),
        (["--value-format", "avro", "--value-schema", "a.avsc"], "column 'value.a' of type int64 is null"),
    ],
)
def test_rows_before_a_faulty_row_arrive_where_it_ends_the_run(
    cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    reason: str,
) -> None:
    """Of the rows, 16,384 are sent in one call."""
    monkeypatch.chdir(tmp_path)
    fields = [{"name": name, "type": "long"} for name in ("a", "p")]
    Path("a.avsc").write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    table = pa.table({"a": [*range(20_000), None, 1], "p": [*[0] * 20_000, 7, 0]})
    result = produce(cluster, topic, table_file(tmp_path / "in.arrow", table), *options)
    assert f"Error: row 20001: {reason}" in result.output
    assert "; 20,000 records acknowledged" in result.output
    assert (result.exit_code, len(values(cluster, topic))) == (1, 20_000)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_that_do_not_fit_their_schema_are_left_out_with_their_numbers(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    """Also beside rows that are faulty for another reason, and where Kafka refuses a row behind them."""
    numbers: list[int | None] = [None, 2, None, 4, 5, 6, *range(7, 20_000), None]
    texts = ["y" * 5000 if number == 6 else "" for number in numbers]
    table = pa.table({"a": numbers, "t": texts, "p": [0] * 4 + [9] + [0] * (len(numbers) - 5)})
    fields = [{"name": "a", "type": "long"}, {"name": "t", "type": "string"}]
    schema, letters = tmp_path / "a.avsc", tmp_path / "letters"
    schema.write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    options = ["--value-format", "avro", "--value-schema", str(schema), "--partition", "p", *SMALL, "--resume"]
    policy = dead_letters(letters)
    path = table_file(tmp_path / f"in.{kind}", table)
    result = produce(cluster, topic, path, *options, *policy)
    assert result.exit_code == 0, result.output
    left_out = [1, 3, 5, 6, 20_000]
    rows = [int(line.split()[1]) for line in result.output.splitlines() if line.startswith("row ")]
    assert sorted(rows) == left_out
    assert result.output.count("column 'value.a' of type int64 is null") == 3
    assert sorted(json.loads(line)["a"] or 0 for line in letters.read_bytes().splitlines()) == [0, 0, 0, 5, 6]
    assert len(values(cluster, topic)) == len(numbers) - len(left_out)
    assert json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())["count"] == len(numbers)
    assert "0 records acknowledged" in produce(cluster, topic, path, *options, *policy).output


# ---- headers


@pytest.mark.parametrize("name", ["in.parquet", "in.arrow"])
def test_headers_are_found_by_the_names_of_their_fields(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str
) -> None:
    pairs = [[{"key": "name", "value": "text"}], None]
    headers = pa.array(pairs, pa.list_(pa.struct([("value", pa.string()), ("key", pa.string())])))
    path = table_file(tmp_path / name, pa.table({"id": [1, 2], "h": headers}))
    result = produce(cluster, topic, path, "--headers", "h")
    assert result.exit_code == 0, result.output
    assert [record.headers for record in cluster.messages(topic)] == [[("name", b"text")], []]
    others = pa.array(pairs, pa.list_(pa.struct([("key", pa.string()), ("val", pa.string())])))
    result = produce(cluster, topic, table_file(path, pa.table({"id": [1, 2], "h": others})), "--headers", "h")
    assert result.exit_code == 1
    assert "column 'headers' has a struct of the fields 'key' and 'val'; allowed: list<struct<key: " in result.output
    assert len(values(cluster, topic)) == 2


# ---- dead letters


def test_letter_has_nested_values_and_bytes_as_a_value_of_json_has_them(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    good = {"l": [1, 2], "s": {"a": None}, "b": b"\0\xff", "f": float("nan"), "d": datetime.date(2020, 1, 2)}
    table = pa.Table.from_pylist([{**good, "big": "x"}, {**good, "big": "y" * 5000}, {**good, "big": "z" * 5000}])
    path, letters = table_file(tmp_path / "in.arrow", table), tmp_path / "letters"
    result = produce(cluster, topic, path, *SMALL, *dead_letters(letters))
    assert result.exit_code == 0, result.output
    assert "row 2 is left out: the record is too large: " in result.output
    (sent,) = values(cluster, topic)
    assert sent == b'{"l":[1,2],"s":{"a":null},"b":"AP8=","f":null,"d":"2020-01-02","big":"x"}'
    assert letters.read_bytes().splitlines() == [sent.replace(b"x", b"y" * 5000), sent.replace(b"x", b"z" * 5000)]


def test_letter_of_a_row_with_a_type_that_json_lacks_is_text(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    months = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    path = table_file(tmp_path / "in.arrow", pa.table({"i": months, "v": ["y" * 5000]}))
    letters = tmp_path / "letters"
    policy = dead_letters(letters)
    result = produce(cluster, topic, path, "--value", "v", *SMALL, *policy)
    assert result.exit_code == 0, result.output
    assert "months=1, days=2" in json.loads(letters.read_bytes())["i"]


def test_letter_of_a_row_with_a_text_that_is_not_utf8_keeps_its_bytes(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xffA"]).buffers())
    path = table_file(tmp_path / "in.arrow", pa.table({"t": texts, "v": ["y" * 5000]}))
    letters = tmp_path / "letters"
    policy = dead_letters(letters)
    result = produce(cluster, topic, path, "--value", "v", *SMALL, *policy)
    assert result.exit_code == 0, result.output
    assert letters.read_bytes() == b'{"t":"\xffA","v":"%s"}\n' % (b"y" * 5000)


# ---- files that cannot be read


@pytest.mark.parametrize("name", ["in.csv", "in.arrow"])
def test_two_columns_of_one_name_are_refused(cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "in.csv":
        path.write_bytes(b"k,a,a\n0,1,2\n")
    else:
        table_file(path, pa.Table.from_arrays([pa.array([0]), pa.array([1]), pa.array([2])], names=["k", "a", "a"]))
    result = produce(cluster, topic, path)
    assert (result.exit_code, "the file has two columns 'a'" in result.output) == (1, True), result.output
    assert produce(cluster, topic, path, "--value", "k").exit_code == 0


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_torn_table_is_explained(cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str) -> None:
    path = table_file(tmp_path / f"in.{kind}", pa.table({"a": range(100_000)}))
    content = path.read_bytes()
    path.write_bytes(content[:1000] + b"\xff" * 5000 + content[6000:] if kind == "parquet" else b"\xff" * 1000)
    result = produce(cluster, topic, path)
    assert (result.exit_code, f"Error: the {kind} file cannot be read: " in result.output) == (1, True), result.output
    assert "None" not in result.output


def test_schema_that_is_no_text_is_refused(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path, schema = table_file(tmp_path / "in.parquet", pa.table({"a": [1]})), tmp_path / "a.avsc"
    schema.write_bytes(b"\xff\xfe")
    result = produce(cluster, topic, path, "--value-format", "avro", "--value-schema", str(schema))
    assert (result.exit_code, "is no Avro schema: it is not UTF-8" in text_of(result)) == (2, True)


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
