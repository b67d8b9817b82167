"""`kafkabuf produce`: which records it sends, what becomes of faulty lines, and when it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import fastavro
import pyarrow as pa
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2, message_factory

from kafkabuf.broker import ConsumerRecord, EmbeddedCluster
from kafkabuf.cli import main
from kafkabuf.cli.produce.inputs.block import Block, Refused
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.json_lines import as_timestamp
from kafkabuf.cli.produce.inputs.lines import Lines, line_reader
from kafkabuf.cli.produce.inputs.resume import Resume
from kafkabuf.cli.produce.inputs.source import Source
from kafkabuf.cli.units import counted
from tests.cli.produce_support import (
    COMMAND,
    dead_letters,
    piped,
    produce,
    table_file,
    text_of,
    timeless,
    values,
    written,
)

pytest_plugins = ["tests.cli.fixtures"]

MIB = 1 << 20


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, 2)
    return name


def pairs(cluster: EmbeddedCluster, topic: str) -> list[tuple[bytes, bytes]]:
    return sorted((record.key or b"", record.value or b"") for record in cluster.messages(topic))


def in_order(cluster: EmbeddedCluster, topic: str) -> list[ConsumerRecord]:
    return sorted(cluster.messages(topic), key=lambda record: (record.partition, record.offset))


# ---- lines


def test_every_line_of_a_pipe_is_a_value_byte_by_byte(cluster: EmbeddedCluster, topic: str) -> None:
    lines = [b"a", b"", b"\xff\x00", "wärt".encode(), b"with\r", b"last"]
    status, error = piped(cluster, topic, text=b"\n".join(lines))
    assert (status, timeless(error)) == (0, "6 records acknowledged")
    assert sorted(value or b"" for value in values(cluster, topic)) == sorted(lines)
    assert {record.key for record in cluster.messages(topic)} == {None}


def test_key_stands_before_the_first_separator_and_chooses_the_partition_as_confluents_murmur2(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.txt", b"".join(b"k%d:v%d:w\n" % (n, n) for n in range(50)))
    assert produce(cluster, topic, path, "--key-separator", ":").exit_code == 0
    other = f"{topic}-c"
    cluster.create_topic(other, 2)
    peer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "partitioner": "murmur2_random"})
    for number in range(50):
        peer.produce(other, b"v%d:w" % number, b"k%d" % number)
    peer.flush(30)
    fields = [[(r.partition, r.offset, r.key, r.value) for r in in_order(cluster, name)] for name in (topic, other)]
    assert fields[0] == fields[1]
    assert len(fields[0]) == 50


def test_records_are_sent_as_their_lines_come_and_ctrl_c_ends_the_reading(cluster: EmbeddedCluster, topic: str) -> None:
    command = [*COMMAND, topic, "-b", cluster.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            for number in (1, 2):
                process.stdin.write(b"line\n")
                process.stdin.flush()
                cluster.wait_for_messages(topic, number, timeout=60)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, timeless(error.decode())) == (130, "Error: interrupted; 2 records acknowledged\n")


class _Target(NamedTuple):
    """A Target without a producer."""

    longest: int


def blocks_of(path: Path, longest: int, spilt: io.BytesIO, size: int) -> list[Block | Lines]:
    """The lines of a file that comes in pieces, and the blocks without lines."""

    class Pieces(InputBytes):
        def some(self, nbytes: int) -> bytes:
            return super().some(min(nbytes, size))

    read = line_reader(lambda target, lines: lines)  # type: ignore[arg-type,return-value]
    with open(path, "rb") as file:
        source = Pieces(file.fileno(), lambda: pytest.fail("a file is never idle"))
        return [*read(source, Source(str(path)), _Target(longest), spilt.write)]  # type: ignore[arg-type]


def numbered(blocks: list[Block | Lines]) -> list[tuple[int, bytes]]:
    lines = [block for block in blocks if isinstance(block, Lines)]
    return [pair for each in lines for pair in zip(each.numbers, each.each, strict=True)]


@pytest.mark.parametrize("size", [7, 1 << 18])
def test_reader_gives_every_line_its_number_and_offset(tmp_path: Path, size: int) -> None:
    content = b"".join(b"%d" % n * (n % 90) + b"\n" for n in range(9000)) + b"end"
    blocks = blocks_of(written(tmp_path / "in", content), 500, io.BytesIO(), size)
    assert numbered(blocks) == [*enumerate(content.split(b"\n"), 1)]
    assert blocks[-1].end == len(content)
    assert len(blocks) > 3


@pytest.mark.parametrize("size", [7, 1 << 18])
def test_overlong_line_is_left_out_whole_and_the_reading_goes_on_behind_it(tmp_path: Path, size: int) -> None:
    content = b"one\n" + b"x" * 300_000 + b"\ntwo\nthree\n"
    spilt = io.BytesIO()
    blocks = blocks_of(written(tmp_path / "in", content), 1000, spilt, size)
    assert numbered(blocks) == [(1, b"one"), (3, b"two"), (4, b"three")]
    assert spilt.getvalue() == b"x" * 300_000 + b"\n"
    refused = [(block.refused, block.end, block.last) for block in blocks if isinstance(block, Block)]
    reason = "it is longer than max.request.size (1000 bytes)"
    assert refused == [((Refused(2, None, reason),), 4, 1), ((), 300_005, 2)]
    assert blocks[-1].end == len(content)


# ---- jsonl


ROWS: list[dict[str, Any]] = [
    {"id": n, "at": 1_700_000_000_000 + n, "to": n % 2, "about": {"a": "ä", "b": None}, "what": {"x": [n]}}
    for n in range(20)
]


def jsonl(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_columns_become_key_headers_timestamp_and_partition(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.jsonl", jsonl(*ROWS))
    options = ("--key", "id", "--headers", "about", "--timestamp", "at", "--partition", "to")
    assert produce(cluster, topic, path, *options).exit_code == 0
    records = {record.key: record for record in cluster.messages(topic)}
    assert len(records) == len(ROWS)
    for row in ROWS:
        record = records[b"%d" % row["id"]]
        assert record.value == json.dumps(row).encode()
        assert (record.timestamp, record.partition) == (row["at"], row["to"])
        assert record.headers == [("a", "ä".encode()), ("b", None)]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (5, "an object or an array of pairs, found a number"),
        (["a"], "an array of a name and a value"),
        ([["a"]], "an array of a name and a value"),
        ([[None, "v"]], "an array of a name and a value"),
        ([["a", {"hex": "0"}]], "hexadecimal digits, found '0'"),
        ([["a", {"hex": 1}]], "hexadecimal digits, found 1"),
    ],
)
def test_headers_that_are_no_pairs_are_refused(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, headers: Any, reason: str
) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.jsonl", jsonl({"h": headers})), "--headers", "h")
    assert result.exit_code == 1
    assert "line 1" in result.stderr
    assert reason in result.stderr


@pytest.mark.parametrize(("options", "value"), [((), b'{"hex":"ff00"}'), (("--hex",), b"\xff\x00")])
def test_object_of_digits_is_bytes_only_if_asked_for(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, options: tuple[str, ...], value: bytes
) -> None:
    path = written(tmp_path / "in.jsonl", jsonl({"k": {"hex": "ff00"}, "v": {"hex": "ff00"}}))
    assert produce(cluster, topic, path, "--key", "k", "--value", "v", *options).exit_code == 0
    assert pairs(cluster, topic) == [(value, value)]


def test_json_value_lacks_the_columns_of_other_parts(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", jsonl({"id": "a", "n": 1, "t": "ä"}, {"id": None, "n": 1.5, "t": None}))
    assert produce(cluster, topic, path, "--key", "id", "--value-format", "json").exit_code == 0
    assert pairs(cluster, topic) == [(b"", b'{"n":1.5,"t":null}'), (b"a", '{"n":1,"t":"ä"}'.encode())]


NUMBERS = [
    "1.10", "1e2", "1E+2", "-0.0", "0.1000000000000000055511151231257827", "12345678901234567890.123", "1e400",
    "12345678901234567890123", "-1.50e-7", "0.1", "9007199254740993.0",
]  # fmt: skip


@pytest.mark.parametrize("wrapped", ["%s", "[[%s]]", '{"a":{"b":[1,%s,"€"]}}'])
def test_numbers_of_json_keep_their_digits_in_each_part(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, wrapped: str
) -> None:
    parts = [wrapped % number for number in NUMBERS]
    lines = [f'{{"k":{part},"h":{{"x":{part}}},"p":0,"v":{part},"w":1}}\n' for part in parts]
    path = written(tmp_path / "in.jsonl", "".join(lines).encode())
    options = ["--key", "k", "--headers", "h", "--partition", "p", "--value-format", "json"]
    assert produce(cluster, topic, path, *options).exit_code == 0
    records = in_order(cluster, topic)
    assert [record.key for record in records] == [part.encode() for part in parts]
    assert [record.headers for record in records] == [[("x", part.encode())] for part in parts]
    assert [record.value for record in records] == [f'{{"v":{part},"w":1}}'.encode() for part in parts]
    for options in (["--value", "v"], ["--value", "v", "--value-format", "json"]):
        assert produce(cluster, topic, path, *options, "--partition", "p").exit_code == 0
        assert [record.value for record in in_order(cluster, topic)][-len(parts) :] == [part.encode() for part in parts]


@pytest.mark.parametrize("line", ['{"a":1,"a":2}', '{"a":1,"b":[{"a":1,"b":2,"a":1}]}'])
@pytest.mark.parametrize("options", [["--key", "a"], ["--value-format", "json"]])
def test_object_with_two_members_of_one_name_is_a_faulty_line(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, line: str, options: list[str]
) -> None:
    path = written(tmp_path / "in.jsonl", f'{{"a":0}}\n{line}\n{{"a":3}}\n'.encode())
    result = produce(cluster, topic, path, *options, "--on-error", "skip")
    assert result.exit_code == 0
    assert "line 2 is left out: an object has two members 'a'" in timeless(result.output)
    assert len(cluster.messages(topic)) == 2


def test_number_beyond_every_double_is_no_infinity_of_avro(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    schema = written(tmp_path / "schema.avsc", b'{"type":"record","name":"R","fields":[{"name":"v","type":"double"}]}')
    path = written(tmp_path / "in.jsonl", b'{"k":1,"v":1e400}\n{"k":1.10,"v":1.10}\n')
    options = ["--key", "k", "--value-format", "avro", "--value-schema", str(schema), "--on-error", "skip"]
    result = produce(cluster, topic, path, *options)
    assert result.exit_code == 0
    assert "line 1 is left out: the number 1e400 is larger than every double" in timeless(result.output)
    (record,) = cluster.messages(topic)
    assert (record.key, record.value) == (b"1.10", struct.pack("<d", 1.1))


def test_value_column_is_text_or_json_and_null_is_kafkas_null(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.jsonl", jsonl({"v": "text"}, {"v": None}, {"v": {"a": [1]}}) + b"\n \n")
    assert produce(cluster, topic, path, "--value", "v").exit_code == 0
    values = [record.value for record in cluster.messages(topic)]
    assert sorted(values, key=repr) == sorted([b"text", None, b'{"a":[1]}'], key=repr)


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
    assert f"line 1 is left out: {reason}" in text_of(result)
    assert values(cluster, topic) == [b'{"id":1}']


# ---- faulty lines


FAULTY = b'{"id":1,"p":0}\n{"id":2\n[3]\n{"p":4}\n{"id":5,"p":9}\n{"id":6,"p":1}\n\xff\n'
REASONS = ["line 2", "line 3", "line 4", "line 5", "line 7"]


@pytest.mark.parametrize("options", [[], ["--key", "id"]])
def test_byte_order_mark_of_a_json_file_is_no_part_of_its_first_line(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, options: list[str]
) -> None:
    file = written(tmp_path / "marked.jsonl", b'\xef\xbb\xbf{"id":1}\n{"id":2}')
    assert produce(cluster, topic, file, *options).exit_code == 0
    assert sorted(value for _, value in pairs(cluster, topic)) == [b'{"id":1}', b'{"id":2}']


def test_first_faulty_line_ends_the_run_behind_the_lines_before_it(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.jsonl", FAULTY)
    result = produce(cluster, topic, path, "--key", "id", "--partition", "p")
    assert result.exit_code == 1
    assert "Error: line 2: it is not JSON" in result.output
    assert "1 record acknowledged" in result.output
    assert pairs(cluster, topic) == [(b"1", b'{"id":1,"p":0}')]


@pytest.mark.parametrize("to_file", [False, True])
def test_faulty_lines_are_left_out_with_their_numbers(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, to_file: bool
) -> None:
    path, letters = written(tmp_path / "in.jsonl", FAULTY), tmp_path / "letters"
    policy = ["dead-letter", "--dead-letter-file", str(letters)] if to_file else ["skip"]
    result = produce(cluster, topic, path, "--key", "id", "--partition", "p", "--on-error", *policy)
    assert result.exit_code == 0, result.output
    assert [line.split(" is")[0] for line in result.output.splitlines()[:-1]] == REASONS
    assert timeless(result.output).endswith("2 records acknowledged, 5 lines left out\n")
    assert [key for key, _ in pairs(cluster, topic)] == [b"1", b"6"]
    if to_file:
        kept = FAULTY.splitlines(keepends=True)
        assert letters.read_bytes() == b"".join(kept[n] for n in (1, 2, 3, 4, 6))


def test_line_that_kafka_refuses_is_left_out_and_the_others_arrive(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    large = b"x" * 5000
    content = b"a\n" + large + b"\nb\n" + b"y" * MIB + b"\nc\n"
    path, letters = written(tmp_path / "in", content), tmp_path / "letters"
    limits = ("-X", "max.request.size=4000", "-X", "batch.size=1000")
    stopped = produce(cluster, topic, path, *limits)
    assert stopped.exit_code == 1
    assert "line 2: " in stopped.output
    other = f"{topic}-d"
    cluster.create_topic(other, 2)
    result = produce(cluster, other, path, *limits, "--on-error", "dead-letter", "--dead-letter-file", str(letters))
    assert result.exit_code == 0, result.output
    assert sorted(record.value or b"" for record in cluster.messages(other)) == [b"a", b"b", b"c"]
    assert sorted(letters.read_bytes().splitlines()) == [large, b"y" * MIB]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--key", "id"], 2, "lines have no columns, which --key needs"),
        (["--key-separator", ""], 2, "at least one character"),
        (["-f", "jsonl", "--key-separator", ":"], 2, "jsonl has --key COL"),
        (["--value-format", "json"], 2, "lines have no columns"),
        (["--on-error", "dead-letter"], 2, "belong together"),
        (["-f", "jsonl", "--value-format", "protobuf"], 2, "--value-message NAME belong together"),
        (["--value-message", "M"], 2, "--value-message NAME belong together"),
        (["--value-schema", os.devnull], 2, "for --value-format avro and protobuf"),
        ([os.devnull], 2, "named twice"),
        ([__file__, "--resume-file", "state"], 2, "for one FILE"),
        (["in.csv"], 2, "does not exist"),
        (["-X", "transactional.id=t"], 2, "no transactions"),
        (["-X", "nosuch.setting=t"], 2, "nosuch.setting"),
    ],
)
def test_senseless_option_is_refused(
    cluster: EmbeddedCluster, topic: str, arguments: list[str], code: int, reason: str
) -> None:
    result = produce(cluster, topic, os.devnull, *arguments)
    assert result.exit_code == code, result.output
    assert reason in text_of(result)


def test_unreachable_cluster_is_explained_without_a_traceback(tmp_path: Path) -> None:
    path = written(tmp_path / "in", b"a\n")
    command = ["produce", "t", str(path), "-b", "127.0.0.1:1", "-X", "max.block.ms=300"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "See that Kafka runs at 127.0.0.1:1" in text_of(result)


def test_settings_of_a_producers_file_are_used_and_its_classes_are_not(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    settings = tmp_path / "producer.properties"
    settings.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\nacks=7\nvalue.serializer=org.Class\n")
    result = CliRunner().invoke(main, ["produce", topic, os.devnull, "--config", str(settings)])
    assert result.exit_code == 2
    assert "acks" in result.output
    settings.write_text(settings.read_text().replace("acks=7", "acks=all"))
    result = CliRunner().invoke(main, ["produce", topic, os.devnull, "--config", str(settings)])
    assert result.exit_code == 0, result.output
    assert "ignored, since this command does not use these settings: value.serializer" in result.output


# ---- tables


TABLE = pa.table({"key": ["007", "b", None], "topic": [1, 2, 3], "n": [0.5, None, 2.0], "at": [5, 6, 7]})


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "stream"])
def test_rows_of_a_table_become_json_without_the_columns_of_other_parts(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str
) -> None:
    path = table_file(tmp_path / f"in.{kind}", TABLE)
    options = ["--format", "arrow"] if kind == "stream" else []
    options += ["--types", "topic=int64,n=double"] if kind == "csv" else []
    result = produce(cluster, topic, path, "--key", "key", "--timestamp", "at", *options)
    assert (result.exit_code, timeless(result.output)) == (0, "3 records acknowledged\n")
    records = sorted(cluster.messages(topic), key=lambda record: record.timestamp)
    assert [record.timestamp for record in records] == [5, 6, 7]
    assert [record.key or b"" for record in records] == [b"007", b"b", b""]
    found = [json.loads(record.value or b"") for record in records]
    assert [{"n": None} | each for each in found] == [
        {"topic": 1, "n": 0.5},
        {"topic": 2, "n": None},
        {"topic": 3, "n": 2.0},
    ]


def test_raw_column_is_the_value_and_partition_is_taken(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    table = pa.table({"v": [b"\xff", None, b"c"], "p": [1, 0, 1]})
    path = table_file(tmp_path / "in.parquet", table)
    assert produce(cluster, topic, path, "--partition", "p", "--value-format", "raw").exit_code == 0
    assert [(record.partition, record.value) for record in in_order(cluster, topic)] == [
        (0, None),
        (1, b"\xff"),
        (1, b"c"),
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_avro_is_what_fastavro_reads(cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]}
    written(tmp_path / "r.avsc", json.dumps(schema).encode())
    rows = [{"a": n, "b": f"text {n}"} for n in range(30)]
    path = written(tmp_path / "in.jsonl", jsonl(*rows))
    if kind == "csv":
        path = table_file(tmp_path / "in.csv", pa.Table.from_pylist(rows))
    options = ("--value-format", "avro", "--value-schema", str(tmp_path / "r.avsc"))
    result = produce(cluster, topic, path, *options)
    assert result.exit_code == 0, result.output
    found = [fastavro.schemaless_reader(io.BytesIO(r.value or b""), schema, None) for r in cluster.messages(topic)]
    assert sorted(found, key=str) == sorted(rows, key=str)


@pytest.mark.parametrize(
    ("content", "options", "reason"),
    [
        (b"a,b\n1,2\n", ["--key", "c"], "one column 'c' is needed, the file has a, b"),
        (b"a,b\n1,2\n", ["--value-format", "raw"], "a raw value is one column, and 2 are left"),
        (b"a,b\n1,2\n", ["--key", "a", "--headers", "b"], "no column is left for the value"),
        (b"a,b\n1,1.5\n", ["--timestamp", "b"], "row 1: a timestamp is milliseconds since 1970 or ISO-8601 text"),
        (b"a,b\n1,1.5\n", ["--timestamp", "b", "--types", "b=double"], "a column has a wrong type"),
        (b"a,b\n1,true\n", ["--timestamp", "b", "--types", "b=bool"], "a column has a wrong type"),
    ],
)
def test_faulty_table_is_explained(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, content: bytes, options: list[str], reason: str
) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.csv", content), *options)
    assert result.exit_code == 1
    assert reason in result.output
    assert timeless(result.output).endswith("0 records acknowledged\n")


PEOPLE = descriptor_pb2.FileDescriptorProto(
    name="people.proto",
    package="people",
    syntax="proto3",
    message_type=[
        descriptor_pb2.DescriptorProto(
            name="Person",
            field=[
                descriptor_pb2.FieldDescriptorProto(name="first_name", number=1, type=9, label=1),
                descriptor_pb2.FieldDescriptorProto(name="age", number=2, type=5, label=1),
            ],
        )
    ],
)
DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[PEOPLE]).SerializeToString()
PROTOBUF = ("--value-format", "protobuf", "--value-message", "people.Person", "--value-schema")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_protobuf_is_what_protobuf_reads(cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str) -> None:
    rows = [{"first_name": f"person {n}", "age": n} for n in range(30)]
    path = written(tmp_path / "in.jsonl", jsonl(*rows))
    if kind == "csv":
        path = table_file(tmp_path / "in.csv", pa.Table.from_pylist(rows))
    result = produce(cluster, topic, path, *PROTOBUF, written(tmp_path / "people.pb", DESCRIPTORS))
    assert result.exit_code == 0, result.output
    person: Any = message_factory.GetMessages([PEOPLE])["people.Person"]
    found = [person.FromString(record.value) for record in cluster.messages(topic)]
    assert sorted((each.age, each.first_name) for each in found) == [(n, f"person {n}") for n in range(30)]


def test_line_that_is_no_message_is_left_out(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", jsonl({"age": 1}, {"age": "old"}, {"agee": 1}))
    schema = written(tmp_path / "people.pb", DESCRIPTORS)
    result = produce(cluster, topic, path, *PROTOBUF, schema, "--on-error", "skip")
    assert timeless(result.output).endswith("1 record acknowledged, 2 lines left out\n")
    assert [line.partition(":")[0] for line in result.output.splitlines()[:2]] == [
        "line 2 is left out",
        "line 3 is left out",
    ]


@pytest.mark.parametrize(("content", "reason"), [(DESCRIPTORS, "has no message 'X'"), (b"x", "is no set of")])
def test_wrong_descriptors_are_refused(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, content: bytes, reason: str
) -> None:
    path = written(tmp_path / "in.jsonl", jsonl({"age": 1}))
    schema = written(tmp_path / "people.pb", content)
    result = produce(cluster, topic, path, *PROTOBUF, schema, "--value-message", "X")
    assert result.exit_code == 2, result.output
    assert reason in text_of(result)


# ---- several files


def test_files_are_sent_in_turn_and_faults_name_their_file(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    paths = [written(tmp_path / f"{n}.jsonl", b'{"id":%d,"p":0}\n{"p":0}\n{"id":1%d,"p":0}' % (n, n)) for n in range(3)]
    result = produce(cluster, topic, *paths, "--key", "id", "--partition", "p", "--on-error", "skip")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[:-1] == [f"{path}: line 2 is left out: it has no column 'id'" for path in paths]
    assert [record.key for record in in_order(cluster, topic)] == [b"0", b"10", b"1", b"11", b"2", b"12"]
    stopped = produce(cluster, topic, *paths, "--key", "id", "--partition", "p")
    assert timeless(stopped.output) == f"Error: {paths[0]}: line 2: it has no column 'id'; 1 record acknowledged\n"


def test_files_of_several_formats_need_a_format(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.jsonl", b'{"a":1}\n'), written(tmp_path / "b.txt", b"b\n")]
    result = produce(cluster, topic, *paths)
    assert (result.exit_code, "of several formats, jsonl, lines: give --format" in result.output) == (2, True)
    assert produce(cluster, topic, *paths, "--format", "lines").exit_code == 0
    assert [value for _, value in pairs(cluster, topic)] == [b"b", b'{"a":1}']


def test_each_of_several_files_has_a_state_of_its_own(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    """The second file stops the first run, which therefore does not read the third."""
    paths = [tmp_path / f"{n}.jsonl" for n in range(3)]
    for n, path in enumerate(paths):
        path.write_bytes(b'{"id":%d}\n' % n)
    good = paths[1].read_bytes()
    paths[1].write_bytes(b"{}\n")
    names = list(map(str, paths))
    assert produce(cluster, topic, *names, "--key", "id", "--resume").exit_code == 1
    paths[1].write_bytes(good)
    Path(f"{names[1]}.kafkabuf-resume").unlink()  # of another content
    result = produce(cluster, topic, *names, "--key", "id", "--resume")
    assert (result.exit_code, timeless(result.output)) == (0, "2 records acknowledged\n")
    assert [key for key, _ in pairs(cluster, topic)] == [b"0", b"1", b"2"]


# ---- going on


def test_resumed_run_goes_on_behind_the_lines_that_were_acknowledged(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.txt"
    first = b"".join(b"%d\n" % n for n in range(100))
    for added in (first, b"", b"more\n"):
        with path.open("ab") as file:
            file.write(added)
        result = produce(cluster, topic, str(path), "--resume")
        assert (result.exit_code, timeless(result.output)) == (
            0,
            f"{counted(len(added.splitlines()), 'record')} acknowledged\n",
        )
    assert sorted(record.value or b"" for record in cluster.messages(topic)) == sorted(path.read_bytes().splitlines())
    state = json.loads((tmp_path / "in.txt.kafkabuf-resume").read_bytes())
    assert (state["offset"], state["count"]) == (path.stat().st_size, 101)


@pytest.mark.parametrize("kind", ["txt", "csv"])
def test_run_that_stopped_goes_on_without_loss(cluster: EmbeddedCluster, topic: str, tmp_path: Path, kind: str) -> None:
    """The line that is too large stops the first run; the second may send it."""
    lines = [b"%06d" % n * 20 for n in range(40_000)]
    lines[30_000] = b"1" * 5000
    path = written(tmp_path / f"in.{kind}", b"\n".join([*([b"v"] if kind == "csv" else []), *lines]) + b"\n")
    options = ["--resume-file", str(tmp_path / "state"), *(["--value", "v", "--value-format", "raw"] * (kind == "csv"))]
    stopped = produce(cluster, topic, path, *options, "-X", "max.request.size=4000", "-X", "batch.size=3000")
    assert stopped.exit_code == 1
    assert f"{'row' if kind == 'csv' else 'line'} 30001: " in stopped.output
    state = json.loads((tmp_path / "state").read_bytes())
    assert 0 < state["count"] <= 30_000
    resumed = produce(cluster, topic, path, *options)
    assert (resumed.exit_code, timeless(resumed.output)) == (0, f"{40_000 - state['count']:,} records acknowledged\n")
    assert {record.value for record in cluster.messages(topic)} == set(lines)


def test_state_of_another_file_or_topic_is_refused(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.txt", b"one\ntwo\n")
    assert produce(cluster, topic, path, "--resume").exit_code == 0
    state = f"{path}.kafkabuf-resume"
    for content, name, reason in [
        (b"One\ntwo\nthree\n", topic, "is another file than"),
        (b"one\n", topic, "is another file than"),
        (b"one\ntwo\n", "other", "is of topic"),
    ]:
        result = produce(cluster, name, written(tmp_path / "in.txt", content), "--resume")
        assert (result.exit_code, reason in result.output) == (1, True), result.output
    written(Path(state), b"[]")
    result = produce(cluster, topic, path, "--resume")
    assert (result.exit_code, "is no state of this command" in result.output) == (1, True), result.output


def test_state_is_saved_at_most_once_a_second(tmp_path: Path) -> None:
    now = [0.0]
    path = written(tmp_path / "in", b"a\nb\n")
    state = Resume(tmp_path / "state", str(path), "t", "lines", now=lambda: now[0])
    state.settle(2, 1)
    assert not (tmp_path / "state").exists()
    now[0] = 1.0
    state.settle(4, 2)
    assert (Resume(tmp_path / "state", str(path), "t", "lines").offset, list(tmp_path.glob("*.new"))) == (4, [])


def test_state_does_not_pass_a_line_that_stopped_the_run(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.jsonl", FAULTY)
    assert produce(cluster, topic, path, "--key", "id", "--resume").exit_code == 1
    assert json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())["offset"] == 0


@pytest.mark.parametrize("value", [-1, True, 1.5, "yesterday", 1 << 63])
def test_timestamp_that_kafka_cannot_hold_makes_the_line_faulty(value: object) -> None:
    with pytest.raises(ValueError, match=r"timestamp|isoformat"):
        as_timestamp(value)


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
    assert sorted(value or b"" for value in values(cluster, topic)) == sorted(sent)  # of two partitions
    state = json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())
    assert state["count"] == len(path.read_bytes().splitlines())


def test_overlong_last_line_is_left_out_once_and_its_letter_ends_with_a_line_feed(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path, letters = tmp_path / "in.txt", tmp_path / "letters"
    overlong = b"z" * 2_000_000
    path.write_bytes(b"a\n" + overlong)
    policy = [*dead_letters(letters), "--resume"]
    for _ in range(2):
        assert produce(cluster, topic, path, *policy).exit_code == 0
        assert letters.read_bytes() == overlong + b"\n"
    assert values(cluster, topic) == [b"a"]


def test_letter_behind_a_torn_letter_has_a_line_of_its_own(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path, letters = tmp_path / "in.jsonl", tmp_path / "letters"
    path.write_bytes(b"x\n")
    policy = ["--key", "id", *dead_letters(letters)]
    letters.write_bytes(b"whole\ntor")  # as kill -9 leaves it
    for behind in (b"\nx\n", b"\nx\nx\n"):
        assert produce(cluster, topic, path, *policy).exit_code == 0
        assert letters.read_bytes() == b"whole\ntor" + behind
