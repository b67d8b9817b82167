"""Every guarantee holds for every row, whatever fails: drawn rows, topics, policies, partitions, failures and replays.

A good row is in its topic once, or at least once. A row that the topic refuses is where `onRowError` says, and nowhere
else. Readers with read_committed see the rows of an atomic write all at once. No transaction stays open in the end.
The tests call the sink as Spark does (simulated.py) and read with librdkafka.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from unittest import mock

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.broker.records.validator import RefusedRecordsError
from kafkabuf.protocol.messages import INCREMENTAL_ALTER_CONFIGS, LIST_OFFSETS
from tests.broker.raw_client import RawClient
from tests.effort import effort
from tests.spark.simulated import Application, AttemptTrouble, Death, Died, JobError, Plan, simulation

SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("timestamp", TimestampType()),
    ]
)
ARROW = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
ARROW_ROWS = 3
MAX_MESSAGE_BYTES, MAX_REQUEST_SIZE = 4_000, 12_000
STRICT = {
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
    "message.timestamp.before.max.ms": "86400000",
    "cleanup.policy": "compact,delete",
}
SETTINGS = {
    "kafka.max.block.ms": "10000",
    "kafka.retry.backoff.ms": "5",
    "kafka.buffer.memory": "4000000",
    "kafka.max.request.size": str(MAX_REQUEST_SIZE),
    "logReport": "off",
}


class Kind(Enum):
    """What is wrong with a row."""

    GOOD = "good"
    TOO_LARGE_TO_SEND = "larger than max.request.size"
    NO_PARTITION = "a partition that the topic does not have"
    NO_TOPIC = "null instead of a topic"
    ILLEGAL_TOPIC = "no topic can have this name"
    TOO_LARGE = "larger than max.message.bytes"
    NO_KEY = "no key, on a compacted topic"
    EARLY = "a timestamp before message.timestamp.before.max.ms"
    LATE = "a timestamp after message.timestamp.after.max.ms"


OF_TOPIC_COLUMN = (Kind.NO_TOPIC, Kind.ILLEGAL_TOPIC)
POLICIES = ("fail", "skip", "dead_letter")


@dataclass(frozen=True)
class Row:
    """`name` is the key, and begins the value."""

    name: str
    kind: Kind
    partition: int

    def values(self, topic: str, now: datetime) -> tuple[str | None, bytes, str | None, int, datetime]:
        size = {Kind.TOO_LARGE_TO_SEND: 2 * MAX_REQUEST_SIZE, Kind.TOO_LARGE: 2 * MAX_MESSAGE_BYTES}.get(self.kind, 20)
        days = {Kind.EARLY: -2, Kind.LATE: 1}.get(self.kind, 0)
        return (
            None if self.kind is Kind.NO_KEY else self.name,
            f"{self.name} ".encode().ljust(size, b"."),
            {Kind.NO_TOPIC: None, Kind.ILLEGAL_TOPIC: "no/topic"}.get(self.kind, topic),
            99 if self.kind is Kind.NO_PARTITION else self.partition,
            now + timedelta(days=days),
        )


UNDISTURBED = Plan()


@dataclass(frozen=True)
class Run:
    """One attempt of a micro-batch or write, by `parallelism` tasks. `topic_changes`: the topic becomes strict after
    the driver has begun the write. `new_jvm`: after a failure the query starts again in another JVM."""

    parallelism: int
    plan: Plan = UNDISTURBED
    topic_changes: bool = False
    new_jvm: bool = True


@dataclass(frozen=True)
class Written:
    """A micro-batch, or a df.write: its rows, the runs that may fail, and the parallelism of the first and last."""

    rows: tuple[Row, ...]
    runs: tuple[Run, ...]
    parallelism: int

    @property
    def good(self) -> set[str]:
        return {row.name for row in self.rows if row.kind is Kind.GOOD}

    @property
    def bad(self) -> set[str]:
        return {row.name for row in self.rows if row.kind is not Kind.GOOD}


@dataclass(frozen=True)
class Scenario:
    guarantee: str
    policy: str
    is_stream: bool
    partitions: int
    has_topic_column: bool
    batch_size: int
    executors: int
    has_write_id: bool
    names_refused: bool
    """Whether the brokers name the records that they refuse. Before Kafka 2.4 they named none."""
    writes: tuple[Written, ...]
    restarts: str
    """Whether the query also starts again between the micro-batches: "no", in the "same" JVM or in a "new" one."""


# ---- what is drawn ---------------------------------------------------------------------------------------------------


_DEATHS = st.builds(Death, st.integers(0, 6), st.booleans())
_TROUBLES = st.builds(AttemptTrouble, rows=st.integers(0, 3)) | st.builds(AttemptTrouble, death=_DEATHS)
# Hypothesis prefers what comes first.
_ENDS = ("a task fails", "after", "a task fails", "in", "before", "begin", "good")


@st.composite
def plans(draw: st.DrawFn, parallelism: int) -> Plan:
    """Most runs fail for good, in a task or in a step of the driver. Before, a task may fail that Spark tries again."""
    tasks = st.integers(0, parallelism - 1)
    end = draw(st.sampled_from(_ENDS))
    max_failures = draw(st.integers(1, 2))
    troubles = draw(st.dictionaries(st.tuples(tasks, st.just(0)), _TROUBLES, max_size=1)) if max_failures > 1 else {}
    if end == "a task fails":
        number = draw(tasks)
        troubles |= {(number, attempt): draw(_TROUBLES) for attempt in range(max_failures)}
    straggler = draw(st.none() | st.none() | tasks)
    return Plan(
        troubles=troubles,
        max_failures=max_failures,
        reverse=draw(st.booleans()),
        straggler=straggler,
        outlives_abort=straggler is not None and draw(st.booleans()),
        dies_in_begin=draw(_DEATHS) if end == "begin" else None,
        dies_before_commit=end == "before",
        dies_in_commit=draw(_DEATHS) if end == "in" else None,
        dies_after_commit=end == "after",
    )


@st.composite
def writes(draw: st.DrawFn, number: int, kinds: Sequence[Kind], partitions: int) -> Written:
    count = draw(st.sampled_from([12, 20, 3, 0]))
    bad = (
        draw(st.dictionaries(st.integers(0, count - 1), st.sampled_from(kinds), max_size=6)) if kinds and count else {}
    )
    rows = tuple(
        Row(f"{number}/{index}", bad.get(index, Kind.GOOD), (index + index // 5) % partitions) for index in range(count)
    )
    parallelism = draw(st.sampled_from([3, 2, 4, 1]))
    runs = []
    for repeat in range(draw(st.sampled_from([2, 3, 1, 0]))):
        other = repeat > 0 and draw(st.sampled_from([True, True, False]))
        numbers = [number for number in (3, 2, 4, 1) if number != parallelism] if other else [parallelism]
        tasks = draw(st.sampled_from(numbers))
        changes = number == repeat == 0 and draw(st.booleans())
        runs.append(Run(tasks, draw(plans(tasks)), changes, draw(st.booleans())))
    return Written(rows, tuple(runs), parallelism)


@st.composite
def scenarios(draw: st.DrawFn, guarantee: str) -> Scenario:
    policy = draw(st.sampled_from([policy for policy in POLICIES if (guarantee, policy) != ("atomic", "dead_letter")]))
    is_stream = guarantee == "exactly_once" or draw(st.booleans())
    has_topic_column = draw(st.booleans())
    kinds = [kind for kind in Kind if kind is not Kind.GOOD and (has_topic_column or kind not in OF_TOPIC_COLUMN)]
    # A stream with onRowError=fail never gets past a bad row: most of these streams have only good rows.
    if policy == "fail" and draw(st.integers(0, 3)):
        kinds = []
    partitions = draw(st.integers(1, 3))
    drawn = [draw(writes(number, kinds, partitions)) for number in range(draw(st.integers(1, 2)) if is_stream else 1)]
    batch_size = draw(st.sampled_from([200, 16_384]))
    return Scenario(
        guarantee,
        policy,
        is_stream,
        partitions,
        has_topic_column,
        batch_size,
        draw(st.integers(0, 2)),
        guarantee == "atomic" and not is_stream and draw(st.booleans()),
        draw(st.booleans()),
        tuple(drawn),
        draw(st.sampled_from(["no", "same", "new"])),
    )


# ---- what readers see ------------------------------------------------------------------------------------------------


class Reader:
    """A consumer with read_committed, and the offsets that brokers tell."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._servers = cluster.bootstrap_servers
        self._client = RawClient(cluster.bootstrap_servers)

    def close(self) -> None:
        self._client.socket.close()

    def names(self, topics: Mapping[str, int]) -> list[Counter[str]]:
        """How often a reader sees each row of the topics, which are given with their partitions."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
            }
        )
        places = [TopicPartition(topic, number, 0) for topic, count in topics.items() for number in range(count)]
        names = {topic: Counter[str]() for topic in topics}
        ended = 0
        try:
            consumer.assign(places)
            while ended < len(places):
                message = consumer.poll(10.0)
                assert message is not None, "the reader got no message for 10 s"
                if message.error() is not None:
                    ended += 1
                else:
                    names[str(message.topic())][_name(message)] += 1
        finally:
            consumer.close()
        return list(names.values())

    def held_back(self, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
        """The last stable offset and the high watermark of each partition where an open transaction parts them."""
        wanted = [{"partition_index": number, "timestamp": -1} for number in range(partitions)]
        ends = []
        for isolation_level in (1, 0):
            answer = self._client.ask(
                LIST_OFFSETS, 7, isolation_level=isolation_level, topics=[{"name": topic, "partitions": wanted}]
            )
            ends.append({found.partition_index: found.offset for found in answer.topics[0].partitions})
        return {number: (ends[0][number], ends[1][number]) for number in ends[0] if ends[0][number] != ends[1][number]}

    def make_strict(self, topic: str) -> None:
        configs = [{"name": name, "value": value, "config_operation": 0} for name, value in STRICT.items()]
        wanted = [{"resource_type": 2, "resource_name": topic, "configs": configs}]
        answer = self._client.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=wanted)
        assert not answer.responses[0].error_code


def _name(message: Message) -> str:
    """The name of a row. A dead letter may have lost its value, another row has no key."""
    key: bytes | str | None = message.key()
    name = key if key is not None else (message.value() or b"").split(b" ")[0]
    return name.decode() if isinstance(name, bytes) else name


# ---- the property ----------------------------------------------------------------------------------------------------


class Story:
    """One scenario as it happens, with all that must hold after each step."""

    def __init__(self, cluster: EmbeddedCluster, reader: Reader, scenario: Scenario) -> None:
        self._scenario = scenario
        self._reader = reader
        name = uuid.uuid4().hex[:12]
        self._topic, self._dead = f"t-{name}", f"dead-{name}"
        self._topics = {self._topic: scenario.partitions, self._dead: 1}
        is_strict = not any(run.topic_changes for written in scenario.writes for run in written.runs)
        self._is_strict = is_strict
        cluster.create_topic(self._topic, scenario.partitions, configs=STRICT if is_strict else {})
        cluster.create_topic(self._dead, 1)
        options = {
            **SETTINGS,
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "kafka.batch.size": str(scenario.batch_size),
            "deliveryGuarantee": scenario.guarantee,
            "onRowError": scenario.policy,
        }
        if scenario.policy == "dead_letter":
            options["deadLetterTopic"] = self._dead
        if scenario.guarantee != "at_least_once":
            options |= {"sinkId": name, "markerTopic": self._dead}
        if not scenario.has_topic_column:
            options["topic"] = self._topic
        if scenario.has_write_id:
            options["writeId"] = "today"
        self._application = Application(options, SCHEMA, scenario.executors)
        self._done: list[Written] = []
        self._failed: Written | None = None
        """The write whose last run did not succeed."""

    def tell(self) -> None:
        for number, written in enumerate(self._scenario.writes):
            if not self._write(number, written):
                break
            if self._scenario.restarts != "no":
                self._application.restart(new_jvm=self._scenario.restarts == "new")
        self._application.release()
        self._check()
        self._check_end_of_transactions()

    def _write(self, number: int, written: Written) -> bool:
        """Whether the write succeeds in the end."""
        driver_died = False
        last_errors: list[str] = []
        # A replay with other partitions may be refused: in the end each number of partitions has its chance.
        numbers = dict.fromkeys([written.parallelism, *(run.parallelism for run in written.runs)])
        for run in (*written.runs, *map(Run, numbers)):
            error = self._run(number, written, run)
            note(f"write {number}, {run}: {error!r}")
            event(f"{self._scenario.guarantee}: {'written' if error is None else type(error).__name__}")
            if run.plan is UNDISTURBED:
                last_errors.append(str(error))
            self._failed = None if error is None else written
            if error is None or self._is_visible(written):
                self._failed = None
                self._done.append(written)
            self._check()
            if isinstance(error, JobError) and not (run.plan.outlives_abort or driver_died):
                self._check_end_of_transactions()  # Spark has called abort()
            driver_died |= isinstance(error, Died)
            if self._failed is None:
                return True
            self._application.restart(new_jvm=run.new_jvm or isinstance(error, Died))
        assert self._scenario.policy == "fail", f"the write never succeeds: {error}"
        assert written.bad, f"the write never succeeds: {error}"
        named = {
            f"{row.name!r}" if row.kind is not Kind.NO_KEY else "no key"
            for row in written.rows
            if row.name in written.bad
        }
        # A run with other partitions than the first may be refused for that, before it comes to the bad row.
        assert any(name in text for text in last_errors for name in named), f"no error names a bad row: {last_errors}"
        return False

    def _run(self, number: int, written: Written, run: Run) -> BaseException | None:
        """The error of the run; None if Spark goes on to the next micro-batch."""
        tasks = self._tasks(written, run.parallelism)

        def begun() -> None:
            if not self._is_strict:
                self._is_strict = True
                self._reader.make_strict(self._topic)

        try:
            if self._scenario.is_stream:
                self._application.micro_batch(number, tasks, run.plan, begun)
            else:
                self._application.write(tasks, run.plan, begun)
        except (JobError, Died) as error:
            return error
        return None

    def _tasks(self, written: Written, parallelism: int) -> list[list[pa.RecordBatch]]:
        """The rows of each task: neighbours, as a source of files gives them; by partition for atomic writes."""
        count = len(written.rows)
        parts: list[list[Row]] = [[] for _ in range(parallelism)]
        for index, row in enumerate(written.rows):
            is_aligned = self._scenario.guarantee == "atomic"
            parts[row.partition % parallelism if is_aligned else index * parallelism // count].append(row)
        return [self._arrow(rows) for rows in parts]

    def _arrow(self, rows: Sequence[Row]) -> list[pa.RecordBatch]:
        now = datetime.fromtimestamp(time.time() // 1, UTC)
        columns = zip(*(row.values(self._topic, now) for row in rows), strict=True) if rows else [()] * len(ARROW)
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, ARROW, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=ARROW)
        return [batch for batch in table.to_batches(ARROW_ROWS) if batch.num_rows]

    def _check_end_of_transactions(self) -> None:
        for topic, partitions in self._topics.items():
            assert self._reader.held_back(topic, partitions) == {}, f"a transaction stays open in {topic}"

    def _is_visible(self, written: Written) -> bool:
        """Whether a failed df.write is in the topic: without a writeId the user looks before writing again."""
        scenario = self._scenario
        if scenario.is_stream or scenario.has_write_id or scenario.guarantee != "atomic" or not written.good:
            return False
        return bool(written.good & self._reader.names(self._topics)[0].keys())

    def _check(self) -> None:
        """What holds at any time."""
        scenario, failed = self._scenario, self._failed
        rows, letters = self._reader.names(self._topics)
        note(f"rows {dict(rows)}, dead letters {dict(letters)}")
        good = set[str]().union(*(written.good for written in self._done))
        bad = set[str]().union(*(written.bad for written in self._done))
        begun = [*self._done, *([failed] if failed else [])]
        assert good <= rows.keys(), f"rows are lost: {sorted(good - rows.keys())}"
        strangers = rows.keys() - set[str]().union(*(written.good for written in begun))
        assert not strangers, f"rows that the topic refuses, or of no write: {sorted(strangers)}"
        if scenario.policy == "dead_letter":
            assert bad <= letters.keys(), f"dead letters are missing: {sorted(bad - letters.keys())}"
            assert letters.keys() <= set[str]().union(*(written.bad for written in begun))
        else:
            assert not letters
        if scenario.guarantee != "at_least_once":
            assert set(rows.values()) | set(letters.values()) <= {1}, f"doubled: {(rows + letters).most_common(3)}"
        if scenario.guarantee == "atomic" and failed is not None:
            seen = failed.good & rows.keys()
            assert seen in (set(), failed.good), f"only a part of an atomic write is visible: {sorted(seen)}"


def nameless_refusals() -> AbstractContextManager[object]:
    """Lets the brokers refuse a batch without the names of its bad records."""
    nobody = property(lambda error: (), lambda error, records: None)
    return mock.patch.object(RefusedRecordsError, "records", nobody, create=True)


@pytest.fixture(scope="module", params=[2, 0], ids=["v2", "v1"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(transaction_version=request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def reader(cluster: EmbeddedCluster) -> Iterator[Reader]:
    reader = Reader(cluster)
    yield reader
    reader.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once", "atomic"])
@settings(max_examples=effort(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_row_is_where_its_guarantee_says(
    cluster: EmbeddedCluster, reader: Reader, guarantee: str, data: st.DataObject
) -> None:
    scenario = data.draw(scenarios(guarantee))
    with simulation(), nullcontext() if scenario.names_refused else nameless_refusals():
        Story(cluster, reader, scenario).tell()
