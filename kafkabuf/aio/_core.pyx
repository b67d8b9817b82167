# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The core of AIOKafkaProducer: queue() appends a record in the loop's thread, and never waits."""

from kafkabuf.aio._futures cimport AIORecordFuture, BatchEnds, new_aio_future
from kafkabuf.append._producer cimport ProducerCore
from kafkabuf.batches._accumulator cimport NEVER_WAITS
from kafkabuf.batches._batch cimport RecordFuture

from asyncio import get_running_loop

# After this many calls of queue() send() lets other tasks run.
cdef enum:
    CALLS_OF_A_TURN = 256
TURN = CALLS_OF_A_TURN


class MustWait(Exception):
    """Raised in the loop's thread instead of waiting. Its argument: bytes of memory to wait for, or 0 for metadata."""


cdef class LoopCore(ProducerCore):
    """send() in the loop's thread. A wait raises MustWait."""

    def _enter(self, loop, BatchEnds ends not None, dict lines not None, bint users_objects):
        self.loop, self.ends, self.lines, self.users_objects = loop, ends, lines, users_objects
        self.max_block = NEVER_WAITS

    def queue(self, topic, value, key, headers, partition, timestamp_ms, opaque):
        """Queue one record and return its AIORecordFuture. None: the record must wait, or another loop runs.

        Raises as KafkaProducer.send().
        """
        cdef AIORecordFuture future
        cdef RecordFuture record = None
        if get_running_loop() is not self.loop:
            return None
        self.sent += 1
        if self.users_objects or not self.sent % CALLS_OF_A_TURN or self.lines and topic in self.lines:
            return None
        future = new_aio_future(self.ends)  # first: once the record is queued, nothing may raise
        try:
            if opaque is None and not self.detour:
                record = self.queue_record(topic, value, key, headers, partition, timestamp_ms, None, None, 0)
            else:
                record = ProducerCore.send(self, topic, value, key, headers, partition, timestamp_ms, None, opaque)
        except MustWait:
            pass
        future.record = record
        return None if record is None else future
