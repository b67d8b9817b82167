"""`python -m bench CLAIM`: a command for each claim, and `all`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from bench import brokers, claims, clients, harness, machine, plot, report
from bench.claim import ROUNDS, Case, Claim, Job, Results
from bench.measure import BATCH_LARGE, BATCH_SMALL, measure
from rigs.jars import JarsUnavailableError, java, resolve_kafka
from rigs.real_kafka import KAFKA_4, RealKafka

OUTPUT = harness.ROOT / "build" / "bench"
WIDTH = 120
WARM_UP_RECORDS = 3_000_000
F = TypeVar("F", bound=Callable[..., Any])

bootstrap_option = click.option(
    "--bootstrap-servers", help="Use this broker; otherwise the command starts an Apache Kafka."
)
output_option = click.option(
    "--output", default=OUTPUT, type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON and plots."
)


def rounds_option(default: int) -> Callable[[F], F]:
    return click.option(
        "--rounds", default=default, show_default=True, type=click.IntRange(1), help="Runs of each case."
    )


@click.group()
def main() -> None:
    """Measure kafkabuf and its peers in the same run. A ratio is the median of the rounds' ratios."""


def _command(claim: Claim) -> click.Command:
    @click.command(claim.name, help=f"{claim.title}.")
    @click.option(
        f"--{claim.unit}", "amount", default=claim.amount, show_default=True, type=click.IntRange(1), help="In one run."
    )
    @rounds_option(claim.rounds)
    @click.option("--case", "names", multiple=True, metavar="NAME", help="Run only these cases and their baselines.")
    @bootstrap_option
    @output_option
    def command(amount: int, rounds: int, names: tuple[str, ...], bootstrap_servers: str | None, output: Path) -> None:
        known = [case.name for case in claim.cases]
        if unknown := set(names) - set(known):
            missing = ", ".join(sorted(unknown))
            raise click.BadParameter(f"there is no case {missing}; the cases are: {'; '.join(known)}")
        cases = claim.chosen(names)
        if claim.cluster is not None and bootstrap_servers:
            raise click.BadParameter(f"{claim.name} starts a cluster of its own: leave out --bootstrap-servers")
        _prepare(cases)
        needed = claim.needs_kafka and claim.cluster is None
        with _kafka(needed, bootstrap_servers, embedded=claim.embedded) as (servers, version):
            _run(claim, cases, amount, rounds, servers, version, output)

    return command


@main.command("all")
@rounds_option(ROUNDS)
@click.option(
    "--scale", default=1.0, show_default=True, help="Factor on the default amount of each run: 0.01 for a try."
)
@click.option(
    "--minutes",
    default=19.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Every claim has a share of this time. The first round of each runs in any case, others while there is time. "
    "A claim that takes minutes gets less work than by its own command.",
)
@click.option("--only", default="", metavar="PREFIX", help="Measure the claims whose names begin so.")
@bootstrap_option
@output_option
def everything(
    rounds: int, scale: float, minutes: float, only: str, bootstrap_servers: str | None, output: Path
) -> None:
    """Measure every claim in turn, with one Kafka, but for those that `claims.APART` names."""
    ends = time.monotonic() + 60 * minutes
    names = [name for name in claims.MODULES if name not in claims.APART and name.startswith(only)]
    if not names:
        raise click.BadParameter(f"no claim's name begins with {only}; the claims are: {', '.join(claims.MODULES)}")
    loaded = [claims.load(name) for name in names]
    _prepare(case for claim in loaded for case in claim.briefly())
    verdicts, failed = [], []
    embedded = all(claim.embedded for claim in loaded)
    with _kafka(True, bootstrap_servers, embedded=embedded) as (servers, version):
        for number, claim in enumerate(loaded):
            amount = max(round(claim.amount * claim.brief * scale), 1)
            times = min(rounds, claim.rounds)
            share = (ends - time.monotonic()) * claim.seconds / sum(later.seconds for later in loaded[number:])
            try:
                results = _run(
                    claim, claim.briefly(), amount, times, servers, version, output, seconds=share, brief=claim.brief
                )
                verdicts += claim.verdicts(results)
            except harness.CaseFailed as error:  # the other claims can still be measured
                error.show()
                failed.append(claim.name)
    met = sum(verdict.met for verdict in verdicts)
    Console(width=WIDTH).rule(f"{met} of {len(verdicts)} goals met")
    report.show_verdicts(verdicts, Console(width=WIDTH))
    if failed:
        raise click.ClickException(f"claims that could not be measured, see above: {', '.join(failed)}")


def _prepare(cases: Iterable[Case]) -> None:
    try:
        for case in cases:
            case.check()
    except JarsUnavailableError as error:
        raise click.ClickException(str(error)) from None


def _run(
    claim: Claim,
    cases: Sequence[Case],
    amount: int,
    rounds: int,
    servers: str,
    version: str,
    output: Path,
    *,
    seconds: float = math.inf,
    brief: float = 1.0,
) -> Results:
    where = machine.describe(version if claim.cluster is None else KAFKA_4)
    if claim.cluster is not None:
        harness.console.print(f"Starting a cluster of Apache Kafka {KAFKA_4} ...")
        with claim.cluster() as address:
            results = harness.alternate(claim, cases, rounds, Job(amount, address, brief=brief), seconds=seconds)
    elif claim.needs_kafka:
        with harness.topic(servers) as topic:
            results = harness.alternate(claim, cases, rounds, Job(amount, servers, topic, brief), seconds=seconds)
    else:
        results = harness.alternate(claim, cases, rounds, Job(amount, brief=brief), seconds=seconds)
    report.show(claim, results, Console(width=WIDTH))
    for path in report.write(claim, results, amount, where, output):
        harness.console.print(f"written: {path}", soft_wrap=True, highlight=False)
    if not plot.available():
        harness.console.print("no plot: matplotlib is not installed; `make bench` installs it")
    return results


@contextmanager
def _kafka(needed: bool, bootstrap: str | None, *, embedded: bool = False) -> Iterator[tuple[str, str]]:
    """The address and the version of a Kafka for the time of the `with`.

    `embedded`: where there is no Apache Kafka, the embedded cluster takes its place, and the figures say so.
    """
    if not needed:
        yield "", "not used"
    elif bootstrap:
        yield bootstrap, f"of {bootstrap}"
    elif embedded and not _has_kafka():
        harness.console.print("Starting the embedded cluster ...")
        with brokers.broker() as address:
            yield address, "none: the embedded cluster"
    else:
        harness.console.print(f"Starting Apache Kafka {KAFKA_4} ...")
        with RealKafka(KAFKA_4, options=harness.BROKER_OPTIONS) as kafka:
            _warm_up(kafka.bootstrap_servers)
            yield kafka.bootstrap_servers, KAFKA_4


def _has_kafka() -> bool:
    try:
        java()
        resolve_kafka(KAFKA_4)
    except JarsUnavailableError as error:
        harness.console.print(f"There is no Apache Kafka: {error}", soft_wrap=True, highlight=False)
        return False
    return True


def _warm_up(bootstrap: str) -> None:
    """Let the broker's compiler settle, which would otherwise slow down the first cases of the first round."""
    for batch_size in (BATCH_SMALL, BATCH_LARGE):
        with harness.topic(bootstrap) as topic:
            measure(clients.replay(batch_size), Job(WARM_UP_RECORDS, bootstrap, topic))


for name in claims.MODULES:
    main.add_command(_command(claims.load(name)))

if __name__ == "__main__":
    main(prog_name="python -m bench")
