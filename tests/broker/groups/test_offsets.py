"""The offsets of a group change in steps: what others see, and what a restart finds, after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kafkabuf.broker.groups.group import Group
from kafkabuf.broker.groups.groups import Groups
from kafkabuf.broker.groups.offsets import Committed, GroupOffsets
from kafkabuf.broker.waiting.slices import Work, finish
from kafkabuf.broker.waiting.timer import Timer
from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaStorageError

PARTITIONS = [("t", index) for index in range(5)]
PRODUCER = 9
Stored = dict[tuple[Any, ...], Any]
Remember = Callable[[tuple[Any, ...], Any], None]


class Disk:
    """What is stored. Refuses everything after `granted` changes."""

    def __init__(self) -> None:
        self.stored: Stored = {}
        self.granted = 10**9

    def remember(self, key: tuple[Any, ...], value: Any) -> None:
        if not self.granted:
            raise KafkaStorageError("full")
        self.granted -= 1
        if value is None:
            self.stored.pop(key, None)
        else:
            self.stored[key] = value

    def restarted(self, remember: Remember = lambda key, value: None) -> GroupOffsets:
        offsets = GroupOffsets(remember)
        for key, value in self.stored.items():
            offsets.restore(key, value)
        offsets.restored()
        return offsets


def committed(offset: int) -> Committed:
    return Committed(offset, -1, "")


def shown(offsets: GroupOffsets) -> set[int | None]:
    found = [offsets.get(partition) for partition in PARTITIONS]
    return {None if value is None else value.offset for value in found}


def state(offsets: GroupOffsets) -> tuple[set[int | None], set[bool]]:
    """The offsets that a client sees, and whether they are unstable."""
    return shown(offsets), {offsets.unstable(partition) for partition in PARTITIONS}


def with_pending(disk: Disk) -> GroupOffsets:
    offsets = GroupOffsets(disk.remember)
    for partition in PARTITIONS:
        offsets.commit(partition, committed(1))
        offsets.commit_in_transaction(PRODUCER, partition, committed(7))
    return offsets


def ending_of(offsets: GroupOffsets, steps: int) -> Work[None]:
    """The end of the pending transaction, after so many of its steps."""
    ending: Work[None] = offsets.end_transaction(PRODUCER, True)
    for _ in range(steps):
        next(ending)
    return ending


@pytest.mark.parametrize("commits", [True, False])
def test_all_offsets_of_a_transaction_show_at_once_and_are_unstable_until_then(commits: bool) -> None:
    disk = Disk()
    offsets, seen = with_pending(disk), []
    assert state(offsets) == ({1}, {True})
    for _ in offsets.end_transaction(PRODUCER, commits):
        seen.append(state(offsets))
    after = {7 if commits else 1}, {False}
    assert seen == [after] * 6
    assert (shown(disk.restarted()), len(disk.stored)) == ({7 if commits else 1}, 5)


# The end of a transaction writes the end, five offsets in two places, and forgets the end.
@pytest.mark.parametrize("granted", range(13))
@pytest.mark.parametrize("commits", [True, False])
def test_all_offsets_of_a_transaction_show_or_none_after_a_kill(granted: int, commits: bool) -> None:
    disk = Disk()
    offsets = with_pending(disk)
    disk.granted = granted
    with suppress(KafkaStorageError):
        finish(offsets.end_transaction(PRODUCER, commits))
    disk.granted = 10**9
    restarted = disk.restarted(disk.remember)
    before, after = ({1}, {True}), ({7 if commits else 1}, {False})
    assert state(restarted) == (after if granted else before)
    finish(restarted.end_transaction(PRODUCER, commits))
    assert state(restarted) == state(disk.restarted()) == after
    assert len(disk.stored) == 5


@pytest.mark.parametrize("granted", range(1, 12))
def test_transaction_after_a_kill_leaves_the_one_that_ended_before_it_alone(granted: int) -> None:
    """Only a coordinator outside of the cluster lets a producer go on before the end is written whole."""
    disk = Disk()
    offsets = with_pending(disk)
    disk.granted = granted
    with suppress(KafkaStorageError):
        finish(offsets.end_transaction(PRODUCER, True))
    disk.granted = 10**9
    restarted = disk.restarted(disk.remember)
    for partition in PARTITIONS:
        restarted.commit_in_transaction(PRODUCER, partition, committed(9))
    assert state(restarted) == state(disk.restarted()) == ({7}, {True})
    finish(restarted.end_transaction(PRODUCER, False))
    assert state(restarted) == state(disk.restarted()) == ({7}, {False})
    assert len(disk.stored) == 5


@pytest.mark.parametrize("granted", range(12))
def test_transaction_that_the_disk_cuts_off_ends_with_the_next_call(granted: int) -> None:
    disk = Disk()
    offsets = with_pending(disk)
    disk.granted = granted
    with pytest.raises(KafkaStorageError):
        finish(offsets.end_transaction(PRODUCER, True))
    assert shown(offsets) in ({1}, {7})
    disk.granted = 10**9
    finish(offsets.end_transaction(PRODUCER, True))
    assert (shown(offsets), shown(disk.restarted()), len(disk.stored)) == ({7}, {7}, 5)


@pytest.mark.parametrize("steps", range(1, 7))
def test_newer_offset_wins_over_a_transaction_that_is_ending(steps: int) -> None:
    disk = Disk()
    offsets = with_pending(disk)
    ending = ending_of(offsets, steps)
    for partition in PARTITIONS:
        offsets.commit(partition, committed(8))
    finish(ending)
    assert (shown(offsets), shown(disk.restarted())) == ({8}, {8})


@pytest.mark.parametrize("steps", range(1, 7))
def test_offset_that_is_deleted_while_its_transaction_ends_stays_deleted(steps: int) -> None:
    disk = Disk()
    offsets = with_pending(disk)
    ending = ending_of(offsets, steps)
    for partition in PARTITIONS:
        offsets.delete(partition)
    assert {key[0] for key in disk.stored} <= {"ended"}
    finish(ending)
    assert (shown(offsets), disk.stored) == ({None}, {})


def test_first_offset_that_is_deleted_while_its_transaction_ends_is_not_stored() -> None:
    disk = Disk()
    offsets = GroupOffsets(disk.remember)
    offsets.commit_in_transaction(PRODUCER, ("t", 0), committed(7))
    ending = offsets.end_transaction(PRODUCER, True)
    next(ending)
    offsets.delete(("t", 0))
    finish(ending)
    assert disk.stored == {}


@pytest.mark.parametrize("steps", range(1, 7))
def test_work_that_is_overtaken_leaves_the_next_transaction_alone(steps: int) -> None:
    offsets = with_pending(Disk())
    first = ending_of(offsets, steps)
    finish(offsets.end_transaction(PRODUCER, True))
    for partition in PARTITIONS:
        offsets.commit_in_transaction(PRODUCER, partition, committed(9))
    finish(first)
    assert shown(offsets) == {7}
    assert all(offsets.unstable(partition) for partition in PARTITIONS)


# ---- deleted groups


@pytest.mark.parametrize("granted", range(1, 12))
def test_deleted_group_leaves_nothing_of_a_transaction_that_ended_before_a_kill(granted: int) -> None:
    disk = Disk()
    offsets = with_pending(disk)
    disk.granted = granted
    with suppress(KafkaStorageError):
        finish(offsets.end_transaction(PRODUCER, True))
    disk.granted = 10**9
    finish(disk.restarted(disk.remember).clear())
    assert disk.stored == {}


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def groups(disk: Disk) -> Iterator[Groups]:
    loop = asyncio.new_event_loop()
    groups = Groups(Timer(loop, ManualClock()), remember=disk.remember)
    for partition in PARTITIONS:
        groups.get("g").offsets.commit(partition, committed(1))
        groups.get("g").offsets.commit_in_transaction(PRODUCER, partition, committed(7))
    yield groups
    loop.close()


def test_deleted_group_is_gone_after_the_first_step(groups: Groups, disk: Disk) -> None:
    deletion = groups.delete("g")
    for _ in deletion:
        assert groups.find("g") is None
    assert disk.stored == {}


@pytest.mark.parametrize("steps", range(1, 6))
def test_new_group_keeps_what_it_stores_while_a_group_of_its_name_is_deleted(
    groups: Groups, disk: Disk, steps: int
) -> None:
    deletion = groups.delete("g")
    for _ in range(steps):
        next(deletion)
    for partition in PARTITIONS:
        groups.get("g").offsets.commit(partition, committed(2))
    finish(deletion)
    restarted = Groups(groups.timer)
    for (name, *key), value in disk.stored.items():
        restarted.restore(name, tuple(key), value)
    for found in (groups.get("g"), restarted.get("g")):
        assert isinstance(found, Group)
        assert shown(found.offsets) == {2}
        assert not any(map(found.offsets.unstable, PARTITIONS))


def test_group_whose_deletion_the_disk_refuses_is_back_with_what_is_stored(groups: Groups, disk: Disk) -> None:
    disk.granted = 4
    with pytest.raises(KafkaStorageError):
        finish(groups.delete("g"))
    left = {key[2:] for key in disk.stored if key[1] == "committed"}
    assert len(left) == 3
    assert set(groups.existing("g").offsets.partitions()) == left
