"""What a node knows of the program at the other end of a connection, beside its rights."""

from __future__ import annotations

import re
from dataclasses import dataclass

# As ApiVersions has it (KIP-511): Kafka refuses other names and versions.
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_LONGEST = 200


@dataclass(slots=True, eq=False)
class Peer:
    """`software_name` and `software_version` are those of the client's ApiVersions request."""

    address: str = ""
    port: int = -1
    software_name: str = "unknown"
    software_version: str = "unknown"

    def introduce(self, name: str, version: str) -> None:
        """Takes over what the client says of itself, if it is a valid name and version."""
        if all(len(text) <= _LONGEST and _NAME.fullmatch(text) for text in (name, version)):
            self.software_name, self.software_version = name, version
