"""Programs that send: one without transactions, one with. Each keeps what it was promised, and checks it at the end."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import (
    AbortableTransactionError,
    ClosedError,
    FatalTransactionError,
    IllegalStateError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    TimeoutError,
)
from tests.virtual.oracle import Found, Place, tag
from tests.virtual.runner import VirtualProducer
from tests.virtual.trouble import Trouble
from tests.virtual.world import World

# Seconds of virtual time that anything may take once all is well: a connection, fresh metadata, a few back-offs.
AT_ONCE = 6.0
# What the transactions read, and commit offsets of. No trouble befalls it.
SOURCE = ("source", 0)
# Between two attempts.
_PAUSE = 0.5
# More than a partition must rest for the producer to doubt that its leader still knows it.
_RESTS = 2.0
# What ends a producer: the coordinator has aborted its transaction, of which it had heard nothing for too long.
_FENCED = (ProducerFencedError, InvalidTxnStateError, ClosedError, IllegalStateError)


@dataclass
class Sent:
    number: int
    topic: str
    future: RecordFuture


class Fate(Enum):
    """Of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the commit was asked for, and what came of it was never told


@dataclass
class Transaction:
    sent: list[Sent] = field(default_factory=list)
    offset: int = -1  # that it commits of what it read; -1: it commits none
    fate: Fate = Fate.OPEN


class User:
    """`settings` are its producer's. `topics`: the names it may send to."""

    def __init__(self, world: World, name: str, topics: list[str], settings: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.settings = settings
        self.sent: list[Sent] = []
        self._number = 0
        self.producer = self.open()

    def open(self) -> VirtualProducer:
        producer = VirtualProducer(self.world, client_id=self.name, **self.settings)
        producer.virtual.interrupt = self.interrupt
        return producer

    def interrupt(self) -> None:
        """As another thread, in the middle of a Sender's turn: nothing that waits."""
        known = [name for name in self.topics if name in self.producer.accumulator.topics]
        if known and self.world.random.random() < 0.9:
            self._send(self.world.random.choice(known))
        else:
            with suppress(TimeoutError):
                self.producer.flush(0)

    def _turn(self) -> None:
        """The Sender, in the middle of a call."""
        if not self.producer.virtual.over:
            self.producer.virtual.turn()

    def go(self) -> None:
        """`act`, in the middle of which the Sender may take turns."""
        with self.world.threads.interrupted(self._turn, lambda: self.producer.virtual.locked()):
            self.act()

    # ---- what it does ------------------------------------------------------------------------------------------------

    def act(self) -> None:
        world = self.world
        roll = world.random.random()
        if roll < 0.76:
            self.send_some(world.random.choice((1, 1, 2, 5, 20)))
        elif roll < 0.84:
            self.flush()
        elif roll < 0.87:
            self.note("purge")
            self.producer.purge(in_flight=world.random.random() < 0.5)
        elif roll < 0.92:
            self.send_many(world.random.choice((1, 3, 30)))
        else:
            self.reopen()

    def note(self, what: str) -> None:
        self.world.note(f"{what} ({self.name})")

    def send_some(self, count: int) -> None:
        topic = self.world.random.choice(self.topics)
        self.note(f"send {count} to {topic}")
        for _ in range(count):
            self._send(topic, **self._whither(topic))

    def _whither(self, topic: str) -> dict[str, Any]:
        """The key, the partition, or neither."""
        random = self.world.random
        how = random.randrange(3)
        if how == 0:
            return {"key": b"k%d" % random.randrange(20)}
        if how == 1 and topic in self.world.cluster.catalogue.topics:
            return {"partition": random.randrange(len(self.world.cluster.catalogue.topics[topic].partitions))}
        return {}

    def _send(self, topic: str, **whither: Any) -> Sent | None:
        self._number = number = self._number + 1  # another one's may come in the middle of this
        padding = b"." * self.world.random.choice((0, 10, 300))
        try:
            future = self.producer.send(topic, tag(self.name, number) + padding, **whither)
        except KafkaError as error:
            self.note(f"refused {error!r:.160}")
            return None
        sent = Sent(number, topic, future)
        self.sent.append(sent)
        return sent

    def send_many(self, count: int) -> None:
        topic = self.world.random.choice(self.topics)
        self.note(f"send_many {count} to {topic}")
        first = self._number + 1
        self._number += count
        try:
            self.producer.send_many(topic, [tag(self.name, first + place) for place in range(count)])
        except KafkaError as error:
            self.note(f"refused {error!r:.160}")

    def flush(self) -> None:
        self.note("flush")
        try:
            self.producer.flush(self.world.random.choice((0.0, 1.0, 10.0)))
        except TimeoutError:
            pass

    def reopen(self) -> None:
        """Close in time or by force, and begin anew."""
        self.note("close")
        self.close(self.world.random.choice((0.0, 1.0, None, None)))
        self.producer = self.open()

    def close(self, timeout: float | None) -> None:
        before = self.world.now()
        self.producer.close(timeout)
        allowed = self.producer.config.delivery_timeout_ms / 1000 if timeout is None else timeout
        took = self.world.now() - before
        if took > allowed + self.patience():
            self.world.fail(f"close({timeout}) of {self.name} took {took:.1f} s")
        self._check_closed()

    def _check_closed(self) -> None:
        pool, accumulator = self.producer.pool, self.producer.accumulator
        if accumulator.incomplete or accumulator.active:
            self.world.fail(f"{self.name} is closed and holds {[*accumulator.incomplete, *accumulator.active]}")
        pool.check()
        if pool.free_bytes + pool.loose != pool.total:
            self.world.fail(f"{self.name} is closed, and its memory is not free: {pool.accounting()}")
        late = [one for one in self.sent if not one.future.done()]
        if late:
            self.world.fail(f"{self.name} is closed, and {len(late)} records have no outcome")

    def patience(self) -> float:
        """Seconds that anything may take when all is well. One that is dead without a word is found out by waiting."""
        config = self.producer.config
        found_out = 1.2 * config.socket_connection_setup_timeout_ms + config.request_timeout_ms
        return AT_ONCE + (config.linger_ms + (found_out if self.world.silent else 0.0)) / 1000

    # ---- when all is well again --------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Nothing is pending, and a record of every topic and partition succeeds at once."""
        waiting = list(self.producer.accumulator.incomplete)
        if waiting:
            self.world.fail(f"{self.name}: all is well, and these wait: {waiting}")
        for topic in self.topics:
            self._probe(topic)

    def _probe(self, topic: str) -> None:
        """That its topic has become another one a producer learns by being refused: then it sends again."""
        until = self.world.now() + self.patience()
        errors = self._attempt(topic, until)
        while errors and self.world.now() < until:
            self.world.rest(_PAUSE)
            errors = self._attempt(topic, until)
        if errors:
            self.world.fail(f"{self.name}: all is well, and {topic} takes no records: {errors}")

    def _attempt(self, topic: str, until: float) -> list[object]:
        partitions = len(self.world.cluster.catalogue.topics[topic].partitions)
        whither: list[dict[str, Any]] = [{"partition": number} for number in range(partitions)]
        whither += [{"key": b"probe %d" % number} for number in range(4)] + [{}]
        sent = [self._send(topic, **how) for how in whither]
        if not self.world.run(until, lambda: all(one is None or one.future.done() for one in sent)):
            late = [how for how, one in zip(whither, sent, strict=True) if one is not None and not one.future.done()]
            self.world.fail(f"{self.name}: all is well, and {topic} has not taken {late} in {self.patience():.1f} s")
        return [one and one.future.exception(0) for one in sent if one is None or one.future.exception(0) is not None]

    def check_made_again(self, trouble: Trouble) -> None:
        """A topic that rests and becomes another one takes every record, though its leader refuses the first batch."""
        topic = self.world.random.choice(self.topics)
        self.world.rest(_RESTS)
        trouble.make_again_and_refuse_once(topic)
        for _ in range(4):
            errors = self._attempt(topic, self.world.now() + self.patience())
            if errors:
                self.world.fail(f"{self.name}: {topic} was made again while it rested, and records failed: {errors}")

    # ---- what was promised -------------------------------------------------------------------------------------------

    def check(self, found: Found) -> None:
        """Each acknowledged record is there, where it was said to be, once, in order."""
        idempotent = self.producer.config.enable_idempotence
        placed: dict[tuple[str, int, int], list[Place]] = defaultdict(list)
        for one in self.sent:
            places = found.stored[self.name, one.number]
            if idempotent:
                self._check_once(one, places)
            if one.future.exception(0) is None:
                self._check_there(one, places)
                for place in places:
                    placed[place.topic, place.incarnation, place.partition].append(place)
        for where, places in placed.items() if idempotent else ():
            offsets = [place.offset for place in places]
            if offsets != sorted(offsets):
                self.world.fail(
                    f"{self.name}: records of {where} are at {offsets}, in the order that they were sent in"
                )

    def _check_once(self, one: Sent, places: list[Place]) -> None:
        lives = [(place.topic, place.incarnation) for place in places]
        if len(set(lives)) != len(lives):
            self.world.fail(f"{self.name}: record {one.number} of {one.topic} is there more than once: {places}")

    def _check_there(self, one: Sent, places: list[Place]) -> None:
        said = one.future.result(0)
        for place in places:
            if (place.topic, place.partition) != (said.topic, said.partition):
                self.world.fail(f"{self.name}: record {one.number} is acknowledged as {said}, and lies at {place}")
        if not any(said.offset in (-1, place.offset) for place in places):
            self.world.fail(f"{self.name}: record {one.number} is acknowledged as {said}, found are {places}")


class TransactionalUser(User):
    """One transaction after the other; what it cannot go on with it closes, and begins anew under the same name."""

    def __init__(self, world: World, name: str, topics: list[str], settings: dict[str, Any]) -> None:
        self._ready = False
        self.transactions: list[Transaction] = []
        super().__init__(world, name, topics, {**settings, "transactional_id": name})

    def open(self) -> VirtualProducer:
        self._ready = False
        return super().open()

    def interrupt(self) -> None:
        with suppress(TimeoutError):
            self.producer.flush(0)

    def act(self) -> None:
        if not self._ready and not self._begin_anew():
            return
        if self.world.random.random() < 0.05:
            self.note("close")
            self.close(self.world.random.choice((0.0, 1.0)))
            self.producer = self.open()
            return
        self._transact(self.world.random.random() < 0.8)

    def _begin_anew(self) -> bool:
        self.note("init_transactions")
        try:
            self.producer.init_transactions()
            self._ready = True
        except TimeoutError:
            self.note("timeout init_transactions")
        except KafkaError as error:
            self._give_up(error)
        return self._ready

    def _transact(self, commits: bool, *, everywhere: bool = False) -> None:
        transaction = Transaction()
        self.transactions.append(transaction)
        try:
            self.note("begin")
            self.producer.begin_transaction()
            if everywhere:
                self._fill_everywhere(transaction)
            else:
                self._fill(transaction)
            if everywhere or self.world.random.random() < 0.3:
                self._send_offsets(transaction)
            if commits:
                self._commit(transaction)
            else:
                self._abort(transaction)
        except AbortableTransactionError as error:
            self.note(f"abortable {error!r:.160}")
            self._abort(transaction)
        except (FatalTransactionError, ProducerFencedError) as error:
            self._give_up(error)
        except ClosedError:
            pass  # it was replaced

    def _fill(self, transaction: Transaction) -> None:
        random = self.world.random
        for _ in range(random.choice((1, 2, 6))):
            topic = random.choice(self.topics)
            self._add(transaction, topic, **self._whither(topic))
            if random.random() < 0.2:
                self.world.rest(random.choice((0.01, 1.0)))

    def _fill_everywhere(self, transaction: Transaction) -> None:
        for topic in self.topics:
            for number in range(len(self.world.cluster.catalogue.topics[topic].partitions)):
                self._add(transaction, topic, partition=number)

    def _add(self, transaction: Transaction, topic: str, **whither: Any) -> None:
        sent = self._send(topic, **whither)
        if sent is not None:
            transaction.sent.append(sent)

    def _send_offsets(self, transaction: Transaction) -> None:
        transaction.offset = self._number
        self.note("offsets")
        for _ in range(4):
            try:
                self.producer.send_offsets_to_transaction({SOURCE: self._number}, self.name)
                return
            except TimeoutError:
                self.note("timeout offsets")
                if self.world.random.random() < 0.3:
                    raise AbortableTransactionError("enough waited") from None
        self._replace()
        raise ClosedError("given up")

    def _commit(self, transaction: Transaction) -> None:
        self.note("commit")
        transaction.fate = Fate.UNKNOWN
        for _ in range(4):
            try:
                self.producer.commit_transaction()
            except TimeoutError:
                self.note("timeout commit")
                continue
            except AbortableTransactionError:
                transaction.fate = Fate.OPEN
                raise
            transaction.fate = Fate.COMMITTED
            return
        self._replace()

    def _abort(self, transaction: Transaction) -> None:
        self.note("abort")
        transaction.fate = Fate.ABORTED
        for _ in range(4):
            try:
                self.producer.abort_transaction()
                return
            except TimeoutError:
                self.note("timeout abort")
            except (FatalTransactionError, ProducerFencedError) as error:
                self._give_up(error)
                return
            except AbortableTransactionError as error:
                self.note(f"abortable {error!r:.160}")
        self._replace()

    def _give_up(self, error: KafkaError) -> None:
        """Nothing can be done with the producer any more: that may only be because it was given up for dead."""
        self.note(f"fatal {error!r:.200}")
        if not isinstance(error.__cause__ or error, _FENCED):
            self.world.fail(f"{self.name} cannot go on: {error!r}")
        self._replace()

    def _replace(self) -> None:
        self.close(0.0)
        self.producer = self.open()

    def close(self, timeout: float | None) -> None:
        super().close(timeout)
        for transaction in self.transactions:
            if transaction.fate is Fate.OPEN:
                transaction.fate = Fate.ABORTED

    def check_alive(self) -> None:
        """A new transaction, with a record of every partition, is committed at once."""
        until = self.world.now() + self.patience()
        while self.world.now() < until:
            if self._probe_once():
                return
            self.world.rest(_PAUSE)
        self.world.fail(f"{self.name}: all is well, and no transaction was committed in {self.patience():.1f} s")

    def _probe_once(self) -> bool:
        if not self._ready and not self._begin_anew():
            return False
        self._transact(True, everywhere=True)
        return self.transactions[-1].fate is Fate.COMMITTED

    def check(self, found: Found) -> None:
        """Committed transactions are whole, aborted ones invisible, the others one of the two."""
        super().check(found)
        for transaction in self.transactions:
            there = [one for one in transaction.sent if not self._buried(found, one)]
            seen = [bool(found.visible[self.name, one.number]) for one in there]
            numbers = [one.number for one in there]
            if transaction.fate is Fate.COMMITTED and not all(seen):
                self.world.fail(f"{self.name}: of the records {numbers}, committed, are visible: {seen}")
            if transaction.fate is Fate.ABORTED and any(seen):
                self.world.fail(f"{self.name}: of the records {numbers}, aborted, are visible: {seen}")
            if len(set(seen)) > 1:
                self.world.fail(f"{self.name}: of the records {numbers} of one transaction are visible: {seen}")
        self._check_offsets()

    def _check_offsets(self) -> None:
        """Those of the last transaction that was committed, or of one of unknown fate after it."""
        allowed = {-1}
        for one in self.transactions:
            if one.offset >= 0 and one.fate is not Fate.ABORTED:
                allowed = {one.offset} | (allowed if one.fate is Fate.UNKNOWN else set())
        group = self.world.cluster.groups.find(self.name)
        found = None if group is None else group.offsets.get(SOURCE)
        if (-1 if found is None else found.offset) not in allowed:
            self.world.fail(f"{self.name}: the group's offset is {found}, committed was one of {allowed}")

    def _buried(self, found: Found, one: Sent) -> bool:
        """Whether the record went with a topic that was deleted, before its transaction had ended there."""
        places, visible = found.stored[self.name, one.number], found.visible[self.name, one.number]
        return not visible and any(place.incarnation < found.lives[place.topic] for place in places)
