"""Users that send, with or without transactions. Each keeps its outcomes, and checks them with the logs at the end."""

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
from kafkabuf.record_metadata import BatchOutcome
from tests.virtual.oracle import Contents, Place, tag
from tests.virtual.runner import VirtualProducer
from tests.virtual.trouble import Trouble
from tests.virtual.world import World

# Seconds of virtual time that a call may take once all is well: a connection, fresh metadata, a few back-offs.
AT_ONCE = 6.0
# The partition that transactions read, and whose offsets they commit. No trouble strikes it.
SOURCE = ("source", 0)
# Seconds between two attempts.
_PAUSE = 0.5
# Seconds without a batch after which a producer no longer takes a partition's leader for proven.
_UNPROVEN = 2.0
# Errors that end a producer: the coordinator has aborted its transaction after transaction.timeout.ms.
_FENCED = (ProducerFencedError, InvalidTxnStateError, ClosedError, IllegalStateError)


@dataclass
class Sent:
    number: int
    topic: str
    future: RecordFuture


class Fate(Enum):
    """What became of a transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # the user asked for the commit and never learned its outcome


@dataclass
class Transaction:
    sent: list[Sent] = field(default_factory=list)
    offset: int = -1  # the offset of SOURCE that it commits, or -1
    fate: Fate = Fate.OPEN


class User:
    """A program that sends to `topics`. `settings` are those of its producer."""

    def __init__(self, world: World, name: str, topics: list[str], settings: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.settings = settings
        self.sent: list[Sent] = []
        self._gives_opaques = world.random.random() < 0.5
        self._number = 0
        self._told: dict[int, list[BatchOutcome]] = defaultdict(list)  # by the record's number, which is its opaque
        self.producer = self.open()

    def open(self) -> VirtualProducer:
        settings = {**self.settings, "on_acknowledged": self._on_acknowledged if self._gives_opaques else None}
        producer = VirtualProducer(self.world, client_id=self.name, **settings)
        producer.virtual.interrupt = self.interrupt
        return producer

    def interrupt(self) -> None:
        """Make a call as another thread would in the middle of a Sender's turn. The call does not wait."""
        known = [name for name in self.topics if name in self.producer.accumulator.topics]
        if known and self.world.random.random() < 0.9:
            self._send(self.world.random.choice(known))
        else:
            with suppress(TimeoutError):
                self.producer.flush(0)

    def _turn_sender(self) -> None:
        """Run a turn of the Sender in the middle of a call."""
        if not self.producer.virtual.over:
            self.producer.virtual.turn()

    def go(self) -> None:
        """Call `act`, in the middle of which the Sender may take turns."""
        with self.world.threads.interrupted(self._turn_sender, lambda: self.producer.virtual.locked()):
            self.act()

    # ---- actions -----------------------------------------------------------------------------------------------------

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

    def _on_acknowledged(self, outcome: BatchOutcome) -> None:
        for number in outcome.opaques:
            if number is not None:
                self._told[number].append(outcome)

    def note(self, event: str) -> None:
        self.world.note(f"{event} ({self.name})")

    def send_some(self, count: int) -> None:
        topic = self.world.random.choice(self.topics)
        self.note(f"send {count} to {topic}")
        for _ in range(count):
            self._send(topic, **self._destination(topic))

    def _destination(self, topic: str) -> dict[str, Any]:
        """The arguments of send() that choose the partition: a key, a partition, or neither."""
        random = self.world.random
        choice = random.randrange(3)
        if choice == 0:
            return {"key": b"k%d" % random.randrange(20)}
        if choice == 1 and topic in self.world.cluster.catalogue.topics:
            return {"partition": random.randrange(len(self.world.cluster.catalogue.topics[topic].partitions))}
        return {}

    def _send(self, topic: str, **destination: Any) -> Sent | None:
        self._number = number = self._number + 1  # interrupt() may send in the middle of this call
        padding = b"." * self.world.random.choice((0, 10, 300))
        try:
            opaque = number if self._gives_opaques and number % 3 else None
            future = self.producer.send(topic, tag(self.name, number) + padding, opaque=opaque, **destination)
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
            self.producer.send_many(topic, [tag(self.name, first + index) for index in range(count)])
        except KafkaError as error:
            self.note(f"refused {error!r:.160}")

    def flush(self) -> None:
        self.note("flush")
        try:
            self.producer.flush(self.world.random.choice((0.0, 1.0, 10.0)))
        except TimeoutError:
            pass

    def reopen(self) -> None:
        """Close the producer, in time or by force, and open a new one."""
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
            self.world.fail(f"{self.name} is closed and still has {[*accumulator.incomplete, *accumulator.active]}")
        pool.check()
        if pool.free_bytes + pool.loose != pool.total:
            self.world.fail(f"{self.name} is closed, and its memory is not free: {pool.accounting()}")
        late = [sent for sent in self.sent if not sent.future.done()]
        if late:
            self.world.fail(f"{self.name} is closed, and {len(late)} records have no outcome")

    def patience(self) -> float:
        """Seconds that a call may take when all is well, or one node is frozen: that costs one time-out, not two."""
        config = self.producer.config
        detection = 1.2 * config.socket_connection_setup_timeout_ms + config.request_timeout_ms
        return AT_ONCE + (config.linger_ms + (detection if self.world.frozen else 0.0)) / 1000

    def calm(self) -> None:
        """The trouble is over."""

    # ---- when all is well again --------------------------------------------------------------------------------------

    def check_alive(self) -> None:
        """No batch is pending, and every partition takes a record at once."""
        waiting = list(self.producer.accumulator.incomplete)
        if waiting:
            self.world.fail(f"{self.name}: all is well, and these batches still wait: {waiting}")
        for topic in self.topics:
            self._probe(topic)

    def _probe(self, topic: str) -> None:
        """Send to all partitions until it succeeds: only a refusal tells a producer that its topic was recreated."""
        until = self.world.now() + self.patience()
        errors = self._attempt(topic, until)
        while errors and self.world.now() < until:
            self.world.rest(_PAUSE)
            errors = self._attempt(topic, until)
        if errors:
            self.world.fail(f"{self.name}: all is well, and {topic} takes no records: {errors}")

    def _attempt(self, topic: str, until: float) -> list[object]:
        partitions = len(self.world.cluster.catalogue.topics[topic].partitions)
        destinations: list[dict[str, Any]] = [{"partition": number} for number in range(partitions)]
        destinations += [{"key": b"probe %d" % number} for number in range(4)] + [{}]
        probes = [self._send(topic, **destination) for destination in destinations]
        if not self.world.run(until, lambda: all(sent is None or sent.future.done() for sent in probes)):
            pairs = zip(destinations, probes, strict=True)
            late = [destination for destination, sent in pairs if sent is not None and not sent.future.done()]
            self.world.fail(f"{self.name}: all is well, and {topic} has not taken {late} in {self.patience():.1f} s")
        errors = [None if sent is None else sent.future.exception(0) for sent in probes]
        return [error for sent, error in zip(probes, errors, strict=True) if sent is None or error is not None]

    def check_recreated_topic(self, trouble: Trouble) -> None:
        """A topic that is recreated while it rests takes every record, though its leader refuses the first batch."""
        topic = self.world.random.choice(self.topics)
        self.world.rest(_UNPROVEN)
        trouble.recreate_and_refuse_once(topic)
        for _ in range(4):
            errors = self._attempt(topic, self.world.now() + self.patience())
            if errors:
                self.world.fail(f"{self.name}: {topic} was recreated while it rested, and records failed: {errors}")

    # ---- promises ----------------------------------------------------------------------------------------------------

    def check(self, contents: Contents) -> None:
        """Each acknowledged record is stored at its place, once, and in order."""
        idempotent = self.producer.config.enable_idempotence
        placed: dict[tuple[str, int, int], list[Place]] = defaultdict(list)
        for sent in self.sent:
            places = contents.stored[self.name, sent.number]
            if idempotent:
                self._check_stored_once(sent, places)
            if self._gives_opaques and sent.number % 3:
                self._check_told(sent)
            if sent.future.exception(0) is None:
                self._check_place(sent, places)
                for place in places:
                    placed[place.topic, place.incarnation, place.partition].append(place)
        for partition, places in placed.items() if idempotent else ():
            offsets = [place.offset for place in places]
            if offsets != sorted(offsets):
                self.world.fail(f"{self.name}: the records of {partition} have, in the order of sending, {offsets}")

    def _check_stored_once(self, sent: Sent, places: list[Place]) -> None:
        topics = [(place.topic, place.incarnation) for place in places]
        if len(set(topics)) != len(topics):
            self.world.fail(f"{self.name}: record {sent.number} of {sent.topic} is stored more than once: {places}")

    def _check_told(self, sent: Sent) -> None:
        """The record's batch told its outcome once, with the record's opaque at the record's place."""
        outcomes, error = self._told[sent.number], sent.future.exception(0)
        if len(outcomes) != 1:
            self.world.fail(f"{self.name}: record {sent.number} was told {len(outcomes)} outcomes: {outcomes}")
        (outcome,) = outcomes
        place = outcome.opaques.index(sent.number)
        if outcome.record_errors.get(place, outcome.error) is not error:
            self.world.fail(f"{self.name}: record {sent.number} ended with {error!r}, and was told {outcome}")
        if error is None:
            metadata, offset = sent.future.result(0), outcome.first_offset
            told = outcome.topic, outcome.partition, offset + place if offset >= 0 else -1
            if told != (metadata.topic, metadata.partition, metadata.offset):
                self.world.fail(f"{self.name}: record {sent.number} is acknowledged as {metadata}, and was told {told}")

    def _check_place(self, sent: Sent, places: list[Place]) -> None:
        metadata = sent.future.result(0)
        for place in places:
            if (place.topic, place.partition) != (metadata.topic, metadata.partition):
                self.world.fail(f"{self.name}: record {sent.number} is acknowledged as {metadata}, and lies at {place}")
        if not any(metadata.offset in (-1, place.offset) for place in places):
            self.world.fail(f"{self.name}: record {sent.number} is acknowledged as {metadata}, and lies at {places}")


class TransactionalUser(User):
    """Runs transactions one after the other. It replaces a producer that failed by a new one of the same id."""

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
        if not self._ready and not self._init_transactions():
            return
        if self.world.random.random() < 0.05:
            self.note("close")
            self.close(self.world.random.choice((0.0, 1.0)))
            self.producer = self.open()
            return
        self._transact(self.world.random.random() < 0.8)

    def _init_transactions(self) -> bool:
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
            pass  # a step of the transaction has replaced the producer

    def _fill(self, transaction: Transaction) -> None:
        random = self.world.random
        for _ in range(random.choice((1, 2, 6))):
            topic = random.choice(self.topics)
            self._add(transaction, topic, **self._destination(topic))
            if random.random() < 0.2:
                self.world.rest(random.choice((0.01, 1.0)))

    def _fill_everywhere(self, transaction: Transaction) -> None:
        for topic in self.topics:
            for number in range(len(self.world.cluster.catalogue.topics[topic].partitions)):
                self._add(transaction, topic, partition=number)

    def _add(self, transaction: Transaction, topic: str, **destination: Any) -> None:
        sent = self._send(topic, **destination)
        if sent is not None:
            transaction.sent.append(sent)

    def _attempts(self) -> int:
        """How often to repeat a call that timed out. A new producer would have to find a frozen node out anew."""
        return 4 + round(self.patience() * 1000 / self.producer.config.max_block_ms) * self.world.frozen

    def _send_offsets(self, transaction: Transaction) -> None:
        transaction.offset = self._number
        self.note("offsets")
        for _ in range(self._attempts()):
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
        for _ in range(self._attempts()):
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
        for _ in range(self._attempts()):
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
        """Replace a producer after a fatal error. Only a coordinator that took it for dead may cause such an error."""
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
        """A new transaction with a record of every partition commits at once.

        The transaction may time out while the producer waits for a frozen node, and that fences the producer. The
        producer that replaces it has to find the node out anew.
        """
        until = self.world.now() + self.patience()
        first: VirtualProducer | None = self.producer
        while self.world.now() < until:
            if self._probe_once():
                return
            if self.world.frozen and first is not None and self.producer is not first:
                until, first = self.world.now() + self.patience(), None
            self.world.rest(_PAUSE)
        self.world.fail(f"{self.name}: all is well, and no transaction was committed in {self.patience():.1f} s")

    def _probe_once(self) -> bool:
        if not self._ready and not self._init_transactions():
            return False
        self._transact(True, everywhere=True)
        return self.transactions[-1].fate is Fate.COMMITTED

    def check(self, contents: Contents) -> None:
        """All records of a committed transaction are visible, none of an aborted one, and all or none of the others."""
        super().check(contents)
        for transaction in self.transactions:
            kept = [sent for sent in transaction.sent if not self._deleted(contents, sent)]
            visible = [bool(contents.visible[self.name, sent.number]) for sent in kept]
            numbers = [sent.number for sent in kept]
            if transaction.fate is Fate.COMMITTED and not all(visible):
                self.world.fail(f"{self.name}: records {numbers} were committed; visible: {visible}")
            if transaction.fate is Fate.ABORTED and any(visible):
                self.world.fail(f"{self.name}: records {numbers} were aborted; visible: {visible}")
            if len(set(visible)) > 1:
                self.world.fail(f"{self.name}: records {numbers} are of one transaction; visible: {visible}")
        self._check_offsets()

    def _check_offsets(self) -> None:
        """The group's offset is that of the last committed transaction, or of a later one of unknown fate."""
        allowed = {-1}
        for transaction in self.transactions:
            if transaction.offset >= 0 and transaction.fate is not Fate.ABORTED:
                allowed = {transaction.offset} | (allowed if transaction.fate is Fate.UNKNOWN else set())
        group = self.world.cluster.groups.find(self.name)
        committed = None if group is None else group.offsets.get(SOURCE)
        if (-1 if committed is None else committed.offset) not in allowed:
            self.world.fail(f"{self.name}: the group's offset is {committed}, and must be one of {allowed}")

    def _deleted(self, contents: Contents, sent: Sent) -> bool:
        """Whether the record's topic was deleted before its transaction ended there."""
        places, visible = contents.stored[self.name, sent.number], contents.visible[self.name, sent.number]
        return not visible and any(place.incarnation < contents.deletions[place.topic] for place in places)
