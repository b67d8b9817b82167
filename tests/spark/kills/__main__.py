"""`python -m tests.spark.kills --broker embedded --guarantee atomic`: kills at every step, and at random."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.spark.kills.brokers import BROKERS, CLUSTERS, Broker, Nodes, running
from tests.spark.kills.job import STEPS, Job, Victim
from tests.spark.kills.run import Outcome, Setting, at_each_step, at_random, plan_for
from tests.spark.kills.supervisor import KillTestError

Run = Callable[[Path], Outcome]

# Spark runs a second attempt beside a task that takes longer than the others.
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument(
        "--broker",
        action="append",
        choices=[*BROKERS, *CLUSTERS],
        help=f"a broker or a cluster (default: {', '.join(BROKERS)})",
    )
    parser.add_argument("--guarantee", action="append", choices=list(STEPS), help="a guarantee (default: all of them)")
    parser.add_argument("--step", action="append", help="kill only at this step (default: at all steps)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows for random kills (default %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="number of random kills (default %(default)s); 0: none")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random kills (default %(default)s)")
    parser.add_argument("--master", default=Job.master, help="Spark's (default %(default)s)")
    parser.add_argument("--value-format", choices=["raw", "avro"], default="raw", help="the sink's valueFormat")
    parser.add_argument(
        "--via", choices=["format", "connect", "foreach_batch"], default="format", help="how the stream writes"
    )
    parser.add_argument("--victim", action="append", type=Victim, choices=list(Victim), help="kill these instead")
    parser.add_argument("--speculation", action="store_true", help="run second attempts (with --victim nobody)")
    parser.add_argument("--node-kills", type=int, default=0, help=f"kill so many nodes too (of {', '.join(CLUSTERS)})")
    parser.add_argument("--before", type=Path, help="a built checkout of an earlier version, for every other driver")
    parser.add_argument("--folder", type=Path, help="keep the files of the tests there (default: keep none)")
    parser.add_argument("--no-steps", action="store_true", help="leave out the kills at each step")
    arguments = parser.parse_args()
    # On SIGTERM, leave through the `with` blocks, which end all processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    failed = []
    with tempfile.TemporaryDirectory(prefix="spark-kills-", ignore_cleanup_errors=True) as scratch:
        root: Path = arguments.folder or Path(scratch)
        for name in arguments.broker or BROKERS:
            with running(name) as (broker, nodes):
                for guarantee in arguments.guarantee or STEPS:
                    for kind, run in _runs(broker, nodes, guarantee, arguments):
                        title = f"{name}, {guarantee}, {kind}"
                        failed += [f"{title}: {violation}" for violation in _violations(title, run, root)]
    for violation in failed:
        print(f"WRONG: {violation}")
    print("failed" if failed else "every guarantee held")
    sys.exit(bool(failed))


def _runs(
    broker: Broker, nodes: Nodes | None, guarantee: str, arguments: argparse.Namespace
) -> Iterator[tuple[str, Run]]:
    via, victims = arguments.via, arguments.victim or []
    fields = {"value_format": arguments.value_format, "via": via, "master": arguments.master}
    if arguments.speculation:
        fields["settings"] = _SPECULATION
    setting = Setting(fields, arguments.before, nodes if arguments.node_kills else None, arguments.node_kills)
    if not arguments.no_steps:
        plan = [
            kill for kill in plan_for(guarantee, via, victims) if arguments.step is None or kill.step in arguments.step
        ]
        if not plan:
            sys.exit(f"{guarantee} has no step {' or '.join(arguments.step)}: {', '.join(STEPS[guarantee])}")
        yield "kills at each step", lambda root: at_each_step(broker, root, guarantee, plan, setting=setting)
    if arguments.kills:
        rows, kills, seed = arguments.rows, arguments.kills, arguments.seed
        yield (
            f"kills at random, seed {seed}",
            lambda root: at_random(broker, root, guarantee, rows, kills, seed, victims, setting),
        )


def _violations(title: str, run: Run, root: Path) -> list[str]:
    """Run the kill test and print its outcome. Returns the violations of the guarantee."""
    print(f"\n{title}: ...", flush=True)
    try:
        outcome = run(root / "".join(letter if letter.isalnum() else "-" for letter in title))
    except KillTestError as error:
        print(error, flush=True)
        return [str(error).splitlines()[0]]
    print(f"{title}: {outcome}\n{outcome.table()}", flush=True)
    return outcome.violations()


if __name__ == "__main__":
    main()
