"""The ACLs of docs/spark.md: they suffice, and each of them is needed.

The servers are Apache Kafka 4.1.2 with StandardAuthorizer, and the embedded cluster.

The test takes the lines from the page. It runs the writers of the sink in this process, as Spark does.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafkabuf import KafkaProducer
from kafkabuf.admin.transactions import TransactionAdmin
from kafkabuf.broker import EmbeddedCluster, Security
from kafkabuf.cli import main
from kafkabuf.config import ProducerConfig
from kafkabuf.errors import KafkaError
from kafkabuf.spark.options.options import SinkOptions
from kafkabuf.spark.sink import ArrowSink
from kafkabuf.spark.worker import notes, workers
from kafkabuf.spark.worker.place import MicroBatch, TaskAttempt
from kafkabuf.spark.writer import BatchWriter, StreamWriter
from kafkabuf.transactions.groups import OffsetAndMetadata
from rigs.jars import java, resolve_kafka, resolve_kafka_tools
from rigs.ports import free_ports
from rigs.real_kafka import KAFKA_4, TEST_JVM, TOOL_JVM, RealKafka, logging
from tests.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/spark.md"
TOPIC, DEAD, SINK = "orders", "orders-dead", "orders-sink"
USERS = ("spark", "oncall")
ADMIN = "admin"
PASSWORD = "secret"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# librdkafka takes None for "any name", which its types do not know.
ANY = AclBindingFilter(
    ResourceType.ANY,
    None,  # type: ignore[arg-type]
    ResourcePatternType.ANY,
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    AclOperation.ANY,
    AclPermissionType.ANY,
)


class GuardedKafka(RealKafka):
    """A node that asks its users for passwords and ACLs. Whoever comes by the listener of the harness may do all."""

    def __init__(self) -> None:
        super().__init__(KAFKA_4, jvm_options=TEST_JVM)
        self.users_address = ""

    def _properties(self, port: int, controller_port: int) -> dict[str, str]:
        plain = super()._properties(port, controller_port)
        (users_port,) = free_ports(1)
        self.users_address = f"127.0.0.1:{users_port}"
        known = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
        more = {name: f"{plain[name]},USERS://{self.users_address}" for name in ("listeners", "advertised.listeners")}
        return plain | more | {
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},USERS:SASL_PLAINTEXT",
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f"{LOGIN} required {known};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }  # fmt: skip

    def settings_of(self, user: str) -> dict[str, str]:
        return _settings(self.users_address, user)

    def settings_of_admin(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap_servers, "retry.backoff.ms": "5"}


class GuardedCluster(EmbeddedCluster):
    """The embedded cluster with the same users, and a super user."""

    def __init__(self) -> None:
        users = dict.fromkeys((*USERS, ADMIN), PASSWORD)
        super().__init__(security=Security(users=users, authorizer=True, super_users=[f"User:{ADMIN}"]))

    def settings_of(self, user: str) -> dict[str, str]:
        return _settings(self.bootstrap_servers, user)

    def settings_of_admin(self) -> dict[str, str]:
        return {name: value for name, value in self.settings_of(ADMIN).items() if name != "max.block.ms"}


Guarded = GuardedKafka | GuardedCluster


def _settings(servers: str, user: str) -> dict[str, str]:
    return {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "max.block.ms": "10000",
        "retry.backoff.ms": "5",
    }


@pytest.fixture(scope="module")
def kafka() -> Iterator[GuardedKafka]:
    server = GuardedKafka()
    with server:
        server.create_topic(TOPIC, 2)
        server.create_topic(DEAD, 1, {"max.message.bytes": "100000"})
        yield server


@pytest.fixture(scope="module")
def embedded() -> Iterator[GuardedCluster]:
    server = GuardedCluster()
    with server:
        server.create_topic(TOPIC, 2)
        server.create_topic(DEAD, configs={"max.message.bytes": "100000"})
        yield server


# ---- the page --------------------------------------------------------------------------------------------------------


def lines_by_heading() -> dict[str, list[str]]:
    """The lines of the page's block, by the comment above them."""
    (block,) = re.findall(r"```sh\n(acls=.*?)```", PAGE.read_text(), re.DOTALL)
    assignment, *rest = block.splitlines()
    (command,) = shlex.split(assignment.removeprefix("acls="))
    lines: dict[str, list[str]] = {}
    for line in rest:
        if line.startswith("#"):
            heading = line.removeprefix("# ").partition(",")[0]
            lines[heading] = []
        else:
            lines[heading].append(line.replace("$acls", command))
    return lines


LINES = lines_by_heading()
_PARSER = argparse.ArgumentParser()
for _name in ("bootstrap-server", "command-config", "allow-principal", "operation", "topic", "group"):
    _PARSER.add_argument(f"--{_name}")
_PARSER.add_argument("--transactional-id")
_PARSER.add_argument("--resource-pattern-type", default="literal")
_PARSER.add_argument("--add", action="store_true", required=True)
_PARSER.add_argument("--cluster", action="store_true")


def binding(line: str) -> AclBinding:
    """What kafka-acls makes of a line."""
    given = _PARSER.parse_args(shlex.split(line)[1:])
    kinds = {
        ResourceType.TOPIC: given.topic,
        ResourceType.GROUP: given.group,
        ResourceType.TRANSACTIONAL_ID: given.transactional_id,
        ResourceType.BROKER: "kafka-cluster" if given.cluster else None,
    }
    ((kind, name),) = [(kind, name) for kind, name in kinds.items() if name is not None]
    operation = re.sub("(?<=[a-z])(?=[A-Z])", "_", given.operation).upper()
    return AclBinding(
        kind,
        name,
        ResourcePatternType[given.resource_pattern_type.upper()],
        given.allow_principal,
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )


def allow_only(kafka: Guarded, lines: Iterable[str]) -> None:
    admin = AdminClient(dict(kafka.settings_of_admin()))
    wanted = {binding(line) for line in lines}
    for deleted in admin.delete_acls([ANY]).values():
        deleted.result(30)
    for made in (admin.create_acls(list(wanted)) if wanted else {}).values():
        made.result(30)
    await_acls(admin, wanted)


def await_acls(admin: AdminClient, wanted: set[AclBinding]) -> None:
    """The broker learns of the controller's decision a moment later."""
    wait_until(lambda: set(admin.describe_acls(ANY).result(30)) == wanted)


# ---- what users do ---------------------------------------------------------------------------------------------------


class Users:
    """Spark and the person on call. Each call begins without markers, and without clients of an earlier call."""

    def __init__(self, kafka: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = kafka
        self._monkeypatch = monkeypatch
        # No worker of an earlier call has left a note.
        monkeypatch.setattr(notes, "folder_of", lambda pid: None)

    @contextmanager
    def without_traces(self) -> Iterator[None]:
        try:
            yield
        finally:
            workers.close_all()
            self._clean()

    def _clean(self) -> None:
        config = ProducerConfig.from_mapping(self.kafka.settings_of_admin())
        with TransactionAdmin(config) as admin:
            for transaction in admin.transactions("kafkabuf-sink."):
                admin.fence(transaction.transactional_id)
            for group in admin.groups("kafkabuf-sink."):
                admin.delete_group(group)

    def write(self, guarantee: str, is_stream: bool = True, **more: str) -> None:
        kafkas = {f"kafka.{name}": value for name, value in self.kafka.settings_of("spark").items()}
        options = SinkOptions.parse({**kafkas, "topic": TOPIC, "deliveryguarantee": guarantee, "sinkid": SINK, **more})
        sink = ArrowSink(options, ("value", "partition"))
        micro_batch = MicroBatch(0, "query", "run") if is_stream else None
        self._monkeypatch.setattr(TaskAttempt, "current", lambda: TaskAttempt(0, 0, micro_batch, 0))
        writer = pickle.loads(pickle.dumps(StreamWriter(sink) if is_stream else BatchWriter(sink)))
        partitions = pa.array([0, 9 if "onrowerror" in more else 1], pa.int32())  # there is no partition 9
        report = writer.write(iter([pa.record_batch({"value": [b"1", b"2"], "partition": partitions})]))
        if is_stream:
            StreamWriter(sink).commit([report], 0)
        else:
            writer.commit([report])

    def read_limits(self) -> None:
        """As the driver does before a write (limits.py)."""
        with TransactionAdmin(ProducerConfig.from_mapping(self.kafka.settings_of("spark"))) as admin:
            _require("max.message.bytes" in admin.topic_configs(TOPIC, ["max.message.bytes"]))

    def command(self, *arguments: str) -> str:
        """What the command prints for the person on call. Raises KafkaError where it fails."""
        settings = [f"--property={name}={value}" for name, value in self.kafka.settings_of("oncall").items()]
        result = CliRunner().invoke(main, ["spark", *arguments, *settings])
        if result.exit_code:
            raise KafkaError(result.output)
        return result.stdout

    @contextmanager
    def stream(self, *, left_open: bool) -> Iterator[None]:
        """A sink with a marker, and with an open transaction if wanted."""
        name = f"kafkabuf-sink.{SINK}"
        metadata = '{"query":"q","run":"r","rows":1,"checksum":"0"}'
        with KafkaProducer(self.kafka.settings_of_admin(), transactional_id=name) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({(TOPIC, 0): OffsetAndMetadata(1, metadata)}, name)
            producer.commit_transaction()
            if left_open:
                producer.begin_transaction()
                producer.send(TOPIC, b"row", partition=1).result(30)
            yield
            producer.close(0)

    def status(self) -> None:
        with self.stream(left_open=False):
            found = json.loads(self.command("status", "--json"))
            markers = [marker for sink in found["sinks"] for marker in sink["markers"]]
            _require([marker["expires_ms"] is not None for marker in markers] == [True])
        with self.stream(left_open=True):
            found = json.loads(self.command("status", "--topic", TOPIC, "--json"))
            holders = [each["transactional_id"] for held in found["held_back"] for each in held["transactions"]]
            _require(holders == [f"kafkabuf-sink.{SINK}"])
            _require(not found["warnings"])

    def abort(self) -> None:
        with self.stream(left_open=True):
            _require("ended" in self.command("abort", SINK, "--yes"))

    def forget(self) -> None:
        with self.stream(left_open=False):
            _require("1 marker deleted" in self.command("forget", SINK, "--yes"))
        with self.stream(left_open=True):
            refused = ""
            try:
                self.command("forget", SINK, "--yes")
            except KafkaError as error:
                refused = str(error)
            _require(f"kafkabuf spark abort {SINK}" in refused)


def _require(holds: bool) -> None:
    if not holds:
        raise KafkaError("the command did not see or do everything")


TRANSACTIONAL = ("at_least_once", "exactly_once and atomic")
CASES: dict[str, tuple[Callable[[Users], None], tuple[str, ...]]] = {
    "at_least_once": (lambda users: users.write("at_least_once"), ("at_least_once",)),
    "dead_letter": (
        lambda users: users.write("at_least_once", onrowerror="dead_letter", deadlettertopic=DEAD),
        ("at_least_once", "dead_letter"),
    ),
    "exactly_once": (lambda users: users.write("exactly_once"), TRANSACTIONAL),
    "atomic stream": (lambda users: users.write("atomic"), TRANSACTIONAL),
    "atomic df.write": (lambda users: users.write("atomic", is_stream=False), TRANSACTIONAL),
    "atomic df.write with a writeId": (lambda users: users.write("atomic", False, writeid="monday"), TRANSACTIONAL),
    "limits": (Users.read_limits, ("to judge rows before they are sent",)),
    "status": (Users.status, ("status",)),
    "abort": (Users.abort, ("abort",)),
    "forget": (Users.forget, ("forget",)),
}


@pytest.mark.parametrize("case", CASES)
def test_lines_of_the_page_suffice_and_each_is_needed(
    kafka: GuardedKafka, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    assert_suffice(kafka, Users(kafka, monkeypatch), case)


# The embedded cluster keeps offsets for ever: its nodes have no offsets.retention.minutes, which `status` asks for.
@pytest.mark.parametrize("case", [case for case in CASES if case != "status"])
def test_lines_of_the_page_suffice_on_the_embedded_cluster(
    embedded: GuardedCluster, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    assert_suffice(embedded, Users(embedded, monkeypatch), case)


def assert_suffice(kafka: Guarded, users: Users, case: str) -> None:
    """The lines for a case suffice, and without any of them the case fails."""
    run, headings = CASES[case]
    lines = [line for heading in headings for line in LINES[heading]]
    assert lines
    allow_only(kafka, lines)
    with users.without_traces():
        run(users)
    for number in range(len(lines)):
        allow_only(kafka, lines[:number] + lines[number + 1 :])
        with users.without_traces(), pytest.raises(KafkaError):
            run(users)


def test_every_heading_of_the_page_is_tried() -> None:
    tried = {heading for _, headings in CASES.values() for heading in headings}
    assert set(LINES) == tried


@pytest.mark.slow  # starts a JVM for each line
def test_kafkas_own_tool_takes_the_lines_of_the_page(kafka: GuardedKafka) -> None:
    allow_only(kafka, [])
    classpath = f"{resolve_kafka_tools(KAFKA_4)}/*:{resolve_kafka(KAFKA_4)}/*"
    tool = [java(), *TOOL_JVM, *logging("error"), "-cp", classpath, "org.apache.kafka.tools.AclCommand"]
    lines = sorted({line for heading in LINES.values() for line in heading})
    for line in lines:
        # The harness's listener takes anybody, so the settings of the connection are left out.
        words = shlex.split(line.replace("broker:9092", kafka.bootstrap_servers))[1:]
        place = words.index("--command-config")
        done = subprocess.run([*tool, *words[:place], *words[place + 2 :]], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    await_acls(AdminClient(dict(kafka.settings_of_admin())), {binding(line) for line in lines})
