"""Which names a topic can have."""

from __future__ import annotations

import re

TOPIC_RULE = "a topic's name has 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', and is neither '.' nor '..'"
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic(name: object) -> bool:
    """Whether a topic can have this name (org.apache.kafka.common.internals.Topic). `TOPIC_RULE` is the rule."""
    return isinstance(name, str) and _LEGAL_TOPIC.fullmatch(name) is not None and name not in (".", "..")
