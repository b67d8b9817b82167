# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Numbers batches, and decides which batches may go by their numbers. The rules are in _sequences.pxd."""

from libc.stdint cimport int32_t, int64_t

from kafkabuf.batches._accumulator cimport PartitionQueue
from kafkabuf.batches._batch cimport Batch
from kafkabuf.batches._stored cimport IN_LINE, put_numbers, sequence_after
from kafkabuf.memory._order cimport kb_in_order


cdef class SequenceCore:
    """Base of ProducerState."""

    def __init__(self, *, transactional=False):
        self.producer_id = self.producer_epoch = -1
        self.transactional = transactional
        self.needs_update = True

    # ---- for every batch ---------------------------------------------------------------------------------------------

    cdef bint may_send(self, PartitionQueue queue, Batch head) except -1:
        """Whether the oldest batch of a partition may go now."""
        cdef list under_way = queue.in_sequence
        if self.producer_id < 0:
            return False
        if self.send_allowed is not None and not self.send_allowed(queue.topic, queue.partition):
            return False
        if head.stored.base_sequence >= 0:
            return (len(under_way) > 0 and head is under_way[0]) or head is queue.asked
        if queue.unresolved:
            return False
        if not under_way:
            return True
        # A leader that does not know this producer takes any first number, so a leader that is not proven gets one
        # batch alone. While the first batch is repeated no new batch goes, because the leader forgets a batch after
        # five later batches. A new batch must not overtake a batch that has not gone under its new numbers yet.
        return (queue.proven and (self.is_current(queue) or self.goes_on(queue, head))
                and (<Batch>under_way[0]).attempts == 0
                and not (<Batch>under_way[len(under_way) - 1]).stored.renumbered)

    cdef bint is_current(self, PartitionQueue queue) noexcept:
        return queue.producer_id == self.producer_id and queue.producer_epoch == self.producer_epoch

    cdef bint goes_on(self, PartitionQueue queue, Batch batch) noexcept:
        """Whether the batch goes under the file's id, next to what has gone under it in this epoch."""
        return queue.goes_on and batch.stored.line == IN_LINE and queue.producer_epoch == RECOVERED_EPOCH

    cdef int number(self, PartitionQueue queue, Batch batch) except -1:
        """The batch is drained: give it the next numbers, unless it has numbers already."""
        if batch.stored.base_sequence >= 0:
            batch.unseen = False
            if batch is queue.asked:  # put_back then puts the batch to its place by number
                queue.asked = None
            return 0
        if not self.is_current(queue) and not self.goes_on(queue, batch):
            if queue.goes_on and batch.stored.line == IN_LINE:
                self.begin_epoch(queue)
            else:
                self.start_sequences_at_beginning(queue)
        queue.in_sequence.append(batch)  # first: it may fail for want of memory, and then the batch has no numbers
        put_numbers(batch.stored, queue.producer_id, queue.producer_epoch, queue.next_sequence)
        queue.next_sequence = sequence_after(queue.next_sequence, batch.stored.builder.count)
        if queue.entry != NULL:
            self.remember(queue)
        return 0

    cdef void remember(self, PartitionQueue queue) noexcept:
        if queue.entry.producer_id != queue.producer_id or queue.entry.producer_epoch != queue.producer_epoch:
            queue.entry.producer_id = -1  # until all fields are those of the new id and epoch
            kb_in_order()
        queue.entry.last_acked_offset = queue.last_acked_offset
        queue.entry.last_acked = queue.last_acked
        queue.entry.next_sequence = queue.next_sequence
        queue.entry.producer_epoch = queue.producer_epoch
        kb_in_order()
        queue.entry.producer_id = queue.producer_id

    cdef int unnumber(self, PartitionQueue queue, Batch batch) except -1:
        """A drained batch was not sent: free its numbers, unless an earlier attempt used them."""
        cdef list under_way = queue.in_sequence
        if batch.attempts == 0 and not batch.stored.renumbered and under_way and under_way[len(under_way) - 1] is batch:
            under_way.pop()
            queue.next_sequence = batch.stored.base_sequence
            put_numbers(batch.stored, -1, -1, -1)
            if queue.entry != NULL:
                self.remember(queue)
        return 0

    cdef int completed(self, PartitionQueue queue, Batch batch, int64_t base_offset) except -1:
        """The broker has the batch (Kafka's handleCompletedBatch). `base_offset` -1: the broker names no offset."""
        cdef list under_way = queue.in_sequence
        cdef Py_ssize_t place = 0
        cdef int32_t last
        if base_offset >= 0:
            queue.last_acked_offset = max(queue.last_acked_offset, base_offset + batch.stored.builder.count - 1)
        if len(under_way) == 0 or under_way[0] is not batch:
            place = under_way.index(batch) if batch in under_way else -1  # -1: it expired meanwhile
        if place >= 0:
            del under_way[place]
            if batch.stored.renumbered:  # the broker took it under its old numbers: no batch will use the new numbers
                return self.close_gap(queue, batch, place)
        if batch.stored.producer_id == queue.producer_id and batch.stored.producer_epoch == queue.producer_epoch:
            last = sequence_after(batch.stored.base_sequence, batch.stored.builder.count - 1)
            if is_later(last, queue.last_acked):
                queue.last_acked = last
            else:  # the later batches may be in another log, and the leader may refuse the next number
                queue.proven = False
        if queue.entry != NULL:
            self.remember(queue)
        return 0

    # ---- rare --------------------------------------------------------------------------------------------------------

    def set_producer_id_and_epoch(self, int64_t producer_id, int producer_epoch):
        """Number batches under this id and epoch from now on; -1, -1: there is no producer id."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch

    def is_stale(self, PartitionQueue queue not None):
        """Whether the partition's numbers belong to an earlier id or epoch (Kafka's hasStaleProducerIdAndEpoch)."""
        return not self.is_current(queue)

    def start_sequences_at_beginning(self, PartitionQueue queue not None, int32_t beginning=0):
        """Count from 0 in the partition under the present id and epoch, its batches without an outcome included.

        Only tests give another `beginning`. A broker takes any first number from a producer that it does not know yet.
        """
        cdef Batch batch
        if queue.producer_id != self.producer_id:
            queue.proven = False
        queue.producer_id = self.producer_id
        queue.producer_epoch = self.producer_epoch
        queue.next_sequence = beginning
        queue.last_acked = beginning - 1
        queue.unresolved = queue.goes_on = False
        for batch in queue.in_sequence:
            batch.stored.renumbered = True  # first: until it is drained again, its header has the numbers that count
            kb_in_order()
            put_numbers(batch.stored, self.producer_id, self.producer_epoch, queue.next_sequence)
            queue.next_sequence = sequence_after(queue.next_sequence, batch.stored.builder.count)

    def is_next(self, PartitionQueue queue not None, Batch batch not None):
        """Whether the broker, as far as the producer knows, takes this batch of the partition next."""
        return (len(queue.in_sequence) > 0 and queue.in_sequence[0] is batch and not batch.stored.renumbered
                and is_later(batch.stored.base_sequence, queue.last_acked))

    def was_overtaken(self, PartitionQueue queue not None, Batch batch not None):
        """Whether the batch is the first without an outcome, and the broker has already taken a later number.

        A broker that did not know the producer began with the later batches, while this batch was refused or lost. It
        does not take this batch any more.
        """
        return (len(queue.in_sequence) > 0 and queue.in_sequence[0] is batch and not batch.stored.renumbered
                and not is_later(batch.stored.base_sequence, queue.last_acked))

    def in_doubt(self, PartitionQueue queue not None, Batch batch not None):
        """The first batch behind this refused batch that has no outcome and that the broker may have taken, or None.

        A broker that refuses a batch takes no later batch, unless the topic was made again while the batches were on
        their way. The new log then began with a later batch. This batch has gone at least once before, and now the new
        log refuses its number.
        """
        cdef Batch later
        if batch.attempts:
            for later in queue.in_sequence:
                if later is not batch and not (later.unseen or later.stored.renumbered or later.claimed):
                    return later
        return None

    def ask_for(self, PartitionQueue queue not None, Batch batch not None):
        """Send this batch, if it is in its queue, before all others: the response tells whether the broker has it."""
        queue.asked = None
        if batch in queue.batches:
            queue.asked = batch
            queue.batches.remove(batch)
            queue.batches.appendleft(batch)

    def no_gap(self, PartitionQueue queue not None):
        """Whether the broker has acknowledged the last batch that got numbers."""
        return queue.next_sequence == sequence_after(queue.last_acked, 1)

    def failed(self, PartitionQueue queue not None, Batch batch not None):
        """A batch failed. Returns whether its numbers are lost: used, but perhaps unknown to the broker."""
        cdef Py_ssize_t place
        if batch not in queue.in_sequence:
            return False
        place = queue.in_sequence.index(batch)
        del queue.in_sequence[place]
        if batch.stored.renumbered:
            self.close_gap(queue, batch, place)
            return False
        queue.unresolved = True
        return True

    def resolved(self, PartitionQueue queue not None):
        queue.unresolved = False

    def release(self, PartitionQueue queue not None, Batch batch not None):
        """Free the numbers of a batch that no broker has, and number no batch of the partition until `close_gaps`.

        False, and no change, if the batch has no numbers or new numbers. The batches behind it keep their numbers: the
        broker refuses those that are on their way, because numbers are missing before them.
        """
        if batch.stored.renumbered or batch not in queue.in_sequence:
            return False
        queue.in_sequence.remove(batch)
        queue.unresolved = True
        return True

    def close_gaps(self, PartitionQueue queue not None):
        """Let the batches behind freed numbers go as if they had never gone. Nothing of the partition is in flight.

        A batch that the broker might have keeps its number. The batches behind it keep theirs too.
        """
        cdef list under_way = queue.in_sequence
        cdef int32_t free = sequence_after(queue.last_acked, 1)
        cdef Py_ssize_t place = 0
        cdef Batch batch
        while place < len(under_way) and (<Batch>under_way[place]).base_sequence == free:
            free = sequence_after(free, (<Batch>under_way[place]).stored.builder.count)
            place += 1
        for batch in under_way[place:]:
            if batch.doubtful:
                return
        self.free_from(queue, place)
        queue.next_sequence = free

    cdef int free_from(self, PartitionQueue queue, Py_ssize_t place) except -1:
        """From this place on the batches go as if they had never gone."""
        cdef Batch batch
        for batch in queue.in_sequence[place:]:
            put_numbers(batch.stored, -1, -1, -1)
            batch.stored.renumbered = batch.unseen = batch.doubtful = False
            batch.attempts = 0
            batch.retry_at = 0
        del queue.in_sequence[place:]
        return 0

    # ---- batches of a killed process ---------------------------------------------------------------------------------

    cdef int begin_epoch(self, PartitionQueue queue) except -1:
        queue.producer_epoch = RECOVERED_EPOCH
        queue.next_sequence = 0
        queue.last_acked = -1
        return 0

    def go_on(self, PartitionQueue queue not None, int64_t producer_id, int producer_epoch, int32_t next_sequence,
              int64_t last_acked_offset):
        """The batches in line go under the file's id: behind these numbers, or in the next epoch."""
        queue.last_acked_offset = max(queue.last_acked_offset, last_acked_offset)
        queue.producer_id = producer_id
        queue.producer_epoch = producer_epoch
        queue.next_sequence = next_sequence
        queue.goes_on = 0 <= producer_epoch <= RECOVERED_EPOCH

    def note_numbers(self, PartitionQueue queue not None, Batch batch not None, int64_t producer_id,
                     int producer_epoch, int32_t base_sequence):
        """Another process was found to have sent the batch under these numbers."""
        if batch not in queue.in_sequence:  # else an earlier call found no memory for its end
            queue.in_sequence.append(batch)
        queue.producer_id = producer_id
        queue.producer_epoch = producer_epoch
        queue.next_sequence = sequence_after(base_sequence, batch.stored.builder.count)
        put_numbers(batch.stored, producer_id, producer_epoch, base_sequence)

    def is_there(self, PartitionQueue queue not None, Batch batch not None, int64_t base_offset):
        """The broker was found to have the batch. `base_offset` -1: nobody named the offset."""
        self.completed(queue, batch, base_offset)

    def drop_numbers(self, PartitionQueue queue not None, Batch batch not None):
        """The batch stays in the file and does not go from here: those behind it keep their numbers."""
        if batch in queue.in_sequence:
            queue.in_sequence.remove(batch)

    def forget_numbers(self, PartitionQueue queue not None, Batch batch not None):
        """The broker has neither the batch nor those behind it, and would refuse their numbers: they get new ones."""
        queue.goes_on = False
        if batch in queue.in_sequence:
            self.free_from(queue, queue.in_sequence.index(batch))

    cdef int close_gap(self, PartitionQueue queue, Batch batch, Py_ssize_t place) except -1:
        """Free the numbers of a batch that never went under them: the later batches move up.

        The later batches have not gone under their numbers either, because they wait for the renumbered batch.
        """
        cdef Batch later
        cdef list under_way = queue.in_sequence
        cdef int64_t free = LARGEST_SEQUENCE + <int64_t>1 - batch.stored.builder.count
        queue.next_sequence = sequence_after(queue.next_sequence, free)
        for place in range(place, len(under_way)):  # needs no memory: an error would leave some behind
            later = under_way[place]
            later.stored.base_sequence = sequence_after(later.stored.base_sequence, free)
        return 0
