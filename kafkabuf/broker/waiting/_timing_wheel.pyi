"""The Python interface of the timing wheel; the purgatory uses the C interface in _timing_wheel.pxd."""

from collections.abc import Callable
from typing import final

from kafkabuf.clock import Clock

class TimerTask:
    """A task that a TimingWheel runs later: a Timeout, or a DelayedOperation. Source: Kafka's TimerTask."""

    def cancel(self) -> None: ...

@final
class Timeout(TimerTask):
    """A call that is due later. TimingWheel.after makes it."""

class TimingWheel:
    """Calls that are due later, added and cancelled in O(1) from any thread. Source: Kafka's TimingWheel, SystemTimer.

    A tick takes `tick_ms` milliseconds and a wheel has `wheel_size` buckets. All other times are in seconds of
    `clock.monotonic()`.
    """

    def __init__(self, clock: Clock, tick_ms: int = 1, wheel_size: int = 20) -> None: ...

    on_earlier: Callable[[], None] | None
    @property
    def clock(self) -> Clock: ...
    @property
    def tick_ms(self) -> int: ...
    @property
    def wheel_size(self) -> int: ...
    def __len__(self) -> int: ...
    def after(self, seconds: float, call: Callable[[], object]) -> Timeout: ...
    def advance(self, most: int = ...) -> int: ...
    def next_expiry(self) -> float | None: ...
    def close(self) -> None: ...
