"""Raw: keys and values that are bytes already, for code that always names a format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Raw:
    """The bytes of the column, or of the object, as they are.

    As value_format of send_arrow() it takes the column `value`, as key_format the column that `key` names: the same as
    no format. As value_serializer it takes the bytes-like objects that a producer without a serializer takes. It asks
    no Schema Registry.
    """

    def __call__(self, data: Any) -> Any:
        """The object itself. send() checks that it is bytes-like."""
        return data
