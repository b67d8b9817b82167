"""No call of an open producer imports a module: all are loaded when the producer opens.

An exception that is thrown into a thread during an import (Ctrl-C, `PyThreadState_SetAsyncExc`) can leave the lock of
the module taken, and then every thread hangs that imports the module. An import of a loaded module takes no lock.
Threads of kafkabuf's own may import: no exception is thrown into them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.formats.registry.support import FakeRegistry, running

# What the programs share. `watching` is asked first for each module that is not loaded, also for one that is missing.
WATCHING = """
import json, sys, threading
from importlib.abc import MetaPathFinder

import pyarrow

class Watching(MetaPathFinder):
    def __init__(self):
        self.searched, self.calls = [], {}
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            self.searched.append(name)
    def begin(self):
        sys.meta_path.insert(0, self)
    def after(self, call):
        self.calls[call] = [*self.searched]
        self.searched.clear()

watching = Watching()

def call(name, function, *arguments, error=None, **keywords):
    try:
        result = function(*arguments, **keywords)
    except Exception as raised:
        assert type(raised).__name__ == error, f"{name}: {raised!r}"
        result = None
    else:
        assert error is None, f"{name}: {error} was not raised"
    watching.after(name)
    return result

servers, settings = sys.argv[1], json.loads(sys.argv[2])
values = pyarrow.table({"value": [b"a", b"b"]})
rows = pyarrow.table({"id": [1, 2], "name": ["a", "b"]})
"""
ENDING = """
print(json.dumps(watching.calls))
"""
PLAIN = """
from kafkabuf import KafkaProducer
from kafkabuf.formats import Avro, Json, Protobuf, Raw
fields = [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]
schema = {"type": "record", "name": "Row", "fields": fields}
formats = [Avro(), Avro(schema), Json(), Raw()]
producer = KafkaProducer(bootstrap_servers=servers, **settings)
watching.begin()
call("send_arrow", producer.send_arrow, values, "t").result(30)
call("send_many", producer.send_many, "t", [b"v"] * 10, keys=[b"k"] * 10).result(30)
future = call("send", producer.send, "t", b"v", key=b"k", headers=[("a", b"b")], callback=lambda metadata, error: None)
call("result", future.result, 30)
call("exception", future.exception, 30)
call("add_done_callback", future.add_done_callback, lambda done: None)
call("flush", producer.flush, 30)
call("metrics", producer.metrics)
call("partitions_for", producer.partitions_for, "t")
for number, format in enumerate(formats):
    data = values if isinstance(format, Raw) else rows
    report = call(f"send_arrow format {number}", producer.send_arrow, data, "t", value_format=format)
    call(f"result of format {number}", report.result, 30)
    if not isinstance(format, Raw):
        call(f"encode {number}", format.encode, data)
call("encode_object", formats[1].encode_object, {"id": 1, "name": "n"})
call("send_arrow with a key", producer.send_arrow, rows, "t", value_format=Avro(), key="id", key_format=Avro())
call("errors only", producer.send_arrow, values, "t", report="errors")
call("repr", repr, producer)
call("wrong value", producer.send, "t", 3, error="SerializationError")
call("large value", producer.send, "t", b"x" * 20_000_000, error="RecordTooLargeError")
call("wrong data", producer.send_arrow, 3, "t", error="SerializationError")
call("missing column", producer.send_arrow, rows, "t", error="SerializationError")
call("wrong values", producer.send_many, "t", 3, error="TypeError")
call("wrong format", producer.send_arrow, rows, "t", value_format=3, error="ConfigError")
report = call("large row", producer.send_many, "t", [b"x" * 20_000_000])
call("its result", report.result, 30, error="RecordTooLargeError")
call("failures", report.failures, 30)
call("illegal topic", producer.send, "a b", b"v", error="InvalidTopicError")
call("no transaction", producer.begin_transaction, error="IllegalStateError")
call("close", producer.close, 30)
call("send after close", producer.send, "t", b"v", error="ClosedError")
"""
TRANSACTIONS = """
from kafkabuf import KafkaProducer
producer = KafkaProducer(bootstrap_servers=servers, transactional_id="late-imports", **settings)
watching.begin()
call("init_transactions", producer.init_transactions)
call("begin_transaction", producer.begin_transaction)
call("send", producer.send, "t", b"v")
call("send_arrow", producer.send_arrow, values, "t")
call("send_offsets", producer.send_offsets_to_transaction, {("t", 0): 5}, "group")
call("commit_transaction", producer.commit_transaction)
call("begin again", producer.begin_transaction)
call("send again", producer.send, "t", b"v")
call("abort_transaction", producer.abort_transaction)
call("commit outside", producer.commit_transaction, error="IllegalStateError")
call("close", producer.close, 30)
"""
REGISTRY = """
from kafkabuf import KafkaProducer
from kafkabuf.formats import Avro, Json
schema = '{"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "a", "type": "long"}]}'
avro = KafkaProducer(settings, bootstrap_servers=servers, value_serializer=Avro(schema))
text = KafkaProducer(settings, bootstrap_servers=servers, value_serializer=Json(schema={"type": "object"}))
columns = KafkaProducer(settings, bootstrap_servers=servers)
watching.begin()
call("send Avro", avro.send, "t", {"a": 1}).result(30)
call("send_arrow Avro", columns.send_arrow, pyarrow.table({"a": [1]}), "t", value_format=Avro(schema))
call("wrong object", avro.send, "t", {"a": "text"}, error="SerializationError")
call("send Json", text.send, "t", {"a": 1}).result(30)
call("close", avro.close, 30)
call("close Json", text.close, 30)
call("close columns", columns.close, 30)
"""
CONFLUENT = """
from kafkabuf.compat.confluent import Producer
producer = Producer({"bootstrap.servers": servers})
watching.begin()
call("produce", producer.produce, "t", b"v", on_delivery=lambda error, message: None)
call("poll", producer.poll, 0.01)
call("flush", producer.flush, 30)
call("list_topics", producer.list_topics, "t", 30)
call("large value", producer.produce, "t", b"x" * 20_000_000, error="KafkaException")
call("no transaction", producer.begin_transaction, error="KafkaException")
call("close", producer.close)
"""
KAFKA_PYTHON = """
from kafkabuf.compat.kafka_python import KafkaProducer
producer = KafkaProducer(bootstrap_servers=servers)
watching.begin()
future = call("send", producer.send, "t", b"v")
call("get", future.get, 30)
call("flush", producer.flush, 30)
call("metrics", producer.metrics)
call("partitions_for", producer.partitions_for, "t")
call("large value", producer.send, "t", b"x" * 20_000_000, error="MessageSizeTooLargeError")
call("close", producer.close, 30)
call("send after close", producer.send, "t", b"v", error="IllegalStateError")
"""
ASYNC = """
import asyncio
from kafkabuf.aio import AIOKafkaProducer
async def main():
    producer = AIOKafkaProducer(bootstrap_servers=servers, **settings)
    await producer.start()
    watching.begin()
    await (await producer.send("t", b"v"))
    watching.after("send")
    await producer.send_and_wait("t", b"v")
    watching.after("send_and_wait")
    await producer.send_arrow(values, "t")
    watching.after("send_arrow")
    await producer.send_many("t", [b"v"] * 3)
    watching.after("send_many")
    await producer.flush()
    watching.after("flush")
    await producer.stop()
    watching.after("stop")
asyncio.run(main())
"""
# Many producers, whose first calls are interrupted where they are. Each says so in time, and a last call works.
INTERRUPTED = """
import ctypes, sys, threading
import pyarrow
from kafkabuf import KafkaProducer

class Interrupt(BaseException):
    pass

throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
values = pyarrow.table({"value": [b"a", b"b"]})
with KafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
    def user(started):
        try:
            started.release()
            producer.send_arrow(values, "t")
            producer.send_many("t", [b"v"])
            producer.send("t", b"v")
        except Interrupt:
            pass
    for _ in range(200):
        started = threading.Semaphore(0)
        thread = threading.Thread(target=user, args=(started,), daemon=True)
        thread.start()
        assert started.acquire(timeout=60)
        throw(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))
        thread.join(60)
        assert not thread.is_alive(), "a call that was interrupted hangs"
    assert producer.send_arrow(values, "t").result(60)
    assert producer.send("t", b"last").result(60)
import kafkabuf.formats.avro.format  # the locks of imports are free
print("alive")
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with EmbeddedCluster(brokers=1) as cluster:
        cluster.create_topic("t")
        yield cluster.bootstrap_servers


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def imports_of(program: str, servers: str, settings: dict[str, str]) -> dict[str, list[str]]:
    """The calls of the program that import modules, with the modules."""
    calls = json.loads(run(WATCHING + program + ENDING, servers, json.dumps(settings)))
    assert len(calls) > 4
    return {call: modules for call, modules in calls.items() if modules}


@pytest.mark.parametrize("settings", [{}, {"compression_type": "gzip"}, {"linger_ms": "0"}], ids=str)
def test_no_call_of_an_open_producer_imports_a_module(servers: str, settings: dict[str, str]) -> None:
    assert imports_of(PLAIN, servers, settings) == {}


def test_no_call_of_a_transaction_imports_a_module(servers: str) -> None:
    assert imports_of(TRANSACTIONS, servers, {}) == {}


@pytest.mark.parametrize("client", ["kafkabuf", "confluent"])
def test_no_call_that_asks_a_registry_imports_a_module(servers: str, client: str) -> None:
    with running(FakeRegistry()) as registry:
        # confluent-kafka's client takes no bearer token without a logical cluster, and then ours asks.
        prefix = "schema.registry."
        bearer = {f"{prefix}bearer.auth.credentials.source": "STATIC_TOKEN", f"{prefix}bearer.auth.token": "token"}
        settings = {f"{prefix}url": registry.url} | (bearer if client == "kafkabuf" else {})
        assert imports_of(REGISTRY, servers, settings) == {}


@pytest.mark.parametrize("program", [CONFLUENT, KAFKA_PYTHON, ASYNC], ids=["confluent", "kafka_python", "aio"])
def test_no_call_of_a_face_imports_a_module(servers: str, program: str) -> None:
    assert imports_of(program, servers, {}) == {}


def test_exceptions_thrown_into_the_first_calls_leave_no_lock_taken(servers: str) -> None:
    assert run(INTERRUPTED, servers) == "alive"
