"""How commands end that cannot go on: signals, outputs and disks that are full, files that are no files."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkabuf.broker import EmbeddedCluster
from kafkabuf.cli import main
from kafkabuf.cli.long_input import Interrupt
from kafkabuf.cli.produce.delivery import Delivery
from kafkabuf.cli.produce.inputs.block import Block

pytest_plugins = ["tests.cli.fixtures"]

FULL = "/dev/full"
COMMAND = [sys.executable, "-m", "kafkabuf"]
# Nobody listens there.
NOWHERE = ["-b", "127.0.0.1:1", "-X", "max.block.ms=600000"]
# The time at the end of the bar of `kafkabuf produce`.
BAR = b"0:00:0"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason=f"there is no {FULL}")


def run(*arguments: str, text: bytes = b"", out: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit status, and what the command wrote to standard error."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=text, stdout=out, stderr=subprocess.PIPE, check=False, timeout=120
    )
    return done.returncode, done.stderr.decode()


class Terminal:
    """A command whose three standard files are a terminal."""

    def __init__(self, *arguments: str) -> None:
        self.written = b""
        self._terminal, end = pty.openpty()
        environment = os.environ | {"TERM": "xterm"}
        self.process = subprocess.Popen([*COMMAND, *arguments], stdin=end, stdout=end, stderr=end, env=environment)
        os.close(end)

    def read_until(self, text: bytes) -> None:
        """Up to a text, or to the end of the command."""
        until = time.monotonic() + 60
        while text not in self.written:
            # The bar moves as long as the command runs.
            if not select.select([self._terminal], [], [], max(until - time.monotonic(), 0))[0]:
                self.process.kill()
                pytest.fail(f"{text!r} did not come behind {self.written[-500:]!r}")
            try:
                self.written += os.read(self._terminal, 4096)
            except OSError:  # Linux: the other end is closed
                break

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.read_until(b"never written")
        os.close(self._terminal)
        return self.process.wait(60)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signal_ends_the_wait_for_lines_and_the_terminal_has_its_cursor_again(
    cluster: EmbeddedCluster, topic: str, number: signal.Signals, status: int
) -> None:
    terminal = Terminal("produce", topic, "-b", cluster.bootstrap_servers)
    terminal.read_until(BAR)
    assert terminal.end(number) == status
    assert terminal.written.rindex(b"\x1b[?25h") > terminal.written.rindex(b"\x1b[?25l")
    assert b"interrupted; 0 records acknowledged" in terminal.written


def test_first_signal_ends_the_wait_for_the_writer_of_a_named_pipe(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    terminal = Terminal("produce", topic, str(tmp_path / "pipe"), "-b", cluster.bootstrap_servers)
    terminal.read_until(BAR)
    assert terminal.end(signal.SIGINT) == 130
    assert b"interrupted; 0 records acknowledged" in terminal.written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_ends_the_wait_for_a_cluster(number: signal.Signals) -> None:
    terminal = Terminal("produce", "t", __file__, *NOWHERE)
    terminal.read_until(BAR)
    assert terminal.end(number) == 128 + number
    assert b"interrupted; 0 records acknowledged" in terminal.written


def test_signal_that_comes_just_before_a_wait_ends_it() -> None:
    class Signalled(Interrupt):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_reading" and value and not self.seen:
                self.handle(signal.SIGINT, None)
            super().__setattr__(name, value)

    assert Signalled().cut(lambda: pytest.fail("the wait has begun")) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_load_that_cannot_begin(number: signal.Signals) -> None:
    terminal = Terminal("perf", "t", *NOWHERE)
    terminal.read_until(b"Connection refused")
    assert terminal.end(number) == 128 + number
    assert b"Traceback" not in terminal.written
    assert terminal.written.endswith(b"Error: interrupted\r\n")


def test_sigterm_saves_the_state_and_loses_no_line(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    lines = [b"%07d" % number for number in range(400_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    command = [*COMMAND, "produce", topic, str(path), "--resume", "-b", cluster.bootstrap_servers]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        cluster.wait_for_messages(topic, 1, timeout=60)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    if process.returncode in (0, -signal.SIGTERM):  # the signal came behind the last acknowledgement
        assert cluster.end_offset(topic, 0) == len(lines)
    else:
        assert (process.returncode, error.startswith(b"Error: interrupted; ")) == (143, True)
    state = json.loads(Path(f"{path}.kafkabuf-resume").read_bytes())
    assert state["count"] == cluster.end_offset(topic, 0) > 0  # all that was read is acknowledged, and told
    assert run(*command[len(COMMAND) :])[0] == 0
    assert [record.value for record in cluster.messages(topic)] == lines


@needs_full
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["config"], ["produce", "--help"], ["completion", "bash"]], ids=" ".join
)
def test_full_output_is_named_in_one_line(words: Sequence[str]) -> None:
    with open(FULL, "wb") as full:
        status, error = run(*words, out=full.fileno())
    assert (status, error) == (1, "Error: the output cannot be written: No space left on device\n")


def test_reader_that_has_gone_ends_the_command_in_silence() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert run("config", out=write) == (1, "")
    finally:
        os.close(write)


@needs_full
def test_full_disk_of_dead_letters_ends_the_run_with_its_name_and_the_count(
    cluster: EmbeddedCluster, topic: str
) -> None:
    policy = ["--on-error", "dead-letter", "--dead-letter-file", FULL, "--format", "jsonl", "--key", "id"]
    status, error = run("produce", topic, *policy, "-b", cluster.bootstrap_servers, text=b'x\n{"id":1}\n')
    assert status == 1
    assert f"Error: {FULL} cannot be read or written: No space left on device; 1 record acknowledged" in error
    assert cluster.end_offset(topic, 0) == 1


@needs_full
def test_state_that_cannot_be_written_is_named_before_a_line_is_sent(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    path, state = tmp_path / "in.txt", tmp_path / "state"
    path.write_bytes(b"a\nb\n")
    os.symlink(FULL, f"{state}.new")
    where = ["--resume-file", str(state), "-b", cluster.bootstrap_servers]
    status, error = run("produce", topic, str(path), *where)
    assert status == 1
    assert f"the state {state} cannot be written: No space left on device" in error
    assert error.count("cannot be written") == 1
    assert cluster.end_offset(topic, 0) == 0


def change_behind_the_first_block(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    changed = False

    def add(delivery: Delivery, block: Block, add: Callable[[Delivery, Block], None] = Delivery.add) -> None:
        nonlocal changed
        add(delivery, block)
        if not changed:
            changed = True
            change()

    monkeypatch.setattr(Delivery, "add", add)


LINES = 400_000  # several blocks


def test_file_that_is_deleted_while_it_is_read_is_sent_as_a_whole_and_those_behind_it_too(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, behind = tmp_path / "in", tmp_path / "behind"
    path.write_bytes(b"1234567\n" * LINES)
    behind.write_bytes(b"last\n")
    change_behind_the_first_block(monkeypatch, lambda: path.unlink(missing_ok=True))
    words = ["produce", topic, str(path), str(behind), "-b", cluster.bootstrap_servers]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, f"{LINES + 1:,} records acknowledged" in result.output) == (0, True), result.output
    assert cluster.end_offset(topic, 0) == LINES + 1


def test_file_that_becomes_shorter_while_it_is_read_is_no_success(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"1234567\n" * LINES)
    change_behind_the_first_block(monkeypatch, lambda: os.truncate(path, 8))
    result = CliRunner().invoke(main, ["produce", topic, str(path), "-b", cluster.bootstrap_servers])
    sent = cluster.end_offset(topic, 0)
    assert (result.exit_code, 0 < sent < LINES) == (1, True), result.output
    assert f"{path} has become shorter while it was read: some of its lines are not sent" in result.output
    assert f"{sent:,} records acknowledged" in result.output


def test_input_that_fails_is_named(cluster: EmbeddedCluster, topic: str) -> None:
    status, error = run("produce", topic, "/proc/self/mem", "-b", cluster.bootstrap_servers)
    assert (status, error.startswith("Error: /proc/self/mem cannot be read or written: Input/output error")) == (
        1,
        True,
    )


@pytest.mark.parametrize("given", ["sasl.password:hunter2", "sasl.password hunter2", "hunter2"])
def test_setting_without_an_equals_sign_is_refused_without_its_value(given: str) -> None:
    status, error = run("produce", "t", "-X", given, "-b", "127.0.0.1:1")
    shown = "'hunter2'" if given == "hunter2" else "'sasl.password...'"
    assert (status, f"--property {shown} is not of the form NAME=VALUE" in error) == (2, True), error


@pytest.mark.parametrize("content", [b"-----BEGIN PRIVATE KEY-----\nhunter2\n", b"\x30\x82hunter2\0\0"])
def test_key_that_is_given_as_properties_is_shown_nowhere(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "client.key"
    path.write_bytes(content)
    status, error = run("ping", "--config", str(path), "-b", "127.0.0.1:1")
    assert (status, "is no properties file" in error, "hunter2" in error) == (2, True, False), error


@pytest.mark.parametrize("number", ["nan", "inf"])
@pytest.mark.parametrize("words", [["perf", "t", "--throughput"], ["ping", "--timeout"]], ids=" ".join)
def test_number_that_is_not_finite_is_refused(words: Sequence[str], number: str) -> None:
    status, error = run(*words, number, "-b", "127.0.0.1:1")
    refused = f"{number} is no finite number" in error or "is not in the range" in error
    assert (status, refused) == (2, True), error


def test_file_that_is_read_takes_no_dead_letters(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"x\n")
    policy = [
        "--key",
        "id",
        "--on-error",
        "dead-letter",
        "--dead-letter-file",
        f"{tmp_path}/../{tmp_path.name}/in.jsonl",
    ]
    status, error = run("produce", topic, str(path), *policy, "-b", cluster.bootstrap_servers)
    assert (status, "would be read and written at once" in " ".join(error.split())) == (2, True)
    assert path.read_bytes() == b"x\n"
