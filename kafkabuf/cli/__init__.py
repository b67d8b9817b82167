"""The command `kafkabuf`. It imports a subcommand only when it runs it: `--help` loads neither Spark nor a client."""

from __future__ import annotations

import importlib

from kafkabuf.extras import needs

with needs("cli", "the command kafkabuf"):
    import click

    from kafkabuf.cli.output import SafeOutputGroup

_COMMANDS = {
    "broker": "kafkabuf.cli.broker.command",
    "completion": "kafkabuf.cli.completion",
    "config": "kafkabuf.cli.config",
    "consume": "kafkabuf.cli.consume",
    "demo": "kafkabuf.cli.demo.command",
    "perf": "kafkabuf.cli.perf.command",
    "ping": "kafkabuf.cli.ping",
    "produce": "kafkabuf.cli.produce.command",
    "spark": "kafkabuf.cli.spark.command",
    "spool": "kafkabuf.cli.spool.command",
}


class _LazyGroup(SafeOutputGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="kafkabuf")
def main() -> None:
    """A Kafka producer for Python and PySpark."""
