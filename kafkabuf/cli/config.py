"""`kafkabuf config`: every setting, as a table."""

from __future__ import annotations

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table


@click.command()
@click.option(
    "--format",
    "form",
    default="table",
    show_default=True,
    type=click.Choice(["table", "json", "markdown"]),
    help="For the eye, for programs, or as docs/configuration.md.",
)
@click.argument("words", nargs=-1)
def config(form: str, words: tuple[str, ...]) -> None:
    """Print every setting: type, default, valid values, what it does here. WORDS: only names with these in them."""
    from kafkabuf.config.table import markdown, rows

    if form == "markdown":
        if words:
            raise click.UsageError("--format markdown is the whole page: leave the words out")
        click.echo(markdown(), nl=False)
        return
    wanted = [row for row in rows() if all(word.replace("_", ".") in row.name for word in words)]
    if not wanted:
        raise click.ClickException(f"no setting's name has {' and '.join(words)} in it")
    if form == "json":
        click.echo(json.dumps([dataclasses.asdict(row) for row in wanted], indent=2))
        return
    table = Table(header_style="bold", expand=True)
    for title, ratio in (("Setting", 3), ("Type, default, valid", 2), ("Here", 4)):
        table.add_column(title, ratio=ratio, overflow="fold")
    for row in wanted:
        table.add_row(row.name, f"{row.type} = {row.default}" + (f"; {row.valid}" if row.valid else ""), row.here)
    Console(markup=False).print(table)
