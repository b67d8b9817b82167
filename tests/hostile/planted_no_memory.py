"""Planted faults, for tests/hostile/test_no_memory.py: the sweep must find a crash, a dead Sender and a late call."""

from __future__ import annotations

import os
import signal

from tests.hostile import no_memory


class Crash(no_memory.Send):
    def call(self) -> None:
        if self.first == 3:
            os.kill(os.getpid(), signal.SIGSEGV)


class Ended(no_memory.Send):
    def call(self) -> None:
        self.producer.close()


def main() -> None:
    no_memory.CASES.update(Crash=Crash, Ended=Ended)
    crash, *others = no_memory.sweep(["Crash"], 5, [2], say=lambda text: None)
    assert not others
    assert crash.startswith("Crash, n = 3, k = 2: ended with -11"), crash
    [ended] = no_memory.sweep(["Ended"], 0, [1], say=lambda text: None)
    assert "the Sender's thread has ended" in ended
    no_memory.LATE = 0.0
    [late] = no_memory.sweep(["Send"], 0, [1], say=lambda text: None)
    assert "late: it took" in late


if __name__ == "__main__":
    main()
