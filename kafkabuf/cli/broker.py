"""`kafkabuf broker`: the embedded cluster, for whatever client you like."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from kafkabuf.errors import ConfigError, KafkaStorageError

if TYPE_CHECKING:
    from kafkabuf.broker import Security

_BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_File = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, 100), help="Nodes of the cluster.")
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the first node, the others follow; 0 takes free ones.",
)
@click.option(
    "--partitions",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Partitions of a topic made by its first use.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Folder that keeps everything, in Kafka's format, for the next run; without it, memory.",
)
@click.option("--sasl", multiple=True, type=click.Choice(_BY_PASSWORD), help="SASL mechanism; may be given repeatedly.")
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME:PASSWORD",
    envvar="KAFKABUF_USERS",
    show_envvar=True,
    help="Who may connect, by all of these mechanisms unless --sasl chooses; may be given repeatedly.",
)
@click.option(
    "--unsecured-tokens", is_flag=True, help="Take OAUTHBEARER tokens that nobody signed: anybody can make some."
)
@click.option("--tls", metavar="PEM", type=_File, help="Certificate chain of the nodes, for TLS.")
@click.option("--tls-key", metavar="PEM", type=_File, help="Its key, unless that is in the same file.")
@click.option(
    "--tls-client-ca", metavar="PEM", type=_File, help="Who must have signed clients' certificates, if need be."
)
def broker(brokers: int, port: int, partitions: int, data_dir: str | None, **security: Any) -> None:
    """Run an embedded cluster on loopback until Ctrl-C."""
    from kafkabuf.broker import EmbeddedCluster
    from kafkabuf.cli.broker_status import Status

    if port + brokers - 1 > 65535:
        raise click.BadParameter(f"{brokers} brokers from port {port} on go beyond 65535", param_hint="--port")
    ports = None if port == 0 else list(range(port, port + brokers))
    console = Console()
    with _blocked(wanted := {signal.SIGINT, signal.SIGTERM}), _explained():
        allowed = _security(**security)
        with EmbeddedCluster(
            brokers=brokers, default_partitions=partitions, ports=ports, data_dir=data_dir, security=allowed
        ) as cluster:
            console.print(f"bootstrap.servers={cluster.bootstrap_servers}", highlight=False, soft_wrap=True)
            if allowed.protocol != "PLAINTEXT":
                mechanisms = f"  sasl.mechanism={'|'.join(allowed.sasl_mechanisms)}" if allowed.sasl_mechanisms else ""
                console.print(f"security.protocol={allowed.protocol}{mechanisms}", highlight=False, soft_wrap=True)
            Status(cluster, console).show_until(wanted)


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """A wish to stop that comes before somebody waits for it stays pending until then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (ConfigError, KafkaStorageError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        hint = "; --port takes another first port, --port 0 free ones" if error.errno == errno.EADDRINUSE else ""
        raise click.ClickException(f"{error.strerror or error}{hint}") from error


def _security(
    sasl: Sequence[str],
    users: Sequence[str],
    unsecured_tokens: bool,
    tls: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
) -> Security:
    from kafkabuf.broker import Security

    passwords = {}
    for number, user in enumerate(users, start=1):
        name, colon, password = user.partition(":")
        if not (name and colon and password):
            raise click.BadParameter(f"number {number} is not of the form NAME:PASSWORD", param_hint="--user")
        passwords[name] = password
    tokens = ("OAUTHBEARER",) * unsecured_tokens
    return Security(
        ssl_certfile=tls,
        ssl_keyfile=tls_key,
        ssl_cafile=tls_client_ca,
        ssl_client_auth="none" if tls_client_ca is None else "required",
        users=passwords,
        sasl_mechanisms=(*(sasl or _BY_PASSWORD * bool(passwords)), *tokens),
        oauth_validator="unsecured" if unsecured_tokens else None,
    )
