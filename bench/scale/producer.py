"""The model of one producer: its queues, its memory, its Sender and its requests in flight.

It follows `batches/_drain.pyx`, `sending/_sender.pyx`, `append/_bulk.pyx` and the poll call of `network/_io.pyx`. It
knows batches and requests, never single records. It leaves out that the first batch to a leader after a pause goes
alone (`proven`), that partitions with shorter queues are drawn more often, and the GIL.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bench.scale.costs import Costs
from bench.scale.events import Cores, Simulation, Thread
from bench.scale.load import Load, Pattern

MOST_AHEAD = 8  # requests that may wait behind a full in-flight table: `network/_client.pyx`
SMALL_BATCH = 16 * 1024  # the batch.size with which Costs.slab_bytes was measured


@dataclass
class Sent:
    """A Produce request."""

    lane: int
    rows: int
    batches: int
    batch_bytes: float
    size: float
    memory: int
    open_memory: int = 0
    """What the open batches among them hold, if memory was scarce."""


@dataclass
class Totals:
    """What a producer has done."""

    records: int = 0  # given to the producer
    acknowledged: int = 0
    batches: int = 0
    batch_bytes: float = 0.0
    requests: int = 0
    request_bytes: float = 0.0
    turns: int = 0
    calls: int = 0
    naps: int = 0
    waits: int = 0
    """Times that the caller waited for memory."""
    most_slabs: int = 0
    most_in_flight: int = 0
    ended: float = 0.0


class Producer:
    """Sends its share of a load. `send` passes a request on to a broker; then `answered` must be called once.

    A lane has the partitions of one broker. The arrays have a row for each lane and a column for each partition.
    """

    def __init__(
        self,
        simulation: Simulation,
        costs: Costs,
        load: Load,
        number: int,
        random: np.random.Generator,
        cores: Cores,
        send: Callable[[Producer, int, list[Sent]], None],
    ) -> None:
        if load.partitions % load.brokers:
            raise ValueError(f"{load.partitions} partitions are no multiple of {load.brokers} brokers")
        self._simulation, self._costs, self._load, self._random, self._send = simulation, costs, load, random, send
        self._caller, self._sender = Thread(simulation, cores), Thread(simulation, cores)
        aligned = load.pattern is Pattern.ALIGNED
        self.brokers = [number % load.partitions % load.brokers] if aligned else list(range(load.brokers))
        shape = (1, 1) if aligned else (load.brokers, load.partitions // load.brokers)
        self._open = np.zeros(shape, np.int32)  # rows in the open batch; 0: there is none
        self._full = np.zeros(shape, np.int32)  # closed batches
        self._opened = np.zeros(shape)
        lanes = len(self.brokers)
        self._held = [0] * lanes  # batches in the queues
        self._fulls = [0] * lanes
        self._in_flight = [0] * lanes
        self._open_in_flight = [0] * lanes  # slabs of open batches that went while memory was scarce
        self._ahead: list[deque[Sent]] = [deque() for _ in range(lanes)]
        self._row_bytes = costs.size(load)
        self._capacity = max(int((load.batch_size - costs.batch_bytes) // self._row_bytes), 1)
        # Today a batch takes a slab of batch.size from its first record on. A smaller measured size is that of chunks.
        self._slab = load.batch_size if costs.slab_bytes >= SMALL_BATCH else costs.slab_bytes
        self._slabs = int(load.buffer_memory // self._slab)
        self._free = self._slabs
        self._full_slabs = int(self._slabs_of(np.array([self._capacity]))[0])
        self._sticky = self._drawn()
        self._given = 0  # rows that the sticky partition was given
        self._begun = load.every_s * number / load.producers
        self._left = 0  # rows of the Arrow batch that are not appended
        self._piece = 0  # rows that the caller appends now
        self._fitted = load.rows  # rows that found memory at once, the last time
        self._exhausted = False  # the caller waits for memory
        self._flushing = False
        self._woken = False
        self._turn_began = 0.0
        self._timer = np.inf
        self._next_due = np.inf
        self._overdue = False  # an open batch has lingered, and found no room in flight
        self._answers: list[Sent] = []
        self.totals = Totals()

    @property
    def cpu_s(self) -> float:
        return self._caller.busy_s + self._sender.busy_s

    @property
    def memory(self) -> float:
        """The most bytes of buffer.memory that batches took at a time."""
        return self.totals.most_slabs * self._slab

    @property
    def waiting(self) -> int:
        """Records that are not acknowledged."""
        return self.totals.records - self.totals.acknowledged

    # ---- the caller --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Plan the first call of send_arrow()."""
        self._next_call()

    def _next_call(self) -> None:
        load = self._load
        if self.totals.calls == load.chunks:
            self._flush()
            return
        when = self._begun + self.totals.calls * load.every_s
        if load.every_s and when > self._simulation.now:
            self.totals.naps += 1
            self._simulation.at(when, self._caller.do, self._costs.nap_s + self._costs.call_s, self._called)
        else:
            self._caller.do(self._costs.call_s, self._called)

    def _called(self) -> None:
        self.totals.calls += 1
        self.totals.records += self._load.rows
        self._left = self._load.rows
        self._next_piece()

    def _next_piece(self) -> None:
        """Append the rows that fill one batch in each partition: the Sender is woken when a batch is full."""
        costs = self._costs
        self._piece = min(self._left, self._capacity * (1 if self._is_single else self._open.size))
        seconds = self._piece * (costs.record_s + costs.key_s * self._load.keyed)
        self._caller.do(seconds, self._go_on)

    def _go_on(self) -> None:
        """Append rows until the piece or the memory ends."""
        while self._piece:
            rows = min(self._piece, 2 * self._fitted)
            while not self._append(rows):
                rows //= 2
                if not rows:
                    self.totals.waits += 1
                    self._exhausted = True
                    self._wake()
                    return
            self._fitted = rows
            self._piece -= rows
            self._left -= rows
        if self._left:
            if any(self._fulls):
                self._wake()
            self._next_piece()
            return
        self._wake()
        if self._load.wait_each:
            self._flush()
        else:
            self._next_call()

    @property
    def _is_single(self) -> bool:
        """Whether rows go to one partition at a time."""
        return self._load.pattern is not Pattern.KEYS or self._open.size == 1

    def _flush(self) -> None:
        self._flushing = True
        self._wake()

    def _after_turn(self) -> None:
        """Let the caller go on whose memory or flush has come."""
        if self._exhausted and self._free:
            self._exhausted = False
            self._caller.do(self._costs.memory_wait_s, self._go_on)
        elif self._flushing and not self.waiting and not self._left:
            self._flushing = False
            self.totals.ended = self._simulation.now
            if self.totals.calls < self._load.chunks:
                self._next_call()

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _append(self, rows: int) -> bool:
        """Append so many rows. Returns False, and appends none, if they need more memory than is free."""
        if self._is_single:
            return self._append_sticky(rows)
        opened, columns = self._open.reshape(-1), self._open.shape[1]
        drawn = self._random.integers(opened.size, size=rows)
        if rows < opened.size:
            drawn.sort()
            first = np.flatnonzero(np.diff(drawn, prepend=-1))
            slots, counts = drawn[first], np.diff(first, append=rows)
        else:
            every = np.bincount(drawn, minlength=opened.size)
            slots = np.flatnonzero(every)
            counts = every[slots]
        before = opened[slots]
        total = before + counts
        closed = (total - 1) // self._capacity
        left = total - closed * self._capacity
        all_closed = int(closed.sum())
        needed = int(self._slabs_of(left).sum()) - int(self._slabs_of(before).sum()) + all_closed * self._full_slabs
        if needed > self._free:
            return False
        opened[slots] = left
        for lane in (slots[before == 0] // columns).tolist():
            self._held[lane] += 1
        # Batches are opened one after the other, while the caller appends the rows.
        fresh = slots[(before == 0) | (closed > 0)]
        self._opened.reshape(-1)[fresh] = self._simulation.now + self._costs.batch_s * np.arange(len(fresh))
        if all_closed:
            self._full.reshape(-1)[slots] += closed.astype(np.int32)
            for slot, number in zip(slots[closed > 0].tolist(), closed[closed > 0].tolist(), strict=True):
                self._held[slot // columns] += number
                self._fulls[slot // columns] += number
        self._take(needed)
        return True

    def _append_sticky(self, rows: int) -> bool:
        """Rows of one partition at a time fill one batch after the other."""
        has = int(self._open[self._sticky])
        if rows > (self._capacity - has if has else 0) + self._free // self._full_slabs * self._capacity:
            return False
        while rows:
            lane, column = self._sticky
            has = int(self._open[lane, column])
            if has in (0, self._capacity):
                if has:
                    self._open[lane, column] = 0
                    self._full[lane, column] += 1
                    self._fulls[lane] += 1
                if self._given >= self._capacity:
                    self._given = 0
                    lane, column = self._sticky = self._drawn()
                    if self._open[lane, column]:
                        continue
                self._opened[lane, column] = self._simulation.now
                self._held[lane] += 1
                has = 0
            more = min(rows, self._capacity - has)
            before, after = self._slabs_of(np.array([has, has + more]))
            self._take(int(after) - int(before))
            self._open[lane, column] = has + more
            self._given += more
            rows -= more
        return True

    def _drawn(self) -> tuple[int, int]:
        """The lane and column of any partition."""
        lane, column = divmod(int(self._random.integers(self._open.size)), self._open.shape[1])
        return lane, column

    def _slabs_of(self, rows: np.ndarray) -> Any:
        """The slabs that batches of so many rows take."""
        if self._slab == self._load.batch_size and self._row_bytes < self._slab:
            return rows > 0
        size = np.where(rows > 0, self._costs.batch_bytes + rows * self._row_bytes, 0.0)
        return np.ceil(size / self._slab).astype(np.int64)

    def _take(self, slabs: int) -> None:
        self._free -= slabs
        self.totals.most_slabs = max(self.totals.most_slabs, self._slabs - self._free)

    # ---- the Sender --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._simulation.after(self._costs.wait_s, self._sender.do, self._turn_s, self._turn)

    def _turn_s(self) -> float:
        self._turn_began = self._simulation.now
        return self._costs.turn_s

    def _turn(self) -> None:
        self._woken = False
        self.totals.turns += 1
        for answer in self._answers:
            self._free += answer.memory
            self.totals.acknowledged += answer.rows
            self._in_flight[answer.lane] -= 1
            self._open_in_flight[answer.lane] -= answer.open_memory
        self._answers.clear()
        self._after_turn()
        now = self._turn_began
        everything = self._flushing or self._exhausted
        made: list[Sent] = []
        for lane, held in enumerate(self._held):
            if held and (everything or self._fulls[lane] or self._overdue or now >= self._next_due):
                self._drain(lane, everything, now, made)
        costs = self._costs
        seconds = sum(costs.request_s + sent.batches * costs.batch_s + sent.size * costs.byte_s for sent in made)
        self._sender.do(seconds, self._poll, made)

    def _poll(self, made: list[Sent]) -> None:
        """Write the turn's requests, and wait."""
        for lane, sent in groupby(made, lambda sent: sent.lane):
            requests = list(sent)
            on_wire = self._in_flight[lane] - len(self._ahead[lane]) - len(requests)
            room = max(self._load.max_in_flight - on_wire, 0)
            self._ahead[lane].extend(requests[room:])
            if requests[:room]:
                self._send(self, self.brokers[lane], requests[:room])
        self._set_timer()

    def _drain(self, lane: int, everything: bool, now: float, made: list[Sent]) -> None:
        """Fill the in-flight table of a broker, and queue full batches behind it."""
        opened, full = self._open[lane], self._full[lane]
        while (under_way := self._in_flight[lane]) < self._load.max_in_flight + MOST_AHEAD:
            if under_way >= self._load.max_in_flight and not self._fulls[lane]:
                return
            may_go = full > 0
            if under_way < self._load.max_in_flight and self._has_share(lane):
                may_go |= (
                    (opened > 0) if everything else (opened > 0) & (self._opened[lane] + self._load.linger_s <= now)
                )
            chosen = np.flatnonzero(may_go)
            if not len(chosen):
                return
            is_full = full[chosen] > 0
            rows = np.where(is_full, self._capacity, opened[chosen])
            sizes = self._costs.batch_bytes + rows * self._row_bytes
            whole_slabs = self._slab == self._load.batch_size and not self._exhausted
            ends = np.cumsum(sizes if whole_slabs else self._slabs_of(rows) * self._slab)
            fitting = max(int(np.searchsorted(ends, self._load.max_request_size, side="right")), 1)
            size = float(sizes[:fitting].sum())
            made.append(self._request(lane, chosen[:fitting], is_full[:fitting], rows[:fitting], size))

    @property
    def _is_scarce(self) -> bool:
        return self._free <= self._slabs - self._slabs // 4

    def _has_share(self, lane: int) -> bool:
        """Whether the broker's open batches may take more memory along."""
        return not self._is_scarce or self._open_in_flight[lane] < self._slabs // 2 // len(self.brokers)

    def _request(self, lane: int, chosen: np.ndarray, is_full: np.ndarray, rows: np.ndarray, size: float) -> Sent:
        costs, totals, batches = self._costs, self.totals, len(chosen)
        self._full[lane, chosen] -= is_full
        self._open[lane, chosen[~is_full]] = 0
        self._held[lane] -= batches
        self._fulls[lane] -= int(is_full.sum())
        whole = size + costs.request_bytes + batches * costs.entry_bytes
        memory = self._slabs_of(rows)
        open_memory = int(memory[~is_full].sum()) if self._is_scarce else 0
        sent = Sent(lane, int(rows.sum()), batches, size, whole, int(memory.sum()), open_memory)
        self._open_in_flight[lane] += open_memory
        self._in_flight[lane] += 1
        totals.most_in_flight = max(totals.most_in_flight, min(self._in_flight[lane], self._load.max_in_flight))
        totals.requests += 1
        totals.batches += batches
        totals.batch_bytes += size
        totals.request_bytes += whole
        return sent

    def answered(self, sent: Sent) -> None:
        """The response has come. The poll call starts a request that waits behind it, and goes on while more wait."""
        self._answers.append(sent)
        ahead = self._ahead[sent.lane]
        if ahead:
            self._send(self, self.brokers[sent.lane], [ahead.popleft()])
        if not ahead:
            self._wake()

    def _set_timer(self) -> None:
        """Wake the Sender when the oldest open batch has lingered."""
        due = self._opened + self._load.linger_s
        # A batch that is due already waits for a response.
        self._overdue = bool(((self._open > 0) & (due <= self._turn_began)).any())
        self._next_due = (
            np.where((self._open > 0) & (due > self._turn_began), due, np.inf).min() if any(self._held) else np.inf
        )
        if self._next_due == np.inf:
            return
        # The wait begins after the turn, is rounded up to milliseconds, and ends with a wake-up.
        wait = math.ceil((self._next_due - self._turn_began) * 1000) / 1000
        if self._simulation.now + wait < self._timer:
            self._timer = self._simulation.now + wait
            self._simulation.at(self._timer, self._on_timer, self._timer)

    def _on_timer(self, when: float) -> None:
        if when == self._timer:
            self._timer = np.inf
            self._wake()
