"""Steps of script.py: producers and transactions, in every version of their APIs. What a whole transaction does is
in transaction_steps.py."""

from __future__ import annotations

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
    """A transaction with a record in the last partition; with `group` that group's offsets are part of it."""
    one = start(talk, transactional_id)
    talk.do(m.ADD_PARTITIONS_TO_TXN, 3, **_adding(talk, transactional_id, one, 2))
    records = batch([b"x"], attributes=_TRANSACTIONAL, producer=(*one, 0))
    produce(talk, talk.topic, records, 2, transactional_id=transactional_id)
    if group is not None:
        values = {"producer_id": one[0], "producer_epoch": one[1], "group_id": group}
        talk.do(m.ADD_OFFSETS_TO_TXN, 3, transactional_id=transactional_id, **values)
    return one


def end(talk: Conversation, transactional_id: str, producer: Producer, committed: bool = False) -> None:
    values = {"producer_id": producer[0], "producer_epoch": producer[1], "committed": committed}
    talk.do(m.END_TXN, 3, transactional_id=transactional_id, **values)


def _adding(talk: Conversation, transactional_id: str, producer: Producer, *partitions: int, **more: Any) -> Any:
    """The values of an AddPartitionsToTxn request, for all its versions."""
    topics = [{"name": more.get("topic", talk.topic), "partitions": list(partitions)}]
    one = {
        "transactional_id": transactional_id,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "verify_only": more.get("verify_only", False),
        "topics": topics,
    }
    return {
        "transactions": [one],
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": topics,
    }


@step(m.INIT_PRODUCER_ID)
def gives_ids(talk: Conversation, version: int) -> None:
    name = talk.own("i")

    def ask(what: str, transactional_id: str | None, known: Producer = (-1, -1), timeout: int = _TIMEOUT) -> Producer:
        values = {"transaction_timeout": timeout, "producer_id": known[0], "producer_epoch": known[1]}
        answer = talk.ask(what, transactional_id=transactional_id, **values)
        return answer.producer_id, answer.producer_epoch

    ask("without transactions", None)
    ask("no transactional id", "")
    ask("a time-out too long", name, timeout=900_001)
    ask("a time-out of nothing", name, timeout=0)
    one = ask("the first", name)
    ask("the second", name)
    if version >= 3:
        ask("an epoch gone by", name, one)
        ask("an epoch to come", name, (one[0], 9))
        ask("no epoch", name, (one[0], -1))


@step(m.ADD_PARTITIONS_TO_TXN)
def adds_partitions(talk: Conversation, version: int) -> None:
    name = talk.own("a")
    one = start(talk, name)

    def add(what: str, producer: Producer = one, *partitions: int, transactional_id: str = name, **more: Any) -> None:
        talk.ask(what, **_adding(talk, transactional_id, producer, *(partitions or (2,)), **more))

    add("unknown transactional id", transactional_id=f"{name}-none")
    add("no transactional id", transactional_id="")
    add("another's id", (one[0] + 1_000_000, 0))
    add("an epoch to come", (one[0], one[1] + 1))
    add("a partition that is none", one, 2, 9)
    add("a topic that is none", topic=f"{talk.topic}-none")
    add("one")
    add("again", one, 1, 2)
    if version >= 4:
        add("is it part of it", verify_only=True)
        add("is another part of it", one, 0, verify_only=True)
        add("is that of an epoch to come", (one[0], one[1] + 1), verify_only=True)
    end(talk, name, one)


@step(m.ADD_OFFSETS_TO_TXN)
def adds_offsets(talk: Conversation, version: int) -> None:
    name = talk.own("b")
    one = start(talk, name)

    def add(what: str, producer: Producer = one, transactional_id: str = name, group: str = f"{name}-g") -> None:
        values = {"producer_id": producer[0], "producer_epoch": producer[1], "group_id": group}
        talk.ask(what, transactional_id=transactional_id, **values)

    add("unknown transactional id", transactional_id=f"{name}-none")
    add("no transactional id", transactional_id="")
    add("another's id", (one[0] + 1_000_000, 0))
    add("an epoch to come", (one[0], one[1] + 1))
    add("one")
    add("again")
    end(talk, name, one)


@step(m.END_TXN)
def ends_transactions(talk: Conversation, version: int) -> None:
    name = talk.own("e")
    one = start(talk, name)

    def finish(what: str, producer: Producer, committed: bool = True, transactional_id: str = name) -> Any:
        values = {"producer_id": producer[0], "producer_epoch": producer[1], "committed": committed}
        return talk.ask(what, transactional_id=transactional_id, **values)

    finish("nothing", one)
    one = begin(talk, name)
    finish("unknown transactional id", one, transactional_id=f"{name}-none")
    finish("no transactional id", one, transactional_id="")
    finish("another's id", (one[0] + 1_000_000, 0))
    finish("an epoch to come", (one[0], one[1] + 1))
    finish("commit", one)
    finish("commit again", one)
    finish("abort what is committed", one, False)
    one = begin(talk, name)
    finish("abort", one, False)
    finish("abort again", one, False)


@step(m.TXN_OFFSET_COMMIT)
def commits_offsets(talk: Conversation, version: int) -> None:
    name, group = talk.own("o"), talk.own("og")
    one = begin(talk, name, group=group)

    def commit(what: str, producer: Producer = one, partition: int = 0, **more: Any) -> None:
        offset = {"partition_index": partition, "committed_offset": 7, "committed_metadata": "note"}
        topics = [{"name": more.pop("topic", talk.topic), "partitions": [offset]}]
        values = {
            "transactional_id": name,
            "group_id": group,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            **more,
        }
        talk.ask(what, topics=topics, **values)

    commit("one")
    commit("no such partition", partition=9)
    commit("no such topic", topic=f"{talk.topic}-none")
    commit("no group's name", group_id="")
    commit("another's id", (one[0] + 1_000_000, 0))
    commit("an epoch to come", (one[0], one[1] + 1))
    commit("unknown transactional id", transactional_id=f"{name}-none")
    if version >= 3:
        commit("a stranger", member_id="nobody", generation_id=3)
        commit("a generation without a member", generation_id=3)
        commit("an instance that is none", member_id="nobody", group_instance_id="one", generation_id=3)
    end(talk, name, one)


@step(m.WRITE_TXN_MARKERS)
def writes_markers(talk: Conversation, version: int) -> None:
    name = talk.own("m")
    one = begin(talk, name)

    def write(what: str, producer: Producer, topic: str = talk.topic, partition: int = 2, coordinator: int = 0) -> None:
        marker = {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "coordinator_epoch": coordinator,
            "transaction_result": False,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
        }
        talk.ask(what, markers=[marker])

    write("no such partition", one, partition=9)
    write("no such topic", one, f"{talk.topic}-none")
    write("an abort", one)
    write("a coordinator's epoch gone by", one, coordinator=-1)
    end(talk, name, one)
    talk.ask("nothing", markers=[])


@step(m.DESCRIBE_PRODUCERS)
def describes_producers(talk: Conversation, version: int) -> None:
    one = start(talk, talk.own("d"))
    produce(talk, talk.topic, batch([b"x"], producer=(*one, 0)), 1)

    def look(what: str, topic: str = talk.topic, partition: int = 1) -> Any:
        return talk.do(m.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [partition]}]), what

    for answer, what in (look("no such partition", partition=9), look("no such topic", f"{talk.topic}-none")):
        talk.record(what, answer)
    # Other steps have written here as well.
    (found,) = look("one")[0].topics[0].partitions
    talk.record("one", tuple(each for each in found.active_producers if each.producer_id == one[0]))


@step(m.DESCRIBE_TRANSACTIONS)
def describes_transactions(talk: Conversation, version: int) -> None:
    name = talk.own("t")
    for what, transactional_id in (("unknown", name), ("no transactional id", "")):
        talk.ask(what, transactional_ids=[transactional_id])
    start(talk, name)
    talk.ask("one that has not begun", transactional_ids=[name])
    one = begin(talk, name)
    talk.ask("one that goes on", transactional_ids=[name])
    end(talk, name, one)
    talk.ask("none", transactional_ids=[])


@step(m.LIST_TRANSACTIONS)
def lists_transactions(talk: Conversation, version: int) -> None:
    name = talk.own("l")
    one = begin(talk, name)

    def look(what: str, **more: Any) -> None:
        talk.ask(what, producer_id_filters=[one[0]], **more)

    look("one")
    look("by state", state_filters=["Ongoing"])
    look("by another state", state_filters=["Empty"])
    look("by no state", state_filters=["Nonsense"])
    if version >= 1:
        look("young ones", duration_filter=0)
        look("old ones", duration_filter=1_000_000)
    if version >= 2:
        look("by pattern", transactional_id_pattern=f"{talk.name}.*")
        look("by another pattern", transactional_id_pattern="such.*")
        look("by no pattern", transactional_id_pattern="(")
    end(talk, name, one)
