"""The steps of producer_script.py, in parts. Each part has topics of its own."""

from __future__ import annotations

from kafkabuf.protocol import messages
from tests.broker.records.producer_script import DAY, HOUR, Script, own

ALONE = (1,)
LAST_SEQUENCE = 2**31 - 1
OLD = -2 * DAY
EXPIRATION = "producer.id.expiration.ms"


def errors(script: Script) -> None:
    """DescribeProducers where there is nothing to describe, and several partitions in one request."""
    script.create("errors", [ALONE, (2,)])
    script.create("copied", [(1, 2)])
    script.describe("no producer yet", "errors", 0)
    script.describe("no such partition", "errors", 9, node=1)
    script.describe("negative partition", "errors", -1, node=1)
    script.describe("no such topic", "none", 0, node=1)
    script.describe("no replica on the node", "errors", 1, node=1)
    script.send(None, "errors", own(501, 0), 0, at=(0, 1))
    script.send(None, "copied", own(502, 0), 0, at=(0, 1))
    script.until(lambda: len(script.described("copied", node=2)) == 2, "the follower's copy")
    script.describe("a follower", "copied", node=2)
    script.describe("no replica on the third node", "copied", node=3)
    name = script.topic("errors")
    answer = script.ask(
        1,
        messages.DESCRIBE_PRODUCERS,
        0,
        topics=[
            {"name": name, "partition_indexes": [0, 9, 1]},
            {"name": script.topic("none"), "partition_indexes": [1, 0]},
            {"name": script.topic("copied"), "partition_indexes": [0]},
        ],
    )
    for topic in answer.topics:
        described = [(each.partition_index, *script.producers(each)) for each in topic.partitions]
        script.note(f"several partitions: {topic.name.removeprefix(script.name)}", described)


def descriptions(script: Script) -> None:
    """What a partition says of its producers behind each kind of batch."""
    script.create("described", [ALONE] * 6)
    script.send("three records", "described", own(601, 4), 0, at=(1, 7, 3))
    script.describe("its newest time is that of the batch", "described")
    script.send("an older batch", "described", own(601, 4), 3, at=(-500, -400))
    script.describe("the last batch decides", "described")
    script.send("without an id", "described", (-1, -1), -1)
    script.send("of a new epoch", "described", own(601, 5), 0, at=(8,))
    script.describe("new epoch", "described")

    producer = own(603, 0)
    script.send("to the end of sequences", "described", producer, LAST_SEQUENCE - 2, partition=1, at=(1, 2, 3))
    script.describe("last sequence", "described", 1)
    script.send("from the start of sequences", "described", producer, 0, partition=1, at=(4,))
    script.describe("first sequence", "described", 1)
    script.send("up to the end again", "described", own(604, 0), LAST_SEQUENCE - 1, partition=1, at=(4,))
    script.send("a batch across the end", "described", own(604, 0), LAST_SEQUENCE, partition=1, at=(5, 6, 7))
    script.describe("across the end", "described", 1)

    for number in range(40):
        script.send(None, "described", own(5_000 - 7 * number, 0), number, partition=2, at=(number,))
    script.describe("many producers", "described", 2)

    script.write_marker("described", own(605, 3), 7, committed=True, partition=3)
    script.describe("a control record alone", "described", 3)
    script.send("behind its control record", "described", own(605, 3), 5, partition=3)
    script.send("behind its control record, from zero", "described", own(605, 3), 0, partition=3)
    script.describe("a batch behind a control record", "described", 3)
    script.write_marker("described", own(605, 4), 7, committed=False, partition=3)
    script.describe("a control record of a newer epoch", "described", 3)

    script.create("stamped", [ALONE], message_timestamp_type="LogAppendTime")
    script.send("stamped by the leader", "stamped", own(606, 0), 0, at=(1, 2))
    script.describe("time of the append", "stamped")


def transactions(script: Script) -> None:
    """Producers of transactions of both versions, in a partition each."""
    script.create("txn", [ALONE] * 4)
    name = f"{script.name}-second"
    one = script.init(name)
    script.send("second: plain", "txn", own(701, 0), 0)
    for outcome, committed, end in (("commit", True, 4), ("abort", False, 7)):
        script.send(f"second, {outcome}: a batch", "txn", one, 0, at=(1,), transactional_id=name, version=12)
        script.send(f"second, {outcome}: a second batch", "txn", one, 1, at=(2,), transactional_id=name, version=12)
        script.describe(f"second, {outcome}: open", "txn")
        last, one = one, script.end(name, one, committed)
        script.marker_written("txn", 0, end)
        script.describe(f"second, {outcome}: ended", "txn")
        script.send(f"second, {outcome}: a late duplicate", "txn", last, 1, at=(2,), transactional_id=name, version=12)
        script.send(f"second, {outcome}: outside of it", "txn", last, 2, at=(2,))
    name = f"{script.name}-first"
    one = script.init(name)
    for outcome, committed, end, first in (("commit", True, 3, 0), ("abort", False, 6, 2)):
        script.add(name, one, "txn", 1)
        for sequence in (first, first + 1):
            script.send(None, "txn", one, sequence, partition=1, at=(sequence,), transactional_id=name)
        script.describe(f"first, {outcome}: open", "txn", 1)
        script.send(f"first, {outcome}: a duplicate", "txn", one, first, partition=1, transactional_id=name)
        script.end(name, one, committed, version=4)
        script.marker_written("txn", 1, end)
        script.describe(f"first, {outcome}: ended", "txn", 1)
        script.send(f"first, {outcome}: plain duplicate", "txn", one, first, partition=1)
        script.send(f"first, {outcome}: plain, ahead", "txn", one, first + 3, partition=1)
    script.send("first: a late duplicate", "txn", one, 2, partition=1, transactional_id=name)


def duplicates(script: Script) -> None:
    """The same batch again, and batches that are nearly the same."""
    script.create("twice", [ALONE] * 6)
    producer = own(801, 2)
    first = 5

    def send(step: str, sequence: int, count: int = 2, sent: tuple[int, int] = producer, partition: int = 0) -> None:
        at = tuple(range(sequence, sequence + count))
        script.send(step, "twice", sent, sequence, at=at, partition=partition)

    send("twice: sequence 5, count 1", first, 1)
    for sequence in range(6, 18, 2):
        send(f"twice: sequence {sequence}", sequence)
    for back, sequence in enumerate(range(16, 4, -2), 1):
        send(f"twice: {back} back", sequence)
    send("twice: the first of all", first, 1)
    send("twice: only its first record", 16, 1)
    send("twice: only its last record", 17, 1)
    send("twice: one record more", 16, 3)
    send("twice: two batches as one", 14, 4)
    send("twice: from within one to within another", 13, 2)
    send("twice: one ahead", 19, 1)
    send("twice: far ahead", 1_000, 1)
    send("twice: sequence -1", -1, 1)
    script.send("twice: other records, other times", "twice", producer, 16, at=(500, 600))
    send("twice: older epoch, last batch", 16, 2, own(801, 1))
    send("twice: older epoch, next", 18, 2, own(801, 1))
    send("twice: older epoch, from zero", 0, 2, own(801, 1))
    send("twice: newer epoch, last batch", 16, 2, own(801, 3))
    send("twice: newer epoch, next", 18, 2, own(801, 3))
    send("twice: newer epoch, from one", 1, 2, own(801, 3))
    script.describe("twice: as before", "twice")
    send("twice: newer epoch, from zero", 0, 2, own(801, 9))
    send("twice: newer epoch, again", 0, 2, own(801, 9))
    send("twice: the epoch before, last batch", 16)
    send("twice: highest epoch", 0, 1, own(801, 32767))
    script.describe("twice: highest epoch is known", "twice")

    for sequence in range(6):
        send(f"cut: sequence {sequence}", sequence, 1, own(802, 0), 1)
    script.delete_records("twice", 4, 1)
    send("cut: last batch", 5, 1, own(802, 0), 1)
    send("cut: a batch before the start", 2, 1, own(802, 0), 1)
    script.delete_records("twice", 6, 1)
    script.describe("cut: nothing is left", "twice", 1)
    send("cut: last batch, all is deleted", 5, 1, own(802, 0), 1)
    send("cut: fifth last batch, all is deleted", 1, 1, own(802, 0), 1)
    send("cut: sixth last batch, all is deleted", 0, 1, own(802, 0), 1)
    send("cut: ahead, all is deleted", 7, 1, own(802, 0), 1)
    send("cut: next, all is deleted", 6, 1, own(802, 0), 1)
    script.describe("cut: goes on", "twice", 1)

    same = script.records(own(803, 0), 0)
    for step, data in (
        ("together: two entries", [same, same]),
        ("together: two of the next", [script.records(own(803, 0), 1), script.records(own(803, 0), 2)]),
        ("together: one entry with two batches", [script.records(own(803, 0), 3) + script.records(own(803, 0), 4)]),
        ("together: a batch twice in an entry", [script.records(own(803, 0), 3) * 2]),
    ):
        entries = [{"index": 2, "records": records} for records in data]
        answer = script.ask(
            script.leader("twice", 2),
            messages.PRODUCE,
            11,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": script.topic("twice"), "partition_data": entries}],
        )
        script.note(step, [script.result(each) for topic in answer.responses for each in topic.partition_responses])
        script.describe(f"{step}: described", "twice", 2)

    script.create("twice-stamped", [ALONE], message_timestamp_type="LogAppendTime")
    script.send("stamped: first", "twice-stamped", own(804, 0), 0, at=(1,))
    script.send("stamped: again", "twice-stamped", own(804, 0), 0, at=(1,))


def new_topic(script: Script) -> None:
    """A topic that is deleted and made again knows no producer."""
    script.create("again", [ALONE])
    script.send("again: before", "again", own(901, 5), 0)
    script.send("again: before, second", "again", own(901, 5), 1)
    script.delete("again")
    script.create("again", [ALONE])
    script.describe("again: made again", "again")
    script.send("again: duplicate", "again", own(901, 5), 1)
    script.send("again: duplicate of the duplicate", "again", own(901, 5), 1)
    script.send("again: an older one", "again", own(901, 5), 0)
    script.describe("again: known again", "again")


def expiry(script: Script) -> None:
    """Ids expire by the time of their last batch. The node looks for them now and then."""
    script.create("expiry", [ALONE] * 4)
    script.create("expiry-copied", [(1, 2, 3)])
    script.create("expiry-stamped", [ALONE], message_timestamp_type="LogAppendTime")
    gone, kept, again, older, still = own(1001, 3), own(1002, 3), own(1003, 0), own(1004, 0), own(1005, 0)
    for producer in (kept, older, still):
        script.send(None, "expiry", producer, 0, at=(0,))
    script.send(None, "expiry", again, 0, at=(OLD,))
    script.send("expiry: old, then new", "expiry", again, 1, at=(0,))
    script.send("expiry: new, then old", "expiry", older, 1, at=(OLD, OLD + 1))
    script.send("expiry: old and new in one batch", "expiry", still, 1, at=(OLD, 0))
    script.send("expiry: just not old enough", "expiry", own(1006, 0), 0, at=(2 * HOUR - DAY,))
    script.send("expiry: in the future", "expiry", own(1007, 0), 0, at=(HOUR + HOUR // 2,))
    for sequence in range(3):
        script.send(None, "expiry", gone, sequence, at=(OLD + sequence,))
    script.send("expiry: times of the leader", "expiry-stamped", gone, 0, at=(OLD,))
    script.until_gone("expiry", 0, gone)
    script.until_gone("expiry", 0, older)
    script.describe("expiry: those that are left", "expiry")
    script.describe("expiry: the leader's time is no old time", "expiry-stamped")
    script.send("expiry: forgotten, the last batch again", "expiry", gone, 2, at=(0,))
    script.send("expiry: forgotten, that once more", "expiry", gone, 2, at=(0,))
    script.send("expiry: forgotten, the batch before", "expiry", gone, 1, at=(0,))
    script.send("expiry: forgotten, next", "expiry", gone, 3, at=(0,))
    script.describe("expiry: known again", "expiry")
    script.send("expiry: forgotten, lower epoch and any sequence", "expiry", (older[0], 0), 77, at=(0,))

    script.send(None, "expiry", own(1011, 7), 0, partition=1, at=(OLD,))
    script.until_gone("expiry", 1, own(1011, 7))
    script.send("expiry: forgotten, an epoch that was over", "expiry", own(1011, 2), 8, partition=1)
    script.describe("expiry: the lower epoch counts", "expiry", 1)

    name = f"{script.name}-expiry"
    one = script.init(name)
    script.send("expiry: in a transaction", "expiry", one, 0, partition=2, at=(OLD,), transactional_id=name, version=12)
    script.send(None, "expiry", own(1021, 0), 0, partition=2, at=(OLD,))
    script.until_gone("expiry", 2, own(1021, 0))
    script.describe("expiry: the open transaction keeps its producer", "expiry", 2)
    one = script.end(name, one, True)
    script.marker_written("expiry", 2, 3)
    script.send(None, "expiry", own(1021, 0), 0, partition=2, at=(OLD,))
    script.until_gone("expiry", 2, own(1021, 0))
    script.describe("expiry: the control record is new", "expiry", 2)

    producer = own(1031, 0)
    script.send(None, "expiry-copied", producer, 0, at=(OLD,))
    for node in (1, 2, 3):
        script.until(lambda: script.described("expiry-copied", node=node) == [0], f"the end of it on {node}")  # noqa: B023

    script.configure("expiry: of nothing", EXPIRATION, "0")
    script.configure("expiry: of no number", EXPIRATION, "soon")
    script.configure("expiry: too late a check", "producer.id.expiration.check.interval.ms", "5")
    script.send(None, "expiry", own(1041, 0), 0, partition=3, at=(0,))
    script.send(None, "expiry", own(1042, 0), 0, partition=3, at=(HOUR // 2 + HOUR // 4,))
    script.configure(None, EXPIRATION, str(HOUR // 2 + HOUR // 4))
    script.until_gone("expiry", 3, own(1041, 0))
    script.describe("expiry: less than an hour", "expiry", 3)
    script.configure(None, EXPIRATION, None)
    script.send(None, "expiry", own(1041, 0), 4, partition=3, at=(0,))
    script.send(None, "expiry", own(1043, 0), 0, partition=3, at=(OLD,))
    script.until_gone("expiry", 3, own(1043, 0))
    script.describe("expiry: a day again", "expiry", 3)


def moves(script: Script) -> None:
    """Another node leads: it knows what the last leader knew."""
    script.create("moves", [(1, 2, 3)])
    producer = own(1101, 1)
    for sequence in range(7):
        script.send(None, "moves", producer, sequence, at=(sequence,))
    script.send(None, "moves", own(1102, 0), LAST_SEQUENCE, at=(1, 2))
    name = f"{script.name}-moves"
    one = script.init(name)
    script.send("moves: a transaction", "moves", one, 0, at=(1,), transactional_id=name, version=12)
    _move(script)
    script.describe("moves: described by the new leader", "moves")
    for sequence in range(6, 0, -1):
        script.send(f"moves: sequence {sequence} again", "moves", producer, sequence, at=(sequence,))
    script.send("moves: ahead", "moves", producer, 8)
    script.send("moves: next", "moves", producer, 7)
    script.send("moves: across the end, again", "moves", own(1102, 0), LAST_SEQUENCE, at=(1, 2))
    script.end(name, one, False)
    script.marker_written("moves", 0, 12)
    script.delete_records("moves", 12)
    _move(script)
    script.describe("moves: all is deleted", "moves")
    script.send("moves: again, all is deleted", "moves", producer, 7)
    script.send("moves: next, all is deleted", "moves", producer, 8)


def _move(script: Script) -> None:
    """Moves the lead, once every node has every batch."""
    leader = script.leader("moves")
    _everywhere(script, "moves")
    script.stage.move_leader(script.topic("moves"))
    script.until(
        lambda: script.leader("moves") not in (leader, -1) and script.leads("moves", 0), "another leader of moves"
    )


def _everywhere(script: Script, suffix: str) -> None:
    """Waits until every node knows what the leader knows."""
    known = script.described(suffix)
    for node in (1, 2, 3):
        script.until(lambda: script.described(suffix, node=node) == known, f"what {node} knows")  # noqa: B023


def returns(script: Script) -> None:
    """A leader stops, another node leads, and the first one leads again."""
    script.create("returns", [(1, 2, 3)])
    producer = own(1151, 3)
    for sequence in range(7):
        script.send(None, "returns", producer, sequence, at=(sequence,))
    _everywhere(script, "returns")
    script.stage.bounce(1)
    script.close()
    script.until(lambda: script.leader("returns", asked=2) not in (1, -1), "another leader of returns")
    script.until(lambda: script.leads("returns", 0), "the lead")
    script.describe("returns: another leads", "returns")
    for sequence in range(6, 0, -1):
        script.send(f"returns: another leads, {sequence} again", "returns", producer, sequence, at=(sequence,))
    script.elect("returns", 1)
    script.describe("returns: the first leads again", "returns")
    for sequence in range(6, 0, -1):
        script.send(f"returns: the first leads again, {sequence} again", "returns", producer, sequence, at=(sequence,))
    script.send("returns: next", "returns", producer, 7)


def retention(script: Script) -> None:
    """Retention removes batches. It removes no producer."""
    script.create("retained", [ALONE], retention_ms=str(2 * HOUR), file_delete_delay_ms="0")
    producer = own(1201, 0)
    for sequence in range(2):
        script.send(None, "retained", producer, sequence, at=(-3 * HOUR + sequence,))
    script.until(lambda: _start(script, "retained") == 2, "the end of what is old")
    script.describe("retained: nothing is left", "retained")
    script.send("retained: the last again", "retained", producer, 1)
    script.send("retained: ahead", "retained", producer, 3)
    script.send("retained: next", "retained", producer, 2)


def _start(script: Script, suffix: str, timestamp: int = -2) -> int:
    asked = [{"name": script.topic(suffix), "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    answer = script.ask(script.leader(suffix), messages.LIST_OFFSETS, 5, replica_id=-1, isolation_level=0, topics=asked)
    return int(answer.topics[0].partitions[0].offset)


def restarts(script: Script) -> None:
    """A node is stopped in order and started with its data; then it is killed and started with its data."""
    script.create("kept", [ALONE] * 6)
    script.create("kept-cut", [ALONE] * 3)
    script.create("kept-compacted", [ALONE], cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0")
    for partition in (0, 1):
        _plain_producers(script, partition)
    for committed, partition in enumerate((2, 3)):
        _transactional_producers(script, partition, bool(committed))
    for partition in (0, 1):
        for sequence in range(2):
            script.send(None, "kept-cut", own(1306, 0), sequence, partition=partition)
        script.delete_records("kept-cut", 2, partition)
    for sequence in range(3):
        script.send(None, "kept-cut", own(1306, 0), sequence, partition=2)
        script.send(None, "kept-cut", own(1308, 0), sequence, partition=2)
    script.delete_records("kept-cut", 5, 2)
    # Each batch is a minute later, so that it begins another segment.
    batches = ((1307, 0, b"a"), (1307, 1, b"a"), (1309, 0, b"a"), (1309, 1, b"b"))
    for minute, (number, sequence, key) in enumerate(batches):
        script.send(None, "kept-compacted", own(number, 0), sequence, at=(60_000 * minute,), key=key)
    script.until(lambda: _first_batch(script, "kept-compacted") > 0, "a compaction")

    script.stage.restart(1)
    _wait_for_node(script)
    _look("restart", script, 0, 2, 0)
    script.describe("restart: some records deleted", "kept-cut", 2)
    _look_compacted("restart", script)
    _plain_producers(script, 4)

    script.stage.kill(1)
    _wait_for_node(script)
    _look("kill", script, 1, 3, 1)
    _look_compacted("kill", script)
    script.describe("kill: written since the start", "kept", 4)
    for sequence in range(6, 0, -1):
        script.send(f"kill: {sequence}, written since the start, again", "kept", own(1301, 4), sequence, partition=4)


def _plain_producers(script: Script, partition: int) -> None:
    for sequence in range(7):
        script.send(None, "kept", own(1301, 4), sequence, partition=partition, at=(sequence,))
    script.send(None, "kept", own(1302, 0), LAST_SEQUENCE, partition=partition, at=(1, 2))
    script.send(None, "kept", own(1303, 0), 7, partition=partition, at=(HOUR + HOUR // 2,))
    script.send(None, "kept", own(1304, 0), 0, partition=partition)
    script.send(None, "kept", own(1304, 1), 0, partition=partition)
    script.write_marker("kept", own(1305, 2), 6, committed=True, partition=partition)


def _transactional_producers(script: Script, partition: int, committed: bool) -> None:
    """An open transaction, and two that are over: of either version."""
    for part, version in (("open", None), ("second", 5), ("first", 4)):
        name = f"{script.name}-{part}-{partition}"
        one = script.init(name)
        script.add(name, one, "kept", partition)
        script.send(None, "kept", one, 0, partition=partition, at=(5, 6), transactional_id=name)
        if version is not None:
            script.end(name, one, committed, version=version)
    script.until(lambda: _open_transactions(script, partition) == 1, "the control records")


def _open_transactions(script: Script, partition: int) -> int:
    return sum(start >= 0 for *_, start in script.described("kept", partition)[1:])


def _first_batch(script: Script, suffix: str) -> int:
    answer = script.fetch(suffix)
    return int.from_bytes(bytes(answer.records or b"")[:8], "big")


def _wait_for_node(script: Script) -> None:
    """Waits until node 1 leads what it led before. Its old connections are gone."""
    script.close()

    def leads(suffix: str, partition: int) -> bool:
        try:
            return script.leads(suffix, partition)
        except (OSError, AssertionError):
            return False

    for suffix, count in (("kept", 6), ("kept-cut", 3), ("kept-compacted", 1)):
        for partition in range(count):
            script.until(lambda: leads(suffix, partition), f"a leader of {suffix}-{partition}")  # noqa: B023


def _look(cause: str, script: Script, plain: int, transactional: int, cut: int) -> None:
    producer = own(1301, 4)
    script.describe(f"{cause}: plain producers", "kept", plain)
    for sequence in range(6, 0, -1):
        script.send(f"{cause}: sequence {sequence} again", "kept", producer, sequence, partition=plain, at=(sequence,))
    script.send(f"{cause}: ahead", "kept", producer, 8, partition=plain)
    script.send(f"{cause}: next", "kept", producer, 7, partition=plain)
    script.send(f"{cause}: next again", "kept", producer, 7, partition=plain)
    script.send(f"{cause}: across the end, again", "kept", own(1302, 0), LAST_SEQUENCE, partition=plain, at=(1, 2))
    script.send(f"{cause}: old epoch", "kept", own(1304, 0), 0, partition=plain)
    script.describe(f"{cause}: plain producers, behind these", "kept", plain)
    script.describe(f"{cause}: transactional producers", "kept", transactional)
    script.describe(f"{cause}: all records deleted", "kept-cut", cut)
    script.send(f"{cause}: all records deleted, again", "kept-cut", own(1306, 0), 1, partition=cut)
    script.send(f"{cause}: all records deleted, once more", "kept-cut", own(1306, 0), 1, partition=cut)


def _look_compacted(cause: str, script: Script) -> None:
    script.describe(f"{cause}: compacted", "kept-compacted")
    script.send(f"{cause}: the last batch, emptied by the cleaner, again", "kept-compacted", own(1307, 0), 1, key=b"a")


PARTS = (errors, descriptions, transactions, duplicates, new_topic, expiry, moves, returns, retention, restarts)
