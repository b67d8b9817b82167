"""Calls that take long, in a thread of their own: the Sender must not wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from kafkabuf.errors import KafkaError

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call in a thread of its own. The thread sets `done` last, and then calls `on_done`.

    If no thread can start, the call has failed at once, and the constructor calls `on_done`.
    """

    def __init__(self, call: Callable[[], T], on_done: Callable[[], None], name: str) -> None:
        self._call = call
        self._on_done = on_done
        self._result: list[T] = []
        self._error: BaseException | None = None
        self.done = False
        try:
            # A daemon: the interpreter must not wait for it.
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:  # there are too many threads
            self._error = error
            self.done = True
            on_done()

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error
        self.done = True
        self._on_done()

    def result(self) -> T:
        """The result of the call. Raises the call's error: as it is, or as the cause of a KafkaError."""
        if self._error is None:
            return self._result[0]
        if isinstance(self._error, KafkaError):
            raise self._error
        raise KafkaError(f"{type(self._error).__name__}: {self._error}") from self._error
