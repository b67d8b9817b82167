"""The Schema Registry: which schema a topic is written with, and which bytes name it."""

from kafkabuf.formats.registry import resolving  # a call that has a registry finds it loaded
from kafkabuf.formats.registry.registry import Resolved, SchemaRegistry
from kafkabuf.formats.registry.schemas import Schema, SchemaReference

__all__ = ["Resolved", "Schema", "SchemaReference", "SchemaRegistry", "resolving"]
