from collections.abc import Callable
from typing import Any

class ObjectWriter:
    def encode(self, value: Any, prefix: bytes = b"") -> bytes | None: ...

def object_serializer(encoder: ObjectWriter, prefix: bytes) -> Callable[[Any], bytes | None]: ...
