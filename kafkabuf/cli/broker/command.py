"""`kafkabuf broker`: the embedded cluster, for any Kafka client."""

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

_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_File = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option("--brokers", default=1, show_default=True, type=click.IntRange(1, 100), help="Nodes of the cluster.")
@click.option(
    "--port",
    default=9092,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the first node; the other nodes take the next ports. 0 takes free ports.",
)
@click.option(
    "--partitions",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Partitions of a topic that the cluster creates on its first use.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Folder that keeps all data for the next run, in Kafka's format. Default: memory only.",
)
@click.option(
    "--config",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of a broker under Kafka's name, such as log.retention.ms=60000; repeatable.",
)
@click.option("--sasl", multiple=True, type=click.Choice(_PASSWORD_MECHANISMS), help="SASL mechanism; repeatable.")
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME:PASSWORD",
    envvar="KAFKABUF_USERS",
    show_envvar=True,
    help="User who may connect, by every password mechanism unless --sasl chooses some; repeatable.",
)
@click.option(
    "--unsecured-tokens", is_flag=True, help="Accept OAUTHBEARER tokens without a signature: anybody can make one."
)
@click.option("--tls", metavar="PEM", type=_File, help="Certificate chain of the nodes, for TLS.")
@click.option("--tls-key", metavar="PEM", type=_File, help="Key of the certificate, unless the same file has it.")
@click.option("--tls-client-ca", metavar="PEM", type=_File, help="CA that must have signed the clients' certificates.")
@click.option(
    "--super-user",
    "super_users",
    multiple=True,
    metavar="PRINCIPAL",
    help="Turn ACLs on, and let this principal do everything, such as User:admin; repeatable.",
)
@click.option(
    "--allow-everyone-if-no-acl-found", is_flag=True, help="With ACLs: leave a resource without any ACL open to all."
)
def broker(
    brokers: int, port: int, partitions: int, data_dir: str | None, settings: Sequence[str], **security: Any
) -> None:
    """Run an embedded cluster on loopback until Ctrl-C."""
    from kafkabuf.broker import EmbeddedCluster
    from kafkabuf.cli.broker.status import Status

    if port + brokers - 1 > 65535:
        raise click.BadParameter(f"{brokers} brokers from port {port} on go beyond 65535", param_hint="--port")
    config = _config(settings)
    ports = None if port == 0 else list(range(port, port + brokers))
    console = Console()
    with _blocked(signals := stop_signals()), _errors_explained():
        allowed = _security(**security)
        with EmbeddedCluster(
            brokers=brokers,
            default_partitions=partitions,
            ports=ports,
            data_dir=data_dir,
            security=allowed,
            config=config,
        ) as cluster:
            console.print(f"bootstrap.servers={cluster.bootstrap_servers}", highlight=False, soft_wrap=True)
            if allowed.protocol != "PLAINTEXT":
                mechanisms = f"  sasl.mechanism={'|'.join(allowed.sasl_mechanisms)}" if allowed.sasl_mechanisms else ""
                console.print(f"security.protocol={allowed.protocol}{mechanisms}", highlight=False, soft_wrap=True)
            Status(cluster, console).show_until(signals)


def _config(settings: Sequence[str]) -> dict[str, str]:
    """{name: value} of the options."""
    config = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{setting!r} is not of the form NAME=VALUE", param_hint="--config")
        config[name] = value
    return config


def stop_signals() -> set[signal.Signals]:
    """The signals that end the command in order: a terminal gets its cursor back. A command under nohup ignores
    SIGHUP."""
    of_terminals = {signal.SIGHUP, signal.SIGQUIT}
    heeded = {number for number in of_terminals if signal.getsignal(number) is not signal.SIG_IGN}
    return {signal.SIGINT, signal.SIGTERM, *heeded}


@contextmanager
def _blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block the signals, so that a signal that comes early stays pending until `Status` waits for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


@contextmanager
def _errors_explained() -> Iterator[None]:
    try:
        yield
    except (ConfigError, KafkaStorageError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        hint = (
            "; choose another first port with --port, or free ports with --port 0"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise click.ClickException(f"{error.strerror or error}{hint}") from error


def _security(
    sasl: Sequence[str],
    users: Sequence[str],
    unsecured_tokens: bool,
    tls: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    super_users: Sequence[str],
    allow_everyone_if_no_acl_found: bool,
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
        sasl_mechanisms=(*(sasl or _PASSWORD_MECHANISMS * bool(passwords)), *tokens),
        oauth_validator="unsecured" if unsecured_tokens else None,
        authorizer=bool(super_users),
        super_users=super_users,
        allow_everyone_if_no_acl_found=allow_everyone_if_no_acl_found,
    )
