"""Who may open the file, and what an error says."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkabuf._pool import BufferPool
from kafkabuf.errors import ConfigError
from kafkabuf.spool import file as spool_file
from kafkabuf.spool.file import Layout, SpoolFile

LAYOUT = Layout(64 * 1024, 1024)


def refused(path: Path, text: str, layout: Layout = LAYOUT) -> None:
    with pytest.raises(ConfigError, match=text):
        SpoolFile(path, layout)


def test_file_has_all_its_bytes_and_no_reader_but_its_owner(path: Path) -> None:
    with SpoolFile(path, LAYOUT):
        status = path.stat()
        assert status.st_size == LAYOUT.size
        assert status.st_blocks * 512 >= LAYOUT.size
        assert status.st_mode & 0o777 == 0o600


def test_arena_of_a_pool_lies_in_the_file(path: Path) -> None:
    with SpoolFile(path, LAYOUT) as file:
        pool = BufferPool(*LAYOUT, memory=file.arena)
        with pool.allocate(1024, 0) as slab:
            slab.buffer[:5] = b"there"
            assert path.read_bytes()[LAYOUT.arena_at + slab.first * 1024 :][:5] == b"there"
            file.sync()


def test_second_producer_is_refused_and_learns_of_the_first(path: Path) -> None:
    with SpoolFile(path, LAYOUT):
        refused(path, rf"process {os.getpid()} has .*buffer open: give each producer a file of its own")
    SpoolFile(path, LAYOUT).close()


def test_other_process_is_refused_while_the_first_lives(path: Path) -> None:
    with SpoolFile(path, LAYOUT):
        script = f"from kafkabuf.spool.file import *; SpoolFile({str(path)!r}, Layout{tuple(LAYOUT)})"
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert f"process {os.getpid()} has" in other.stderr


def test_forked_child_leaves_the_file_to_its_parent(path: Path) -> None:
    """The child outlives the parent's use of the file, and holds no lock."""
    file = SpoolFile(path, LAYOUT)
    begun, go = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(begun[1], b".")
        os.read(go[0], 1)
        os._exit(0)
    os.read(begun[0], 1)
    file.close()
    SpoolFile(path, LAYOUT).close()
    os.write(go[1], b".")
    os.waitpid(child, 0)
    for descriptor in (*begun, *go):
        os.close(descriptor)


def test_file_that_a_killed_maker_left_blank_is_made_again(path: Path) -> None:
    path.write_bytes(bytes(LAYOUT.size // 2))
    with SpoolFile(path, LAYOUT):
        assert path.stat().st_size == LAYOUT.size
        assert path.read_bytes().startswith(LAYOUT.header())


@pytest.mark.parametrize(
    ("at", "data", "text"),
    [
        (0, b"something else", "file of another program"),
        (16, b"\x01\x02\x03\x04", "another byte order"),
        (20, b"\2", "has format 2, and this kafkabuf reads format 1"),
    ],
)
def test_file_of_another_kind_is_refused(path: Path, at: int, data: bytes, text: str) -> None:
    SpoolFile(path, LAYOUT).close()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    refused(path, text)


def test_shortened_file_is_refused(path: Path) -> None:
    SpoolFile(path, LAYOUT).close()
    os.truncate(path, LAYOUT.size - 1)
    refused(path, "cut short")


def test_link_is_refused(path: Path) -> None:
    SpoolFile(path, LAYOUT).close()
    link = path.with_name("link")
    link.symlink_to(path)
    refused(link, "symbolic link")
    hard = path.with_name("hard")
    os.link(path, hard)
    refused(hard, "no plain file of this user with one name")


def test_folder_that_others_may_write_is_refused(path: Path) -> None:
    path.parent.chmod(0o777)
    refused(path, "other users may write to the folder .* chmod go-w")
    path.parent.chmod(0o700)


def test_missing_folder_is_refused(path: Path) -> None:
    refused(path / "none" / "buffer", "there is no folder")


def test_folder_in_its_place_is_refused(path: Path) -> None:
    path.mkdir()
    refused(path, "cannot be opened: Is a directory")


def test_file_system_of_the_network_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_file, "_file_system", lambda folder: "nfs4")
    refused(path, r"file system of the network \(nfs4\)")


def test_file_system_has_the_name_that_the_system_gives_it(path: Path) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    assert spool_file._file_system(path.parent) in {line.partition(" - ")[2].split()[0] for line in lines}


def test_disk_without_room_is_refused_before_it_is_filled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    refused(path, "the disk has no room for them", Layout(shutil.disk_usage(path.parent).free * 4, 1 << 20))
    assert path.stat().st_size == 0


def test_process_without_addresses_for_the_file_is_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_addresses(descriptor: int, size: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", no_addresses)
    refused(path, f"{path} needs {LAYOUT.size} bytes of this process's addresses.*ulimit -v")


def test_disk_that_fills_up_meanwhile_is_an_error_that_leaves_no_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(descriptor: int, offset: int, size: int) -> None:
        os.ftruncate(descriptor, size // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    refused(path, "the disk has no room for them")
    assert path.stat().st_size == 0
