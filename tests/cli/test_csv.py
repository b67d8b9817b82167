"""`kafkabuf produce` of CSV sends what the file holds: text stays text, and what does not fit is refused by its row."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main
from kafkabuf.cli.produce.inputs.block import Columns
from kafkabuf.cli.produce.inputs.bytes import InputBytes
from kafkabuf.cli.produce.inputs.csv import Choices
from kafkabuf.cli.produce.inputs.row_blocks import Shaper
from kafkabuf.cli.produce.inputs.tables import rows_of
from kafkabuf.formats import Json
from tests.cli.produce_support import SMALL, dead_letters, objects, piped, produce, text_of, values, written

pytest_plugins = ["tests.cli.fixtures"]

MIB = 1 << 20
ODD = [
    "12345678901234567890", "12345678901234567891", "00123", "+491701234567", "NA", "null", "NaN", "1e5", "1.10",
    "true", "0.1234567890123456789", "2020-01-01", " x ", "", "\u20ac", "0x1F", "-0", "=",
]  # fmt: skip


def as_csv(rows: Sequence[Sequence[str]], **dialect: Any) -> bytes:
    sink = io.StringIO(newline="")
    csv.writer(sink, **dialect).writerows(rows)
    return sink.getvalue().encode()


# ---- text


def test_fields_arrive_as_the_file_has_them(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    rows = [[str(number), text, text] for number, text in enumerate(ODD)]
    path = written(tmp_path / "in.csv", as_csv([["n", "key", "text"], *rows]))
    result = produce(cluster, topic, path, "--key", "key")
    assert result.exit_code == 0, result.output
    assert objects(cluster, topic) == [{"n": number, "text": text} for number, _, text in rows]
    assert [record.key for record in cluster.messages(topic)] == [text.encode() for text in ODD]


def test_avro_without_a_schema_derives_strings(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", b"id,n\n00123,1\n")
    assert produce(cluster, topic, path, "--value-format", "avro").exit_code == 0
    assert values(cluster, topic) == [b"\x02\x0a00123\x02\x02" + b"1"]


# Python writes no half of a surrogate pair as UTF-8. The header's first name would lose a byte order mark.
_FIELDS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('",;\t\r\n \0\ufeff01'), max_size=12)
_NAMES = st.lists(_FIELDS.filter(lambda name: "\0" not in name and name[:1] != "\ufeff"), min_size=1, max_size=4)
_DIALECTS: list[dict[str, Any]] = [
    {}, {"quoting": csv.QUOTE_ALL}, {"quoting": csv.QUOTE_ALL, "lineterminator": "\n"}, {"delimiter": ";"},
    {"delimiter": "\t"}, {"quoting": csv.QUOTE_ALL, "lineterminator": "\r"},
]  # fmt: skip


@given(data=st.data(), names=_NAMES, dialect=st.sampled_from(_DIALECTS), piece=st.sampled_from([1, 7, 1 << 18]))
def test_every_table_of_texts_that_pythons_csv_writes_comes_back_exact(
    data: st.DataObject, names: list[str], dialect: dict[str, Any], piece: int
) -> None:
    table = data.draw(st.lists(st.lists(_FIELDS, min_size=len(names), max_size=len(names)), max_size=12))
    content = as_csv([names, *table], **dialect)
    choices = Choices(delimiter=dialect.get("delimiter", ","))
    texts: list[list[str]] = []
    numbers: list[int] = []
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with open(file.name, "rb", buffering=0) as opened:
            for rows in rows_of(file.name, _Pieces(opened.fileno(), piece), "csv", Columns(), choices):
                assert rows.batch.schema.names == names
                assert not rows.refused
                texts += map(list, zip(*(column.to_pylist() for column in rows.batch.columns), strict=True))
                numbers += rows.numbers
                columns = pa.table({str(place): column for place, column in enumerate(rows.batch.columns)})
                assert [list(json.loads(line or b"").values()) for line in Json().encode(columns)] == texts[
                    -len(columns) :
                ]
                raw = Shaper(Columns(value="0"), raw=True)(columns.to_batches()[0]).column("value")
                assert [value.as_py().encode() for value in raw] == [row[0].encode() for row in texts[-len(columns) :]]
    assert texts == table
    assert numbers == [*range(1, len(table) + 1)]


@pytest.mark.parametrize("infers", [False, True])
def test_mark_at_the_start_of_a_row_belongs_to_its_first_field(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, infers: bool
) -> None:
    texts = [f"\ufeff{number:0300d}" for number in range(4000)]  # more than a block
    path = written(tmp_path / "in.csv", b"\xef\xbb\xbf" + as_csv([["v"], *([text] for text in texts)]))
    options = ["--types", "infer"] if infers else []
    assert produce(cluster, topic, path, *options).exit_code == 0
    assert [each["v"] for each in objects(cluster, topic)] == texts


class _Pieces(InputBytes):
    """A file that comes in pieces, as a pipe does."""

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__(descriptor, lambda: None)
        self._size = size

    def ready(self, nbytes: int) -> bytes:
        return self.some(min(nbytes, self._size))


# ---- rows that are no rows


FAULTS = {
    "a quote that never ends": (b'a,b\n1,x\n2,"y\n3,z\n', 2, b'2,"y\\n3,z\\n\': a quote is not closed'),
    "a quote that ends in a later row": (b'a,b\n1,x\n2,"y\n3,"z"\n4,w\n', 2, b"a field goes on behind its closing"),
    "text behind a quote": (b'a,b\r\n1,x\r\n2,"y" \r\n', 2, b"a field goes on behind its closing quote"),
    "one column too many": (b"a,b\n\n1,x\n2,y,z\n", 2, b"it has 3 columns, the header has 2"),
    "one column too few": (b"\xef\xbb\xbfa,b\r\n1,x\r\n2\r\n", 2, b"it has 1 columns, the header has 2"),
    "other text than utf-8": (b"a,b\n2,\xe9\n", 1, rb"near b'a,b\n2,\xe9\n' it is not UTF-8: iconv -f latin1"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault_ends_the_run_with_the_number_of_its_row_behind_the_rows_before_it(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str
) -> None:
    content, row, reason = FAULTS[name]
    path = written(tmp_path / "in.csv", content)
    result = produce(cluster, topic, path, "--resume")
    assert (result.exit_code, f"row {row}" in result.output) == (1, True), result.output
    assert reason.decode() in result.output
    assert objects(cluster, topic) == [{"a": "1", "b": "x"}][: row - 1]
    assert json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())["count"] == 0


def test_quote_that_never_ends_is_refused_also_where_faulty_rows_are_left_out(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """The rest of the file is no faulty row."""
    path = written(tmp_path / "in.csv", b'a,b\n1,x\n2,"y\n' + b"3,z\n" * 500_000)
    result = produce(cluster, topic, path, "--on-error", "skip")
    assert (result.exit_code, "row 2, b'2,\"y" in result.output) == (1, True), result.output
    assert objects(cluster, topic) == [{"a": "1", "b": "x"}]


def test_faulty_rows_go_to_the_letters_as_they_were_also_one_that_a_stray_quote_joined(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.csv", b'a,b\n"1","x\nx"\n\n2,"y\r\n3,"z"\r\n4,w,v\n"5",""\n6\n')
    letters = tmp_path / "letters"
    policy = [*dead_letters(letters), "--resume"]
    result = produce(cluster, topic, path, *policy)
    assert result.exit_code == 0, result.output
    assert "row 2 is left out: a field goes on behind its closing quote\nrow 3 is left out: it has 3" in result.output
    assert "row 5 is left out: it has 1 columns" in result.output
    assert objects(cluster, topic) == [{"a": "1", "b": "x\nx"}, {"a": "5", "b": ""}]
    assert "0 records" in produce(cluster, topic, path, *policy).output  # all is done: also the faulty rows
    assert letters.read_bytes() == b'2,"y\r\n3,"z"\n4,w,v\n6\n'


def test_each_faulty_row_of_many_that_are_read_at_once_has_its_number(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """Of the rows, 16,384 are sent in one call."""
    rows, faulty = 40_000, [1, 2, 16_384, 16_385, 16_387, 32_769, 32_770, 40_000]
    lines = [b"%d,0" % number for number in range(1, rows + 1)]
    for number in faulty:
        lines[number - 1] = b"%d" % number if number % 2 else b"%d,word" % number
    path, letters = written(tmp_path / "in.csv", b"id,n\n" + b"\n".join(lines)), tmp_path / "letters"
    result = produce(cluster, topic, path, "--types", "n=int32", *dead_letters(letters))
    assert result.exit_code == 0, result.output
    assert [int(line.split()[1]) for line in result.output.splitlines()[: len(faulty)]] == faulty
    assert re.findall(rb"^\D*(\d+)", letters.read_bytes(), re.MULTILINE) == [b"%d" % number for number in faulty]
    assert [int(row["id"]) for row in objects(cluster, topic)] == sorted({*range(1, rows + 1)}.difference(faulty))


def test_row_that_is_too_large_has_its_number_behind_faulty_rows(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.csv", b"id,t\n1,a,b\n2,%b\n3,c\n" % (b"x" * 5000))
    result = produce(cluster, topic, path, "--on-error", "skip", *SMALL)
    assert result.exit_code == 0, result.output
    assert "row 2 is left out: " in result.output
    assert values(cluster, topic) == [b'{"id":"3","t":"c"}']


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'a,"b\n1,2\n', "the header, b'a,\"b\\n1,2\\n': a quote is not closed"),
        (b'a,"b"c\n1,2\n', "the header, b'a,\"b\"c\\n': a field goes on behind its closing quote"),
        (b"a\0,\0b\0\n\0", "the header, b'a\\x00,\\x00b\\x00\\n': it has a byte 0: is the file UTF-16?"),
        (b"\xe9,b\n1,2\n", "the header: near b'\\xe9,b\\n1,2\\n' it is not UTF-8"),
        (b"x" * 200_000 + b"\n1\n", "field larger than field limit"),
    ],
)
def test_faulty_header_is_explained(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, content: bytes, reason: str
) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.csv", content), "--on-error", "skip")
    assert (result.exit_code, reason in result.output) == (1, True), result.output


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


def test_first_row_of_csv_may_be_longer_than_a_block(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b'id,t\n1,"%b"\n2,b\n' % (b"x" * 2 * MIB))
    result = produce(cluster, topic, path, "--on-error", "skip")
    assert (result.exit_code, "row 1 is left out: the record is too large" in result.output) == (0, True), result.output
    assert values(cluster, topic) == [b'{"id":"2","t":"b"}']


# ---- types


def test_value_that_does_not_fit_its_type_is_a_faulty_row(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", b"n,x,t\n1,0.5,a\nword,1,b\n,,\n4,1e999,d\n 5 ,inf,e\n6,1_000,f\n")
    letters = tmp_path / "letters"
    result = produce(cluster, topic, path, "--types", "n=int64, x=double", *dead_letters(letters))
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[:3] == [
        "row 2 is left out: column 'n': 'word' is no int64",
        "row 4 is left out: column 'x': '1e999' is no double",
        "row 6 is left out: column 'x': '1_000' is no double",
    ]
    # JSON has no infinity.
    assert values(cluster, topic) == [
        b'{"n":1,"x":0.5,"t":"a"}', b'{"n":null,"x":null,"t":""}', b'{"n":5,"x":null,"t":"e"}'
    ]  # fmt: skip
    assert letters.read_bytes().splitlines() == [
        b'{"n":"word","x":"1","t":"b"}', b'{"n":"4","x":"1e999","t":"d"}', b'{"n":"6","x":"1_000","t":"f"}'
    ]  # fmt: skip


def test_rows_before_a_value_that_does_not_fit_arrive_where_it_ends_the_run(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    rows = 20_000  # of which 16,384 are sent in one call
    path = written(tmp_path / "in.csv", b"n\n" + b"1234567\n" * rows + b"word\n1\n")
    result = produce(cluster, topic, path, "--types", "n=int32")
    assert f"Error: row {rows + 1}: column 'n': 'word' is no int32; {rows:,} records acknowledged" in result.output
    assert (result.exit_code, len(values(cluster, topic))) == (1, rows)


TYPED = {
    "string": ("00123", '"00123"'), "int8": ("-7", "-7"), "uint64": ("18446744073709551615", "18446744073709551615"),
    "float": ("0.1", "0.10000000149011612"), "bool": ("TRUE", "true"),
    "decimal(20, 2)": ("12345678901234567.8", "12345678901234567.80"),
    "date32": ("2020-02-29", '"2020-02-29"'), "time32[s]": ("10:11", '"10:11:00"'), "binary": ("ab", '"YWI="'),
    "timestamp[us]": ("2020-01-01 01:02:03.5", '"2020-01-01T01:02:03.500000"'),
    "timestamp[ms, UTC]": ("2020-01-01T01:00:00+01:00", '"2020-01-01T00:00:00+00:00"'),
}  # fmt: skip


@pytest.mark.parametrize("name", TYPED)
def test_column_is_read_as_the_type_that_is_given(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str
) -> None:
    text, expected = TYPED[name]
    path = written(tmp_path / "in.csv", as_csv([["c", "d"], [text, "00"], ["", "00"]]))
    result = produce(cluster, topic, path, "--types", f"c={name},d=int8")
    assert result.exit_code == 0, result.output
    empty = '""' if name in ("string", "binary") else "null"
    assert values(cluster, topic) == [b'{"c":%b,"d":0}' % each.encode() for each in (expected, empty)]


def test_inferred_types_are_asked_for_and_late_misfits_are_faulty_rows(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    rows = 12_000  # more than the block of which the types are inferred
    good = b"7,007,,%b\n" % (b"x" * 100)
    path = written(tmp_path / "in.csv", b"n,zip,p,t\n" + good * rows + b"word,008,,\n8,009,1.5,\n")
    result = produce(cluster, topic, path, "--types", "infer,zip=string", "--on-error", "skip")
    assert result.exit_code == 0, result.output
    assert f"row {rows + 1} is left out: column 'n': 'word' is no int64" in result.output
    sent = objects(cluster, topic)
    assert (sent[0], sent[-1]) == (
        {"n": 7, "zip": "007", "p": None, "t": "x" * 100},
        {"n": 8, "zip": "009", "p": 1.5, "t": ""},
    )


def test_text_that_stands_for_nothing_elsewhere_is_no_null_where_types_are_inferred(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.csv", b"a,b\n1,1\nNA,\n")
    assert produce(cluster, topic, path, "--types", "infer").exit_code == 0
    assert objects(cluster, topic) == [{"a": "1", "b": 1}, {"a": "NA", "b": None}]


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


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "colour", "type": {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}},
        {"name": "renamed", "aliases": ["old"], "type": ["null", "double"], "default": None},
    ],
}


def test_schema_of_the_value_types_the_reading(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    schema = written(tmp_path / "r.avsc", json.dumps(AVRO).encode())
    rows = [
        ["id", "n", "price", "at", "colour", "old"],
        ["007", "7", "1.5", "1970-01-01T00:00:01Z", "RED", "0.5"],
        ["008", "", "", "", "RED", ""],
        ["009", "9", "1.555", "", "RED", ""],
        ["010", "10", "", "", "GREEN", ""],
        ["", "11", "", "", "BLUE", ""],
    ]
    path = written(tmp_path / "in.csv", as_csv(rows))
    options = ["--value-format", "avro", "--value-schema", str(schema), "--on-error", "skip", "--resume"]
    result = produce(cluster, topic, path, *options)
    assert result.exit_code == 0, result.output
    assert "row 2 is left out: column 'value.n' of type int64 is null" in result.output
    assert "row 3 is left out: column 'price': '1.555' is no decimal128(9, 2)" in result.output
    assert "row 4 is left out: column 'value.colour'" in result.output
    first, last = (fastavro.schemaless_reader(io.BytesIO(value or b""), AVRO, None) for value in values(cluster, topic))
    assert (first["id"], first["n"], str(first["price"]), first["renamed"]) == ("007", 7, "1.50", 0.5)  # type: ignore[index,call-overload]
    assert first["at"].timestamp() == 1  # type: ignore[index,call-overload,union-attr]
    assert last == {"id": "", "n": 11, "price": None, "at": None, "colour": "BLUE", "renamed": None}
    assert "0 records acknowledged" in produce(cluster, topic, path, *options).output


def test_schema_that_leaves_a_type_open_asks_for_it(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    fields = [{"name": "n", "type": ["null", "int", "double"]}, {"name": "t", "type": ["null", "int", "string"]}]
    schema = written(tmp_path / "r.avsc", json.dumps({"type": "record", "name": "R", "fields": fields}).encode())
    path = written(tmp_path / "in.csv", b"n,t\n1,1\n")
    options = ["--value-format", "avro", "--value-schema", str(schema)]
    result = produce(cluster, topic, path, *options)
    assert (result.exit_code, "has several types for 'n': give --types n=TYPE" in result.output) == (1, True)
    assert produce(cluster, topic, path, *options, "--types", "n=int32").exit_code == 0
    assert values(cluster, topic) == [b"\2\2\4\2" + b"1"]


def test_schema_of_one_column_types_it(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    schema = written(tmp_path / "n.avsc", b'"long"')
    path = written(tmp_path / "in.csv", b"n,t\n01,x\n")
    options = ["--value", "n", "--value-format", "avro", "--value-schema", str(schema)]
    assert produce(cluster, topic, path, *options).exit_code == 0
    assert values(cluster, topic) == [b"\2"]


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_partition_and_time_of_a_row_may_be_empty(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, policy: str
) -> None:
    path = written(tmp_path / "in.csv", b"v,at,to\n1,1700000000000,0\n2,,\n3,2020-01-01T00:00:00Z,0\n")
    options = ["--timestamp", "at", "--partition", "to", "--on-error", policy]
    result = produce(cluster, topic, path, *options)
    assert result.exit_code == 0, result.output
    first, second, third = (record.timestamp for record in cluster.messages(topic))
    assert (first, third) == (1_700_000_000_000, 1_577_836_800_000)
    assert second > third


def test_eight_digits_are_neither_a_day_nor_milliseconds(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.csv", b"v,at\n1,20200101\n"), "--timestamp", "at")
    assert (result.exit_code, "row 1: a timestamp is milliseconds" in result.output) == (1, True), result.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--types", "a"], "'a' is neither COL=TYPE nor infer"),
        (["--types", "a=int"], "'int' is no type: there are string, binary, bool, int8 to int64"),
        (["--types", "a=decimal(2,9)"], "'decimal(2,9)' is no type"),
        (["--types", "a=int8", "--types", "a=int8"], "names the column 'a' twice"),
        (["--format", "jsonl", "--types", "a=int8"], "--types is for --format csv"),
        (["--format", "jsonl", "--delimiter", ";"], "--delimiter is for --format csv"),
        (["--format", "csv", "--hex"], "--hex is for --format jsonl, and not for csv"),
        (["--delimiter", ";;"], "--delimiter is one ASCII character"),
        (["--delimiter", '"'], "--delimiter is one ASCII character"),
        (["--delimiter", "\u00a6"], "--delimiter is one ASCII character"),
    ],
)
def test_senseless_option_is_refused(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, options: list[str], reason: str
) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.csv", b"a,b\n1,2\n"), *options)
    assert (result.exit_code, reason in text_of(result)) == (2, True), result.output


def test_type_of_a_column_that_the_file_lacks_is_refused(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.csv", b"a,b\n1,2\n"), "--types", "c=int8")
    assert (result.exit_code, "names the column 'c', the file has a, b" in result.output) == (1, True)


# ---- delimiters


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("in.csv", b"a;b\n1,5;x\n", ["--delimiter", ";"]),
        ("in.csv", b"a\tb\n1,5\tx\n", ["--delimiter", "\\t"]),
        ("in.tsv", b"a\tb\n1,5\tx\n", []),
        ("in.TSV", b"a|b\n1,5|x\n", ["--delimiter", "|"]),
        ("in.txt", b"a b\n1,5 x\n", ["--format", "csv", "--delimiter", " "]),
    ],
)
def test_fields_stand_between_delimiters(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str, content: bytes, options: list[str]
) -> None:
    result = produce(cluster, topic, written(tmp_path / name, content), *options)
    assert result.exit_code == 0, result.output
    assert objects(cluster, topic) == [{"a": "1,5", "b": "x"}]


@pytest.mark.parametrize(
    ("name", "content", "wanted", "used"),
    [
        ("in.csv", b"a;b;c\n1;2;3\n", "';'", "','"),
        ("in.csv", b"a\tb\n1\t2\n", "'\\t'", "','"),
        ("in.csv", b"sep=;\na;b\n", "';'", "','"),
        ("in.tsv", b"a,b\n1,2\n", "','", "'\\t'"),
    ],
)
def test_header_of_one_column_with_another_delimiter_is_asked_about(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str, content: bytes, wanted: str, used: str
) -> None:
    path = written(tmp_path / name, content)
    result = produce(cluster, topic, path)
    assert result.exit_code == 1
    assert f"give --delimiter {wanted} if {wanted} separates the columns, and --delimiter {used} if" in text_of(result)
    assert values(cluster, topic) == []
    assert produce(cluster, topic, path, "--delimiter", used.strip("'"), "--on-error", "skip").exit_code == 0


# ---- the topic that was forgotten


@pytest.mark.parametrize("files", [[], ["other.csv"]])
def test_file_in_the_place_of_the_topic_is_refused(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("orders.csv", *files):
        written(tmp_path / name, b"a,b\n1,2\n")
    result = CliRunner().invoke(main, ["produce", "orders.csv", *files, "-b", cluster.bootstrap_servers])
    named = " ".join(["orders.csv", *files])
    assert (result.exit_code, f"orders.csv is a file: kafkabuf produce TOPIC {named}." in text_of(result)) == (2, True)
    assert "orders.csv" not in cluster.topics()


def test_topic_may_have_the_name_of_a_file_without_a_suffix_where_the_input_is_named(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / topic, b"")
    assert produce(cluster, topic, written(tmp_path / "in.csv", b"a\n1\n")).exit_code == 0
    assert objects(cluster, topic) == [{"a": "1"}]
    result = CliRunner().invoke(main, ["produce", topic, "-b", cluster.bootstrap_servers])
    assert (result.exit_code, f"{topic} is a file" in text_of(result)) == (2, True)


def test_name_of_a_file_in_the_place_of_the_topic_is_refused_also_where_the_file_is_missing() -> None:
    result = CliRunner().invoke(main, ["produce", "orders.csv.gz", "-b", "127.0.0.1:1"])
    assert (result.exit_code, "orders.csv.gz looks like a file" in text_of(result)) == (2, True)


def test_topic_with_the_name_of_a_file_takes_a_pipe(cluster: EmbeddedCluster, topic: str) -> None:
    name = f"{topic}.csv"
    cluster.create_topic(name)
    status, error = piped(cluster, name, "-", text=b"a\n")
    assert status == 0, error
    assert values(cluster, name) == [b"a"]


# ---- an input without a byte


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl", "in.csv", "in.tsv", "in.parquet", "in.arrow"])
def test_empty_file_has_no_records_in_each_format(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / name, b"")
    result = produce(cluster, topic, path)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, f"{path} is empty"), result.output
    assert "0 records acknowledged" in result.output


@pytest.mark.parametrize("kind", ["lines", "jsonl", "csv", "arrow"])
def test_empty_pipe_has_no_records_in_each_format(cluster: EmbeddedCluster, topic: str, kind: str) -> None:
    status, error = piped(cluster, topic, "--format", kind, text=b"")
    assert (status, error.startswith("the standard input is empty 0 records")) == (0, True), error


@pytest.mark.parametrize("content", [b"\n\r\n", b"\xef\xbb\xbf", b"a,b", b"a,b\n\n"])
def test_csv_without_rows_has_no_records(cluster: EmbeddedCluster, topic: str, tmp_path: Path, content: bytes) -> None:
    result = produce(cluster, topic, written(tmp_path / "in.csv", content))
    assert (result.exit_code, "0 records acknowledged" in result.output) == (0, True), result.output
