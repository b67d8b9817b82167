"""Message objects of the package protobuf as bytes, for serializers. Without the package there are no such objects."""

from __future__ import annotations

import sys
from typing import Any

from kafkabuf.errors import SerializationError


def encode_message(message: str, name: str, prefix: bytes, value: Any) -> bytes | None:
    """`prefix` and the bytes of a message object; None for None.

    `message` is the full name that the object's type must have, `name` begins errors: "value" or "key". Equal messages
    become equal bytes, so that equal keys go to one partition: the entries of maps are in the order of their keys.

    Raises SerializationError for any other object, and for a message that lacks a required field.
    """
    if value is None:
        return None
    package = sys.modules.get("google.protobuf.message")
    if package is None or not isinstance(value, package.Message):
        raise SerializationError(
            f"{name} of type {type(value).__name__} is no message of the package protobuf: give a {message}"
        )
    found = value.DESCRIPTOR.full_name
    if found != message:
        raise SerializationError(f"{name} is a message {found}, and the format writes {message}")
    try:
        return prefix + bytes(value.SerializeToString(deterministic=True))
    except MemoryError:
        raise
    except Exception as error:
        raise SerializationError(f"{name} of message {message} cannot be written: {error}") from error
