"""Errors about the options of sasl.jaas.config. Where quotes are missing, a part of a password looks like an option."""

from __future__ import annotations

from collections.abc import Iterable

from kafkabuf.errors import ConfigError

# Options that Java's login modules have. An error may show these, and what looks like one of them.
_OF_JAVA = (
    {"username", "password", "tokenauth", "clientId", "clientSecret", "scope"}
    | {"ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.type"}
    | {"useKeyTab", "keyTab", "principal", "useTicketCache", "ticketCache", "serviceName", "isInitiator", "debug"}
    | {"storeKey", "doNotPrompt", "refreshKrb5Config", "renewTGT", "useFirstPass", "tryFirstPass", "storePass"}
    | {"clearPass", "awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsRoleExternalId", "awsRoleAccessKeyId"}
    | {"awsRoleSecretAccessKey", "awsRoleSessionToken", "awsStsRegion", "awsDebugCreds", "awsMaxRetries"}
)


def unsupported(names: Iterable[str], allowed: Iterable[str]) -> ConfigError:
    """The error for options of these names, which the mechanism does not have."""
    import difflib  # late: only an error needs it

    known = {name.lower() for name in _OF_JAVA}
    given = sorted(names)
    shown = [name for name in given if difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.8)]
    if len(shown) < len(given):
        shown.append(f"{len(given) - len(shown)} whose names are not shown, because they may be a part of a password")
    return ConfigError(
        f"sasl.jaas.config: options not supported: {', '.join(shown)}; allowed: {', '.join(sorted(allowed))}; a value "
        "with blanks or quotes stands in quotes"
    )
