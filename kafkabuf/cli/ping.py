"""`kafkabuf ping`: which step on the way to an acknowledged record fails, why, and what to change."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkabuf.cli.connection import Finite, config_of, connection_options, require_topic
from kafkabuf.cli.output import safe_output

if TYPE_CHECKING:
    from kafkabuf.cli.probe import Outcome


@click.command()
@click.argument("topic", required=False)
@click.option("--record", is_flag=True, help="Send one record to TOPIC, with the value 'kafkabuf ping'.")
@click.option(
    "--timeout",
    type=Finite(0.001, 3600),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="For each step.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line and step, for programs.")
@connection_options
def ping(
    topic: str | None,
    record: bool,
    timeout: float,
    as_json: bool,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Try each step to a cluster: DNS, TCP, TLS, SASL, API versions, metadata, every broker that the cluster names.

    A broker is tried up to its API versions: another program, or a proxy, may listen at its address. With TOPIC also
    whether the topic has leaders and may be written. It creates no topic, and writes only with --record. Exit status: 0
    a producer can work, also if some of several bootstrap servers do not answer; 2 an option or setting is wrong; else
    the first step that failed: 10 DNS, 11 TCP, 12 TLS, 13 SASL, 14 API versions, 15 metadata, 16 authorization, 17 the
    record.

    \b
    kafkabuf ping -b localhost:9092
    kafkabuf ping orders --record -b kafka.example:9093 --config client.properties
    """
    from kafkabuf.cli.output import console
    from kafkabuf.cli.probe import Probe
    from kafkabuf.errors import ConfigError

    if topic is not None:
        require_topic(topic)
    if record and topic is None:
        raise click.UsageError("--record needs a TOPIC to send the record to")
    config = config_of(bootstrap_servers, config_file, properties)
    try:
        probe = Probe(config, topic, record=record, timeout=timeout)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    out = console()
    with safe_output(), _without_log():
        for outcome in probe.run():
            if as_json:
                click.echo(json.dumps(_as_json(outcome)))
            else:
                out.print(_line(outcome), style="red" if outcome.error else None, soft_wrap=True)
    if probe.failures:
        raise SystemExit(int(probe.failures[0].step))


@contextmanager
def _without_log() -> Iterator[None]:
    """The command's own lines say all that Python would print of the log."""
    logger, handler = logging.getLogger("kafkabuf"), logging.NullHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _line(outcome: Outcome) -> str:
    word = "ok" if outcome.error is None else "failed"
    text = outcome.detail if outcome.error is None else outcome.error
    return f"{word:<6}  {outcome.seconds * 1000:7.1f} ms  {outcome.step.title:<13}  {outcome.target}  {text}".rstrip()


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "target": outcome.target,
        "step": outcome.step.title,
        "ok": outcome.error is None,
        "ms": round(outcome.seconds * 1000, 3),
        "detail": outcome.detail,
        "error": outcome.error,
    }
