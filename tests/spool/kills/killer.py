"""The parent: runs the processes of a case, kills them, strikes the cluster, and reads what has arrived."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from random import Random
from typing import Any

from kafkabuf import KafkaProducer
from kafkabuf.config import ProducerConfig
from kafkabuf.spool.file import Layout, SpoolFile
from tests.spool.kills import storm
from tests.spool.kills.ledger import Ledger, Mark, Phase
from tests.spool.kills.oracle import Arrived, faults
from tests.spool.kills.plan import AWAY, COMMITTING, Plan, first_number, life_of
from tests.spool.kills.reader import Place, Reader
from tests.spool.kills.reports import Held, Report, not_delivered, problems, wrong_commit
from tests.spool.kills.trouble import Trouble

PATIENCE = 60.0  # seconds
# Until the commit of a process whose cluster is there.
_LONGEST_WAY = 1.0
_POLL = 0.0003
_LONGEST_COMMIT = 0.01
_MANY = 1_000


class Fault(AssertionError):
    """A promise that does not hold."""


class Killer:
    """Runs cases on one cluster. `processes` forks the children from a server that has imported `storm`."""

    # A process that cannot go on, because its buffer is full and the cluster is away, is killed after so many seconds.
    longest_life = 0.3

    def __init__(self, trouble: Trouble, reader: Reader, processes: ForkServerContext) -> None:
        self.done: Counter[str] = Counter()
        self._trouble = trouble
        self._reader = reader
        self._processes = processes
        self._logs: dict[Place, list[Arrived]] = {}
        self._again = 0  # so often a record may have come again

    def run(self, plan: Plan) -> None:
        """Raises Fault, and then leaves the folder of the case."""
        try:
            self._run(plan)
        except Fault:
            self.mend()
            self._reader.read(plan.topics)  # what is left of the case
            raise

    def _run(self, plan: Plan) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"kills-{plan.seed}-"))
        self._trouble.create(plan.topics)
        self._logs = defaultdict(list)
        self._again = 0 if plan.once else _MANY
        draw = Random(plan.seed)
        last = len(plan.lives) - 1
        with Ledger(folder / "ledger", len(plan.lives)) as ledger:
            before = None  # records in the logs when the last process began, where nothing was on its way
            for number in range(len(plan.lives)):
                if number == last and plan.lives[number - 1].cluster in ("up", *AWAY) and not plan.transaction:
                    self._trouble.await_committed(plan.topics)
                    self._read(plan)
                    before = self._count_earlier(plan)
                _Life(self, plan, number, folder, ledger, draw).run()
            self._read(plan)
            marks = ledger.marks()
        found = self._faults(plan, folder, marks, before)
        self._note(plan, marks)
        if not found:
            found = self._open_copy(plan, folder, draw)
        if found:
            raise Fault("\n".join([f"seed {plan.seed}: {folder} has the logs of the processes", *found, str(plan)]))
        shutil.rmtree(folder)

    def _faults(self, plan: Plan, folder: Path, marks: bytes, before: int | None) -> list[str]:
        last = len(plan.lives) - 1
        kept = Held.of(folder / "buffer", plan).numbers
        # What was in a topic that was made again goes once more; all else that is in doubt is kept.
        made_again = sum(life.cluster == "made again" for life in plan.lives)
        again = made_again if plan.keeps and plan.once else self._again
        found = [*faults(plan, marks, self._logs, again, set(kept))]
        for number in range(1, len(plan.lives)):
            if (folder / f"report-{number}").exists():
                report = Report.from_json((folder / f"report-{number}").read_text())
                found += problems(report, Held.of(folder / f"buffer-{number - 1}", plan))
        if not last:
            return found
        if len(kept) != report.kept:
            found.append(f"the file still holds {len(kept)} records after a clean close: {report}")
        if report.pending:
            found.append(f"a clean close leaves records pending: {report}")
        if before is not None:
            found += not_delivered(report, self._count_earlier(plan) - before)
            self.done["delivered counted"] += report.delivered
        if plan.transaction:
            counts = Counter(plan.number_in(one.value) or 0 for log in self._logs.values() for one in log)
            found += wrong_commit(plan, report, marks, counts)
            self.done[f"commits {report.commit and report.commit[0]}"] += 1
        return found

    def _count_earlier(self, plan: Plan) -> int:
        """Records in the logs of all processes but the last."""
        last = len(plan.lives) - 1
        numbers = [plan.number_in(arrived.value) for log in self._logs.values() for arrived in log]
        return sum(number is not None and life_of(number) < last for number in numbers)

    def _note(self, plan: Plan, marks: bytes) -> None:
        self.done["returned"] += marks.count(Mark.RETURNED)
        self.done["arrived"] += sum(map(len, self._logs.values()))
        for life in plan.lives:
            self.done[f"face {life.face or 'own'}"] += 1
            self.done["forks"] += life.forks
            self.done[f"sync {life.settings['buffer_sync']}"] += 1
        self.done["cases of transactions"] += plan.transaction > 0
        self.done["cases that keep"] += plan.keeps
        self.done["cases that drop"] += plan.drops
        self.done["cases of JSON"] += plan.json

    def start(self, plan: Plan, life: int, folder: Path) -> ForkServerProcess:
        arguments = (plan, life, folder, self._trouble.bootstrap_servers)
        process = self._processes.Process(target=storm.main, args=arguments, daemon=True)
        process.start()
        return process

    def _read(self, plan: Plan) -> None:
        for place, log in self._reader.read(plan.topics).items():
            self._logs[place] += log

    def _open_copy(self, plan: Plan, folder: Path, draw: Random) -> list[str]:
        """Opens what one of the killed processes had left, which later processes have delivered.

        Nothing of it comes a second time without a word. A process that had no producer id yet leaves nothing to know
        its records by, and a leader that has forgotten the id knows them only if something was acknowledged. The copy
        knows nothing of a later purge, of records that a full file has dropped, or of a topic that was made again.
        """
        # `--copies` sets it. Of a hundred copies a few are not recognised (docs/durability.md).
        if "KILLS_OPEN_COPIES" not in os.environ or not plan.once or self._again:
            return []
        if plan.transaction or plan.drops or plan.lives[-1].face:
            return []
        if any(life.purges or life.cluster == "expired" for life in plan.lives):
            return []
        life = draw.randrange(len(plan.lives) - 1)
        copy = folder / f"buffer-{life}"
        settings = plan.lives[-1].settings | {"buffer_path": str(copy)}
        if not copy.exists() or identity_in(copy, settings) < 0:
            return []
        # Where nobody knows what the cluster has of a partition, the next process sends it under numbers of its own.
        errors = [folder / f"errors-{later}" for later in range(life + 1, len(plan.lives))]
        if any("may come a second time" in path.read_text(errors="replace") for path in errors if path.exists()):
            return []
        with KafkaProducer({"bootstrap_servers": self._trouble.bootstrap_servers} | settings) as producer:
            producer.flush(PATIENCE)
            recovered = producer.recovered
        assert recovered is not None
        before = sum(map(len, self._logs.values()))
        self._read(plan)
        again = sum(map(len, self._logs.values())) - before
        self.done["copies"] += 1
        self.done["records of copies"] += recovered.records.total()
        self.done["records of copies, told"] += recovered.unproven.total()
        if again <= recovered.unproven.total():
            return []
        return [f"the copy of what process {life} had left delivered {again} records again, and said: {recovered}"]

    # ---- trouble

    def strike(self, plan: Plan, kind: str, draw: Random) -> None:
        self.done[kind] += 1
        self._trouble.strike(kind, plan.topics, draw)

    def strike_away(self, plan: Plan, kind: str, draw: Random) -> None:
        """No process runs. What has arrived is read before it goes, and nothing proves then that it had arrived."""
        if kind not in AWAY:
            return
        self._trouble.mend()
        if kind in ("made again", "deleted"):
            self._trouble.await_committed(plan.topics)
            self._read(plan)
            self._again += 1
        self._trouble.strike_away(kind, plan.topics, self._reader.positions(plan.topics), draw)
        if kind == "made again":
            self._reader.forget(plan.topics)

    def mend(self) -> None:
        self._trouble.mend()


class _Life:
    """One process of a case, from its start to its end."""

    def __init__(self, killer: Killer, plan: Plan, number: int, folder: Path, ledger: Ledger, draw: Random) -> None:
        self._killer = killer
        self._plan = plan
        self._number = number
        self._life = plan.lives[number]
        self._first = first_number(number, 0)
        self._errors = folder / f"errors-{number}"
        self._file = folder / "buffer"
        self._ledger = ledger
        self._draw = draw
        self._process = killer.start(plan, number, folder)

    def run(self) -> None:
        try:
            if self._draw.random() < 0.7:  # the trouble around the kill before lasts until this process runs
                time.sleep(self._draw.uniform(0, 0.02))
            self._killer.mend()
            if self._life.instant:
                self._await(lambda: not self._lives_on or self._has_sent(self._life.struck_at), self._patience)
                self._killer.strike(self._plan, self._life.cluster, self._draw)
                self._await_instant()
                self._kill()
            else:
                self._await(lambda: not self._lives_on, PATIENCE)
            self._check_end()
            self._killer.strike_away(self._plan, self._life.cluster, self._draw)
        finally:
            self._process.kill()
            self._process.join(PATIENCE)

    @property
    def _lives_on(self) -> bool:
        return self._process.is_alive()

    def _has_sent(self, records: int) -> bool:
        """Whether the first thread has begun to send so many. It does not send more than are in its plan."""
        records = min(records, self._life.records - 1)
        return self._ledger[self._first + records] != Mark.NEVER

    def _has_committed(self, records: int) -> bool:
        """Whether the commit of the transaction with this record has begun."""
        return self._ledger[self._first + records] in (Mark.COMMITTING, Mark.RETURNED)

    def _await_instant(self) -> None:
        life, started = self._life, time.monotonic()
        reached: Callable[[], bool] = {
            "records": lambda: self._has_sent(int(life.after)),
            COMMITTING: lambda: self._has_committed(int(life.after)),
            "opened": lambda: self._ledger.phase(self._number) >= Phase.OPENED,
            "started": lambda: True,
            "closing": lambda: self._ledger.phase(self._number) >= Phase.CLOSING,
        }[life.instant]
        self._await(lambda: reached() or not self._lives_on, self._patience)
        if life.instant == COMMITTING:
            time.sleep(self._draw.choice((0.0, self._draw.uniform(0, _LONGEST_COMMIT))))
        elif life.instant != "records":
            time.sleep(life.after)
        self._killer.done["milliseconds"] += round(1000 * (time.monotonic() - started))

    @property
    def _patience(self) -> float:
        reaches = self._life.instant == COMMITTING and self._life.cluster in ("up", "moved", "doubtful")
        return _LONGEST_WAY if reaches else self._killer.longest_life

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True

    def _kill(self) -> None:
        if self._lives_on:
            self._killer.done["kills"] += 1
            self._killer.done[f"when {self._life.instant}"] += 1
        self._process.kill()

    def _check_end(self) -> None:
        if not self._life.instant and self._lives_on:
            os.kill(self._process.pid or 0, signal.SIGUSR1)  # it writes its stacks to its file of errors
            time.sleep(0.5)
            raise Fault(f"the last process did not end within {PATIENCE} s: {self._errors.read_text()}")
        self._process.join(PATIENCE)
        if self._file.exists():  # for whoever looks into a fault
            shutil.copy(self._file, self._file.with_name(f"buffer-{self._number}"))
        if self._process.exitcode not in (0, -signal.SIGKILL):
            raise Fault(f"process {self._number} ended with {self._process.exitcode}: {self._errors.read_text()}")


def identity_in(path: Path, settings: dict[str, Any]) -> int:
    """The producer id that the file has noted; -1 for none."""
    config = ProducerConfig.from_mapping(settings | {"bootstrap_servers": "localhost:9"})
    with SpoolFile(path, Layout(config.buffer_memory, config.slab_size)) as file:
        return file.producer_id
