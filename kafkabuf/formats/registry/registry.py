"""The Schema Registry: which schema a topic's keys or values are written with, and the bytes that name it.

registry = SchemaRegistry({"schema.registry.url": "https://registry:8081", "basic.auth.user.info": "me:secret"})
resolved = registry.resolve(schema, subject=registry.subject("orders", "value"), timeout=10)
resolved.schema, resolved.prefix     # encode with this text; these bytes go in front of each value
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from kafkabuf.clock import Clock, SystemClock
from kafkabuf.config.schema_registry import FRAMINGS
from kafkabuf.errors import ConfigError, SchemaRegistryError, SerializationError, printable
from kafkabuf.formats.registry import avro_compatibility, framing
from kafkabuf.formats.registry.cache import ResponseCache
from kafkabuf.formats.registry.closing import Closing
from kafkabuf.formats.registry.requests import Deadline, Requests
from kafkabuf.formats.registry.rest_client import RestSession
from kafkabuf.formats.registry.schemas import KINDS, Registered, Schema, SchemaReference
from kafkabuf.formats.registry.settings import RegistrySettings, check_choice
from kafkabuf.formats.rows.subjects import subject_name
from kafkabuf.shown import also_unfinished, shown

DEFAULT_TIMEOUT = 60.0  # seconds, as max.block.ms
_MOST_REFERENCES = 200  # they are followed by recursion
_FOR_EVER = float("inf")

T = TypeVar("T")
IndexFinder = Callable[[str, Sequence[tuple[str, str]]], Sequence[int] | None]


@dataclass(frozen=True)
class Resolved:
    """The schema to write with, and how a record names it. It holds no secret, and pickles as it is.

    `prefix` goes in front of each value. With the framing "header" it is empty, and `header` is the name and the value
    of the header that names the schema. `references` has the names and texts of the schemas that `schema` refers to,
    each after those that it refers to itself.
    """

    schema: str
    kind: str
    id: int
    guid: str | None
    prefix: bytes
    header: tuple[str, bytes] | None
    references: tuple[tuple[str, str], ...]


class _Choice(NamedTuple):
    """Which schema to write with: at most one of the first three says so."""

    auto_register: bool
    use_latest_version: bool
    use_schema_id: int | None
    strict: bool
    normalize: bool

    @property
    def names_schema(self) -> bool:
        return self.use_latest_version or self.use_schema_id is not None


class SchemaRegistry:
    """A registry, by its settings (`settings.py`). Any number of threads may share it.

    No connection stays open between requests, and no thread. A pickle has the settings, secrets included, as a
    producer's has, and nothing of what is remembered. Spark's executors need no registry: they get a `Resolved`.
    Raises ConfigError.

    Remembered: a schema by its id or guid, for ever, because a registry never gives them to another schema; the latest
    version of a subject and the registration of a schema, for `latest.cache.ttl.sec`, because a new version, or the
    deletion of a subject, changes them and nobody says so. A schema that cannot be used is forgotten.
    """

    def __init__(self, settings: Mapping[str, Any] | RegistrySettings, *, clock: Clock | None = None) -> None:
        self.settings = settings if isinstance(settings, RegistrySettings) else RegistrySettings(settings)
        self._clock = clock or SystemClock()
        ttl = self.settings.latest_cache_ttl_sec
        self.lifetime = _FOR_EVER if ttl == -1 else float(ttl)  # seconds for which a response about a subject serves
        self._begin()

    def _begin(self) -> None:
        settings = self.settings
        self._process = os.getpid()
        self._closing = Closing()
        self._requests = Requests(settings, self._clock, self._closing)
        self._cache = ResponseCache(settings.cache_capacity, settings.retries_max_wait_ms / 1000, self._clock)

    def _deadline(self, timeout: float) -> Deadline:
        """Each public call begins here."""
        if self._process != os.getpid():  # a forked child: another thread may have held a lock at the fork
            self._begin()
        return self._requests.deadline(timeout)

    def close(self, because: str = "the Schema Registry's client is closed") -> None:
        """End the calls that wait, from any thread: they raise ClosedError. Later calls raise it instead of a wait."""
        if self._process != os.getpid():
            self._begin()
        self._closing.close(because)

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaRegistry, (self.settings,)

    @also_unfinished
    def __repr__(self) -> str:
        return f"SchemaRegistry({','.join(map(str, self.settings.schema_registry_url))})"

    @property
    def names_schema(self) -> bool:
        """Whether the settings say that the registry's schema is used: use.latest.version or use.schema.id is set."""
        return self.settings.use_latest_version or self.settings.use_schema_id is not None

    def subject(self, topic: str, field: str, record_name: str | None = None) -> str:
        """The subject of a topic's keys or values, by the subject name strategy. `field` is "key" or "value"."""
        return subject_name(self.settings.strategy(field), topic, field, record_name)

    def resolve(
        self,
        schema: str | None,
        kind: str = "AVRO",
        *,
        subject: str,
        field: str = "value",
        auto_register: bool | None = None,
        use_latest_version: bool | None = None,
        use_schema_id: int | None = None,
        compatibility_strict: bool | None = None,
        normalize: bool | None = None,
        references: Iterable[SchemaReference] = (),
        message_indexes: Sequence[int] | IndexFinder | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Resolved:
        """Which schema to write with. The settings decide the options that are None.

        - `use_schema_id`: the schema of this id.
        - `use_latest_version`: the latest schema of the subject.
        - Else `schema`, which the call registers. With `auto_register=False` it must be registered already.

        With one of the first two, `schema` may be None. If it is not, and `compatibility_strict`, the schema of the
        registry must be able to read what `schema` writes. `message_indexes` is the path to a Protobuf message, or a
        function that finds it in the text of the schema to write with, and in the names and texts of its references.

        The call takes at most `timeout` seconds. A second call with the same arguments asks no server while the
        responses are remembered. Raises SchemaRegistryError in the registry's words, SerializationError for schemas
        that do not fit, TimeoutError or NetworkError if no URL answers, AuthenticationError, ConfigError.
        """
        choice = self._choice(auto_register, use_latest_version, use_schema_id, compatibility_strict, normalize)
        if kind not in KINDS or field not in ("key", "value"):
            raise ConfigError(f"expected one of {', '.join(KINDS)} and key or value, found {kind!r} and {field!r}")
        _check_subject(subject)
        if not isinstance(schema, str | None):
            raise ConfigError("a schema must be text or None")
        given = None if schema is None else Schema(schema, kind, tuple(SchemaReference(*each) for each in references))
        deadline = self._deadline(timeout)
        used = self._used(given, choice, kind, subject, deadline)
        if used.schema.kind != kind:
            self.forget([used.schema.text])
            raise SerializationError(f"the schema of {subject} is of the kind {used.schema.kind}, not {kind}")
        texts = self._texts(used.schema, deadline)
        if given is not None and given.text != used.schema.text and choice.strict:
            self._check_fits(given, used, texts, subject, deadline)
        try:
            indexes = message_indexes(used.schema.text, texts) if callable(message_indexes) else message_indexes
        except (ConfigError, SerializationError) as error:
            self.forget([used.schema.text, *(text for _, text in texts)])
            raise SerializationError(f"the schema {used.id} of {subject} in the registry: {error}") from error
        in_header = self.settings.schema_id_framing == FRAMINGS[1]
        if not in_header:
            prefix = framing.prefix(used.id, indexes)
            return Resolved(used.schema.text, kind, used.id, used.guid, prefix, None, texts)
        guid = used.guid or self._guid(used, choice, subject, deadline)
        header = framing.header(field, guid, indexes)
        return Resolved(used.schema.text, kind, used.id, guid, b"", header, texts)

    def forget(self, texts: Collection[str]) -> None:
        """Ask again for schemas that turned out to be unusable: a wrong response must not serve for ever."""
        self._cache.forget(lambda response: getattr(response, "schema", response).text in texts)

    def latest(self, subject: str, timeout: float = DEFAULT_TIMEOUT) -> Registered:
        """The latest version of a subject. Raises as resolve() does."""
        return self._version(subject, None, self._deadline(timeout))

    def by_id(self, schema_id: int, subject: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> Schema:
        """The schema of an id. Raises as resolve() does."""
        if subject is not None:
            _check_subject(subject)
        return self._by_id(schema_id, subject, self._deadline(timeout))

    def by_guid(self, guid: str, timeout: float = DEFAULT_TIMEOUT) -> Schema:
        """The schema of a guid. Raises as resolve() does."""
        deadline = self._deadline(timeout)
        return self._cache.get(
            ("guid", guid), lambda: self._requests.ask(lambda session: session.by_guid(guid), deadline), _FOR_EVER
        )

    def _choice(
        self,
        auto_register: bool | None,
        use_latest_version: bool | None,
        use_schema_id: int | None,
        strict: bool | None,
        normalize: bool | None,
    ) -> _Choice:
        settings = self.settings
        if auto_register or use_latest_version or use_schema_id is not None:
            latest = bool(use_latest_version)  # the call decides alone
        else:
            latest = settings.use_latest_version if use_latest_version is None else False
            use_schema_id = settings.use_schema_id
            auto_register = settings.auto_register_schemas if auto_register is None else auto_register
        check_choice(auto_register, latest, use_schema_id)
        if strict is None:
            strict = settings.latest_compatibility_strict if latest else settings.id_compatibility_strict
        normalize = settings.normalize_schemas if normalize is None else normalize
        return _Choice(auto_register is not False, latest, use_schema_id, strict, normalize)

    def _used(self, given: Schema | None, choice: _Choice, kind: str, subject: str, deadline: Deadline) -> Registered:
        if choice.use_schema_id is not None:
            return Registered(self._by_id(choice.use_schema_id, subject, deadline, kind), choice.use_schema_id)
        if choice.use_latest_version:
            return self._version(subject, None, deadline, kind)
        if given is None:
            raise ConfigError("give a schema, or set use.latest.version or use.schema.id")
        if not choice.auto_register:
            advice = "; auto.register.schemas is false: register the schema first, or set it to true"
            return self._lookup(subject, given, choice.normalize, deadline, if_missing=advice)
        return self._cache.get(
            ("registered", subject, given, choice.normalize),
            lambda: self._ask(subject, lambda at: at.register(subject, given, choice.normalize), deadline),
            self.lifetime,
        )

    def _ask(
        self, subject: str | None, request: Callable[[RestSession], T], deadline: Deadline, if_missing: str = ""
    ) -> T:
        """The response to a request about a subject, which the error of a refusal names: registries often do not."""
        try:
            return self._requests.ask(request, deadline)
        except SchemaRegistryError as error:
            if subject is not None:
                error.args = (f"subject {shown(subject)}: {error}{if_missing if error.status == 404 else ''}",)
            raise

    def _lookup(
        self,
        subject: str,
        schema: Schema,
        normalize: bool,
        deadline: Deadline,
        deleted: bool = False,
        if_missing: str = "",
    ) -> Registered:
        return self._cache.get(
            ("lookup", subject, schema, normalize, deleted),
            lambda: self._ask(subject, lambda at: at.lookup(subject, schema, normalize, deleted), deadline, if_missing),
            self.lifetime,
        )

    def _version(self, subject: str, version: int | None, deadline: Deadline, kind: str | None = None) -> Registered:
        _check_subject(subject)
        # A numbered version can be deleted, and made again with another schema.
        text_format = _text_format(kind)
        return self._cache.get(
            ("version", subject, version, text_format),
            lambda: self._ask(subject, lambda at: at.version(subject, version, text_format), deadline),
            self.lifetime,
        )

    def _by_id(self, schema_id: int, subject: str | None, deadline: Deadline, kind: str | None = None) -> Schema:
        text_format = _text_format(kind)
        return self._cache.get(
            ("id", schema_id, subject, text_format),
            lambda: self._ask(subject, lambda at: at.by_id(schema_id, subject, text_format), deadline),
            _FOR_EVER,
        )

    def _guid(self, used: Registered, choice: _Choice, subject: str, deadline: Deadline) -> str:
        # Neither the response of a registration nor that of an id need have it.
        registered = self._lookup(subject, used.schema, choice.normalize, deadline, deleted=choice.names_schema)
        if registered.guid is None:
            raise SchemaRegistryError(
                f"the registry gives no guid for the schema of {subject}, and schema.id.framing is header: set it to "
                "prefix (guids came with Confluent Platform 8)"
            )
        return registered.guid

    def _texts(self, schema: Schema, deadline: Deadline) -> tuple[tuple[str, str], ...]:
        """The names and texts of all schemas that a schema refers to, each after those that it refers to itself."""
        texts: dict[str, str] = {}
        entered: set[SchemaReference] = set()

        def visit(references: tuple[SchemaReference, ...]) -> None:
            for reference in references:
                if reference in entered:  # also a circle, which no registry should have
                    continue
                entered.add(reference)
                if len(entered) > _MOST_REFERENCES:
                    raise SchemaRegistryError(f"a schema refers to more than {_MOST_REFERENCES} others")
                referenced = self._version(reference.subject, reference.version, deadline, schema.kind).schema
                visit(referenced.references)
                texts.setdefault(reference.name, referenced.text)

        visit(schema.references)
        return tuple(texts.items())

    def _check_fits(
        self, given: Schema, used: Registered, texts: tuple[tuple[str, str], ...], subject: str, deadline: Deadline
    ) -> None:
        if given.kind != "AVRO":
            raise SerializationError(
                f"the schema of {subject} in the registry differs from the given one, and kafkabuf compares only Avro "
                "schemas: set latest.compatibility.strict or id.compatibility.strict to false, or give no schema"
            )
        writer = [text for _, text in self._texts(given, deadline)], given.text
        reader = [text for _, text in texts], used.schema.text
        reasons = avro_compatibility.reasons(reader, writer)
        if reasons:
            raise SerializationError(
                f"the schema {used.id} of {subject} in the registry cannot read what the given schema writes: "
                f"{printable('; '.join(reasons))}: change the given schema, or set latest.compatibility.strict or "
                "id.compatibility.strict to false"
            )


def _check_subject(subject: object) -> None:
    # A client of HTTP leaves out the steps "." and ".." of a path, and would ask for another resource.
    fits = isinstance(subject, str) and subject not in ("", ".", "..")
    if not fits or any("\ud800" <= character <= "\udfff" for character in str(subject)):
        raise ConfigError(f"a subject must be text in UTF-8, and not '', '.' or '..', found {subject!r:.200}")


def _text_format(kind: str | None) -> str | None:
    """What a registry is asked for where it has the choice: the descriptor of a Protobuf schema, not its text."""
    return "serialized" if kind == "PROTOBUF" else None
