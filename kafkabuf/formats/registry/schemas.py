"""A schema as a Schema Registry knows it, and the registry's responses about schemas."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from kafkabuf.formats.registry.framing import LARGEST_ID

KINDS = ("AVRO", "JSON", "PROTOBUF")


class SchemaReference(NamedTuple):
    """The schema that `name` stands for in another schema: a version of a subject."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema's text, its kind (AVRO, JSON or PROTOBUF), and the schemas that it refers to."""

    text: str
    kind: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def request(self) -> dict[str, Any]:
        """The body of a request with this schema. AVRO is the default: registries before 5.5 know no `schemaType`."""
        body: dict[str, Any] = {"schema": self.text}
        if self.kind != "AVRO":
            body["schemaType"] = self.kind
        if self.references:
            body["references"] = [reference._asdict() for reference in self.references]
        return body


class Registered(NamedTuple):
    """A schema and its names in the registry. A registry before Confluent Platform 8 gives no guid."""

    schema: Schema
    id: int
    guid: str | None = None
    version: int | None = None


def schema_in(response: Any) -> Schema:
    """The schema in a response. Raises ValueError, KeyError or TypeError for a malformed response."""
    references = tuple(
        SchemaReference(_typed(each["name"], str), _typed(each["subject"], str), _typed(each["version"], int))
        for each in _typed(response, dict).get("references") or ()
    )
    kind = _typed(response.get("schemaType") or "AVRO", str)
    return Schema(_typed(response["schema"], str), kind, references)


def registered_in(response: Any, requested: Schema | None = None) -> Registered:
    """The schema and its names in a response about `requested`, or about the response's own schema. Raises the same."""
    schema = schema_in(response) if requested is None else requested
    version, guid = _typed(response, dict).get("version"), response.get("guid")
    return Registered(
        schema,
        _id(response["id"]),
        None if guid is None else str(UUID(_typed(guid, str))),
        None if version is None else _typed(version, int),
    )


def _id(value: Any) -> int:
    number: int = _typed(value, int)
    if not 0 <= number <= LARGEST_ID:
        raise ValueError(f"the id {number} is not from 0 to {LARGEST_ID}")
    return number


def _typed(value: Any, expected: type) -> Any:
    if not isinstance(value, expected) or isinstance(value, bool):
        raise ValueError(f"expected {expected.__name__}, found {type(value).__name__}")
    if isinstance(value, str):
        value.encode()  # JSON may have half of a surrogate pair, which no request and no record can have
    return value
