"""The settings of GSSAPI: the brokers' service name, and where the client's credentials come from."""

from __future__ import annotations

from collections.abc import Mapping

from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import ConfigError
from kafkabuf.network.sasl.jaas import unsupported
from kafkabuf.network.sasl.kerberos_login import Source
from kafkabuf.process.producer_log import producer_log

log = producer_log("kafkabuf.network")


def service_name(config: ProducerConfig, options: Mapping[str, str]) -> str:
    configured, named = config.sasl_kerberos_service_name, options.get("serviceName")
    if configured and named and configured != named:
        raise ConfigError(
            f"sasl.kerberos.service.name is {configured}, and serviceName in sasl.jaas.config is {named}: leave one out"
        )
    name = configured or named
    if not name or not name.isprintable() or {*name} & {*"/@ "}:
        raise ConfigError(
            "sasl.mechanism=GSSAPI needs sasl.kerberos.service.name, the first part of the brokers' principals: most "
            f"clusters have kafka/HOST@REALM, and so kafka; found {name!r}"
        )
    return name


# Options of Krb5LoginModule that change nothing here: the client never asks a user, reads krb5.conf each time, keeps
# the keytab's name and not its keys, and renews tickets by itself.
_WITHOUT_EFFECT = {"storeKey", "doNotPrompt", "refreshKrb5Config", "renewTGT"}
_OPTIONS = {"useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName", "isInitiator", "debug"}


def credentials_source(config: ProducerConfig, options: Mapping[str, str]) -> Source:
    """The keytab or ticket cache that the settings or JAAS options name; else the library's default ticket cache."""
    if unknown := options.keys() - _OPTIONS - _WITHOUT_EFFECT:
        raise unsupported(unknown, _OPTIONS | _WITHOUT_EFFECT)
    if not options:
        source = Source(config.sasl_kerberos_principal, config.sasl_kerberos_keytab, None)
    elif config.sasl_kerberos_keytab or config.sasl_kerberos_principal:
        raise ConfigError(
            "sasl.jaas.config and sasl.kerberos.keytab with sasl.kerberos.principal both give credentials: leave one "
            "of them out"
        )
    else:
        source = _source_of_jaas(options)
    if source.keytab is not None and not source.principal:
        raise ConfigError(
            f"the keytab {source.keytab} may have the keys of many principals: name one of them as the principal "
            f"(`klist -k {source.keytab}` lists them)"
        )
    return source


def _source_of_jaas(options: Mapping[str, str]) -> Source:
    uses_keytab, uses_cache, initiates, debug = (
        _is_true(options, *each)
        for each in (("useKeyTab", False), ("useTicketCache", False), ("isInitiator", True), ("debug", False))
    )
    for name, used, by in (("keyTab", uses_keytab, "useKeyTab"), ("ticketCache", uses_cache, "useTicketCache")):
        if name in options and not used:
            raise ConfigError(f"sasl.jaas.config: {name} has no effect without {by}=true")
    if uses_keytab and not options.get("keyTab"):
        raise ConfigError("sasl.jaas.config: useKeyTab=true needs keyTab, the path of the keytab")
    if not initiates:
        raise ConfigError("sasl.jaas.config: isInitiator=false is for servers: leave it out")
    if debug:
        log.warning("sasl.jaas.config: debug=true has no effect: set the variable KRB5_TRACE to a file, or /dev/stderr")
    # With both, Java looks into the cache first. The keytab has the same principal, and never expires.
    keytab = options["keyTab"] if uses_keytab else None
    return Source(options.get("principal"), keytab, None if uses_keytab else options.get("ticketCache"))


def _is_true(options: Mapping[str, str], name: str, default: bool) -> bool:
    return options.get(name, str(default)).lower() == "true"
