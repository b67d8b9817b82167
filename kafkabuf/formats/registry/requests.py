"""Requests to a registry of several URLs: fail-over, retries, tokens, and one time-out for all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kafkabuf.backoff import ExponentialBackoff
from kafkabuf.clock import Clock
from kafkabuf.config.schema_registry import Address
from kafkabuf.errors import KafkaError, NetworkError, SchemaRegistryError, SslAuthenticationError, TimeoutError
from kafkabuf.formats.registry.closing import Closing
from kafkabuf.formats.registry.rest_client import RestSession
from kafkabuf.formats.registry.settings import HIDDEN, RegistrySettings
from kafkabuf.formats.registry.tokens import TokenSource
from kafkabuf.process.threads import new_waiter

T = TypeVar("T")


class Deadline(NamedTuple):
    """A time-out in seconds, and when it is over by the clock."""

    seconds: float
    at: float


class Requests:
    """Asks one URL after the other, first the URL that answered last, until one answers.

    The URL that answered last is stale as soon as it does not answer. The next one is then tried in the same call.
    """

    def __init__(self, settings: RegistrySettings, clock: Clock, closing: Closing) -> None:
        self._settings = settings
        self._clock = clock
        self._closing = closing
        self._tokens = TokenSource(settings, clock, closing)
        self._backoff = ExponentialBackoff(settings.retries_wait_ms, settings.retries_max_wait_ms)
        self._first = 0  # the index of the URL that answered last

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds, self._clock.monotonic() + seconds)

    def ask(self, request: Callable[[RestSession], T], deadline: Deadline) -> T:
        """The response to a request. Raises the registry's refusal, or TimeoutError, NetworkError without an answer."""
        failures = 0
        while True:
            errors: list[KafkaError] = []
            for index in self._order():
                try:
                    response = self._ask_one(index, request, deadline, len(self._settings.schema_registry_url))
                except (NetworkError, SslAuthenticationError, SchemaRegistryError) as error:
                    if not error.retriable and not isinstance(error, SslAuthenticationError):
                        raise self._struck(error) from None
                    errors.append(error)  # the next URL may have another certificate
                except KafkaError as error:
                    raise self._struck(error) from None
                else:
                    self._first = index
                    return response
            pause = self._backoff.delay(failures)
            failures += 1
            last = next((error for error in errors if error.retriable), errors[-1])
            last.args = ("; ".join(dict.fromkeys(map(str, errors))),)
            if not last.retriable or failures > self._settings.max_retries:
                raise self._struck(last)
            if self._left(deadline) <= pause:
                what = self._struck(last)
                raise TimeoutError(f"no answer of the Schema Registry within {deadline.seconds:.3g} s: {what}")
            self._wait(pause)

    def _order(self) -> list[int]:
        count = len(self._settings.schema_registry_url)
        return [(self._first + step) % count for step in range(count)]

    def _ask_one(self, index: int, request: Callable[[RestSession], T], deadline: Deadline, urls: int) -> T:
        address = self._settings.schema_registry_url[index]
        # The URLs share the time: one that swallows packets must not take that of the others.
        seconds = self._left(deadline) / urls
        if seconds <= 0:
            raise NetworkError(f"{address}: no time was left to ask it")
        share = self._clock.monotonic() + seconds
        token = self._tokens.token(seconds)
        try:
            return self._send(address, request, token, share)
        except SchemaRegistryError as error:
            if error.status != 401 or not self._tokens.drop(token):
                raise
        return self._send(address, request, self._tokens.token(share - self._clock.monotonic()), share)

    def _send(self, address: Address, request: Callable[[RestSession], T], token: str | None, until: float) -> T:
        try:
            seconds = until - self._clock.monotonic()
            return request(RestSession(self._settings, address, token, seconds, self._closing))
        except KafkaError as error:
            if token is not None:  # one of an endpoint is not among the secrets of the settings
                error.args = (str(error).replace(token, HIDDEN),)
            raise

    def _struck(self, error: KafkaError) -> KafkaError:
        error.args = (self._settings.struck(str(error)),)
        return error

    def _left(self, deadline: Deadline) -> float:
        return deadline.at - self._clock.monotonic()

    def _wait(self, seconds: float) -> None:
        never_free = new_waiter()  # only close() frees it
        with self._closing.waking(never_free.release):
            self._clock.wait(never_free, seconds)
