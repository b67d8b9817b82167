"""For tests of idempotence: what a batch's header says, and a Rig whose Sender numbers batches."""

from __future__ import annotations

import struct
from typing import Any

from kafkabuf._batch import RecordFuture
from kafkabuf.idempotence import ProducerState
from tests.fake_client import Sent
from tests.producer_support import TOPIC, Rig

NOT_LEADER = 6
OUT_OF_ORDER = 45
DUPLICATE = 46
INVALID_EPOCH = 47
UNKNOWN_PRODUCER = 59


class IdempotentRig(Rig):
    @property
    def state(self) -> ProducerState:
        state = self.accumulator.producer_state
        assert state is not None
        return state


def idempotent(**settings: Any) -> IdempotentRig:
    """A Rig that sends at once, under a producer id, and expires after ten seconds."""
    defaults = {
        "linger_ms": 0,
        "request_timeout_ms": 500,
        "delivery_timeout_ms": 10_000,
        "retry_backoff_ms": 100,
        "enable_idempotence": True,
    }
    return IdempotentRig(**(defaults | settings))


def numbers(sent: Sent, partition: int = 0) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence number in the header of a batch that was sent."""
    producer_id, epoch, sequence = struct.unpack_from(">qhi", sent.produced.records[TOPIC, partition], 43)
    return producer_id, epoch, sequence


def of_epoch(rig: Rig, epoch: int, partition: int = 0) -> list[int]:
    """First numbers of all batches sent in an epoch, each once, in order."""
    sent = [numbers(one, partition) for one in rig.client.sent if (TOPIC, partition) in one.produced.records]
    return sorted({sequence for _, found, sequence in sent if found == epoch})


def send_each(rig: Rig, count: int, partition: int = 0) -> list[RecordFuture]:
    """Send records one by one, each in a batch and a request of its own."""
    futures = []
    for number in range(count):
        futures.append(rig.send(b"%d" % number, partition))
        rig.turn()
    return futures
