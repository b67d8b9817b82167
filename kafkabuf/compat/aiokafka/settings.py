"""aiokafka's settings as kafkabuf's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafkabuf.compat.shared.names import in_whole_ms
from kafkabuf.errors import ConfigError

# aiokafka's partitioner: called with the key's bytes, all partitions, and those that have a leader.
Partitioner = Callable[[bytes | None, list[int], list[int]], int]
Leaders = Callable[[str], Sequence[int]]

_numbers = itertools.count(1)


def client_name(client_id: Any) -> str:
    return f"aiokafka-producer-{next(_numbers)}" if client_id is None else str(client_id)


def acks_of(acks: Any, *, idempotent: bool) -> Any:
    """`acks` as given; None: aiokafka's default. Raises ValueError, as aiokafka does."""
    if acks is None:
        return "all" if idempotent else 1
    if acks not in (0, 1, -1, "all"):
        raise ValueError(f"acks must be 0, 1, -1 or 'all', found {acks!r}")
    if idempotent and acks not in (-1, "all"):
        raise ValueError(f"acks={acks} is not possible with enable_idempotence=True: leave acks out, or give 'all'")
    return acks


def times(request_timeout_ms: float, retry_backoff_ms: float, linger_ms: float) -> dict[str, Any]:
    """aiokafka tries a record for request_timeout_ms, and once more for as long if it is in a request then."""
    # Each time is rounded up before they are added: kafkabuf compares the sum with its parts.
    given = {"linger_ms": linger_ms, "request_timeout_ms": request_timeout_ms, "retry_backoff_ms": retry_backoff_ms}
    linger_ms, request_timeout_ms, retry_backoff_ms = in_whole_ms(given).values()
    return {
        "request_timeout_ms": request_timeout_ms,
        "max_block_ms": request_timeout_ms,
        "delivery_timeout_ms": linger_ms + 2 * request_timeout_ms,
        "retry_backoff_ms": retry_backoff_ms,
        "retry_backoff_max_ms": max(1000, retry_backoff_ms),
        "linger_ms": linger_ms,
    }


class CalledPartitioner:
    """kafkabuf's call of a partitioner that was written for aiokafka."""

    def __init__(self, partitioner: Partitioner, leaders: Leaders) -> None:
        self._partitioner = partitioner
        self._leaders = leaders

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int:
        led = [number for number, leader in enumerate(self._leaders(topic)[:partitions]) if leader >= 0]
        return self._partitioner(None if key is None else bytes(key), list(range(partitions)), led)


class Tokens:
    """Calls aiokafka's token provider, whose token() is a coroutine, for kafkabuf's threads. `loop` runs it.

    The provider may have a method `extensions`, which is no coroutine: its SASL extensions go with the token.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> tuple[str, None, Mapping[str, str]]:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(self._fetch(), self.loop).result()

    async def _fetch(self) -> tuple[str, None, Mapping[str, str]]:
        token = str(await self._provider.token())
        extensions = getattr(self._provider, "extensions", dict)
        return token, None, extensions() or {}


def sasl(
    mechanism: str,
    username: str | None,
    password: str | None,
    tokens: Tokens | None,
    kerberos_service: str,
    kerberos_domain: str | None,
) -> dict[str, Any]:
    """The settings of SASL. Raises ValueError for credentials that are missing, ConfigError for a domain name."""
    if mechanism == "OAUTHBEARER":
        if tokens is None:
            raise ValueError("sasl_mechanism is OAUTHBEARER: give a sasl_oauth_token_provider with a coroutine token()")
        return {"sasl_mechanism": mechanism, "sasl_oauthbearer_token_provider": tokens}
    if mechanism == "GSSAPI":
        if kerberos_domain is not None:
            raise ConfigError(
                "kafkabuf takes a broker's own host for its principal: leave out sasl_kerberos_domain_name"
            )
        return {"sasl_mechanism": mechanism, "sasl_kerberos_service_name": kerberos_service}
    if username is None or password is None:
        raise ValueError(f"sasl_mechanism is {mechanism}: give sasl_plain_username and sasl_plain_password")
    return {"sasl_mechanism": mechanism, "sasl_username": username, "sasl_password": password}
