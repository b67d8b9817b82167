"""The options by which a command finds a cluster, as those of Kafka's own tools: address, properties file, settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkabuf.errors import (
    AuthenticationError,
    ClusterAuthorizationError,
    ConfigError,
    GroupAuthorizationError,
    KafkaError,
    NetworkError,
    TimeoutError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
    host_port,
)

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig


class Finite(click.FloatRange):
    """A number in a range: FloatRange takes nan and infinity for one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


Command = TypeVar("Command", bound=Callable[..., Any])

# A person waits for the answer: a quarter of the producer's time.
_MAX_BLOCK_MS = "15000"
_UNAUTHORIZED = (
    ClusterAuthorizationError,
    GroupAuthorizationError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
# What the commands need of a file that other programs share: the connection, and how long to wait for it.
_NEEDED = (
    "bootstrap.servers",
    "client.id",
    "connections.",
    "max.block.ms",
    "metadata.",
    "receive.buffer.bytes",
    "reconnect.",
    "request.timeout.ms",
    "retry.backoff.",
    "sasl.",
    "security.protocol",
    "send.buffer.bytes",
    "socket.",
    "ssl.",
    "transaction.timeout.ms",
)
# What a command that sends records takes from the file besides. Serializers and interceptors are classes of the program
# that the file was written for.
OF_SENDING = (
    "acks",
    "batch.size",
    "buffer.memory",
    "compression.",
    "delivery.timeout.ms",
    "enable.idempotence",
    "linger.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "retries",
    "schema.registry.",
)
_NAME = re.compile(r"^([\w.\-]*)")
_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_SEPARATOR = re.compile(r"(?<!\\)(?:\\\\)*([ \t\f]*[=:][ \t\f]*|[ \t\f]+)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def connection_options(command: Command) -> Command:
    """Give a command the options `bootstrap_servers`, `config_file` and `properties`."""
    for option in (
        click.option(
            "-X",
            "--property",
            "properties",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any setting of docs/configuration.md, also under librdkafka's name, over that of the file; "
            "repeatable. Other users of this machine can see it while the command runs: give passwords in the file.",
        ),
        click.option(
            "--config",
            "--command-config",
            "config_file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Properties file with settings of the connection, as for Kafka's own tools or librdkafka.",
        ),
        click.option(
            "-b", "--bootstrap-servers", metavar="HOST:PORT,...", help="Brokers of the cluster, unless in the file."
        ),
    ):
        command = option(command)
    return command


def config_of(
    bootstrap_servers: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
    wanted: tuple[str, ...] = (),
    fixed: Mapping[str, str] | None = None,
) -> ProducerConfig:
    """The settings of the connection, and those of the file that begin with a `wanted` prefix. The command itself knows
    the `fixed` ones.

    Raises click.UsageError where the user has to correct an option.
    """
    from kafkabuf.cli.librdkafka_names import in_kafkas_names
    from kafkabuf.config import ProducerConfig

    in_file = {} if config_file is None else read_properties(_text_of(config_file))
    try:
        given = in_kafkas_names(_given(properties))
        if bootstrap_servers is not None:
            given["bootstrap.servers"] = bootstrap_servers
        settings = {"max.block.ms": _MAX_BLOCK_MS, **_needed(in_kafkas_names(in_file), wanted), **given}
        settings |= fixed or {}
        if "bootstrap.servers" not in settings:
            raise click.UsageError("name the cluster: --bootstrap-servers HOST:PORT,...")
        return ProducerConfig.from_mapping(settings)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def servers_of(config: ProducerConfig) -> str:
    """The bootstrap servers as Kafka's own tools take them."""
    return ",".join(host_port(host, port) for host, port in config.bootstrap_servers)


def require_topic(topic: str) -> None:
    """Raises click.BadParameter for an argument TOPIC that is no name of a topic."""
    from kafkabuf.metadata.topic_names import TOPIC_RULE, is_legal_topic

    if not is_legal_topic(topic):
        raise click.BadParameter(f"{topic!r} is no topic: {TOPIC_RULE}", param_hint="TOPIC")


def _given(properties: tuple[str, ...]) -> dict[str, str]:
    given = {}
    for property_ in properties:
        name, equals, value = property_.partition("=")
        if not (name.strip() and equals):
            # What stands behind the name may be a password.
            name, rest = _NAME.split(property_, 1)[1:]
            raise click.UsageError(f"--property {name + '...' * bool(rest)!r} is not of the form NAME=VALUE")
        given[name.strip().replace("_", ".")] = value.strip()
    return given


def _needed(settings: Mapping[str, str], wanted: tuple[str, ...]) -> dict[str, str]:
    """Without settings that the commands have no use for: producers, consumers and tools may share the file."""
    from kafkabuf.config import ProducerConfig
    from kafkabuf.config.kinds import field_of

    needed = {
        name: value
        for name, value in settings.items()
        if name.startswith((*_NEEDED, *wanted)) and field_of(name) in ProducerConfig.model_fields
    }
    ignored = sorted(settings.keys() - needed.keys())
    if ignored:
        click.echo(f"ignored, since this command does not use these settings: {', '.join(ignored)}", err=True)
    return needed


def _text_of(config_file: Path) -> str:
    content = config_file.read_bytes()
    # The lines of a key store or a key would be named as settings that the command does not use.
    if b"\0" in content or content.lstrip().startswith(b"-----BEGIN"):
        raise click.UsageError(f"--config: {config_file} is no properties file")
    return decoded(content)


def decoded(content: bytes) -> str:
    """The text of a properties file: UTF-8, with or without a BOM, or else ISO-8859-1, which Java reads."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("iso-8859-1")


def read_properties(text: str) -> dict[str, str]:
    """A properties file of Java: comments, continued lines, escapes, and `=`, `:` or blanks behind the name."""
    settings = {}
    for line in _logical_lines(text):
        separator = _SEPARATOR.search(line)
        name, value = (line, "") if separator is None else (line[: separator.start(1)], line[separator.end(1) :])
        settings[_unescaped(name)] = _unescaped(value)
    return settings


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; a line that ends with an odd number of backslashes goes on in the next line."""
    begun = ""
    for line in _LINE_END.split(text):
        line = line.lstrip(_BLANKS)
        if not begun and (not line or line[0] in "#!"):
            continue
        begun += line
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield begun
        begun = ""
    if begun:
        yield begun


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(replaced, text)


@contextmanager
def errors_explained(servers: str) -> Iterator[None]:
    """Turn errors into messages that say what to do. The exit status is 2 for a wrong setting, and 1 for the others."""
    try:
        yield
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    except KafkaError as error:
        raise click.ClickException(f"{error}{_advice(error, servers)}") from error


def _advice(error: KafkaError, servers: str) -> str:
    if isinstance(error, AuthenticationError):
        return ". Give the credentials with --config FILE, as for Kafka's own tools"
    if isinstance(error, _UNAUTHORIZED):
        return '. docs/spark.md, "Who may do what", lists the ACLs that each command needs'
    if isinstance(error, TimeoutError | NetworkError):
        return (
            f". See that Kafka runs at {servers} and can be reached from here; --property max.block.ms=60000 waits "
            "longer"
        )
    return ""
