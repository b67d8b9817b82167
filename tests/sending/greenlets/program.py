"""A program that a library of greenlets has patched: `python program.py gevent|eventlet before|after SERVERS`.

It patches before or after it imports kafkabuf, and prints the name of each promise that it has seen kept. A greenlet
counts ticks as long as the hub runs. The callback `until_tick` returns only after a further tick: so a call that waits
for the record of that callback returns only if its wait does not stop the hub.
"""

from __future__ import annotations

import faulthandler
import importlib
import sys
import warnings
from collections.abc import Callable
from typing import Any

PATIENCE = 60
faulthandler.dump_traceback_later(PATIENCE * 2, exit=True)

warnings.simplefilter("ignore")  # eventlet says of itself that it is deprecated
library, when, servers = sys.argv[1:]
if when == "after":
    importlib.import_module("kafkabuf.producer")

spawn: Any
sleep: Any
if library == "gevent":
    importlib.import_module("gevent.monkey").patch_all()
    gevent = importlib.import_module("gevent")
    spawn, sleep = gevent.spawn, gevent.sleep

    def join(greenlets: list[Any]) -> None:
        gevent.joinall(greenlets, raise_error=True)
else:
    eventlet = importlib.import_module("eventlet")
    eventlet.monkey_patch()
    spawn, sleep = eventlet.spawn, eventlet.sleep

    def join(greenlets: list[Any]) -> None:
        for greenlet in greenlets:
            greenlet.wait()


from kafkabuf import KafkaProducer  # noqa: E402
from kafkabuf.admin.admin import Admin  # noqa: E402
from kafkabuf.config import ProducerConfig  # noqa: E402
from kafkabuf.errors import KafkaError, TimeoutError  # noqa: E402
from kafkabuf.process import threads  # noqa: E402
from kafkabuf.process.producer_log import client_id_here, log_as  # noqa: E402
from kafkabuf.record_metadata import RecordMetadata  # noqa: E402

ticks = 0


def tick() -> None:
    global ticks
    while True:
        ticks += 1
        sleep(0.001)


def until_tick() -> Callable[[RecordMetadata, object], None]:
    seen = ticks

    def callback(metadata: RecordMetadata, error: object) -> None:
        for _ in range(PATIENCE * 1000):
            if ticks > seen:
                return
            threads.sleep(0.001)

    return callback


def kept(promise: str) -> None:
    print(promise, flush=True)


def ticked_since(seen: int) -> None:
    assert ticks > seen, "the hub stood still"


def waits_stop_no_hub() -> None:
    with KafkaProducer(bootstrap_servers=servers, check=True) as producer:
        seen = ticks
        producer.send("t", b"result", callback=until_tick()).result(PATIENCE)
        ticked_since(seen)
        kept("result")
        seen = ticks
        producer.send("t", b"flush", callback=until_tick())
        producer.flush(PATIENCE)
        ticked_since(seen)
        kept("flush")
        report = producer.send_many("t", [b"many"] * 10)
        producer.send("t", b"behind", callback=until_tick())
        producer.flush(PATIENCE)
        assert len(report.result(PATIENCE).offset) == 10
        kept("report")
        seen = ticks
        producer.send("t", b"close", callback=until_tick())
        producer.close(PATIENCE)
        ticked_since(seen)
        kept("close")


def other_greenlets_may_be_what_a_wait_needs() -> None:
    with KafkaProducer(bootstrap_servers=servers, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        producer.partitions_for("t")
        arrived: list[int] = []
        waiting = [spawn(lambda: arrived.append(producer.send("t", b"v").result(PATIENCE).offset)) for _ in range(300)]
        while len(producer._accumulator.incomplete_batches()) == 0:
            sleep(0)
        sleep(0)
        join([spawn(producer.flush, PATIENCE)])
        join(waiting)
        assert len(arrived) == 300
    kept("many")


def serializers_of_greenlets_may_wait() -> None:
    """The first of two bulk appends ends within the second, whose serializer then waits for its own first row."""
    first_is_inside: list[bool] = []
    first_has_ended: list[bool] = []
    second_is_inside: list[bool] = []

    def until(flag: list[bool]) -> None:
        while not flag:
            sleep(0.001)

    with KafkaProducer(bootstrap_servers=servers, value_serializer=lambda value: value()) as producer:
        producer.partitions_for("t")

        def first_value() -> bytes:
            first_is_inside.append(True)
            until(second_is_inside)
            return b"v"

        def second_value() -> bytes:
            second_is_inside.append(True)
            until(first_has_ended)
            producer.flush(PATIENCE)
            return b"v"

        def first() -> None:
            producer.send_many("t", [lambda: b"v", first_value])
            first_has_ended.append(True)

        def second() -> None:
            until(first_is_inside)
            producer.send_many("t", [lambda: b"v", second_value])

        join([spawn(first), spawn(second)])
        for _ in range(2):  # nothing of the two is left
            producer.send_many("t", [lambda: b"v"])
        producer.flush(PATIENCE)
    kept("serializers")


def admin_stops_no_hub() -> None:
    config = ProducerConfig(bootstrap_servers=servers, max_block_ms=PATIENCE * 1000)
    with Admin(config) as admin:
        seen = ticks
        admin.connect()
        assert admin.committed("group", [("t", 0)]) == {("t", 0): None}
        ticked_since(seen)
    kept("admin")


def lines_name_their_producer() -> None:
    def work(name: str, end: Callable[[], None]) -> None:
        with log_as(name):
            end()
            assert client_id_here() == name
        assert client_id_here() is None

    join([spawn(work, "a", lambda: sleep(0.02)), spawn(work, "b", lambda: sleep(0.05))])
    assert client_id_here() is None
    kept("lines")


def memory_is_awaited_beside_others() -> None:
    with KafkaProducer(bootstrap_servers=servers, buffer_memory=1 << 16, linger_ms=0) as producer:

        def fill() -> None:
            for _ in range(30):
                producer.send("t", b"x" * 6000)

        join([spawn(fill) for _ in range(8)])
        producer.flush(PATIENCE)
        assert producer.pool.waits_total > 0
        assert producer.pool.free_bytes == producer.pool.total
    kept("memory")


def metadata_is_awaited_beside_others() -> None:
    seen = ticks
    with KafkaProducer(bootstrap_servers=servers, max_block_ms=200) as producer:
        try:
            producer.partitions_for("missing")
        except (KafkaError, TimeoutError):
            pass
    ticked_since(seen)
    kept("metadata")


def callbacks_run_in_the_senders_thread() -> None:
    idents: list[int] = []
    with KafkaProducer(bootstrap_servers=servers) as producer:
        producer.send("t", b"v", callback=lambda *_: idents.append(threads.get_ident())).result(PATIENCE)
        producer.send("t", b"v").add_done_callback(lambda _: idents.append(threads.get_ident()))
        producer.flush(PATIENCE)
        refused: list[str] = []

        def waits(metadata: object, error: object) -> None:
            try:
                producer.flush()
            except KafkaError as refusal:
                refused.append(str(refusal))

        producer.send("t", b"v", callback=waits).result(PATIENCE)
        assert producer._thread.ident is not None
    assert len(set(idents)) == 1
    assert idents[0] != threads.get_ident()
    assert len(refused) == 1
    kept("callbacks")


def wait_that_is_cut_short_leaves_the_producer_whole() -> None:
    with KafkaProducer(bootstrap_servers=servers, linger_ms=600_000, delivery_timeout_ms=700_000) as producer:
        producer.partitions_for("t")
        future = producer.send("t", b"v")
        try:
            future.result(0.01)
        except TimeoutError:
            kept("time-out")
        producer.flush(PATIENCE)
        future.result(0)


spawn(tick)
sleep(0)
assert threads.are_patched()
waits_stop_no_hub()
other_greenlets_may_be_what_a_wait_needs()

serializers_of_greenlets_may_wait()
admin_stops_no_hub()
lines_name_their_producer()
memory_is_awaited_beside_others()
metadata_is_awaited_beside_others()
callbacks_run_in_the_senders_thread()
wait_that_is_cut_short_leaves_the_producer_whole()
kept("end")
