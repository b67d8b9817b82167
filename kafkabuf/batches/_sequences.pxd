# cython: language_level=3
"""Producer id, epoch and sequence numbers: the steps for every batch.

transactions/idempotence.py remembers lost numbers. sending/recovery.py says what becomes of a batch that a broker
refuses for its numbers.

A broker remembers the last five batches of a producer and partition. It takes batches only in the order of their
numbers, and takes no batch twice that it remembers. Hence:

- A batch gets its numbers at its first drain, and keeps them until it is certain that no broker took it under them.
- A batch that has numbers goes again only when all batches before it have an outcome.
- The numbers of a batch that failed are not used again under the same epoch: a new epoch counts from 0. The exception
  is a transaction that outlives refused records (TransactionalState in idempotence.py).

Five rules follow that are stricter than Java's. tests/transactions/test_idempotence_random.py finds what happens
without them.
- While the first batch without an outcome is being repeated, nothing new goes: five later batches would make the broker
  forget it.
- Only that first batch asks for a new epoch.
- A batch that failed behind one in doubt asks for no epoch before that one has its outcome.
- A leader that has not taken a batch yet, or not for a second, gets one batch alone (`PartitionQueue.proven`): a broker
  without any state, because the topic was made again unnoticed, takes whatever number comes first.
- Where a repeated first batch is refused for its number, the Sender repeats the batches behind it that are in doubt
  under their old numbers, before any batch gets new ones.

A producer with a file keeps two epochs of each id apart. Brokers give an id with epoch 0, under which the process that
got the id sends, and this producer never raises it: where it needs new numbers it takes a new id. The next epoch
belongs to the batches that the process left in the file without numbers: its line. Whoever opens the file next, or a
copy of it, sends them in their order from number 0 on, with nothing else between them (`go_on`). So each gives the same
numbers to the same records: the broker takes them once, and the log tells what another process has sent. Nothing else
ever joins the line, above all nothing that a later process has appended: two copies would give the same numbers to
different records, and the broker would take the second for a repetition of the first. A process that still lives, and
of whose file somebody has opened a copy, is told by INVALID_PRODUCER_EPOCH.

A batch in flight may get new numbers (`Batch.renumbered`). Its header keeps the old ones until it is drained again,
because a socket may be reading it. An acknowledgement meanwhile is one under the old numbers, and the batches behind
move up.

PartitionQueue holds the state of a partition, Batch the state of a batch. Only the Sender's thread uses them.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._stored cimport LARGEST_SEQUENCE


cdef enum:
    RECOVERED_EPOCH = 1                     # of an id of a file: for the batches that its process left without numbers


cdef class SequenceCore:
    cdef readonly int64_t producer_id       # -1: there is no id, and the Sender may send nothing
    cdef readonly int16_t producer_epoch
    cdef public bint needs_update           # ProducerState.update is due before the next drain: there is no producer
    #                                         id yet, or sequences are in doubt
    cdef readonly bint transactional        # the batch headers say that the batches belong to a transaction
    cdef public object send_allowed         # callable(topic, partition) -> bool, asked before each drain; None: always

    cdef bint may_send(self, PartitionQueue queue, Batch head) except -1
    cdef bint is_current(self, PartitionQueue queue) noexcept
    cdef bint goes_on(self, PartitionQueue queue, Batch batch) noexcept
    cdef int number(self, PartitionQueue queue, Batch batch) except -1
    cdef int unnumber(self, PartitionQueue queue, Batch batch) except -1
    cdef int completed(self, PartitionQueue queue, Batch batch, int64_t base_offset) except -1
    # Have the file keep what the next process must know of the partition. Called before a batch goes under new numbers:
    # a process that was killed has given no number that the file lacks.
    cdef void remember(self, PartitionQueue queue) noexcept
    cdef int begin_epoch(self, PartitionQueue queue) except -1
    cdef int free_from(self, PartitionQueue queue, Py_ssize_t place) except -1
    cdef int close_gap(self, PartitionQueue queue, Batch batch, Py_ssize_t place) except -1


# Whether `sequence` comes after `reference`. 0 follows the largest number. -1 (no number) comes before all numbers.
cdef inline bint is_later(int32_t sequence, int32_t reference) noexcept nogil:
    return reference < 0 or (
        sequence != reference and ((<int64_t>sequence - reference) & LARGEST_SEQUENCE) <= LARGEST_SEQUENCE // 2)
