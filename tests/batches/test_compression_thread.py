"""compression.thread.enable: a second thread compresses ahead of the Sender, which leaves the thread's batch alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from kafkabuf import KafkaProducer
from kafkabuf.batches import compression
from kafkabuf.batches.codec import Codec
from kafkabuf.batches.compression_thread import CompressionThread
from kafkabuf.broker import EmbeddedCluster
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, KafkaError
from rigs.producer import PATIENCE, SLAB, Rig, assert_whole, quick_rig
from tests.batches.split_support import Topic
from tests.memory.pool_support import assert_all_free, in_thread, until
from tests.real.consumers import read_with_confluent

LEFT_TO_SENDER = 4  # as in _drain.pyx


def thread_rig(**settings: Any) -> Rig:
    defaults = {"slabs": 64, "compression_type": "gzip", "compression_thread_enable": True, "clock": ManualClock()}
    return quick_rig(**(defaults | settings))


def values(count: int) -> list[bytes]:
    """Values each of which fills a batch."""
    return [b"%04d" % n + b"x" * (SLAB - 200) for n in range(count)]


class Held:
    """gzip that waits in the compression thread until the test says `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gzip = compression.codec("gzip", -1, 9, 3)
        self._sender = threading.get_ident()
        self.began, self.go_on = threading.Event(), threading.Event()
        monkeypatch.setattr(compression, "codec", lambda *settings: Codec(1, self._compress))

    def _compress(self, records: memoryview, target: memoryview) -> int:
        if threading.get_ident() != self._sender:
            self.began.set()
            assert self.go_on.wait(PATIENCE)
        return self._gzip.compress(records, target)

    @contextmanager
    def compressing(self, rig: Rig) -> Iterator[Future[bool]]:
        """In this block another thread compresses the first batch that is not left to the Sender."""
        compressed = in_thread(rig.accumulator.compress_ahead)
        assert self.began.wait(PATIENCE)
        try:
            yield compressed
        finally:
            self.go_on.set()


def test_thread_compresses_all_closed_batches_but_the_first() -> None:
    rig = thread_rig()
    futures = [rig.send(value) for value in values(10)]
    while rig.accumulator.compress_ahead():
        pass
    small = [future.batch.size < SLAB / 2 for future in futures]
    assert small == [False] * LEFT_TO_SENDER + [True] * 5 + [False]  # the last batch is open


def test_thread_looks_at_the_batches_of_all_partitions() -> None:
    rig = thread_rig(leaders=[1] * 6)
    futures = [rig.send(value, partition) for partition in range(6) for value in values(2)]
    while rig.accumulator.compress_ahead():
        pass
    assert [future.batch.size < SLAB / 2 for future in futures] == [False] * 4 + [True, False] * 4


def test_records_of_both_threads_arrive_in_order() -> None:
    rig = thread_rig()
    topic = Topic(rig, SLAB)
    sent = values(30)
    for value in sent:
        rig.send(value)
    for _ in range(9):
        assert rig.accumulator.compress_ahead()
    topic.serve()
    assert topic.values(0) == sent
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


def test_batch_that_does_not_shrink_is_tried_once() -> None:
    rig = thread_rig()
    dice = random.Random(1)
    for _ in range(LEFT_TO_SENDER + 2):
        rig.send(dice.randbytes(SLAB - 200))
    assert rig.accumulator.compress_ahead()
    assert not rig.accumulator.compress_ahead()


def test_sender_leaves_the_batch_alone_and_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    woken = threading.Event()
    rig = thread_rig(wakeup=woken.set)
    topic = Topic(rig, SLAB)
    sent = values(LEFT_TO_SENDER + 3)
    futures = [rig.send(value) for value in sent]
    with held.compressing(rig) as compressed:
        for _ in range(20):
            rig.turn()
            topic.answer_under_way()
        assert topic.values(0) == sent[:LEFT_TO_SENDER]
        assert not rig.accumulator.ready(rig.clock.monotonic()).queues_by_node
        assert "send_many" not in futures[LEFT_TO_SENDER].batch.why_pending()
        woken.clear()
        held.go_on.set()
        assert compressed.result(PATIENCE)
    assert woken.is_set()
    topic.serve()
    assert topic.values(0) == sent


ENDS: dict[str, Callable[[Rig], object]] = {
    "expired": lambda rig: rig.accumulator.expire(rig.clock.monotonic() + 2),
    "aborted": lambda rig: rig.accumulator.abort(),
    "purged": lambda rig: [rig.accumulator.give_up(batch, KafkaError("purged")) for batch in rig.incomplete()],
}


@pytest.mark.parametrize("end", ENDS)
def test_batch_that_fails_meanwhile_keeps_its_slab_until_the_codec_returns(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    held = Held(monkeypatch)
    rig = thread_rig()
    futures = [rig.send(value) for value in values(LEFT_TO_SENDER + 2)]
    with held.compressing(rig) as compressed:
        ENDS[end](rig)
        assert all(future.done() for future in futures)
        assert rig.bytes_in("closed") == SLAB
        rig.pool.check()
        held.go_on.set()
        assert compressed.result(PATIENCE)
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


def test_refused_batch_that_the_thread_compressed_is_split() -> None:
    rig = thread_rig(batch_size=4 * SLAB, slabs=128)
    topic = Topic(rig, 200)
    dice = random.Random(2)
    sent = [b"%04d" % n + dice.randbytes(60) + b"." * 200 for n in range(100)]
    for value in sent:
        rig.send(value)
    while rig.accumulator.compress_ahead():
        pass
    topic.serve()
    assert topic.refused
    assert topic.values(0) == sent
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_producer_with_the_thread_delivers_all_records_in_order(name: str, magic: int) -> None:
    if (name, magic) == ("zstd", 1):
        return
    settings = {"compression.type": name, "compression.thread.enable": True, "record.magic": magic}
    with EmbeddedCluster(verify_records=True) as cluster:
        cluster.create_topic("rows", 2)
        producer = KafkaProducer(
            {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "compressing", **settings}
        )
        sent: dict[int, list[bytes]] = {0: [], 1: []}
        futures = []
        for n in range(20_000):
            value = b'{"row":%d,"carrier":"UA"}' % n
            sent[n % 2].append(value)
            futures.append(producer.send("rows", value, partition=n % 2))
        producer.flush(PATIENCE)
        offsets = [future.result(0).offset for future in futures]
        assert [offsets[partition::2] for partition in sent] == [list(range(10_000))] * 2
        producer.close(PATIENCE)
        assert_all_free(producer.pool)
        assert not [thread for thread in threading.enumerate() if thread.name == "kafkabuf-compressing-compression"]
        read = read_with_confluent(cluster, "rows", 2, wait_for=20_000)
        assert [[records[offset].value for offset in range(10_000)] for records in read] == list(sent.values())


def test_thread_goes_on_after_an_error(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | bool] = [KafkaError("odd"), True, False]

    def compress_ahead() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    thread = CompressionThread.started(compress_ahead, "test-compression")
    assert thread is not None
    thread.wake()
    until(lambda: len(answers) == 2)
    thread.wake()
    until(lambda: not answers)
    thread.stop()
    assert "ahead of the Sender failed" in caplog.text


def test_where_no_thread_starts_the_sender_compresses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rig = thread_rig()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        rig.accumulator.start_compression_thread("none-compression")
    assert "can't start new thread" in caplog.text
    futures = [rig.send(value) for value in values(10)]
    rig.ack_all()
    assert all(future.batch.size < SLAB / 2 for future in futures)
    rig.accumulator.release_scratch()
    assert_whole(rig.pool)


def test_second_scratch_comes_from_the_pool() -> None:
    one, two = (thread_rig(compression_thread_enable=enabled).bytes_in("scratch") for enabled in (False, True))
    assert two == 2 * one > 0
    with pytest.raises(ConfigError, match=r"buffer\.memory"):
        thread_rig(slabs=5)


def test_without_the_setting_there_is_no_scratch_for_a_thread() -> None:
    with pytest.raises(ValueError, match="no scratch for a second thread"):
        thread_rig(compression_thread_enable=False).accumulator.compress_ahead()
