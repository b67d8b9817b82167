"""`kafkabuf config`: a table of every setting."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table


@click.command()
@click.option(
    "--format",
    "output_format",
    default="table",
    show_default=True,
    type=click.Choice(["table", "json", "markdown"]),
    help="For people, for programs, or as docs/configuration.md.",
)
@click.argument("words", nargs=-1)
def config(output_format: str, words: tuple[str, ...]) -> None:
    """Print every setting: type, default, valid values, and what kafkabuf does with it.

    WORDS: print only settings whose names have all of these words.
    """
    from kafkabuf.config.table import markdown, rows

    if output_format == "markdown":
        if words:
            raise click.UsageError("--format markdown prints the whole page: leave the words out")
        click.echo(markdown(), nl=False)
        return
    chosen = [row for row in rows() if all(word.replace("_", ".") in row.name for word in words)]
    if not chosen:
        raise click.ClickException(f"no setting has {' and '.join(words)} in its name")
    if output_format == "json":
        click.echo(json.dumps([dataclasses.asdict(row) for row in chosen], indent=2))
        return
    table = Table(header_style="bold", expand=True)
    for title, ratio in (("Setting", 3), ("Type, default, valid", 2), ("Here", 4)):
        table.add_column(title, ratio=ratio, overflow="fold")
    for row in chosen:
        table.add_row(row.name, f"{row.type} = {row.default}" + (f"; {row.valid}" if row.valid else ""), row.here)
    Console(markup=False).print(table)
