"""`kafkabuf perf`: the rate and latency of a load, in the manner of kafka-producer-perf-test, beside other clients."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkabuf.cli.connection import (
    OF_SENDING,
    Finite,
    config_of,
    connection_options,
    errors_explained,
    require_topic,
    servers_of,
)
from kafkabuf.cli.long_input import interruptible
from kafkabuf.cli.output import StoppedBySignalError, naming, safe_output

if TYPE_CHECKING:
    from kafkabuf.cli.perf.load import Load, Result, Window
    from kafkabuf.config import ProducerConfig

_LARGEST = 1 << 30
# Random letters, as of kafka-producer-perf-test: its payload file is text.
_LETTERS = bytes(ord("A") + number % 26 for number in range(256))
_CLIENTS = ("aiokafka", "confluent", "java", "kafka-python")


@click.command()
@click.argument("topic")
@click.option("-n", "--num-records", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--record-size", type=click.IntRange(0, _LARGEST), help="Bytes of a value.  [default: 100]")
@click.option(
    "--payload-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take the values from the lines of this file, in turn.",
)
@click.option(
    "--throughput",
    type=Finite(0),
    default=0.0,
    metavar="N",
    help="Records a second at most.  [default: as many as go]",
)
@click.option(
    "--transaction-size",
    type=click.IntRange(1),
    metavar="N",
    help="Commit a transaction after each N records.",
)
@click.option(
    "--compare",
    "clients",
    multiple=True,
    type=click.Choice(_CLIENTS),
    help="Send the same load with this client too, before kafkabuf; repeatable. java: KAFKA_HOME names its folder.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="- : stdout."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.png",
    help="Draw rate and latency over time (needs matplotlib).",
)
@connection_options
def perf(
    topic: str,
    num_records: int,
    record_size: int | None,
    payload_file: Path | None,
    throughput: float,
    transaction_size: int | None,
    clients: tuple[str, ...],
    json_file: Path | None,
    plot: Path | None,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Send records to TOPIC as fast as they go, or at a pace, and print rate and latency.

    The latency is from the call of send() to the acknowledgement, of every record up to 10,000 records a second, else
    of one in 256 at most. -X sets any setting of the producer. It writes to the topic of any cluster that you name, and
    creates the topic if the cluster does so. Ctrl-C or SIGTERM ends the load, and prints what was
    sent. Exit status: 0 done; 1 Kafka said no, or a record failed; 2 a wrong option; 130 Ctrl-C; 143 SIGTERM.

    \b
    kafkabuf perf test -n 5000000 -b localhost:9092 -X linger.ms=5 -X batch.size=131072
    kafkabuf perf test --throughput 1000 -n 30000 --compare confluent -b localhost:9092
    """
    from kafkabuf.cli.perf.load import Load

    require_topic(topic)
    if payload_file is not None and record_size is not None:
        raise click.UsageError("give --record-size or --payload-file, not both")
    if transaction_size and clients:
        raise click.UsageError("--transaction-size compares with no other client: leave --compare out")
    _check_outputs(json_file, plot)
    values = [os.urandom(100 if record_size is None else record_size).translate(_LETTERS)]
    if payload_file is not None:
        values = payload_file.read_bytes().splitlines()
        if not values:
            raise click.BadParameter("the file has no line", param_hint="--payload-file")
    config = config_of(bootstrap_servers, config_file, properties, OF_SENDING)
    load = Load(topic, values, num_records, throughput, transaction_size or 0)
    servers = servers_of(config)
    with errors_explained(servers), safe_output(), interruptible(at_once=True) as interrupt:
        results = []
        for result in _results((*dict.fromkeys(clients), "kafkabuf"), config, load):
            # At once: the next client may fail.
            click.echo(_line(result), err=_is_stdout(json_file))
            results.append(result)
        _report(results, json_file, plot)
    if results[-1].interrupted:
        raise StoppedBySignalError("interrupted", interrupt.number)
    if failed := [result for result in results if result.failed]:
        first = failed[0]
        raise click.ClickException(f"{first.client}: {first.failed:,} records failed: {first.first_error}")


def _results(clients: Sequence[str], config: ProducerConfig, load: Load) -> Iterator[Result]:
    """Each client in turn, up to Ctrl-C."""
    for client in clients:
        result = _run(client, config, load)
        yield result
        if result.interrupted:
            return


def _run(client: str, config: ProducerConfig, load: Load) -> Result:
    from kafkabuf.cli.perf.load import measure, own_sending
    from kafkabuf.cli.perf.peers import PEERS, run_java
    from kafkabuf.errors import KafkaError

    if client == "kafkabuf":
        return measure(client, own_sending, config, load, _live(client))
    if client == "java":
        return run_java(config, load)
    try:
        return measure(client, PEERS[client], config, load, _live(client))
    except KafkaError:
        raise
    except Exception as error:  # a peer has errors of its own
        raise KafkaError(f"{client}: {error!r}") from error


def _live(client: str) -> Callable[[Window], None]:
    """Prints a line for each second to standard error; a terminal shows the newest only."""
    from kafkabuf.cli.perf.load import summary

    is_terminal = sys.stderr is not None and sys.stderr.isatty()

    def show(window: Window) -> None:
        rate, latency = window.records / max(window.seconds, 1e-9), summary(window.latencies)
        times = f", {latency['p50'] * 1e3:.2f} ms p50, {latency['p99'] * 1e3:.2f} ms p99" if latency else ""
        line = f"{client}: {rate:,.0f} records/s{times}"
        click.echo(f"{line:<79}\r" if is_terminal else line, err=True, nl=not is_terminal)

    return show


def _report(results: Sequence[Result], json_file: Path | None, plot: Path | None) -> None:
    to_stdout = _is_stdout(json_file)
    own = results[-1]
    for peer in results[:-1] if own.client == "kafkabuf" else []:
        click.echo(f"kafkabuf has {own.rate / max(peer.rate, 1e-9):.2f} times the rate of {peer.client}", err=to_stdout)
    if json_file is not None:
        text = json.dumps([_as_json(result) for result in results], indent=1)
        if to_stdout:
            click.echo(text)
        else:
            with naming(str(json_file)):
                json_file.write_text(text + "\n")
    if plot is not None:
        with naming(str(plot)):
            _draw(results, plot)


def _is_stdout(json_file: Path | None) -> bool:
    return json_file is not None and str(json_file) == "-"


def _line(result: Result) -> str:
    """The last line of kafka-producer-perf-test, with CPU time."""
    mib = result.rate * result.value_size / (1 << 20)
    latency = {name: f"{seconds * 1e3:.2f} ms" for name, seconds in result.latency.items()}
    parts = [f"{result.records:,} records sent", f"{result.rate:,.0f} records/s ({mib:,.2f} MiB/s)"]
    if latency:
        parts += [f"{latency['mean']} avg latency", f"{latency['max']} max latency"]
        parts += [f"{latency[name]} {name[1:]}th" for name in ("p50", "p95", "p99", "p99.9")]
    if result.cpu_s is not None and result.records:
        parts.append(f"{result.cpu_s / result.records * 1e6:.2f} us CPU a record")
    return f"{result.client}: {', '.join(parts)}"


def _as_json(result: Result) -> dict[str, object]:
    return {
        "client": result.client,
        "records": result.records,
        "failed": result.failed,
        "seconds": result.seconds,
        "records_per_s": result.rate,
        "bytes_per_s": result.rate * result.value_size,
        "cpu_s": result.cpu_s,
        "latency_s": result.latency,
    }


def _check_outputs(json_file: Path | None, plot: Path | None) -> None:
    """Before the load: what it measured would be lost."""
    for option, path in (("--json", json_file), ("--plot", plot)):
        if path is not None and not path.absolute().parent.is_dir():
            raise click.UsageError(f"{option} {path}: there is no folder {path.parent}")
    if plot is not None and _kind_of(plot) not in (known := _kinds_of_plots()):
        raise click.UsageError(f"--plot {plot}: {_kind_of(plot)} is none of {', '.join(sorted(known))}")


def _kinds_of_plots() -> Collection[str]:
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs the package matplotlib: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kinds: Collection[str] = FigureCanvasAgg.get_supported_filetypes()
    return kinds


def _kind_of(plot: Path) -> str:
    return plot.suffix[1:].lower() or "png"


def _draw(results: Sequence[Result], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    from kafkabuf.cli.perf.load import summary

    figure, (rates, times) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    for result in results:
        moments, passed = [], 0.0
        for window in result.windows:
            passed += window.seconds
            moments.append(passed)
        passing = [window.records / window.seconds for window in result.windows]
        waiting = [summary(window.latencies).get("p99", 0.0) * 1e3 for window in result.windows]
        # A run of one second has one point: a line would not show it.
        rates.plot(moments, passing, marker=".", label=result.client)
        times.plot(moments, waiting, marker=".", label=result.client)
    rates.set_ylabel("records/s")
    times.set_ylabel("p99, ms")
    times.set_xlabel("seconds")
    for axes in (rates, times):
        axes.set_ylim(bottom=0)
    times.set_xlim(left=0)
    rates.legend()
    figure.savefig(path, format=_kind_of(path), dpi=120)
    pyplot.close(figure)
