"""`kafkabuf spark`: what the person on call sees of the Spark sinks, and can end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkabuf.cli.connection import config_of, connection_options, errors_explained, servers_of
from kafkabuf.errors import GroupAuthorizationError, KafkaError

if TYPE_CHECKING:
    from kafkabuf.admin.transactions import TransactionAdmin
    from kafkabuf.cli.spark.state import OpenTransaction

_yes = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def spark() -> None:
    """See and end what Spark sinks left in a cluster: markers and open transactions.

    Exit status: 0 done, or nothing to do; 1 Kafka or you said no; 2 an option or setting is wrong. It needs no Spark.
    """


@spark.command()
@click.argument("sink_id", required=False)
@click.option("--topic", "topics", multiple=True, help="Look for waiting readers of this topic too; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="For programs; docs/spark.md names the keys.")
@connection_options
def status(
    sink_id: str | None,
    topics: tuple[str, ...],
    as_json: bool,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Show the markers of all sinks, or of SINK_ID, their open transactions, and who holds back readers.

    A reader with read_committed gets no record behind the first open transaction of a partition, whoever wrote the
    record. The command looks for such partitions in the topics of the markers, of the open transactions and of --topic.

    \b
    kafkabuf spark status --bootstrap-servers broker:9092
    kafkabuf spark status orders --bootstrap-servers broker:9093 --config client.properties
    kafkabuf spark status --topic payments --json --bootstrap-servers broker:9092 | jq .held_back
    """
    from kafkabuf.cli.spark.sinks import read_status
    from kafkabuf.cli.spark.texts import printable

    with _admin(bootstrap_servers, config_file, properties) as admin:
        sink_status = read_status(admin, sink_id, topics)
        if sink_id is not None and not sink_status.sinks:
            for warning in sink_status.warnings:
                click.echo(f"Note: {printable(warning)}.", err=True)
            raise _unknown_sink(admin, sink_id)
    if as_json:
        click.echo(json.dumps(asdict(sink_status), indent=2))
        return
    # Imported late: the output for programs needs no rich.
    from kafkabuf.cli.output import console
    from kafkabuf.cli.spark.tables import show

    show(sink_status, console())


@spark.command()
@click.argument("sink_id")
@_yes
@connection_options
def abort(
    sink_id: str,
    yes: bool,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Abort the open transactions of SINK_ID, so that readers with read_committed go on.

    This also fences the writers (InitProducerId gives their transactional ids a new epoch). A writer that lives on
    gets a ProducerFencedError: with exactly_once Spark runs the task again, with atomic the write fails.

    The command ends the transactions that it has shown, and no later ones. The exit status is 1 if one of them was not
    ended by this command.

    \b
    kafkabuf spark abort orders --bootstrap-servers broker:9092
    kafkabuf spark abort orders --yes --config client.properties
    """
    from kafkabuf.cli.spark.abort import end
    from kafkabuf.cli.spark.sinks import open_transactions
    from kafkabuf.cli.spark.texts import printable

    with _admin(bootstrap_servers, config_file, properties) as admin:
        opened, errors = open_transactions(admin, sink_id)
        for error in errors:
            click.echo(f"Error: {printable(str(error))}", err=True)
        if errors and not opened:
            raise click.exceptions.Exit(1)
        if not opened:
            _require_sink(admin, sink_id)
            click.echo(f"{printable(sink_id)} has no open transaction that this user may see")
            return
        for each in opened:
            click.echo(_described(each))
        if not yes:
            click.confirm(
                "The rows of each transaction that is Ongoing will never be visible, and its writer is fenced. Abort?",
                abort=True,
            )
        failed = bool(errors)
        for each in opened:
            try:
                click.echo(printable(end(admin, each)))
            except KafkaError as error:
                failed = True
                click.echo(f"Error: {printable(str(each.transactional_id))}: {error}", err=True)
        if failed:
            raise click.exceptions.Exit(1)


@spark.command()
@click.argument("sink_id")
@click.option("--partition", type=click.IntRange(0), help="Only the marker of this Spark partition (exactly_once).")
@click.option("--write-id", help="Only the marker of the write with this writeId.")
@_yes
@connection_options
def forget(
    sink_id: str,
    partition: int | None,
    write_id: str | None,
    yes: bool,
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
) -> None:
    """Delete the markers of SINK_ID, those of its writeIds too: what it has written counts as never written.

    No record is deleted. Stop the query first. Then Spark may write the newest micro-batch a second time. A query that
    goes on from its checkpoint refuses, unless it has the option onLostMarker 'continue'.

    \b
    kafkabuf spark forget orders --bootstrap-servers broker:9092
    kafkabuf spark forget orders --partition 7 --yes --config client.properties
    kafkabuf spark forget orders --write-id 2026-11-22 --bootstrap-servers broker:9092
    """
    from kafkabuf.cli.spark.sinks import check_groups, groups_of
    from kafkabuf.cli.spark.state import SinkName
    from kafkabuf.cli.spark.texts import printable

    if partition is not None and write_id is not None:
        raise click.UsageError("--partition is for streams, and --write-id for df.write: give one of the two")
    with _admin(bootstrap_servers, config_file, properties) as admin:
        groups = [
            group
            for group in groups_of(admin, sink_id)
            if (partition is None and write_id is None)
            or SinkName.parse(group) == SinkName(sink_id, partition, write_id)
        ]
        if not groups:
            try:
                check_groups(admin, sink_id)
            except GroupAuthorizationError as error:
                raise click.ClickException(
                    f"this user may not see the markers of {sink_id}: that needs Describe, and to delete them needs "
                    f"Delete, on the groups kafkabuf-sink.{sink_id} (as a prefix)"
                ) from error
            _require_sink(admin, sink_id)
            click.echo(f"{printable(sink_id)} has no such marker that this user may see")
            return
        _require_none_open(admin, sink_id)
        for group in groups:
            click.echo(printable(group))
        if not yes:
            click.confirm(
                "Without these markers Spark may write rows a second time that are in the topic already. Delete the "
                "markers?",
                abort=True,
            )
            _require_none_open(admin, sink_id)
        for group in groups:
            admin.delete_group(group)
        click.echo(f"{len(groups)} markers deleted" if len(groups) > 1 else "1 marker deleted")


@contextmanager
def _admin(
    bootstrap_servers: str | None, config_file: Path | None, properties: tuple[str, ...]
) -> Iterator[TransactionAdmin]:
    from kafkabuf.admin.transactions import TransactionAdmin

    config = config_of(bootstrap_servers, config_file, properties)
    servers = servers_of(config)
    with errors_explained(servers), TransactionAdmin(config) as admin:
        yield admin


def _require_none_open(admin: TransactionAdmin, sink_id: str) -> None:
    """Raises click.ClickException while a transaction of the sink is open, or where this user cannot know that."""
    from kafkabuf.cli.spark.sinks import open_transactions

    opened, errors = open_transactions(admin, sink_id)
    if errors:
        raise click.ClickException(
            f"no marker was deleted: {errors[0]}. While a transaction of the sink is open, its marker may still "
            f"change. This command needs Describe on the transactional ids kafkabuf-sink.{sink_id} (as a prefix)"
        )
    if opened:
        raise click.ClickException(
            f"{_described(opened[0])}; while a transaction of the sink is open, its marker may still change. Stop "
            f"the query, and end the transaction: kafkabuf spark abort {sink_id}"
        )


def _require_sink(admin: TransactionAdmin, sink_id: str) -> None:
    """Raises click.ClickException where the cluster has never seen the sink, or has forgotten it."""
    from kafkabuf.cli.spark.sinks import known_sinks

    if sink_id not in known_sinks(admin):
        raise _unknown_sink(admin, sink_id)


def _unknown_sink(admin: TransactionAdmin, sink_id: str) -> click.ClickException:
    from kafkabuf.cli.spark.sinks import known_sinks

    known = known_sinks(admin)
    return click.ClickException(
        f"the cluster shows this user nothing of a sink {sink_id!r}, but of {', '.join(map(repr, known))}"
        if known
        else f"the cluster shows this user nothing of a sink {sink_id!r}, nor of any other: see the address, and the "
        "ACLs in docs/spark.md"
    )


def _described(each: OpenTransaction) -> str:
    from kafkabuf.cli.spark.texts import printable, when

    return (
        f"{printable(str(each.transactional_id))}: {each.state} since {when(each.started_ms)}, producer "
        f"{each.producer_id}, epoch {each.producer_epoch}, in {len(each.partitions)} partitions"
    )
