"""What `kafkabuf.buffer.sync` does: when the disk catches up, who waits for it, and who hears that it fails."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkabuf.clock import ManualClock
from kafkabuf.errors import KafkaError
from kafkabuf.process.threads import Lockable
from kafkabuf.spool.file import Layout, SpoolFile
from kafkabuf.spool.sync import Syncer
from tests.hostile.forked import in_a_child
from tests.waiting import wait_until


class Disk:
    def __init__(self) -> None:
        self.synced = 0
        self.calls = 0
        self.fails = False

    def sync(self) -> None:
        self.calls += 1
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.synced += 1


class TickingClock(ManualClock):
    """Tells how often the thread has begun to wait."""

    waits = 0

    def wait(self, lock: Lockable, timeout: float | None) -> bool:
        self.waits += 1
        return super().wait(lock, timeout)


class Stage:
    def __init__(self, setting: str | int) -> None:
        self.disk, self.clock, self.in_use = Disk(), TickingClock(), True
        self.syncer = Syncer(self.disk, setting, self.clock, lambda: self.in_use)
        self.syncer.start("sync")

    def tick(self, seconds: float = 0.05) -> None:
        """The thread's wait ends, and it waits again."""
        wait_until(lambda: self.clock.waits > 0)
        before = self.clock.waits
        self.clock.advance(seconds)
        wait_until(lambda: self.clock.waits > before)


@contextmanager
def stage(setting: str | int) -> Iterator[Stage]:
    made = Stage(setting)
    try:
        yield made
    finally:
        made.disk.fails = False
        made.syncer.close()


def test_process_leaves_the_disk_alone() -> None:
    with stage("process") as made:
        made.syncer.flushed()
    assert made.disk.calls == 0


def test_flush_returns_after_the_disk_and_raises_its_error() -> None:
    with stage("flush") as made:
        made.syncer.flushed()
        assert made.disk.synced == 1
        made.disk.fails = True
        with pytest.raises(KafkaError, match=r"could not be written to its disk \(Input/output error\)"):
            made.syncer.flushed()


def test_disk_catches_up_each_time_while_records_wait_and_once_more() -> None:
    with stage(50) as made:
        made.syncer.flushed()  # does not wait for the disk
        assert made.disk.synced == 0
        made.tick()
        made.tick()
        assert made.disk.synced == 2
        made.in_use = False
        made.tick()
        assert made.disk.synced == 3
        made.tick()
        assert made.disk.synced == 3


def test_failing_disk_is_logged_once_a_minute_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with stage(50) as made, caplog.at_level(logging.ERROR):
        made.disk.fails = True
        made.tick()
        made.in_use = False
        made.tick()
        assert (made.disk.calls, len(caplog.records)) == (2, 1)
        made.tick(60)
        assert (made.disk.calls, len(caplog.records)) == (3, 2)
        made.disk.fails = False
        made.tick()
        assert made.disk.synced == 1
        made.tick()
        assert made.disk.synced == 1


def test_close_ends_the_thread_and_has_the_disk_catch_up() -> None:
    made = Stage(50)
    wait_until(lambda: made.clock.waits > 0)
    made.syncer.close()
    assert made.disk.synced == 1
    assert made.syncer._thread is not None
    assert not made.syncer._thread.is_alive()
    made.syncer.close()
    assert made.disk.synced == 1


def test_close_before_the_thread_has_begun_ends_it() -> None:
    for _ in range(50):
        Stage(50).syncer.close()


def test_child_of_a_fork_does_not_touch_the_disk_and_the_parent_goes_on() -> None:
    with stage(50) as made:
        wait_until(lambda: made.clock.waits > 0)

        def child() -> None:
            made.syncer.flushed()
            made.syncer.close()
            assert made.disk.calls == 0

        in_a_child(child)()
        made.tick()
        assert made.disk.synced == 1


def test_file_is_written_to_its_disk_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(os, "fdatasync", written.append)
    with SpoolFile(tmp_path / "buffer", Layout(64 * 1024, 1024)) as file:
        file.sync()
        assert len(written) == 1
    file.sync()
    assert len(written) == 1
