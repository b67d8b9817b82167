"""The pages of the file that the process holds: they follow what is in use, and not the size of the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kafkabuf.spool import recovery
from rigs.producer import TOPIC, Rig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not say which pages a process holds")

MIB = 1 << 20
IDLE = 24 * MIB  # pages of the file that are held and not in use
READ = 16 * MIB  # that are held while the file is read
RECORD = MIB // 2
MEMORY: dict[str, Any] = {"batch_size": RECORD + 1024, "buffer_memory": 128 * MIB, "linger_ms": 0}
BESIDE = 4 * MIB  # the tables, and the batches that are read in one step


def resident(path: Path) -> int:
    """Bytes of the mapped file that this process holds."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [number for number, line in enumerate(lines) if line.endswith(f" {path}")]
    rows = [row for start in starts for row in lines[start + 1 : start + 25] if row.startswith("Rss:")]
    assert len(rows) == len(starts) > 0
    return sum(int(row.split()[1]) * 1024 for row in rows)


def fill(rig: Rig, nbytes: int) -> list[bytes]:
    values = [b"%07d" % number * (RECORD // 7 - 20) for number in range(nbytes // RECORD)]
    for value in values:
        rig.send(value)
    return values


def test_opening_holds_few_pages_however_much_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "buffer"
    held, recover_one = [], recovery._recover

    def observed(*arguments: Any) -> None:
        recover_one(*arguments)
        held.append(resident(path))

    before = Rig(file=path, **MEMORY)
    count = len(fill(before, 96 * MIB))
    assert before.file is not None
    before.file.close()
    before.file.forget_pages()  # this process maps the file twice
    monkeypatch.setattr(recovery, "_recover", observed)
    after = Rig(file=path, **MEMORY)
    assert len(held) == count
    assert READ / 2 < max(held) < READ + BESIDE
    assert resident(path) < BESIDE
    assert after.recovered is not None
    assert after.recovered.records.total() == count


def test_delivered_records_keep_no_pages(tmp_path: Path) -> None:
    path = tmp_path / "buffer"
    rig = Rig(file=path, **MEMORY)
    values = fill(rig, 96 * MIB)
    assert resident(path) > 95 * MIB
    while rig.accumulator.incomplete:
        rig.turn()
        in_use = rig.pool.total - rig.pool.free_bytes
        assert resident(path) < in_use + IDLE + BESIDE
        rig.ack_under_way()
    rig.turn()
    assert resident(path) < IDLE + BESIDE
    assert [record.value for record in rig.log[TOPIC, 0]] == values


def test_steady_use_of_little_memory_keeps_its_pages(tmp_path: Path) -> None:
    """A page that is used again and again comes in once."""
    path = tmp_path / "buffer"
    rig = Rig(file=path, **MEMORY)
    held = [7 * MIB]
    for _ in range(12):
        fill(rig, 8 * MIB)
        rig.ack_all()
        held.append(resident(path))
        assert held[-1] >= held[-2]
    assert held[-1] < 8 * MIB + BESIDE
