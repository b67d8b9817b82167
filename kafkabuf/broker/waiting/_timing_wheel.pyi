"""The timing wheel's Python face; the C face that the purgatory uses is in _timing_wheel.pxd."""

from collections.abc import Callable
from typing import final

from kafkabuf.clock import Clock

class TimerTask:
    """What a TimingWheel does later: a Timeout, or a DelayedOperation. Source: Kafka's TimerTask."""

    def cancel(self) -> None: ...

@final
class Timeout(TimerTask):
    """A call that is due later; TimingWheel.after makes it."""

class TimingWheel:
    """Calls that are due later, added and cancelled in O(1) from any thread. Source: Kafka's TimingWheel, SystemTimer.

    `tick_ms` milliseconds, `wheel_size` buckets; everything else is in seconds of `clock.monotonic()`.
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
    def advance(self) -> int: ...
    def next_expiry(self) -> float | None: ...
    def close(self) -> None: ...
