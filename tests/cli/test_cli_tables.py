"""Odd tables for `kafkabuf produce`: what is faulty has its row and its reason, and the other rows arrive."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import ipc, parquet

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main

pytest_plugins = ["tests.cli.cli_fixtures"]

MIB = 1 << 20
SMALL = ["-X", "max.request.size=4000", "-X", "batch.size=1000"]


def produce(cluster: EmbeddedCluster, topic: str, path: Path, *options: str) -> Result:
    result = CliRunner().invoke(main, ["produce", topic, str(path), *options, "-b", cluster.bootstrap_servers])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in cluster.messages(topic)]


def table_file(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


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
    policy = ["--on-error", "dead-letter", "--dead-letter-file", str(letters)]
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


def test_rows_before_such_a_row_arrive_where_it_ends_the_run(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = table_file(tmp_path / "in.arrow", pa.table({"id": [1, 2, 3, 4], "p": [0, 0, 7, 0]}))
    result = produce(cluster, topic, path, "--partition", "p")
    assert "Error: row 3: a partition is a number from 0 to 0, found '7'; 2 records acknowledged" in result.output
    assert (result.exit_code, values(cluster, topic)) == (1, [b'{"id":1}', b'{"id":2}'])


def test_row_that_does_not_fit_its_schema_has_its_number_in_the_file(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Of the rows, 16,384 are sent in one call."""
    table = pa.table({"a": [*range(20_000), None]})
    schema = tmp_path / "a.avsc"
    schema.write_text('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}')
    path = table_file(tmp_path / "in.parquet", table)
    result = produce(cluster, topic, path, "--value-format", "avro", "--value-schema", str(schema))
    assert "Error: row 20001: column 'value.a' of type int64 is null" in result.output
    assert len(values(cluster, topic)) == 20_000


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
    policy = ["--on-error", "dead-letter", "--dead-letter-file", str(letters)]
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


def test_row_that_is_too_large_has_one_number(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = table_file(tmp_path / "in.parquet", pa.table({"v": ["a", "x" * 5000]}))
    result = produce(cluster, topic, path, "--on-error", "skip", *SMALL)
    assert "row 2 is left out: the record is too large: " in result.output


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
    result = produce(cluster, topic, path, *SMALL, "--on-error", "dead-letter", "--dead-letter-file", str(letters))
    assert result.exit_code == 0, result.output
    (sent,) = values(cluster, topic)
    assert sent == b'{"l":[1,2],"s":{"a":null},"b":"AP8=","f":null,"d":"2020-01-02","big":"x"}'
    assert letters.read_bytes().splitlines() == [sent.replace(b"x", b"y" * 5000), sent.replace(b"x", b"z" * 5000)]


def test_letter_of_a_row_with_a_type_that_json_lacks_is_text(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    months = pa.array([(1, 2, 3)], pa.month_day_nano_interval())
    path = table_file(tmp_path / "in.arrow", pa.table({"i": months, "v": ["y" * 5000]}))
    letters = tmp_path / "letters"
    policy = ["--on-error", "dead-letter", "--dead-letter-file", str(letters)]
    result = produce(cluster, topic, path, "--value", "v", *SMALL, *policy)
    assert result.exit_code == 0, result.output
    assert "months=1, days=2" in json.loads(letters.read_bytes())["i"]


def test_letter_of_a_row_with_a_text_that_is_not_utf8_keeps_its_bytes(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xffA"]).buffers())
    path = table_file(tmp_path / "in.arrow", pa.table({"t": texts, "v": ["y" * 5000]}))
    letters = tmp_path / "letters"
    policy = ["--on-error", "dead-letter", "--dead-letter-file", str(letters)]
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
    assert (result.exit_code, "is no Avro schema: it is not UTF-8" in " ".join(result.output.split())) == (2, True)


# ---- CSV


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("id,t\n1,a\n2,b,é\n".encode("latin1"), "latin1"),
        ("id,é\n1,a\n".encode("latin1"), "latin1"),
        ("id,t\n1,a\n".encode("utf-16"), "utf-16"),
    ],
)
def test_csv_of_another_encoding_is_refused_also_in_the_header_and_in_faulty_rows(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, content: bytes, encoding: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    result = produce(cluster, topic, path, "--on-error", "skip")
    assert (result.exit_code, f"it is not UTF-8: iconv -f {encoding} -t utf-8" in result.output) == (1, True)
    assert "Traceback" not in result.output


def test_column_that_begins_behind_the_first_block_has_the_type_of_its_first_values(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    rows = 2 * MIB // 16
    path = tmp_path / "in.csv"
    path.write_bytes(b"id,text,n\n" + b"%010d,,\n" * rows % (*range(rows),) + b"1,late,\n" * 2 + b"2,,7\n")
    result = produce(cluster, topic, path, "--types", "infer")
    assert result.exit_code == 0, result.output
    sent = values(cluster, topic)
    assert (len(sent), sent[0]) == (rows + 3, b'{"id":0,"text":null,"n":null}')
    assert [json.loads(value or b"")["text"] for value in sent[-3:-1]] == ["late", "late"]
    assert json.loads(sent[-1] or b"")["n"] == 7


def test_avro_without_a_registry_has_one_schema(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    rows = 2 * MIB // 16
    path = tmp_path / "in.csv"
    path.write_bytes(b"id,text\n" + b"%010d,\n" * rows % (*range(rows),) + b"1,late\n")
    result = produce(cluster, topic, path, "--value-format", "avro", "--types", "infer")
    assert (result.exit_code, "text: null> in the rows before: give --value-schema FILE" in result.output) == (1, True)


def test_first_row_of_csv_may_be_longer_than_a_block(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,t\n1,"%b"\n2,b\n' % (b"x" * 2 * MIB))
    result = produce(cluster, topic, path, "--on-error", "skip")
    assert (result.exit_code, "row 1 is left out: the record is too large" in result.output) == (0, True), result.output
    assert values(cluster, topic) == [b'{"id":"2","t":"b"}']
