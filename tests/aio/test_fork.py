"""A forked child and its parent's AIOKafkaProducer. Each script runs in its own process, because pytest has threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkabuf.broker import EmbeddedCluster
from tests.sending.test_fork import run, values

PRELUDE = """
import asyncio, os, signal, sys, warnings
from kafkabuf.aio import AIOKafkaProducer
from kafkabuf.errors import ClosedError

warnings.simplefilter("ignore", DeprecationWarning)

def in_child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if asyncio.run(work()) else 1)
    assert os.waitpid(child, 0)[1] == 0

async def refusal(call, text):
    try:
        await call
    except ClosedError as error:
        return text in str(error)
"""

FIRST_CALLS = """
async def work():
    futures = await asyncio.gather(*(producer.send("aio", b"child's") for _ in range(10)))
    await producer.flush()
    await asyncio.gather(*futures)
    late = await refusal(mine, "sent before a fork") and await refusal(theirs.wait(), "sent before a fork")
    await producer.stop()
    return late and await refusal(producer.send("aio", b""), "the producer is closed")

async def flush():
    await producer.flush()
    await producer.send("aio", b"child's")
    await producer.stop()
    return True

async def stop():
    await producer.stop()
    return await refusal(producer.flush(), "the producer is closed")

async def main():
    global producer, mine, theirs
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000) as producer:
        await producer.partitions_for("aio")
        mine = await producer.send("aio", b"parent's", partition=0)
        theirs = await producer.send_many("aio", [b"parent's"], partitions=[0])
        waiting = asyncio.create_task(asyncio.wait_for(mine, 30))
        await asyncio.sleep(0)
        for child in (work, flush, stop):
            in_child(child)
        await producer.flush()
        await waiting

asyncio.run(main())
"""


def test_first_call_of_a_child_opens_a_producer_in_the_childs_event_loop() -> None:
    with EmbeddedCluster() as cluster:
        done = run(PRELUDE + FIRST_CALLS, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "aio") == {b"parent's": 2, b"child's": 11}


PRELOADED = """
producer = AIOKafkaProducer(bootstrap_servers=sys.argv[1], buffer_path=(*sys.argv[2:], None)[0])
loop = asyncio.new_event_loop()
loop.run_until_complete(producer.start())

async def work():
    await producer.send_and_wait("aio", b"child's")
    await producer.stop()
    return True

in_child(work)
in_child(work)
loop.run_until_complete(producer.send_and_wait("aio", b"parent's"))
loop.run_until_complete(producer.stop())
"""


@pytest.mark.parametrize("has_file", [False, True])
def test_worker_of_a_preloaded_application_opens_the_producer_that_its_parent_has_started(
    tmp_path: Path, has_file: bool
) -> None:
    file = [str(tmp_path / "buffer")] if has_file else []
    with EmbeddedCluster() as cluster:
        done = run(PRELUDE + PRELOADED, cluster.bootstrap_servers, *file)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("records of the child lie in memory alone") == 2 * has_file
        assert values(cluster, "aio") == {b"parent's": 1, b"child's": 2}


TRANSACTIONAL = """
async def work():
    text = "transactional.id belongs to the parent process"
    calls = producer.send("aio", b"child's"), producer.commit_transaction(), producer.flush()
    return all([await refusal(call, text) for call in calls])

async def main():
    global producer
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1], transactional_id="one") as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("aio", b"parent's")
            in_child(work)

asyncio.run(main())
"""


def test_transactional_producer_is_refused_in_a_child_with_the_reason() -> None:
    with EmbeddedCluster() as cluster:
        done = run(PRELUDE + TRANSACTIONAL, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert sum(values(cluster, "aio").values()) == 1


IN_USER_CODE = """
forked = []

def serialize(value):
    if not forked:
        forked.append(os.fork())
    return value

async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1], value_serializer=serialize) as producer:
        try:
            await producer.send_and_wait("aio", b"parent's")
        except (ClosedError, RuntimeError):
            refused = True
        else:
            refused = False
        if forked == [0]:
            os._exit(0 if refused else 1)
        assert os.waitpid(forked[0], 0)[1] == 0
        assert not refused

asyncio.run(main())
"""


def test_call_that_forks_in_the_users_code_is_carried_out_by_the_parent_alone() -> None:
    with EmbeddedCluster() as cluster:
        done = run(PRELUDE + IN_USER_CODE, cluster.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        assert values(cluster, "aio") == {b"parent's": 1}
