"""Names of topics, which are also names of folders on the disk."""

from __future__ import annotations

import re

from kafkabuf.errors import InvalidTopicError

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_name(name: str) -> None:
    """Raises InvalidTopicError unless `name` is 1 to 249 of letters, digits, '.', '_', '-', and not '.' or '..'."""
    if not _LEGAL.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(f"{name!r} is no topic name: 1 to 249 of letters, digits, '.', '_', '-' are allowed")
