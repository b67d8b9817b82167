"""`kafkabuf produce` takes constant memory, whatever the length of its input, and however many rows are faulty."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.input_files import KINDS, MIB, format_of, produce, write
from tests.cli.resume_kills import BrokerProcess, broker_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the peak of memory")

# Python, pyarrow and buffer.memory take half of it.
MOST = 140 * MIB
ROW_BYTES = 200
# Each row is larger than this, and a line or row that is faulty leaves a letter.
TOO_LARGE = ["-X", "max.request.size=190", "-X", "batch.size=100"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Its records are on the disk: the memory of the machine holds the inputs."""
    with broker_process(tmp_path_factory.mktemp("broker")) as running:
        yield running


def check(broker: BrokerProcess, folder: Path, kind: str, nbytes: int, policy: str) -> None:
    path, letters = folder / "in", folder / "letters"
    rows, unit = write(path, kind, nbytes, ROW_BYTES), "line" if kind in ("lines", "jsonl") else "row"
    options = ["-f", format_of(kind), "-b", broker.bootstrap_servers, "--resume", "--on-error", policy]
    options += ["--dead-letter-file", str(letters)] if policy == "dead-letter" else []
    options += TOO_LARGE if policy != "stop" else []
    try:
        status, error, peak = produce([f"t-{uuid.uuid4().hex[:8]}", str(path), *options])
        assert status == 0, error
        sent, left_out = (rows, 0) if policy == "stop" else (0, rows)
        assert f"{sent:,} record" in error
        assert (f"{left_out:,} {unit}s left out" in error) == (left_out > 0)
        if policy == "dead-letter":
            with letters.open("rb") as file:
                assert sum(1 for _ in file) == rows
        print(f"{kind}, {policy}: {nbytes / MIB:,.0f} MiB, {peak / MIB:.0f} MiB at most; {error.splitlines()[-1]}")
        assert peak <= MOST
    finally:
        for made in folder.iterdir():
            made.unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_bounded(broker: BrokerProcess, tmp_path: Path, kind: str) -> None:
    check(broker, tmp_path, kind, 100 * MIB, "stop")


@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
@pytest.mark.parametrize("kind", ["jsonl", "csv", "arrow file"])
def test_memory_is_bounded_where_every_row_is_faulty(
    broker: BrokerProcess, tmp_path: Path, kind: str, policy: str
) -> None:
    """An error that is kept for each of the 200,000 rows would be seen."""
    check(broker, tmp_path, kind, 40 * MIB, policy)


@pytest.mark.slow  # writes and sends a gigabyte for each format
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_a_gigabyte(broker: BrokerProcess, tmp_path: Path, kind: str) -> None:
    check(broker, tmp_path, kind, 1000 * MIB, "stop")


@pytest.mark.slow  # as above
@pytest.mark.parametrize("policy", ["skip", "dead-letter"])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_a_gigabyte_of_faulty_rows(
    broker: BrokerProcess, tmp_path: Path, kind: str, policy: str
) -> None:
    check(broker, tmp_path, kind, 1000 * MIB, policy)
