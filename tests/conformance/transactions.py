"""Steps of script.py: producers and transactions, in every version of their APIs.

tests/broker has the script of whole transactions.
"""

from __future__ import annotations

import time
from typing import Any

from kafkabuf.protocol import messages as m
from tests.broker.raw_client import batch
from tests.conformance.script import Conversation, step
from tests.conformance.topics import produce

_TIMEOUT = 60_000
_TRANSACTIONAL = 0x10
Producer = tuple[int, int]


def start(talk: Conversation, transactional_id: str) -> Producer:
    values = {"transaction_timeout": _TIMEOUT, "producer_id": -1, "producer_epoch": -1}
    answer = talk.do(m.INIT_PRODUCER_ID, 4, transactional_id=transactional_id, **values)
    return answer.producer_id, answer.producer_epoch


def begin(talk: Conversation, transactional_id: str, *, group: str | None = None) -> Producer:
    """Begin a transaction with a record in the last partition, and with offsets of `group` unless it is None."""
    current = start(talk, transactional_id)
    talk.do(m.ADD_PARTITIONS_TO_TXN, 3, **_adding(talk, transactional_id, current, 2))
    records = batch([b"x"], attributes=_TRANSACTIONAL, producer=(*current, 0))
    produce(talk, talk.topic, records, 2, transactional_id=transactional_id)
    if group is not None:
        values = {"producer_id": current[0], "producer_epoch": current[1], "group_id": group}
        talk.do(m.ADD_OFFSETS_TO_TXN, 3, transactional_id=transactional_id, **values)
    return current


def end(talk: Conversation, transactional_id: str, producer: Producer, committed: bool = False) -> None:
    values = {"producer_id": producer[0], "producer_epoch": producer[1], "committed": committed}
    talk.do(m.END_TXN, 3, transactional_id=transactional_id, **values)


def _adding(talk: Conversation, transactional_id: str, producer: Producer, *partitions: int, **more: Any) -> Any:
    """The values of an AddPartitionsToTxn request, for all its versions."""
    topics = [{"name": more.get("topic", talk.topic), "partitions": list(partitions)}]
    transaction = {
        "transactional_id": transactional_id,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "verify_only": more.get("verify_only", False),
        "topics": topics,
    }
    return {
        "transactions": [transaction],
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": topics,
    }


@step(m.INIT_PRODUCER_ID)
def gives_ids(talk: Conversation, version: int) -> None:
    name = talk.own("i")

    def ask(label: str, transactional_id: str | None, known: Producer = (-1, -1), timeout: int = _TIMEOUT) -> Producer:
        values = {"transaction_timeout": timeout, "producer_id": known[0], "producer_epoch": known[1]}
        answer = talk.ask(label, transactional_id=transactional_id, **values)
        return answer.producer_id, answer.producer_epoch

    ask("without transactions", None)
    ask("no transactional id", "")
    ask("a time-out too long", name, timeout=900_001)
    ask("a time-out of 0 ms", name, timeout=0)
    current = ask("the first", name)
    ask("the second", name)
    if version >= 3:
        ask("an older epoch", name, current)
        ask("a future epoch", name, (current[0], 9))
        ask("no epoch", name, (current[0], -1))


@step(m.ADD_PARTITIONS_TO_TXN)
def adds_partitions(talk: Conversation, version: int) -> None:
    name = talk.own("a")
    current = start(talk, name)

    def add(
        label: str, producer: Producer = current, *partitions: int, transactional_id: str = name, **more: Any
    ) -> None:
        talk.ask(label, **_adding(talk, transactional_id, producer, *(partitions or (2,)), **more))

    add("unknown transactional id", transactional_id=f"{name}-none")
    add("no transactional id", transactional_id="")
    add("another's id", (current[0] + 1_000_000, 0))
    add("a future epoch", (current[0], current[1] + 1))
    add("an unknown partition", current, 2, 9)
    add("an unknown topic", topic=f"{talk.topic}-none")
    add("one")
    add("again", current, 1, 2)
    if version >= 4:
        add("verify a partition of the transaction", verify_only=True)
        add("verify another partition", current, 0, verify_only=True)
        add("verify with a future epoch", (current[0], current[1] + 1), verify_only=True)
    end(talk, name, current)


@step(m.ADD_OFFSETS_TO_TXN)
def adds_offsets(talk: Conversation, version: int) -> None:
    name = talk.own("b")
    current = start(talk, name)

    def add(label: str, producer: Producer = current, transactional_id: str = name, group: str = f"{name}-g") -> None:
        values = {"producer_id": producer[0], "producer_epoch": producer[1], "group_id": group}
        talk.ask(label, transactional_id=transactional_id, **values)

    add("unknown transactional id", transactional_id=f"{name}-none")
    add("no transactional id", transactional_id="")
    add("another's id", (current[0] + 1_000_000, 0))
    add("a future epoch", (current[0], current[1] + 1))
    add("one")
    add("again")
    end(talk, name, current)


@step(m.END_TXN)
def ends_transactions(talk: Conversation, version: int) -> None:
    name = talk.own("e")
    current = start(talk, name)

    def finish(label: str, producer: Producer, committed: bool = True, transactional_id: str = name) -> Any:
        values = {"producer_id": producer[0], "producer_epoch": producer[1], "committed": committed}
        return talk.ask(label, transactional_id=transactional_id, **values)

    finish("nothing", current)
    current = begin(talk, name)
    finish("unknown transactional id", current, transactional_id=f"{name}-none")
    finish("no transactional id", current, transactional_id="")
    finish("another's id", (current[0] + 1_000_000, 0))
    finish("a future epoch", (current[0], current[1] + 1))
    finish("commit", current)
    finish("commit again", current)
    finish("abort after the commit", current, False)
    current = begin(talk, name)
    finish("abort", current, False)
    finish("abort again", current, False)


@step(m.TXN_OFFSET_COMMIT)
def commits_offsets(talk: Conversation, version: int) -> None:
    name, group = talk.own("o"), talk.own("og")
    current = begin(talk, name, group=group)

    def commit(label: str, producer: Producer = current, partition: int = 0, **more: Any) -> None:
        offset = {"partition_index": partition, "committed_offset": 7, "committed_metadata": "note"}
        topics = [{"name": more.pop("topic", talk.topic), "partitions": [offset]}]
        values = {
            "transactional_id": name,
            "group_id": group,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            **more,
        }
        talk.ask(label, topics=topics, **values)

    commit("one")
    commit("no such partition", partition=9)
    commit("no such topic", topic=f"{talk.topic}-none")
    commit("no group's name", group_id="")
    commit("another's id", (current[0] + 1_000_000, 0))
    commit("a future epoch", (current[0], current[1] + 1))
    commit("unknown transactional id", transactional_id=f"{name}-none")
    if version >= 3:
        commit("a stranger", member_id="nobody", generation_id=3)
        commit("a generation without a member", generation_id=3)
        commit("an unknown instance", member_id="nobody", group_instance_id="one", generation_id=3)
    end(talk, name, current)


@step(m.WRITE_TXN_MARKERS)
def writes_markers(talk: Conversation, version: int) -> None:
    name = talk.own("m")
    current = begin(talk, name)

    def write(
        label: str, producer: Producer, topic: str = talk.topic, partition: int = 2, coordinator: int = 0
    ) -> None:
        marker = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "coordinator_epoch": coordinator,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
        }
        talk.ask(label, markers=[marker])

    write("no such partition", current, partition=9)
    write("no such topic", current, f"{talk.topic}-none")
    write("an abort", current)
    write("an older coordinator epoch", current, coordinator=-1)
    end(talk, name, current)
    talk.ask("nothing", markers=[])


@step(m.DESCRIBE_PRODUCERS)
def describes_producers(talk: Conversation, version: int) -> None:
    current = start(talk, talk.own("d"))
    produce(talk, talk.topic, batch([b"x"], producer=(*current, 0)), 1)

    def describe(topic: str = talk.topic, partition: int = 1) -> Any:
        return talk.do(m.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [partition]}])

    talk.record("no such partition", describe(partition=9))
    talk.record("no such topic", describe(f"{talk.topic}-none"))
    # Other steps have written to the partition, too: record only this producer.
    (described,) = describe().topics[0].partitions
    talk.record("one", tuple(state for state in described.active_producers if state.producer_id == current[0]))


@step(m.DESCRIBE_TRANSACTIONS)
def describes_transactions(talk: Conversation, version: int) -> None:
    name = talk.own("t")
    for label, transactional_id in (("unknown", name), ("no transactional id", "")):
        talk.ask(label, transactional_ids=[transactional_id])
    start(talk, name)
    talk.ask("a transaction that has not begun", transactional_ids=[name])
    current = begin(talk, name)
    talk.ask("an ongoing transaction", transactional_ids=[name])
    end(talk, name, current)
    talk.ask("none", transactional_ids=[])


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000


@step(m.LIST_TRANSACTIONS)
def lists_transactions(talk: Conversation, version: int) -> None:
    name = talk.own("l")
    current = begin(talk, name)

    def query(label: str, **more: Any) -> None:
        talk.ask(label, producer_id_filters=[current[0]], **more)

    query("one")
    query("by state", state_filters=["Ongoing"])
    query("by another state", state_filters=["Empty"])
    query("by no state", state_filters=["Nonsense"])
    if version >= 1:
        now = _milliseconds()
        while _milliseconds() == now:
            pass  # a transaction that began in this millisecond is not older than 0 ms
        query("young ones", duration_filter=0)
        query("old ones", duration_filter=1_000_000)
    if version >= 2:
        query("by pattern", transactional_id_pattern=f"{talk.name}.*")
        query("by another pattern", transactional_id_pattern="such.*")
        query("by no pattern", transactional_id_pattern="(")
    end(talk, name, current)
