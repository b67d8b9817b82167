"""A user whose buffer lies in a file, and whose process may crash between two steps: the next one opens the file."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from kafkabuf.errors import ClosedError
from tests.virtual.oracle import Contents
from tests.virtual.runner import Crashed, VirtualProducer
from tests.virtual.users import Sent, User
from tests.virtual.world import World


class SpooledUser(User):
    """A record whose send() has returned is delivered once and in order, whatever crashes."""

    def __init__(self, world: World, name: str, topics: list[str], settings: dict[str, Any], folder: Path) -> None:
        self._path = folder / f"{name}-0"
        self._lives = 0
        self._first = 0  # of `sent`, the first record of this process
        self._calling = False
        self._calm = False
        self._failed = self._unproven = 0  # recovered records, in all processes
        super().__init__(world, name, topics, settings)

    def open(self) -> VirtualProducer:
        self._first = len(self.sent)
        self.settings["buffer_path"] = str(self._path)
        return super().open()

    # ---- crashes -----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        roll = self.world.random.random()
        if roll < 0.12:
            self.crash()
        elif roll < 0.3:
            self.world.at(self.world.now() + self.world.random.choice((0.0, 0.001, 0.05, 3.0)), self._crash_later)
        else:
            super().act()

    def go(self) -> None:
        self._calling = True
        try:
            super().go()
        except Crashed:
            self._calling = False
            self.die()
        finally:
            self._calling = False

    def interrupt(self) -> None:
        if not self._calm and self.world.random.random() < 0.1:
            self._copy_file()
            raise Crashed(self)
        super().interrupt()

    def calm(self) -> None:
        """Crash no more. What the file holds for partitions that are gone waits until somebody makes these again."""
        self._calm = True
        recovered = self.producer.recovered
        assert recovered is not None
        for name, partition in recovered.partitions:
            topic = self.world.cluster.catalogue.topics.get(name)
            if topic is not None and len(topic.partitions) <= partition:
                self.world.note(f"grow {name} to {partition + 1}")
                self.world.cluster.catalogue.add_partitions(name, partition + 1)

    def _crash_later(self) -> None:
        if not self._calm:
            self.crash()

    def crash(self) -> None:
        """Not in the middle of a Sender's turn."""
        self._copy_file()
        if self._calling:
            raise Crashed(self)
        self.die()

    def _copy_file(self) -> None:
        """The next process opens the copy, which nothing changes that the end of this process runs."""
        self._lives += 1
        copy = self._path.with_name(f"{self.name}-{self._lives}")
        shutil.copyfile(self._path, copy)
        copy.chmod(0o600)
        self._path = copy

    @property
    def dies_later(self) -> bool:
        """Whether a call of the user is to end first."""
        return self._calling

    def die(self) -> None:
        self.note("crash")
        self._count()
        self.producer.vanish()
        self.world.dead.append(self.producer)
        self.producer = self.open()

    def close(self, timeout: float | None) -> None:
        super().close(timeout)
        self._count()

    def _count(self) -> None:
        recovered = self.producer.recovered
        assert recovered is not None
        self._failed += recovered.failed.total()
        self._unproven += recovered.unproven.total()
        if recovered.damaged:
            self.world.fail(f"{self.name}: {recovered.damaged}")

    # ---- promises ----------------------------------------------------------------------------------------------------

    def _check_closed(self) -> None:
        accumulator = self.producer.accumulator
        if accumulator.incomplete or accumulator.active:
            self.world.fail(f"{self.name} is closed and still has {[*accumulator.incomplete, *accumulator.active]}")
        late = [sent for sent in self.sent[self._first :] if not sent.future.done()]
        if late:
            self.world.fail(f"{self.name} is closed, and {len(late)} records have no outcome")

    def check_alive(self) -> None:
        recovered = self.producer.recovered
        assert recovered is not None
        if recovered.unsettled:
            self.world.fail(f"{self.name}: all is well, and what the file held is not settled: {recovered}")
        super().check_alive()

    def check(self, contents: Contents) -> None:
        missing, doubled = [], []
        placed: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        for sent in self.sent:
            places = contents.stored[self.name, sent.number]
            incarnations = [place.incarnation for place in places]
            if len(set(incarnations)) < len(incarnations):
                doubled.append(sent.number)
            elif self._keeps(sent):
                missing += [] if places else [sent.number]
                for place in places:
                    placed[place.topic, place.incarnation, place.partition].append(place.offset)
        if len(missing) > self._failed:
            self.world.fail(f"{self.name}: records {missing} are lost, and {self._failed} recovered records failed")
        if len(doubled) > self._unproven:
            self.world.fail(f"{self.name}: records {doubled} are doubled, and {self._unproven} were unproven")
        for partition, offsets in placed.items():
            if offsets != sorted(offsets):
                self.world.fail(f"{self.name}: the records of {partition} have, in the order of sending, {offsets}")

    def _keeps(self, sent: Sent) -> bool:
        """Whether the process did not learn that the record failed. A close that came too early left it in the file."""
        if not sent.future.done():
            return True
        error = sent.future.exception(0)
        return error is None or isinstance(error, ClosedError)
