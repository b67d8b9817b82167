"""What the supervisor of the fuzzer sees of a worker, and the rule by which it calls a worker a hang.

A worker notes each turn of its event loop in memory that it shares with the supervisor, and how many things its cluster
has made, changed or deleted since the request came. A worker hangs

- if no turn ends for 8 s, or
- if a request takes 8 s and 5 ms more for each of those things: work in slices may be long, but not endless.

The end of a generation, where clusters stop and start, has one limit for the whole: 30 s, and as much more.

Only seconds count in which the worker computed or slept while the supervisor looked. A machine that is busy, or stops
both, makes no hang.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.hostile.fuzz_requests.target import Case
from tests.needs import SANITIZED

_SLOWER = 5 if SANITIZED else 1
TURN_SECONDS = 8.0 * _SLOWER
REQUEST_SECONDS = 8.0 * _SLOWER
END_SECONDS = 30.0 * _SLOWER
THING_SECONDS = 0.005 * _SLOWER
# The supervisor looks often. If it did not, then it was not running itself, and so the worker may have rested, too.
_BETWEEN_LOOKS = 1.0


class Seen(NamedTuple):
    """`task` is the number of the request that is served, 0 between two requests. `things` were made, changed or
    deleted for it. `ending`: the generation is at its end."""

    generation: int
    task: int
    turns: int
    things: int
    ending: bool


class Progress:
    """A worker's part in the shared memory, and the file with the requests of its generation."""

    _FIELDS = struct.Struct("=5q")

    def __init__(self, path: Path) -> None:
        self._shared = mmap.mmap(-1, self._FIELDS.size)
        self._path = path
        self._file: int | None = None
        self._seen = Seen(0, 0, 0, 0, False)
        self._tasks = 0

    # ---- the worker's side

    def begin(self, generation: int) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.rest(generation)

    def serve(self, generation: int, case: Case) -> None:
        assert self._file is not None
        os.write(self._file, pickle.dumps(case))
        self._note(self._next(generation))

    def turn(self, things: int) -> None:
        """A turn of the event loop has ended. `things` since the request came."""
        seen = self._seen
        self._note(seen._replace(turns=seen.turns + 1, things=seen.things if seen.ending else things))

    def end(self, generation: int, things: int) -> None:
        """`things` will be made, changed or deleted."""
        self._note(self._next(generation)._replace(things=things, ending=True))

    def rest(self, generation: int) -> None:
        self._note(self._seen._replace(generation=generation, task=0, things=0, ending=False))

    def _next(self, generation: int) -> Seen:
        self._tasks += 1
        return self._seen._replace(generation=generation, task=self._tasks, things=0, ending=False)

    def _note(self, seen: Seen) -> None:
        self._seen = seen
        self._FIELDS.pack_into(self._shared, 0, *seen)

    # ---- the supervisor's side

    def get(self) -> Seen:
        generation, task, turns, things, ending = self._FIELDS.unpack_from(self._shared)
        return Seen(generation, task, turns, things, bool(ending))

    def cases(self) -> list[Case]:
        found = []
        with self._path.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
            while True:
                found.append(pickle.load(file))
        return found


class Watch:
    """Applies the rule to what the supervisor sees, look after look."""

    def __init__(self) -> None:
        self._task = self._turns = 0
        # Seconds since the request came, and since the last turn ended.
        self._of_task = self._of_turn = 0.0

    def look(self, seen: Seen, spent: float) -> str:
        """Why the worker hangs; "" if it does not. `spent`: the worker's seconds since the look before."""
        if seen.task != self._task:
            self._task, self._of_task, self._turns = seen.task, -spent, -1
        if seen.turns != self._turns:
            self._turns, self._of_turn = seen.turns, -spent
        self._of_task += spent
        self._of_turn += spent
        if not seen.task:
            return ""
        if not seen.ending and self._of_turn > TURN_SECONDS:
            return f"no turn of the loop ends in {TURN_SECONDS:.0f} s"
        allowed = (END_SECONDS if seen.ending else REQUEST_SECONDS) + seen.things * THING_SECONDS
        if self._of_task > allowed:
            return f"is served for more than {allowed:.0f} s, with {seen.things} things made, changed or deleted"
        return ""


class Worker:
    """What the system says of a worker's process."""

    def __init__(self, pid: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._now = now
        self._looked = now()
        self._computed = self._processor()

    def spent(self) -> float:
        """The seconds since the call before in which the process computed or slept."""
        now, computed = self._now(), self._processor()
        passed, used = min(now - self._looked, _BETWEEN_LOOKS), computed - self._computed
        self._looked, self._computed = now, computed
        return max(used, passed if self._state() in "SD" else 0.0)

    def resident(self) -> int:
        """Bytes of memory; 0 if the process has ended."""
        with suppress(OSError, IndexError):
            return int((self._folder / "statm").read_text().split()[1]) * mmap.PAGESIZE
        return 0

    def _processor(self) -> float:
        """The seconds that the process's first thread has run."""
        with suppress(OSError, IndexError):
            return int((self._folder / "schedstat").read_text().split()[0]) / 1e9
        return 0.0

    def _state(self) -> str:
        """S or D: it sleeps; R: it computes, or waits for a processor."""
        with suppress(OSError, IndexError):
            return (self._folder / "stat").read_text().rpartition(")")[2].split()[0]
        return "Z"
