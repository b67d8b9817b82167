"""The values of settings that are more than a number, a word or a text: addresses, objects, names of Java's classes.

Each check takes what the user gave, text too, as Spark passes it. It returns the setting's value, or raises a
ValueError that says what is expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from kafkabuf.config.java_names import unshaded
from kafkabuf.config.kinds import split, whole
from kafkabuf.errors import ConfigError
from kafkabuf.shown import shown

Serializer = Callable[[Any], bytes | bytearray | memoryview | None]

_JAVA_SERIALIZERS = "org.apache.kafka.common.serialization."
# Only these strings stand for an object. A user gives any other serializer or partitioner as the object itself.
SERIALIZERS = {
    "bytes": "bytes",
    "string": "string",
    "json": "json",
    "short": "short",
    "integer": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "uuid": "uuid",
    f"{_JAVA_SERIALIZERS}ByteArraySerializer": "bytes",
    f"{_JAVA_SERIALIZERS}BytesSerializer": "bytes",
    f"{_JAVA_SERIALIZERS}ByteBufferSerializer": "bytes",
    f"{_JAVA_SERIALIZERS}StringSerializer": "string",
    f"{_JAVA_SERIALIZERS}ShortSerializer": "short",
    f"{_JAVA_SERIALIZERS}IntegerSerializer": "integer",
    f"{_JAVA_SERIALIZERS}LongSerializer": "long",
    f"{_JAVA_SERIALIZERS}FloatSerializer": "float",
    f"{_JAVA_SERIALIZERS}DoubleSerializer": "double",
    f"{_JAVA_SERIALIZERS}BooleanSerializer": "boolean",
    f"{_JAVA_SERIALIZERS}UUIDSerializer": "uuid",
}
PARTITIONERS = {
    "round_robin": "round_robin",
    "random": "random",
    "consistent": "consistent",
    "consistent_random": "consistent_random",
    "murmur2": "murmur2",
    "murmur2_random": "murmur2_random",
    "fnv1a": "fnv1a",
    "fnv1a_random": "fnv1a_random",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
}
_HARMLESS = re.compile(r"[^@=;\"'\ud800-\udfff]*")
_MAGIC: dict[str, str | int] = {"auto": "auto", "1": 1, "2": 2}
JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `PROTOCOL://host:port` as (host, port). Raises a ConfigError that names the entry.

    It does not name one that may have a password, as a URL or a connection string of Azure has.
    """
    protocol, _, rest = text.strip().rpartition("://")
    if protocol.lower() in ("http", "https"):
        raise ConfigError(
            f"bootstrap.servers takes no URL, found {protocol}://: give host:port of a listener of a broker, most "
            "often port 9092. A REST proxy or a Schema Registry, which have such URLs, is no broker"
        )
    # ";" and blanks, as between the brokers of other products' lists.
    commas = ", and commas separate the entries" if re.search(r"[;\s]", text.strip()) else ""
    if not _HARMLESS.fullmatch(text.strip()):
        raise ConfigError(
            f"bootstrap.servers: an entry is not host:port (port 1 to 65535){commas}; it is not shown, because a text "
            "with one of the characters @ = ; and quotes may have a password in it"
        )
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if commas or not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap.servers: {shown(text.strip())} is not host:port (port 1 to 65535){commas}")
    return host, int(port)


def addresses(value: object) -> tuple[tuple[str, int], ...]:
    entries: list[Any]
    if isinstance(value, str):
        entries = [entry for entry in value.split(",") if entry.strip()]
    elif isinstance(value, Iterable):
        entries = list(value)
    else:
        raise ConfigError(
            f"bootstrap.servers: expected 'host:port,...' or a list of them, found {type(value).__name__}"
        )
    if not entries:
        raise ConfigError("bootstrap.servers is empty: give at least one host:port of the cluster")
    return tuple(_pair(entry) if isinstance(entry, tuple) else _entry(entry) for entry in entries)


def _entry(entry: Any) -> tuple[str, int]:
    return parse_address(entry if isinstance(entry, str) else shown(entry))


def _pair(entry: tuple[Any, ...]) -> tuple[str, int]:
    host, port = entry if len(entry) == 2 else ("", None)
    number = whole(port)
    is_host = isinstance(host, str) and host and _HARMLESS.fullmatch(host)
    if not is_host or number is None or not 0 < number < 65536:
        raise ConfigError("bootstrap.servers: a tuple is not a pair of host and port (port 1 to 65535)")
    return host, number


def by_name(known: dict[str, str], method: str) -> Callable[[object], object]:
    """Accepts a callable, an object with `method`, or a known name, which it shortens.

    It refuses any other string: the string would name code to import, and a setting must not choose the code that runs
    (CVE-2023-25194).
    """

    def check(value: object) -> object:
        if isinstance(value, str) and value in known:
            return known[value]
        # Strings and bytes are refused though they have a method partition().
        text = isinstance(value, str | bytes | bytearray)
        if value is None or (not text and (callable(value) or callable(getattr(value, method, None)))):
            return value
        names = ", ".join(sorted(set(known.values())))
        raise ValueError(
            f"give the object itself (a callable, or an object with a method {method}()), or one of the names {names}"
        )

    return check


def objects(value: object) -> tuple[object, ...]:
    entries = split(value)
    if not isinstance(entries, list | tuple):
        raise ValueError("give a list of objects")
    given = tuple(entry for entry in entries if entry != JMX_REPORTER)
    if any(isinstance(entry, str) for entry in given):
        raise ValueError("kafkabuf imports nothing by name: give the objects themselves, in a list")
    return given


def callable_only(value: object) -> object:
    if value is None or callable(value):
        return value
    raise ValueError("give the callable itself: kafkabuf imports nothing by name")


def java_class(known: tuple[str, ...], default: str | None = None) -> Callable[[object], object]:
    """Accepts the names in `known`, and the empty string or None for the default."""

    def check(value: object) -> object:
        name = unshaded(value) if isinstance(value, str) else value
        if name in (None, "", *known):
            return name or default
        raise ValueError(
            f"it names a Java class, which cannot run here: leave it out, or name {' or '.join(known)}; kafkabuf has "
            "sasl.username and sasl.password, and sasl.oauthbearer.token.provider"
        )

    return check


def program(value: object) -> str:
    """The path of a program. librdkafka takes a command line for a shell under the same name."""
    if isinstance(value, str) and value.strip() and not {*value.strip()} & {*' \t;|&%"'}:
        return value.strip()
    raise ValueError("expected the path of a program, and no arguments: kafkabuf starts no shell")


def acks(value: object) -> int:
    number = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(value.strip().lower()) if isinstance(value, str) else value
    if type(number) is int and number in (-1, 0, 1):
        return number
    raise ValueError("expected all, -1, 0 or 1")


def magic(value: object) -> str | int:
    if isinstance(value, str) and value in _MAGIC:
        return _MAGIC[value]
    if type(value) is int and value in (1, 2):
        return value
    raise ValueError("expected auto, 1 or 2")


def sync(value: object) -> str | int:
    """A word, or milliseconds."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("process", "flush"):
        return str(word)
    number = int(word) if isinstance(word, str) and word.isascii() and word.isdigit() else word
    if type(number) is int and 1 <= number <= 86_400_000:
        return number
    raise ValueError("expected process, flush, or 1 to 86400000 milliseconds")


def name_check(value: object) -> str:
    """None means the empty string, as in Java: the client does not check the broker's name."""
    algorithm = "" if value is None else value
    if isinstance(algorithm, str) and algorithm.strip().lower() in ("https", ""):
        return algorithm.strip().lower()
    raise ValueError("expected https, or nothing for no check")


def store_type(value: object) -> str:
    known = value.strip().upper() if isinstance(value, str) else None
    if known in ("JKS", "PKCS12", "PEM"):
        return known
    raise ValueError("kafkabuf reads stores of type JKS, PKCS12 and PEM: convert others with keytool -importkeystore")
