"""Producer settings under Kafka's names, checked before anything is started.

A setting may be written as Kafka's documentation does (`"linger.ms"`) or as a Python name (`linger_ms`). Values may be
strings, as Spark options are. Milliseconds and bytes are Kafka's units.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kafkabuf.errors import ConfigError

INT32_MAX = 2**31 - 1
Serializer = Callable[[Any], bytes | bytearray | memoryview | None]

# Settings of Java's producer that this release does not act on. They are refused, not ignored: a user who sets
# ssl.truststore.location must not find the records sent in the clear.
_KNOWN_TO_KAFKA = {
    "enable.metrics.push",
    "interceptor.classes",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "partitioner.class",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "security.providers",
    "transaction.timeout.ms",
    "transaction.two.phase.commit.enable",
    "transactional.id",
}
_KNOWN_PREFIXES = ("ssl.", "sasl.")


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `PROTOCOL://host:port` as (host, port). Raises ConfigError naming the entry."""
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
    found = tuple(entry if isinstance(entry, tuple) else parse_address(str(entry)) for entry in entries)
    if not found:
        raise ConfigError("bootstrap.servers is empty: give at least one host:port of the cluster")
    return found


def _acks(value: object) -> object:
    return {"all": -1, "-1": -1, "0": 0, "1": 1}.get(value, value) if isinstance(value, str) else value


def _magic(value: object) -> object:
    return int(value) if value in ("1", "2") else value


def _flag(value: object) -> object:
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


Milliseconds = Annotated[int, Field(ge=0, le=2**63 - 1)]
Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ProducerConfig(BaseModel):
    """All settings of one producer, frozen. Build it with `from_mapping`, which understands both spellings."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    bootstrap_servers: Annotated[tuple[tuple[str, int], ...], BeforeValidator(_addresses)]
    client_id: Annotated[str, Field(max_length=8191)] = "kafkabuf"  # in UTF-8 within the 32767 bytes that requests hold
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    buffer_memory: Bytes = 32 * 1024 * 1024
    batch_size: Annotated[int, Field(ge=0, le=INT32_MAX)] = 16384
    linger_ms: Milliseconds = 5
    max_block_ms: Milliseconds = 60_000
    max_request_size: Annotated[int, Field(ge=0, le=INT32_MAX)] = 1_048_576
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    compression_gzip_level: Annotated[int, Field(ge=-1, le=9)] = -1
    compression_lz4_level: Annotated[int, Field(ge=1, le=17)] = 9
    compression_zstd_level: Annotated[int, Field(ge=-131072, le=22)] = 3
    record_magic: Annotated[Literal["auto", 1, 2], BeforeValidator(_magic)] = "auto"
    partitioner_ignore_keys: bool = False

    acks: Annotated[Literal[-1, 0, 1], BeforeValidator(_acks)] = -1
    enable_idempotence: Annotated[bool, BeforeValidator(_flag)] = True
    retries: Annotated[int, Field(ge=0, le=INT32_MAX)] = INT32_MAX
    retry_backoff_ms: Milliseconds = 100
    retry_backoff_max_ms: Milliseconds = 1000
    delivery_timeout_ms: Milliseconds = 120_000
    request_timeout_ms: Annotated[int, Field(ge=0, le=INT32_MAX)] = 30_000
    max_in_flight_requests_per_connection: Annotated[int, Field(ge=1)] = 5

    metadata_max_age_ms: Milliseconds = 300_000
    metadata_max_idle_ms: Annotated[int, Field(ge=5000)] = 300_000
    metadata_recovery_strategy: Literal["rebootstrap", "none"] = "rebootstrap"
    metadata_recovery_rebootstrap_trigger_ms: Milliseconds = 300_000
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] = "use_all_dns_ips"
    security_protocol: Literal["PLAINTEXT"] = "PLAINTEXT"
    send_buffer_bytes: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 131_072
    receive_buffer_bytes: Annotated[int, Field(ge=-1, le=INT32_MAX)] = 32_768
    connections_max_idle_ms: int = 540_000
    reconnect_backoff_ms: Milliseconds = 50
    reconnect_backoff_max_ms: Milliseconds = 1000
    socket_connection_setup_timeout_ms: Milliseconds = 10_000
    socket_connection_setup_timeout_max_ms: Milliseconds = 30_000

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigError(
                f"delivery.timeout.ms ({self.delivery_timeout_ms}) must be at least linger.ms ({self.linger_ms}) "
                f"+ request.timeout.ms ({self.request_timeout_ms})"
            )
        if self.enable_idempotence:
            self._check_idempotence()
        if self.compression_gzip_level == 0:
            raise ConfigError("compression.gzip.level is 1 to 9, or -1 for gzip's own default; found 0")
        if self.compression_type == "zstd" and self.record_magic == 1:
            raise ConfigError("compression.type=zstd needs record.magic 2: brokers take no zstd in the older format")
        if self.slab_size > self.buffer_memory:
            raise ConfigError(
                f"buffer.memory ({self.buffer_memory}) is smaller than one batch ({self.slab_size} bytes): "
                "raise buffer.memory or lower batch.size"
            )
        return self

    def _check_idempotence(self) -> None:
        wrong = None
        if self.acks != -1:
            wrong = f"acks=all, found {self.acks}"
        elif self.retries == 0:
            wrong = "retries above 0"
        elif self.max_in_flight_requests_per_connection > 5:
            found = self.max_in_flight_requests_per_connection
            wrong = f"max.in.flight.requests.per.connection of at most 5, found {found}"
        elif self.record_magic == 1:
            wrong = "record.magic 2 (or auto): the older format has no numbers"
        if wrong is not None:
            raise ConfigError(f"enable.idempotence needs {wrong}; set it to false to do without")

    @property
    def slab_size(self) -> int:
        """Bytes of one slab of the arena: `batch.size`, but never too small for a batch header and a short record."""
        return max(self.batch_size, 512)

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any]) -> ProducerConfig:
        """Settings from one or more mappings, dotted or Python names. Raises ConfigError naming the setting."""
        values: dict[str, Any] = {}
        for name, value in (item for mapping in mappings for item in mapping.items()):
            field = str(name).replace(".", "_")
            if field not in cls.model_fields:
                raise ConfigError(_unknown(str(name), cls.model_fields))
            if field in values:
                raise ConfigError(f"{dotted(field)} is given twice")
            values[field] = value
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap.servers is missing: give at least one host:port of the cluster")
        # As Java does: a linger or request time-out raised alone moves the default of the whole.
        if "delivery_timeout_ms" not in values:
            values |= _fitting_delivery_timeout(values)
        if "enable_idempotence" not in values:
            values |= _fitting_idempotence(values)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError("; ".join(_explain(problem) for problem in error.errors())) from None


def dotted(field: str) -> str:
    """Kafka's spelling of a field's name."""
    return field.replace("_", ".")


def _fitting_idempotence(values: Mapping[str, Any]) -> dict[str, bool]:
    """Its default gives way to settings that rule it out, as in Java."""
    magic, acks, retries = (values.get(name) for name in ("record_magic", "acks", "retries"))
    possible = _magic(magic) != 1 and _acks(acks) not in (0, 1) and str(retries) != "0"
    return {} if possible else {"enable_idempotence": False}


def _fitting_delivery_timeout(values: Mapping[str, Any]) -> dict[str, int]:
    fields = ProducerConfig.model_fields
    try:
        needed = sum(int(values.get(name, fields[name].default)) for name in ("linger_ms", "request_timeout_ms"))
    except (TypeError, ValueError):
        return {}  # the value itself is at fault and is reported under its own name
    return {"delivery_timeout_ms": max(needed, fields["delivery_timeout_ms"].default)}


def _unknown(name: str, fields: Iterable[str]) -> str:
    plain = name.replace("_", ".")
    if plain in _KNOWN_TO_KAFKA or plain.startswith(_KNOWN_PREFIXES):
        return f"{plain} is a setting of Kafka's producer that this version of kafkabuf does not support yet"
    near = difflib.get_close_matches(plain, [dotted(field) for field in fields], n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no producer setting {name!r}{hint}"


def _explain(problem: Any) -> str:
    error = problem.get("ctx", {}).get("error")
    if isinstance(error, ConfigError):
        return str(error)
    name = dotted(str(problem["loc"][0])) if problem["loc"] else "settings"
    return f"{name}: {problem['msg']}, found {problem['input']!r}"
