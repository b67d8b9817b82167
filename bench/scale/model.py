"""The model of a load: producers, brokers and the way between them. The same seed gives the same run.

A large load can be sampled: a producer of the model stands for `share` that do the same. Their requests occupy the
brokers and the network, right behind its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from bench.scale.costs import Costs
from bench.scale.events import Cores, Simulation, Thread
from bench.scale.load import Counts, Load
from bench.scale.producer import Producer, Sent

UNLIMITED = 1 << 30


@dataclass(frozen=True)
class Place:
    """Where the producers and brokers run."""

    shared_cores: int = 0
    """Cores of one machine that runs everything; 0: each producer and broker has its own."""
    producer_cores: int = 2
    broker_threads: int = 8
    """Requests that a broker handles at a time; with shared cores, all brokers together are one thread, as those of the
    embedded cluster are."""
    one_way_s: float | None = None
    """How long a message takes; None: as measured on one machine."""
    commit_s: float = 0.0
    """How long a leader waits for its followers."""
    bytes_per_s: float = 0.0
    """What a broker's network card takes; 0: no limit."""


@dataclass(frozen=True)
class Outcome:
    """What a load does to the producers and the brokers."""

    counts: Counts
    acknowledged: int
    waiting: int
    memory: float
    """The most bytes of buffer.memory that a producer used."""
    broker_cpu_s: float
    broker_requests: tuple[int, ...]
    broker_bytes: tuple[float, ...]
    most_in_flight: int


class Broker:
    """Takes the requests of a connection in their order. Threads handle those of several connections at a time."""

    def __init__(self, simulation: Simulation, costs: Costs, place: Place, threads: list[Thread], share: int) -> None:
        self._simulation, self._costs, self._place = simulation, costs, place
        self._threads = threads
        self._share = share
        self._one_way_s = costs.wait_s if place.one_way_s is None else place.one_way_s
        self._card_free = 0.0
        self._next = 0
        self._waiting: dict[Producer, deque[Sent]] = {}  # by connection
        self.requests = 0
        self.bytes = 0.0

    def send(self, producer: Producer, requests: list[Sent]) -> None:
        """Requests leave a producer together."""
        size = sum(sent.size for sent in requests)
        self.requests += len(requests) * self._share
        self.bytes += size * self._share
        arrives = self._simulation.now + self._one_way_s
        if self._place.bytes_per_s:
            begins, seconds = max(self._card_free, arrives), size / self._place.bytes_per_s
            arrives, self._card_free = begins + seconds, begins + seconds * self._share
        self._simulation.at(arrives, self._arrive, producer, requests)

    def _arrive(self, producer: Producer, requests: list[Sent]) -> None:
        waiting = self._waiting.setdefault(producer, deque())
        idle = not waiting
        waiting.extend(requests)
        if idle:
            self._handle(producer)

    def _handle(self, producer: Producer) -> None:
        """A connection has one request at a time under work, as in Kafka."""
        sent, costs = self._waiting[producer][0], self._costs
        seconds = costs.broker_request_s + sent.batches * costs.broker_batch_s + sent.size * costs.broker_byte_s
        thread = self._threads[self._next]
        self._next = (self._next + 1) % len(self._threads)
        thread.do(seconds, self._respond, producer, sent)
        if self._share > 1:
            thread.do(seconds * (self._share - 1), _nothing)

    def _respond(self, producer: Producer, sent: Sent) -> None:
        self._simulation.after(self._one_way_s + self._place.commit_s, producer.answered, sent)
        waiting = self._waiting[producer]
        waiting.popleft()
        if waiting:
            self._handle(producer)


def _nothing() -> None:
    """The end of work for producers that the model does not have."""


def simulate(load: Load, costs: Costs, place: Place, seed: int = 1, share: int = 1) -> Outcome:
    """Run the load until every record is acknowledged. One of `share` producers is in the model."""
    if load.producers % share:
        raise ValueError(f"{load.producers} producers are no multiple of {share}")
    load = replace(load, producers=load.producers // share)
    simulation = Simulation()
    shared = Cores(place.shared_cores) if place.shared_cores else None
    if shared is not None:
        one = Thread(simulation, shared)
        threads = [[one] for _ in range(load.brokers)]
    else:
        machines = [Cores(place.broker_threads) for _ in range(load.brokers)]
        threads = [[Thread(simulation, cores) for _ in range(place.broker_threads)] for cores in machines]
    brokers = [Broker(simulation, costs, place, own, share) for own in threads]

    def send(producer: Producer, broker: int, requests: list[Sent]) -> None:
        brokers[broker].send(producer, requests)

    producers = [
        Producer(
            simulation,
            costs,
            load,
            number,
            np.random.default_rng((seed, number)),
            shared or Cores(place.producer_cores),
            send,
        )
        for number in range(load.producers)
    ]
    for producer in producers:
        producer.begin()
    simulation.run()
    return _outcome(load, costs, share, producers, brokers, {id(thread): thread for own in threads for thread in own})


def _outcome(
    load: Load, costs: Costs, share: int, producers: list[Producer], brokers: list[Broker], threads: dict[int, Thread]
) -> Outcome:
    totals = [producer.totals for producer in producers]
    records = sum(each.records for each in totals)
    counts = Counts(
        records=records,
        batches=sum(each.batches for each in totals),
        batch_bytes=sum(each.batch_bytes for each in totals),
        requests=sum(each.requests for each in totals),
        request_bytes=sum(each.request_bytes for each in totals),
        turns=sum(each.turns for each in totals),
        calls=sum(each.calls for each in totals),
        naps=sum(each.naps for each in totals),
        waits=sum(each.waits for each in totals),
        keys=records * load.keyed,
        connections=sum(len(producer.brokers) + costs.other_connections for producer in producers),
        cpu_s=sum(producer.cpu_s for producer in producers),
        wall_s=max(each.ended for each in totals),
    )
    return Outcome(
        counts.times(share),
        acknowledged=share * sum(each.acknowledged for each in totals),
        waiting=share * sum(producer.waiting for producer in producers),
        memory=max(producer.memory for producer in producers),
        broker_cpu_s=sum(thread.busy_s for thread in threads.values()),
        broker_requests=tuple(broker.requests for broker in brokers),
        broker_bytes=tuple(broker.bytes for broker in brokers),
        most_in_flight=max(each.most_in_flight for each in totals),
    )
