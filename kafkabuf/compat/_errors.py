"""What the faces share when they translate errors."""

from __future__ import annotations

from typing import TypeVar

from kafkabuf.errors import KafkaError

Error = TypeVar("Error", bound=KafkaError)


def converted(error: KafkaError, kind: type[Error]) -> Error:
    """An error of class `kind` with the text, fields, cause and traceback of `error`."""
    other = kind(*error.args)
    other.__dict__.update(error.__dict__)
    other.__cause__ = error.__cause__
    other.__suppress_context__ = True
    return other.with_traceback(error.__traceback__)
