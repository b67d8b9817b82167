"""No record is lost, doubled or out of order under random faults, with brokers that check numbers as Kafka's do."""

from __future__ import annotations

import random

import pytest

from kafkabuf.batches._batch import RecordFuture
from kafkabuf.errors import OutOfOrderSequenceNumberError, TimeoutError
from rigs.producer import SLAB, assert_whole
from tests.effort import effort
from tests.transactions.idempotence_support import SequencedBrokers, idempotent

REFUSED_BEFORE = (3, 5, 6, 19, 56, 2)
REFUSED_AFTER = (7, 20)


class Run:
    """One producer, two partitions, two brokers, and random steps."""

    def __init__(self, seed: int, *, expires: bool = False, made_again: bool = False) -> None:
        self.random = random.Random(seed)
        timeout = 4_000 if expires else 10_000_000
        self.rig = idempotent(leaders=(1, 2), slabs=64, delivery_timeout_ms=timeout, max_block_ms=0)
        self.rig.client.ahead = self.random.choice([0, 3, 8])
        self.rig.client.limit = self.random.choice([1, 2, 5])
        self.expires = expires
        self.made_again = made_again
        for queue in self.rig.topic.queues:
            queue.proven = False
        self.brokers = SequencedBrokers(self.rig)
        self.sent: dict[int, list[tuple[bytes, RecordFuture]]] = {0: [], 1: []}
        state = self.rig.state
        if self.random.random() < 0.3:
            state.set_producer_id_and_epoch(self.random.choice([77, 78]), 2**15 - self.random.choice([1, 2, 3]))

    def step(self) -> None:
        pick = self.random.random()
        node = self.random.choice((1, 2))
        sent = self.brokers.oldest(node)
        if pick < 0.35:
            self.send(self.random.choice((0, 1)))
        elif pick < 0.6:
            self.turn()
        elif pick < 0.7:
            self.rig.clock.advance(self.random.choice((0.01, 0.1, 0.5)))
        elif pick < 0.72:
            self.brokers.lead(self.random.choice((0, 1)), node)
        elif pick < 0.75:
            self.brokers.disconnect(node, self.random.randrange(6))
        elif sent is not None and sent.started:
            if pick < 0.8:
                self.brokers.answer(sent, before=self.random.choice(REFUSED_BEFORE))
            elif pick < 0.83:
                self.brokers.answer(sent, after=self.random.choice(REFUSED_AFTER))
            else:
                self.brokers.answer(sent)

    def turn(self) -> None:
        # The Sender handles the completions of the poll call before it sends more.
        self.rig.sender.core.end_requests(self.rig.client.poll(0))
        self.rig.turn()

    def send(self, partition: int) -> None:
        for _ in range(self.random.choice((1, 1, 3, 8))):
            if self.rig.pool.free_bytes < 4 * SLAB:
                return
            value = b"%d-%06d" % (partition, len(self.sent[partition]))
            value += b"x" * self.random.choice((0, SLAB - 250))
            self.sent[partition].append((value, self.rig.send(value, partition)))

    def check(self) -> None:
        self.turn()
        self.brokers.finish()
        for partition, sent in self.sent.items():
            logs = self.brokers.logs(partition)
            for log in logs:
                numbers = [int(value[2:8]) for value in log if value is not None]
                assert numbers == sorted(set(numbers)), "doubled, or out of order"
            for value, future in sent:
                error = future.exception(0)
                offset = -1 if error is not None else future.result(0).offset
                if isinstance(error, OutOfOrderSequenceNumberError):
                    assert self.made_again, error
                elif error is not None:
                    assert self.expires, error
                    assert isinstance(error, TimeoutError)
                elif offset >= 0:
                    assert any(log[offset : offset + 1] == [value] for log in logs)
                else:
                    assert any(value in log for log in logs)
        assert_whole(self.rig.pool)


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("seeds", range(effort(5)))
def test_no_record_is_lost_doubled_or_out_of_order(seeds: int, expires: bool) -> None:
    for seed in range(30 * seeds, 30 * seeds + 30):
        run = Run(seed, expires=expires)
        try:
            for _ in range(run.random.choice((50, 400))):
                run.step()
            run.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("seeds", range(effort(4)))
def test_topics_made_again_unnoticed_keep_their_records_in_order(seeds: int) -> None:
    # Metadata never reports the change: the producer learns of it only from the leaders' responses.
    for seed in range(40 * seeds, 40 * seeds + 40):
        run = Run(seed, made_again=True)
        try:
            when = [run.random.randrange(200) for _ in run.sent]  # once each: no batch in flight meets a third log
            for step in range(200):
                run.step()
                for partition in run.sent:
                    if when[partition] == step:
                        run.brokers.make_again(partition)
            run.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
