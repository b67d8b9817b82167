"""`kafkabuf spark`: an operator sees markers, open transactions and who holds back readers, and can end them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from kafkabuf import KafkaProducer
from kafkabuf.admin.admin import TransactionDescription
from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.cli import main
from kafkabuf.cli.connection import config_of, decoded, read_properties
from kafkabuf.cli.spark import state as spark_state
from kafkabuf.cli.spark.state import SinkName
from kafkabuf.config.secret import SecretStr
from kafkabuf.errors import ProducerFencedError, TransactionalIdAuthorizationError
from kafkabuf.protocol.messages import DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID, LIST_OFFSETS, OFFSET_FETCH
from kafkabuf.transactions.groups import OffsetAndMetadata
from rigs.real_kafka import RealKafka

_WRONG_USER = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="wrong";'
QUERY, RUN = str(uuid.uuid4()), str(uuid.uuid4())


class Sinks:
    """Writers of a cluster that behave as a sink's tasks do, and the command."""

    def __init__(self, bootstrap_servers: str, topic: str, stack: ExitStack) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.sink_id = f"sink-{topic}"
        self._stack = stack

    def begin(self, transactional_id: str | None = None, partition: int = 0) -> KafkaProducer:
        """A producer whose transaction is open, with one record. It never ends the transaction by itself."""
        producer = KafkaProducer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "transactional.id": transactional_id or f"kafkabuf-sink.{self.sink_id}:{partition}",
                "retry.backoff.ms": 5,
            }
        )
        self._stack.callback(producer.close, 0)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(self.topic, b"row", partition=partition).result(30)
        return producer

    def commit(self, producer: KafkaProducer, group: str, offset: int, **known: Any) -> None:
        marker = OffsetAndMetadata(offset, json.dumps({"rows": 1, "checksum": "ab", **known}))
        producer.send_offsets_to_transaction({(self.topic, 0): marker}, group)
        producer.commit_transaction()

    def write(self, micro_batch: int, partition: int = 0) -> KafkaProducer:
        """One task of a micro-batch (exactly_once)."""
        producer = self.begin(partition=partition)
        group = f"kafkabuf-sink.{self.sink_id}:{partition}"
        self.commit(producer, group, micro_batch + 1, query=QUERY, run=RUN)
        return producer

    def run(self, *arguments: str, given: str | None = None) -> Result:
        connection = ("--bootstrap-servers", self.bootstrap_servers, "--property", "retry.backoff.ms=5")
        return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["spark", *arguments, *connection], input=given)

    def status(self, *arguments: str) -> dict[str, Any]:
        result = self.run("status", *(arguments or (self.sink_id,)), "--json")
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def held_back(self) -> list[dict[str, Any]]:
        """The partitions of the topic whose readers wait."""
        return [held for held in self.status("--topic", self.topic)["held_back"] if held["topic"] == self.topic]


@pytest.fixture(scope="module", params=[2, 0], ids=["v2", "v1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, transaction_version=request.param, auto_create_topics=True) as cluster:
        yield cluster


@pytest.fixture
def sinks(cluster: EmbeddedCluster) -> Iterator[Sinks]:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=3)
    with ExitStack() as stack:
        yield Sinks(cluster.bootstrap_servers, topic, stack)


# ---- status ----------------------------------------------------------------------------------------------------------


def test_names_that_the_sink_gives_are_read_back() -> None:
    from kafkabuf.spark.reports import marker

    assert spark_state.PREFIX == marker.PREFIX
    assert SinkName.parse(marker.transactional_id_for("s.1")) == SinkName("s.1")
    assert SinkName.parse(marker.transactional_id_for("s", 12)) == SinkName("s", partition=12)
    assert SinkName.parse("kafkabuf-sink.s:write") == SinkName("s", write_id="")
    assert SinkName.parse("kafkabuf-sink.s:write:2026:1") == SinkName("s", write_id="2026:1")
    assert SinkName.parse("kafkabuf-sink.s:other") is None
    assert SinkName.parse("kafkabuf-sink.") is None
    assert SinkName.parse("orders") is None


def test_status_shows_each_marker_with_its_micro_batch_query_run_and_rows(sinks: Sinks) -> None:
    sinks.write(7, partition=1)
    sinks.write(7, partition=0)
    (sink,) = sinks.status()["sinks"]
    assert [marker["partition"] for marker in sink["markers"]] == [0, 1]
    first = sink["markers"][0]
    assert first["group"] == f"kafkabuf-sink.{sinks.sink_id}:0"
    assert (first["topic"], first["micro_batch"], first["rows"], first["checksum"]) == (sinks.topic, 7, 1, "ab")
    assert (first["query_id"], first["run_id"], first["write_id"]) == (QUERY, RUN, None)
    assert first["written_ms"] > 1_600_000_000_000
    table = sinks.run("status", sinks.sink_id).output
    assert "partitions 0-1 " in table
    assert QUERY in table


def test_table_has_a_row_for_each_micro_batch_and_names_its_partitions(sinks: Sinks) -> None:
    for partition in (0, 1, 2, 4):
        sinks.commit(
            sinks.begin(f"kafkabuf-sink.{sinks.sink_id}:{partition}", partition=0),
            f"kafkabuf-sink.{sinks.sink_id}:{partition}",
            9 if partition == 1 else 10,
            query=QUERY,
            run=RUN,
        )
    rows = [line.split() for line in sinks.run("status", sinks.sink_id).output.splitlines() if "partitions" in line]
    assert [row[2:6] for row in rows] == [["0,", "2,", "4", "│"], ["1", "│", "8", "│"]]


def test_status_shows_markers_of_writes_under_their_write_id(sinks: Sinks) -> None:
    name = f"kafkabuf-sink.{sinks.sink_id}"
    sinks.commit(sinks.begin(name), f"{name}:write:monday", 1, write="monday")
    sinks.commit(sinks.begin(name), f"{name}:write", 1)
    (sink,) = sinks.status()["sinks"]
    assert {marker["write_id"] for marker in sink["markers"]} == {"monday", ""}
    assert {marker["micro_batch"] for marker in sink["markers"]} == {None}
    assert {marker["written_ms"] for marker in sink["markers"]} == {None}, "nobody knows which write was the newest"


def test_status_of_one_sink_leaves_out_sinks_whose_names_begin_alike(sinks: Sinks) -> None:
    sinks.write(1)
    longer = sinks.begin(f"kafkabuf-sink.{sinks.sink_id}.1")
    sinks.commit(longer, f"kafkabuf-sink.{sinks.sink_id}.1", 1, query=QUERY, run=RUN)
    assert [sink["sink_id"] for sink in sinks.status()["sinks"]] == [sinks.sink_id]
    every = [sink["sink_id"] for sink in sinks.status("--topic", sinks.topic)["sinks"]]
    assert {sinks.sink_id, f"{sinks.sink_id}.1"} <= set(every)


def test_status_names_whoever_holds_back_readers_and_since_when(sinks: Sinks) -> None:
    sinks.write(1)
    sinks.begin()
    sinks.begin("payments", partition=2)
    found = sinks.status()
    (opened,) = found["sinks"][0]["transactions"]
    assert (opened["state"], opened["partitions"]) == ("Ongoing", [{"topic": sinks.topic, "partition": 0}])
    assert opened["ends_ms"] - opened["started_ms"] == 60_000
    ours, others = found["held_back"]
    assert (ours["partition"], ours["last_stable_offset"], ours["high_watermark"]) == (0, 2, 3)
    assert [each["transactional_id"] for each in ours["transactions"]] == [opened["transactional_id"]]
    assert (others["partition"], others["last_stable_offset"], others["high_watermark"]) == (2, 0, 1)
    (payments,) = others["transactions"]
    assert (payments["transactional_id"], payments["state"]) == ("payments", "Ongoing")
    assert payments["started_ms"] > 1_600_000_000_000
    table = sinks.run("status").output
    assert "payments" in table
    assert f"{sinks.topic}-2" in table


def test_oldest_open_transaction_of_a_partition_comes_first(sinks: Sinks) -> None:
    sinks.begin("newer-by-name-a")
    sinks.begin("a-later")
    (held,) = sinks.held_back()
    assert [each["transactional_id"] for each in held["transactions"]] == ["newer-by-name-a", "a-later"]


def test_status_creates_no_topic_that_it_is_asked_for(sinks: Sinks, cluster: EmbeddedCluster) -> None:
    found = sinks.status("--topic", "misspelt")
    assert "misspelt" in "".join(found["warnings"])
    assert "misspelt" not in cluster.topics()


def test_status_of_an_unknown_sink_fails_and_names_those_that_exist(sinks: Sinks) -> None:
    sinks.write(1)
    result = sinks.run("status", "unheard-of")
    assert result.exit_code == 1
    assert sinks.sink_id in result.output


def test_committed_offset_of_another_program_is_shown_without_a_micro_batch(sinks: Sinks) -> None:
    name = f"kafkabuf-sink.{sinks.sink_id}"
    producer = sinks.begin(name)
    producer.send_offsets_to_transaction({(sinks.topic, 0): OffsetAndMetadata(9, "not JSON")}, name)
    producer.commit_transaction()
    (sink,) = sinks.status()["sinks"]
    assert [(marker["micro_batch"], marker["query_id"]) for marker in sink["markers"]] == [(None, None)]


# ---- abort -----------------------------------------------------------------------------------------------------------


def test_abort_frees_the_readers_and_fences_the_writers(sinks: Sinks) -> None:
    writers = [sinks.begin(partition=partition) for partition in range(2)]
    result = sinks.run("abort", sinks.sink_id, given="y\n")
    assert result.exit_code == 0, result.output
    found = sinks.status()
    assert not found["sinks"][0]["transactions"]
    assert not sinks.held_back()
    for writer in writers:
        with pytest.raises(ProducerFencedError):
            writer.commit_transaction()


def test_abort_leaves_the_transactions_of_others_alone(sinks: Sinks) -> None:
    sinks.begin()
    other = sinks.begin(f"kafkabuf-sink.{sinks.sink_id}-2", partition=1)
    assert sinks.run("abort", sinks.sink_id, "--yes").exit_code == 0
    other.commit_transaction()


@pytest.mark.parametrize("command", ["abort", "forget"])
def test_answer_no_changes_nothing(sinks: Sinks, command: str) -> None:
    producer = sinks.write(1)
    if command == "abort":
        producer.begin_transaction()
        producer.send(sinks.topic, b"row", partition=0).result(30)
    before = sinks.status()
    assert sinks.run(command, sinks.sink_id, given="n\n").exit_code == 1
    assert sinks.status() == before


def test_abort_without_an_open_transaction_says_so_and_succeeds(sinks: Sinks) -> None:
    sinks.write(1)
    result = sinks.run("abort", sinks.sink_id)
    assert (result.exit_code, "no open transaction" in result.output) == (0, True)


@pytest.mark.parametrize("command", ["abort", "forget"])
def test_unknown_sink_is_an_error(sinks: Sinks, command: str) -> None:
    result = sinks.run(command, "unheard-of")
    assert result.exit_code == 1
    assert "unheard-of" in result.output


# ---- forget ----------------------------------------------------------------------------------------------------------


def test_forget_deletes_every_marker_of_the_sink_and_of_no_other(sinks: Sinks) -> None:
    sinks.write(1, partition=0)
    sinks.write(1, partition=1)
    other = f"kafkabuf-sink.{sinks.sink_id}x"
    sinks.commit(sinks.begin(other), other, 1, query=QUERY, run=RUN)
    assert sinks.run("forget", sinks.sink_id, "--yes").exit_code == 0
    left = {sink["sink_id"]: sink["markers"] for sink in sinks.status("--topic", sinks.topic)["sinks"]}
    assert left[sinks.sink_id] == []
    assert len(left[f"{sinks.sink_id}x"]) == 1


def test_forget_of_one_partition_or_write_keeps_the_other_markers(sinks: Sinks) -> None:
    for partition in range(2):
        sinks.write(1, partition=partition)
    name = f"kafkabuf-sink.{sinks.sink_id}"
    sinks.commit(sinks.begin(name), f"{name}:write:monday", 1, write="monday")
    assert sinks.run("forget", sinks.sink_id, "--partition", "1", "--yes").exit_code == 0
    assert sinks.run("forget", sinks.sink_id, "--write-id", "monday", "--yes").exit_code == 0
    (sink,) = sinks.status()["sinks"]
    assert [marker["group"] for marker in sink["markers"]] == [f"{name}:0"]


def test_forget_refuses_while_a_transaction_is_open(sinks: Sinks) -> None:
    sinks.write(1)
    sinks.begin(partition=1)
    result = sinks.run("forget", sinks.sink_id, "--yes")
    assert result.exit_code == 1
    assert f"kafkabuf spark abort {sinks.sink_id}" in result.output
    assert sinks.status()["sinks"][0]["markers"]


# ---- rights ----------------------------------------------------------------------------------------------------------


class Answer:
    """Calls a function while the command waits for the answer to its question, and answers yes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
        def confirm(text: str, **options: Any) -> bool:
            meanwhile()
            return True

        monkeypatch.setattr(click, "confirm", confirm)


@pytest.fixture
def no_describe(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kafka lists no transactional id to a user who may not describe it, and says so to a request by name only."""
    monkeypatch.setattr(TransactionAdmin, "transactions", lambda *_, **__: [])
    cluster.fail_next(DESCRIBE_TRANSACTIONS, 53, times=50)
    yield
    cluster.clear_faults()


@pytest.mark.usefixtures("no_describe")
def test_forget_deletes_nothing_without_the_right_to_see_transactions(sinks: Sinks, cluster: EmbeddedCluster) -> None:
    cluster.clear_faults()
    sinks.write(1)
    cluster.fail_next(DESCRIBE_TRANSACTIONS, 53, times=50)
    result = sinks.run("forget", sinks.sink_id, "--yes")
    assert result.exit_code == 1
    assert "Describe on the transactional ids" in result.output
    cluster.clear_faults()
    assert sinks.status()["sinks"][0]["markers"]


def test_forget_asks_for_the_transactions_of_the_markers_by_name(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks.write(1, partition=1)
    sinks.begin(partition=1)
    monkeypatch.setattr(TransactionAdmin, "transactions", lambda *_, **__: [])
    result = sinks.run("forget", sinks.sink_id, "--yes")
    assert (result.exit_code, f"kafkabuf spark abort {sinks.sink_id}" in result.output) == (1, True)


def test_forget_refuses_if_a_transaction_begins_before_the_answer(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sinks.write(1)

    def begin() -> None:
        writer.begin_transaction()
        writer.send(sinks.topic, b"row", partition=0).result(30)

    Answer(monkeypatch, begin)
    assert sinks.run("forget", sinks.sink_id).exit_code == 1
    assert sinks.status()["sinks"][0]["markers"]


@pytest.mark.usefixtures("no_describe")
def test_abort_does_not_say_that_nothing_is_open_if_it_may_not_see_that(sinks: Sinks) -> None:
    result = sinks.run("abort", sinks.sink_id, "--yes")
    assert result.exit_code == 1
    assert f"kafkabuf-sink.{sinks.sink_id}" in result.output
    assert "needs Describe" in result.output
    assert "no open transaction" not in result.output


def test_abort_ends_what_it_may_see_and_fails_for_the_rest(
    sinks: Sinks, cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, seen = sinks.begin(partition=0), sinks.begin(partition=1)
    ask = TransactionAdmin.transaction

    def transaction(self: TransactionAdmin, name: str) -> TransactionDescription:
        if name.endswith(":0"):
            raise TransactionalIdAuthorizationError("no")
        return ask(self, name)

    monkeypatch.setattr(TransactionAdmin, "transaction", transaction)
    result = sinks.run("abort", sinks.sink_id, "--yes")
    assert (result.exit_code, f"kafkabuf-sink.{sinks.sink_id}:0" in result.stderr) == (1, True)
    with pytest.raises(ProducerFencedError):
        seen.commit_transaction()
    hidden.commit_transaction()


def test_abort_names_the_right_that_it_lacks(sinks: Sinks, cluster: EmbeddedCluster) -> None:
    sinks.begin()
    cluster.fail_next(INIT_PRODUCER_ID, 53)
    result = sinks.run("abort", sinks.sink_id, "--yes")
    assert (result.exit_code, "needs Write on the transactional id" in result.stderr) == (1, True)


def test_status_says_which_rights_are_missing(sinks: Sinks, cluster: EmbeddedCluster) -> None:
    sinks.write(1)
    cluster.fail_next(DESCRIBE_TRANSACTIONS, 53, times=2)
    assert "Note: open transactions" in sinks.run("status", "unheard-of").stderr
    cluster.fail_next(DESCRIBE_TRANSACTIONS, 53, times=2)
    found = sinks.status()
    cluster.clear_faults()
    assert found["incomplete"] == ["transactions"]
    assert "needs Describe on the transactional ids" in "".join(found["warnings"])
    cluster.fail_next(DESCRIBE_TRANSACTIONS, 53, times=2)
    text = sinks.run("status", sinks.sink_id).output
    cluster.clear_faults()
    assert "no open transaction that this user may see" in text
    cluster.fail_next(OFFSET_FETCH, 30, times=2)
    text = sinks.run("status", sinks.sink_id).output
    cluster.clear_faults()
    assert "no marker that this user may see" in text
    assert "Describe on the groups" in text
    cluster.fail_next(LIST_OFFSETS, 29, times=1)
    text = sinks.run("status", sinks.sink_id).output
    cluster.clear_faults()
    assert "No reader of these topics is known to wait" in text


# ---- a transaction that ends by itself -------------------------------------------------------------------------------


def test_abort_spares_the_transaction_that_began_after_the_question(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = sinks.begin()

    def next_transaction() -> None:
        writer.commit_transaction()
        writer.begin_transaction()
        writer.send(sinks.topic, b"row", partition=0).result(30)

    Answer(monkeypatch, next_transaction)
    result = sinks.run("abort", sinks.sink_id)
    assert (result.exit_code, "another transaction has begun" in result.output) == (1, True)
    writer.commit_transaction()


def test_abort_goes_on_behind_a_transaction_that_has_ended_meanwhile(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sinks.begin(partition=0), sinks.begin(partition=1)
    Answer(monkeypatch, first.commit_transaction)
    result = sinks.run("abort", sinks.sink_id)
    assert (result.exit_code, "has ended meanwhile (CompleteCommit)" in result.output) == (1, True)
    with pytest.raises(ProducerFencedError):
        second.commit_transaction()
    first.begin_transaction()
    first.send(sinks.topic, b"row", partition=0).result(30)
    first.commit_transaction()


def test_transaction_that_the_coordinator_is_ending_is_named_with_its_state(
    sinks: Sinks, cluster: EmbeddedCluster
) -> None:
    sinks.begin()
    cluster.hold_markers()
    try:
        for _ in range(2):
            result = sinks.run("abort", sinks.sink_id, "--yes", "--property", "max.block.ms=800")
            assert result.exit_code == 1
            assert f"kafkabuf-sink.{sinks.sink_id}:0" in result.output
            assert "PrepareAbort: the coordinator is ending it" in result.output
            assert f"{sinks.topic}-0" in result.output
        assert [each["ends_ms"] for each in sinks.status()["sinks"][0]["transactions"]] == [None]
        assert "is being ended" in sinks.run("status", sinks.sink_id).output
    finally:
        cluster.release_markers()


# ---- output ----------------------------------------------------------------------------------------------------------


def _process(*arguments: str, output: Any = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "kafkabuf", "spark", *arguments],
        stdout=output,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        check=False,
    )


def test_lines_in_a_pipe_are_whole_and_names_are_escaped_in_every_encoding(sinks: Sinks) -> None:
    name = f"kafkabuf-sink.{sinks.sink_id}"
    sinks.commit(sinks.begin(name), f"{name}:write:{'long' * 60}", 1, write="w")
    sinks.begin("payments \x1b[31m Zürich 支付")
    done = _process("status", "--bootstrap-servers", sinks.bootstrap_servers, PYTHONIOENCODING="latin-1", COLUMNS="40")
    assert done.returncode == 0, done.stderr
    assert ("long" * 60).encode() in done.stdout
    assert b"payments \\x1b[31m Z\xfcrich \\u652f\\u4ed8" in done.stdout
    assert b"\x1b" not in done.stdout


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["table", "json"])
def test_full_device_is_an_error_without_a_traceback(sinks: Sinks, more: list[str]) -> None:
    sinks.write(1)
    with open("/dev/full", "w") as full:
        done = _process("status", *more, "--bootstrap-servers", sinks.bootstrap_servers, output=full)
    assert done.returncode == 1
    assert done.stderr.decode() == "Error: the output cannot be written: No space left on device\n"


# ---- the connection --------------------------------------------------------------------------------------------------


def test_settings_come_from_a_properties_file_of_kafkas_tools(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    with EmbeddedCluster(brokers=1, security=Security(users={"alice": "secret"})) as cluster:
        file.write_text(
            "# for every tool\n"
            f"bootstrap.servers={cluster.bootstrap_servers}\n"
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism = PLAIN\ngroup.id=unused\n"
            "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
            '    username="alice" \\\n    password="secret";\n'
        )
        result = CliRunner().invoke(main, ["spark", "status", "--json", "--config", str(file)])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["sinks"] == []
        assert "group.id" in result.stderr
        result = CliRunner().invoke(
            main, ["spark", "status", "--config", str(file), "--property", f"sasl.jaas.config={_WRONG_USER}"]
        )
        assert result.exit_code == 1
        assert "--config" in result.output


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("a=b", "a", "b"),
        ("  a : b c ", "a", "b c "),
        ("a b=c", "a", "b=c"),
        ("a", "a", ""),
        ("a=", "a", ""),
        (r"a\ b\:c=d", "a b:c", "d"),
        (r"a=\u00e9\t\\", "a", "é\t\\"),
        ("a=b\\\n   c", "a", "bc"),
        ("#x=y\n!z=y\n\na==b", "a", "=b"),
        (r"a=C:\\data", "a", "C:\\data"),
    ],
)
def test_properties_are_read_as_java_reads_them(line: str, name: str, value: str) -> None:
    assert read_properties(line) == {name: value}


def test_properties_are_utf_8_or_else_latin_1() -> None:
    assert read_properties(decoded("\ufeffa=Zürich".encode())) == {"a": "Zürich"}
    assert read_properties(decoded("a=Zürich\x85\xa0b".encode("latin-1"))) == {"a": "Zürich\x85\xa0b"}


def test_settings_that_other_programs_need_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"
    others = {
        "interceptor.classes": "x.Y",
        "metric.reporters": "x.Y",
        "partitioner.class": "x.Y",
        "key.serializer": "x.Y",
        "value.deserializer": "x.Y",
        "client.dns.lookup": "default",
        "group.id": "g",
        "enable.idempotence": "false",
        "transactional.id": "t",
        "acks": "0",
        "ssl.protocol": "TLS",
    }
    file.write_text("request.timeout.ms=7000\n" + "".join(f"{name}={value}\n" for name, value in others.items()))
    config = config_of("broker:9092", file, ())
    assert (config.request_timeout_ms, config.transactional_id) == (7000, None)
    told = capsys.readouterr().err
    assert told == f"ignored, since this command does not use these settings: {', '.join(sorted(others))}\n"


def test_settings_may_have_the_names_of_librdkafka(tmp_path: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_text("the key")
    chain.write_text("the chain")
    file = tmp_path / "kcat.conf"
    file.write_text("metadata.broker.list=broker:9092\nsasl.mechanisms=PLAIN\nssl.ca.location=ca.pem\n")
    given = ["queue.buffering.max.ms=7", "message.timeout.ms=130000", "partitioner=murmur2_random"]
    given += [f"ssl.key.location={key}", f"ssl.certificate.location={chain}"]
    config = config_of(None, file, tuple(given))
    assert config.bootstrap_servers == (("broker", 9092),)
    assert (config.sasl_mechanism, config.ssl_truststore_location) == ("PLAIN", "ca.pem")
    assert (config.linger_ms, config.delivery_timeout_ms) == (7, 130_000)
    assert config.partitioner_class == "murmur2_random"
    assert config.ssl_keystore_key == SecretStr("the key")
    assert config.ssl_keystore_certificate_chain == SecretStr("the chain")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("queue.buffering.max.kbytes=1", "use buffer.memory; it is in bytes"),
        ("ssl.key.location=/nowhere", "ssl.key.location: '/nowhere' cannot be read"),
    ],
)
def test_setting_of_librdkafka_with_another_meaning_is_refused(setting: str, text: str) -> None:
    with pytest.raises(click.UsageError, match=text):
        config_of("broker:9092", None, (setting,))


def test_setting_of_the_line_wins_in_either_spelling(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("max.block.ms=5\n")
    assert config_of("broker:9092", file, ("max_block_ms=6",)).max_block_ms == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["status"], "--bootstrap-servers"),
        (["status", "--bootstrap-servers", "x"], "bootstrap.servers"),
        (["status", "--bootstrap-servers", "x:1", "--property", "linger"], "NAME=VALUE"),
        (["status", "--bootstrap-servers", "x:1", "--property", "max.blok.ms=1"], "max.block.ms"),
        (
            [
                *("status", "--bootstrap-servers", "x:1", "--property", "security.protocol=SSL"),
                *("--property", "ssl.truststore.location=/nowhere"),
            ],
            "ssl.truststore.location",
        ),
        (["forget", "s", "--partition", "1", "--write-id", "w", "--bootstrap-servers", "x:1"], "one of the two"),
    ],
)
def test_wrong_options_are_named_with_status_2(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["spark", *arguments])
    assert result.exit_code == 2
    assert text in result.output


def test_brokers_that_do_not_answer_are_named() -> None:
    address = "127.0.0.1:1"  # nobody listens on tcpmux
    result = CliRunner().invoke(
        main, ["spark", "status", "--bootstrap-servers", address, "--property", "max.block.ms=300"]
    )
    assert result.exit_code == 1
    assert f"See that Kafka runs at {address}" in result.output


def test_command_needs_no_spark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from click.testing import CliRunner; from kafkabuf.cli import main\n"
        "result = CliRunner().invoke(main, ['spark', 'status', '--bootstrap-servers', '127.0.0.1:1',"
        " '--property', 'max.block.ms=1'])\n"
        "assert result.exit_code == 1 and 'See that Kafka runs' in result.output, result.output"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- real Kafka ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["kafka_4", "kafka_3_9"])
def test_command_works_with_apache_kafka(server: str, request: pytest.FixtureRequest) -> None:
    kafka = request.getfixturevalue(server)
    assert isinstance(kafka, RealKafka)
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, 3)
    with ExitStack() as stack:
        sinks = Sinks(kafka.bootstrap_servers, topic, stack)
        sinks.write(7, partition=1)
        (marker,) = sinks.status()["sinks"][0]["markers"]
        assert (marker["micro_batch"], marker["query_id"], marker["rows"]) == (7, QUERY, 1)
        assert marker["expires_ms"] - marker["written_ms"] == 7 * 24 * 3_600_000
        writer = sinks.begin(partition=0)
        sinks.begin("payments", partition=2)
        found = sinks.status()
        assert [held["transactions"][0]["transactional_id"] for held in found["held_back"]] == [
            f"kafkabuf-sink.{sinks.sink_id}:0",
            "payments",
        ]
        assert all(held["transactions"][0]["started_ms"] for held in found["held_back"])
        assert sinks.run("forget", sinks.sink_id, "--yes").exit_code == 1
        assert sinks.run("abort", sinks.sink_id, "--yes").exit_code == 0
        with pytest.raises(ProducerFencedError):
            writer.commit_transaction()
        assert [held["partition"] for held in sinks.status()["held_back"]] == [2]
        assert sinks.run("forget", sinks.sink_id, "--yes").exit_code == 0
        assert sinks.status()["sinks"][0]["markers"] == []
