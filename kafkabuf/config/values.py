"""The types of settings' values: they parse strings, as Spark passes them, into numbers, flags, lists and addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, Strict

from kafkabuf.errors import ConfigError
from kafkabuf.java_names import unshaded

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
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
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
}
JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"


def dotted(field: str) -> str:
    """Kafka's spelling of a field's name."""
    return field.replace("_", ".")


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `PROTOCOL://host:port` as (host, port). Raises a ConfigError that names the entry."""
    rest = text.strip().rpartition("://")[2]
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap.servers: {text.strip()!r} is not host:port (port 1 to 65535)")
    return host, int(port)


def _addresses(value: object) -> tuple[tuple[str, int], ...]:
    entries: list[Any]
    if isinstance(value, str):
        entries = [entry for entry in value.split(",") if entry.strip()]
    elif isinstance(value, Iterable):
        entries = list(value)
    else:
        raise ConfigError(f"bootstrap.servers: expected 'host:port,...' or a list of them, found {value!r}")
    addresses = tuple(entry if isinstance(entry, tuple) else parse_address(str(entry)) for entry in entries)
    if not addresses:
        raise ConfigError("bootstrap.servers is empty: give at least one host:port of the cluster")
    return addresses


def _acks(value: object) -> object:
    text = value.strip().lower() if isinstance(value, str) else value
    return {"all": -1, "-1": -1, "0": 0, "1": 1}.get(text, value) if isinstance(text, str) else _number(value)


def _magic(value: object) -> object:
    return int(value) if value in ("1", "2") else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value.strip().lower(), value) if isinstance(value, str) else value


def _number(value: object) -> object:
    # A bool is an int in Python, and pydantic would read it as 0 or 1.
    if isinstance(value, bool):
        raise ValueError("a number is expected")
    return value


def _list(value: object) -> object:
    return tuple(entry.strip() for entry in value.split(",") if entry.strip()) if isinstance(value, str) else value


def _upper(value: object) -> object:
    return value.strip().upper() if isinstance(value, str) else value


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _blank_to_none(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


def _by_name(known: dict[str, str], method: str) -> Callable[[object], object]:
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


def _never_pushed(value: bool) -> bool:
    if value:
        raise ValueError("kafkabuf pushes no metrics to brokers (KIP-714): set it to false and read producer.metrics()")
    return value


def callable_only(value: object) -> object:
    if value is None or callable(value):
        return value
    raise ValueError("give the callable itself: kafkabuf imports nothing by name")


def java_class(known: tuple[str, ...]) -> Callable[[object], object]:
    """Accepts the names in `known`, and the empty string for no class."""

    def check(value: object) -> object:
        name = unshaded(value) if isinstance(value, str) else value
        if name in (None, "", *known):
            return name or None
        raise ValueError(
            f"it names a Java class, which cannot run here: leave it out, or name {' or '.join(known)}; kafkabuf has "
            "sasl.username and sasl.password, and sasl.oauthbearer.token.provider"
        )

    return check


def name_check(value: object) -> object:
    """None means the empty string, as in Java: the client does not check the broker's name."""
    return "" if value is None else _lower(value)


def store_type(value: object) -> object:
    known = value.strip().upper() if isinstance(value, str) else None
    if known in ("JKS", "PKCS12", "PEM"):
        return known
    raise ValueError("kafkabuf reads stores of type JKS, PKCS12 and PEM: convert others with keytool -importkeystore")


def _objects(value: object) -> object:
    entries = _list(value) if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        raise ValueError("give a list of objects")
    objects = tuple(entry for entry in entries if entry != JMX_REPORTER)
    if any(isinstance(entry, str) for entry in objects):
        raise ValueError("kafkabuf imports nothing by name: give the objects themselves, in a list")
    return objects


Int32 = Annotated[int, BeforeValidator(_number), Field(ge=0, le=INT32_MAX)]
Milliseconds = Annotated[int, BeforeValidator(_number), Field(ge=0, le=INT64_MAX)]
Bytes = Milliseconds
Flag = Annotated[bool, Strict(), BeforeValidator(_flag)]
NeverPushed = Annotated[Flag, AfterValidator(_never_pushed)]
Number = BeforeValidator(_number)
Addresses = Annotated[tuple[tuple[str, int], ...], BeforeValidator(_addresses)]
Acks = Annotated[Literal[-1, 0, 1], BeforeValidator(_acks)]
Magic = Annotated[Literal["auto", 1, 2], BeforeValidator(_magic)]
Strings = BeforeValidator(_list)
Text = Annotated[str | None, BeforeValidator(_blank_to_none)]
Secret = Annotated[SecretStr | None, BeforeValidator(_blank_to_none)]
Objects = Annotated[tuple[Any, ...], BeforeValidator(_objects)]
AnySerializer = Annotated[Any, BeforeValidator(_by_name(SERIALIZERS, "serialize"))]
AnyPartitioner = Annotated[Any, BeforeValidator(_by_name(PARTITIONERS, "partition"))]
Upper = BeforeValidator(_upper)
Lower = BeforeValidator(_lower)
