"""`python -m tests.spark.kills --broker embedded --guarantee atomic`: kills at every step, and at random."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kafkabuf.broker import EmbeddedCluster
from rigs.real_kafka import KAFKA_3_9, KAFKA_4, RealKafka
from tests.spark.kills.job import STEPS, Job
from tests.spark.kills.run import Broker, Outcome, at_each_step, at_random, plan_for
from tests.spark.kills.supervisor import KillTestError

Run = Callable[[Path], Outcome]

_BROKERS = ("embedded", KAFKA_4, KAFKA_3_9)


@contextmanager
def running(name: str) -> Iterator[Broker]:
    if name == "embedded":
        with EmbeddedCluster(brokers=2) as cluster:
            yield cluster
    else:
        with RealKafka(name, heap="1g") as kafka:
            yield kafka


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--broker", action="append", choices=_BROKERS, help="which (default: all of them)")
    parser.add_argument("--guarantee", action="append", choices=list(STEPS), help="which (default: all of them)")
    parser.add_argument("--step", action="append", help="only kills at this step (default: all of the guarantee)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="with kills at random (default %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="at random (default %(default)s); 0: leave these out")
    parser.add_argument("--seed", type=int, default=1, help="of the random kills (default %(default)s)")
    parser.add_argument("--master", default=Job.master, help="of the kills at each step (default %(default)s)")
    parser.add_argument("--folder", type=Path, help="keep what the tests wrote there (default: nothing is kept)")
    parser.add_argument("--no-steps", action="store_true", help="leave out the kills at each step")
    given = parser.parse_args()
    # Being told to end is a usual way out: leave through the `with`s, so that no process stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    failed = []
    with tempfile.TemporaryDirectory(prefix="spark-kills-", ignore_cleanup_errors=True) as scratch:
        root: Path = given.folder or Path(scratch)
        for name in given.broker or _BROKERS:
            with running(name) as broker:
                for guarantee in given.guarantee or STEPS:
                    for what, run in _runs(broker, guarantee, given):
                        title = f"{name}, {guarantee}, {what}"
                        failed += [f"{title}: {wrong}" for wrong in _wrongs(title, run, root)]
    for wrong in failed:
        print(f"WRONG: {wrong}")
    print("failed" if failed else "all as promised")
    sys.exit(bool(failed))


def _runs(broker: Broker, guarantee: str, given: argparse.Namespace) -> Iterator[tuple[str, Run]]:
    if not given.no_steps:
        plan = [kill for kill in plan_for(guarantee) if given.step is None or kill.step in given.step]
        yield "kills at each step", lambda root: at_each_step(broker, root, guarantee, plan, master=given.master)
    if given.kills:
        rows, kills, seed = given.rows, given.kills, given.seed
        yield f"kills at random, seed {seed}", lambda root: at_random(broker, root, guarantee, rows, kills, seed)


def _wrongs(title: str, run: Run, root: Path) -> list[str]:
    """Run it and print what came out."""
    print(f"\n{title}: ...", flush=True)
    try:
        outcome = run(root / "".join(letter if letter.isalnum() else "-" for letter in title))
    except KillTestError as error:
        print(error, flush=True)
        return [str(error).splitlines()[0]]
    print(f"{title}: {outcome}\n{outcome.table()}", flush=True)
    return outcome.wrongs()


if __name__ == "__main__":
    main()
