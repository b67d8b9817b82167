"""The steps of script.py, in parts. Each part has its own partitions."""

from __future__ import annotations

import time
from typing import Any

from kafkabuf.protocol import messages
from tests.broker.transactions.script import Script


def idempotence(script: Script) -> None:
    """Sequences, duplicates and epochs of a producer without transactions. Partitions 0 to 2."""
    one = script.init("an id", None)
    script.init("an id is asked for again", None, known=one)
    script.init("an id without its epoch", None, known=(one[0], -1))
    script.init("an epoch without its id", None, known=(-1, 3))

    def send(step: str, sequence: int, producer: tuple[int, int] = one, **more: Any) -> None:
        script.produce(step, None, producer, sequence, transactional=False, **more)

    send("first batch", 0, count=3)
    send("again", 0, count=3)
    send("gap", 4)
    send("next", 3)
    send("part of an old batch", 1)
    send("more than an old batch", 0, count=4)
    for sequence in range(4, 9):
        send(f"sequence {sequence}", sequence)
    send("the fifth last", 4)
    send("the sixth last", 3)
    raised = (one[0], one[1] + 1)
    send("new epoch, not from zero", 9, raised)
    send("new epoch", 0, raised)
    send("old epoch", 9)
    send("old epoch, a batch it has sent", 8)
    send("unknown producer, not from zero", 7, (one[0] + 5_000_000, 0))
    send("unknown producer goes on", 8, (one[0] + 5_000_000, 0))
    send("unknown producer, high epoch", 7, (one[0] + 5_000_001, 9), partition=1)
    send("a first batch", 0, partition=1)
    send("new epoch, the same first batch", 0, raised, partition=1)
    top = 2**31 - 1
    send("near the end of sequences", top - 1, (one[0] + 5_000_002, 0), partition=2)
    send("across the end", top, (one[0] + 5_000_002, 0), partition=2, count=3)
    send("across the end again", top, (one[0] + 5_000_002, 0), partition=2, count=3)
    send("behind the end", 2, (one[0] + 5_000_002, 0), partition=2)
    send("zero where two was", 0, (one[0] + 5_000_002, 0), partition=2)


def identities(script: Script) -> None:
    """InitProducerId with transactional ids: epochs, fencing, KIP-360."""
    t = f"{script.name}-identity"
    script.init("empty transactional id", "")
    script.init("time-out too large", t, timeout=900_001)
    script.init("time-out of zero", t, timeout=0)
    script.init("unknown id is recovered", f"{t}-other", known=(77_777_777, 3))
    one = script.init("first", t)
    script.init("second", t)
    script.init("with an epoch gone by", t, known=one)
    script.init("with an epoch gone by, version 3", t, known=one, version=3)
    third = script.init("with the present epoch", t, known=(one[0], 1))
    script.init("with the present epoch, again", t, known=(one[0], 1))
    script.init("with an epoch to come", t, known=(one[0], 7))
    script.init("with another's id", t, known=(one[0] + 1, 2))
    script.init("without its epoch", t, known=(one[0], -1))
    script.init("version 0", t, version=0)
    script.init("after version 0, as the third was", t, known=third)


def first_version(script: Script) -> None:
    """Transactions of clients before KIP-890. Partitions 3 to 5."""
    t = f"{script.name}-one"
    one = script.init("v1: init", t)
    other = (one[0] + 1_000_000, 0)
    script.end("v1: commit of nothing", t, one, True)
    script.end("v1: abort of nothing", t, one, False)
    script.add("v1: add, unknown transactional id", f"{t}-unknown", one, 3)
    script.add("v1: add, empty transactional id", "", one, 3)
    script.add("v1: add, another's id", t, other, 3)
    script.add("v1: add, epoch gone by", t, (one[0], one[1] - 1), 3)
    script.add("v1: add, epoch to come", t, (one[0], one[1] + 1), 3)
    script.add("v1: add, epoch to come, version 1", t, (one[0], one[1] + 1), 3, version=1)
    script.add("v1: add, unknown partition", t, one, 3, 99)
    script.produce("v1: send to what was not added, 11", t, one, 0, partition=3, version=11)
    script.produce("v1: send to what was not added, 9", t, one, 0, partition=3, version=9)
    script.add("v1: add", t, one, 3, 4)
    script.add("v1: add again", t, one, 4)
    script.produce("v1: send", t, one, 0, partition=3, count=2)
    script.produce("v1: send again", t, one, 0, partition=3, count=2)
    script.produce("v1: gap", t, one, 5, partition=3)
    script.produce("v1: plain batch within", None, one, 2, partition=3, transactional=False)
    script.produce("v1: no transactional id", None, one, 2, partition=3)
    script.produce("v1: another transactional id", f"{t}-unknown", one, 0, partition=4)
    script.produce("v1: another's id", t, other, 0, partition=4)
    script.produce("v1: epoch to come", t, (one[0], one[1] + 1), 0, partition=4)
    script.produce("v1: not from zero", t, one, 3, partition=4)
    script.produce("v1: send elsewhere", t, one, 0, partition=4, version=9)
    script.fetch("v1: read committed, open", 0, partition=3)
    script.fetch("v1: read uncommitted, open", 0, partition=3, committed=False)
    script.fetch("v1: read committed, behind the last stable offset", 1, partition=3)
    script.list_offset("v1: latest stable", -1, committed=True, partition=3)
    script.list_offset("v1: latest", -1, committed=False, partition=3)
    script.end("v1: end, unknown transactional id", f"{t}-unknown", one, True)
    script.end("v1: end, empty transactional id", "", one, True)
    script.end("v1: end, another's id", t, other, True)
    script.end("v1: end, epoch gone by", t, (one[0], one[1] - 1), True)
    script.end("v1: end, epoch to come", t, (one[0], one[1] + 1), True)
    script.end("v1: end, epoch to come, version 1", t, (one[0], one[1] + 1), True, version=1)
    script.end("v1: commit", t, one, True)
    script.stable_offset(3, 3)
    script.stable_offset(2, 4)
    script.end("v1: commit again", t, one, True)
    script.end("v1: abort what is committed", t, one, False)
    script.produce("v1: send after the end", t, one, 2, partition=3)
    script.add("v1: add for the second", t, one, 3)
    script.produce("v1: second", t, one, 2, partition=3)
    script.end("v1: abort", t, one, False)
    script.stable_offset(5, 3)
    script.end("v1: abort again", t, one, False)
    script.end("v1: commit what is aborted", t, one, True)
    script.produce("v1: plain batch after", None, one, 3, partition=3, transactional=False)
    script.produce("v1: duplicate after the end", t, one, 0, partition=3, count=2)
    script.produce("v1: duplicate that is remembered", t, one, 2, partition=3)
    script.add("v1: add what was refused", t, one, 3)
    script.produce("v1: above what was refused", t, one, 4, partition=3)
    script.end("v1: abort what was refused", t, one, False)
    script.stable_offset(7, 3)
    script.add("v1: add once more", t, one, 3)
    script.produce("v1: marker forgets what was refused", t, one, 4, partition=3)
    script.end("v1: abort once more", t, one, False)
    script.stable_offset(9, 3)
    script.fetch("v1: read committed", 0, partition=3)
    script.fetch("v1: read committed, from the aborted", 3, partition=3)
    script.fetch("v1: read committed, from its marker", 4, partition=3)
    script.fetch("v1: read committed, behind it", 5, partition=3)
    script.fetch("v1: read uncommitted", 0, partition=3, committed=False)
    script.list_offset("v1: by time", 1_600_000_000_000, committed=True, partition=3)
    script.add("v1: add for the third", t, one, 5)
    script.produce("v1: third", t, one, 0, partition=5)
    script.init("v1: init within a transaction", t, patient=False)
    script.stable_offset(2, 5)
    script.init("v1: the fenced recovers", t, known=one)
    two = script.init("v1: init after it was aborted", t)
    script.end("v1: commit of the fenced", t, one, True)
    script.add("v1: add of the fenced", t, one, 5)
    script.produce("v1: send of the fenced", t, one, 1, partition=5)
    script.fetch("v1: what was fenced", 0, partition=5)
    script.add("v1: add after fencing", t, two, 5)
    script.produce("v1: send after fencing, not from zero", t, two, 1, partition=5)
    script.produce("v1: send after fencing", t, two, 0, partition=5)
    script.end("v1: commit after fencing", t, two, True)


def offsets(script: Script) -> None:
    """Offsets committed in transactions. No records."""
    t, group = f"{script.name}-offsets", f"{script.name}-group"
    one = script.init("offsets: init", t)
    other = (one[0] + 1_000_000, 0)
    script.offset("offsets: before", group, stable=True)
    script.commit_offsets("offsets: not added, 3", t, one, group, 5, version=3)
    script.commit_offsets("offsets: not added, 4", t, one, group, 5, version=4)
    script.add_offsets("offsets: add, unknown transactional id", f"{t}-unknown", one, group)
    script.add_offsets("offsets: add, another's id", t, other, group)
    script.add_offsets("offsets: add, epoch to come", t, (one[0], 9), group)
    script.add_offsets("offsets: add, epoch to come, version 1", t, (one[0], 9), group, version=1)
    script.add_offsets("offsets: add", t, one, group)
    script.commit_offsets("offsets: generation of no group", t, one, group, 5, generation_id=3, member_id="m")
    script.commit_offsets("offsets: unknown topic", t, one, group, 5, topic=f"{script.topic}-none")
    script.commit_offsets("offsets: another's id", t, other, group, 5)
    script.commit_offsets("offsets: epoch to come", t, (one[0], 9), group, 5)
    script.commit_offsets("offsets: commit", t, one, group, 5)
    script.offset("offsets: pending", group, stable=True)
    script.offset("offsets: pending, any", group, stable=False)
    script.commit_offsets("offsets: unknown member", t, one, group, 6, generation_id=3, member_id="m")
    script.commit_offsets("offsets: generation without member", t, one, group, 6, generation_id=3)
    script.commit_offsets("offsets: member without generation", t, one, group, 6, member_id="m")
    script.end("offsets: transaction ends", t, one, True)
    _until_stable(script, group)
    script.offset("offsets: committed", group, stable=True)
    script.add_offsets("offsets: add for the second", t, one, group)
    script.commit_offsets("offsets: second", t, one, group, 9)
    script.offset("offsets: the former stays, any", group, stable=False)
    script.end("offsets: second is aborted", t, one, False)
    _until_stable(script, group)
    script.offset("offsets: after the abort", group, stable=True)


def _until_stable(script: Script, group: str) -> None:
    wanted = [{"name": script.topic, "partition_indexes": [0]}]
    for _ in range(250):
        answer = script.client.ask(messages.OFFSET_FETCH, 7, group_id=group, topics=wanted, require_stable=True)
        if int(answer.topics[0].partitions[0].error_code) == 0:
            return
        time.sleep(0.02)
    raise AssertionError("the group's offsets stay unstable")


def second_version(script: Script) -> None:
    """Transactions with KIP-890: a write adds its partition, and every end raises the epoch. Partitions 6 to 9."""
    t, group = f"{script.name}-two", f"{script.name}-group-two"
    one = script.init("v2: init", t, version=5)
    script.end("v2: commit of nothing", t, one, True, version=5)
    one = script.end("v2: abort of nothing", t, one, False, version=5)
    script.produce("v2: not from zero", t, one, 3, partition=6, version=12)
    script.produce("v2: send", t, one, 0, partition=6, version=12, count=2)
    script.produce("v2: send again", t, one, 0, partition=6, version=12, count=2)
    script.produce("v2: gap", t, one, 5, partition=6, version=12)
    script.produce("v2: send more", t, one, 2, partition=6, version=12)
    script.produce("v2: another's id", t, (one[0] + 1_000_000, one[1]), 0, partition=7, version=12)
    script.produce("v2: epoch to come", t, (one[0], one[1] + 1), 0, partition=7, version=12)
    script.produce("v2: epoch to come, ongoing", t, (one[0], one[1] + 1), 0, partition=6, version=12)
    script.produce("v2: epoch gone by", t, (one[0], one[1] - 1), 0, partition=7, version=12)
    script.produce("v2: unknown transactional id", f"{t}-unknown", one, 0, partition=7, version=12)
    script.produce("v2: no transactional id", None, one, 0, partition=7, version=12)
    script.commit_offsets("v2: offsets", t, one, group, 11, version=5)
    script.commit_offsets("v2: offsets, epoch to come", t, (one[0], one[1] + 1), group, 11, version=5)
    script.offset("v2: offsets pending", group, stable=True)
    two = script.end("v2: commit", t, one, True, version=5)
    script.stable_offset(4, 6)
    _until_stable(script, group)
    script.offset("v2: offsets committed", group, stable=True)
    script.end("v2: commit again", t, one, True, version=5)
    script.end("v2: abort what is committed, old epoch", t, one, False, version=5)
    script.end("v2: commit of nothing after", t, two, True, version=5)
    script.init("v2: recover with the epoch before the end", t, known=one, version=5)
    two = script.end("v2: abort of nothing after", t, two, False, version=5)
    script.produce("v2: old epoch", t, one, 3, partition=6, version=12)
    script.produce("v2: old epoch elsewhere", t, one, 0, partition=7, version=12)
    script.produce("v2: new epoch goes on where the old one was", t, two, 3, partition=6, version=12)
    script.produce("v2: new epoch from zero", t, two, 0, partition=6, version=12)
    three = script.end("v2: abort", t, two, False, version=5)
    script.stable_offset(6, 6)
    script.end("v2: abort again", t, two, False, version=5)
    script.end("v2: commit what is aborted", t, two, True, version=5)
    script.fetch("v2: read committed", 0, partition=6)
    script.produce("v2: within", t, three, 0, partition=8, version=12)
    script.init("v2: init within a transaction", t, patient=False, version=5)
    script.stable_offset(2, 8)
    script.init("v2: the fenced recovers", t, known=three, version=5)
    four = script.init("v2: init after it was aborted", t, version=5)
    script.fetch("v2: what was fenced", 0, partition=8)
    script.produce("v2: send of the fenced", t, three, 1, partition=8, version=12)
    script.end("v2: commit of the fenced", t, three, True, version=5)
    script.init("v2: recover, present epoch", t, known=four, version=5)
    script.init("v2: recover, present epoch, again", t, known=four, version=5)
    five = script.init("v2: anew", t, version=5)
    script.add("v2: add by request", t, five, 9)
    script.produce("v2: added by request", t, five, 0, partition=9, version=11)
    script.end("v2: end by version 4", t, five, True)
    script.stable_offset(2, 9)
    script.produce("v2: same epoch after version 4", t, five, 1, partition=9, version=12)
    six = script.end("v2: end by version 5", t, five, True, version=5)
    script.stable_offset(4, 9)
    script.produce("v2: plain batch of the producer", None, six, 0, partition=9, version=12, transactional=False)
    script.fetch("v2: mixed", 0, partition=9)


def administration(script: Script) -> None:
    """The responses of DescribeTransactions, ListTransactions and DescribeProducers. Partition 10."""
    t = f"{script.name}-described"
    one = script.init("described: init", t, version=5, timeout=30_000)
    script.note("described: empty", _described(script, t))
    script.produce("described: send", t, one, 0, partition=10, version=12, count=2)
    script.note("described: ongoing", _described(script, t))
    answer = script.client.ask(messages.LIST_TRANSACTIONS, 0, producer_id_filters=[one[0]])
    listed = [
        (one.transactional_id == t, script.id(one.producer_id), one.transaction_state)
        for one in answer.transaction_states
    ]
    script.note("described: listed", (int(answer.error_code), listed))
    answer = script.client.ask(
        messages.LIST_TRANSACTIONS, 0, state_filters=["Empty", "Nonsense"], producer_id_filters=[one[0]]
    )
    script.note("described: listed by state", (list(answer.unknown_state_filters), len(answer.transaction_states)))
    script.note("described: producers", _producers(script, 10))
    script.end("described: end", t, one, True, version=5)
    script.stable_offset(3, 10)
    for _ in range(1_000):
        found = _described(script, t)
        if found[0] == "CompleteCommit":
            break
        time.sleep(0.02)
    script.note("described: complete", found)
    script.note("described: producers after", _producers(script, 10))
    script.note("described: unknown transactional id", _described(script, f"{t}-unknown"))


def _described(script: Script, transactional_id: str) -> tuple[Any, ...]:
    answer = script.client.ask(messages.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[transactional_id])
    one = answer.transaction_states[0]
    if one.error_code:
        return int(one.error_code), one.transaction_state
    topics = [(topic.topic == script.topic, sorted(topic.partitions)) for topic in one.topics]
    began, timeout = one.transaction_start_time is not None, one.transaction_timeout.total_seconds()
    return one.transaction_state, timeout, script.id(one.producer_id), one.producer_epoch, began, topics


def _producers(script: Script, partition: int) -> list[tuple[Any, ...]]:
    topics = [{"name": script.topic, "partition_indexes": [partition]}]
    answer = script.client.ask(messages.DESCRIBE_PRODUCERS, 0, topics=topics)
    one = answer.topics[0].partitions[0]
    found: list[tuple[Any, ...]] = [
        (
            script.id(each.producer_id),
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in one.active_producers
    ]
    return [(int(one.error_code),), *found]


def by_hand(script: Script) -> None:
    """Markers that an administrator writes. Partition 12."""
    t = f"{script.name}-hand"
    script.init("hand: init", t, version=5)
    one = script.init("hand: init again", t, version=5)
    script.produce("hand: send", t, one, 0, partition=12, version=12)
    script.write_marker("hand: unknown partition", one, 0, committed=False, partition=99)
    script.write_marker("hand: epoch gone by", (one[0], one[1] - 1), 0, committed=False, partition=12)
    script.write_marker("hand: abort", one, 3, committed=False, partition=12)
    script.stable_offset(2, 12)
    script.fetch("hand: aborted", 0, partition=12)
    script.write_marker("hand: coordinator epoch gone by", one, 2, committed=True, partition=12)
    script.write_marker("hand: commit of nothing", one, 3, committed=True, partition=12)
    script.stable_offset(3, 12)
    script.produce("hand: its coordinator does not know", t, one, 1, partition=12, version=12)


def interleaved(script: Script) -> None:
    """Two transactions at once: the older transaction holds readers back. Partition 11."""
    one = script.init("mixed: init", f"{script.name}-older", version=5)
    two = script.init("mixed: init of another", f"{script.name}-younger", version=5)
    script.produce("mixed: plain", None, (one[0] + 7_000_000, 0), 0, partition=11, transactional=False)
    script.produce("mixed: older", f"{script.name}-older", one, 0, partition=11, version=12)
    script.produce("mixed: younger", f"{script.name}-younger", two, 0, partition=11, version=12, count=3)
    script.end("mixed: younger is aborted", f"{script.name}-younger", two, False, version=5)
    script.high_watermark(6, 11)
    script.fetch("mixed: up to the older", 0, partition=11)
    script.list_offset("mixed: by time, behind the last stable offset", 1_600_000_000_001, committed=True, partition=11)
    script.list_offset("mixed: by time, any", 1_600_000_000_001, committed=False, partition=11)
    script.end("mixed: older is committed", f"{script.name}-older", one, True, version=5)
    script.stable_offset(7, 11)
    script.fetch("mixed: all", 0, partition=11)
    script.fetch("mixed: within the aborted", 3, partition=11)
    script.list_offset("mixed: by time", 1_600_000_000_001, committed=True, partition=11)


PARTITIONS = 13
PARTS = (idempotence, identities, first_version, offsets, second_version, administration, interleaved, by_hand)
