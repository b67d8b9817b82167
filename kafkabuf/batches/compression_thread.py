"""A thread that compresses batches beside the Sender, where `compression.thread.enable` is set.

The Sender wakes the thread when it compresses a batch while more batches wait. The thread then compresses batches that
the Sender will take soon, until none is left, and sleeps. No record depends on the thread: the Sender compresses what
the thread has not tried, so that a lost wake-up costs speed only.

The thread claims the batch that it compresses (DrainCore.claim_ahead), and the Sender leaves a claimed batch alone. A
batch that expires, is purged or aborted meanwhile has its outcome at once; its slab returns when the codec has
returned, as for any reader. The Sender joins the thread before the scratch is released. A forked child starts its own.

The setting is off by default, because the thread helps only where a core is free.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkabuf.process.producer_log import client_id_here, log_as, producer_log
from kafkabuf.process.threads import Event, new_thread

log = producer_log("kafkabuf.producer")


class CompressionThread:
    """The Sender's thread calls every method."""

    def __init__(self, compress_ahead: Callable[[], bool], name: str) -> None:
        self._compress_ahead = compress_ahead
        self._work = Event()
        self._over = False
        self._client_id = client_id_here()
        self._thread = new_thread(self._run, name)

    @classmethod
    def started(cls, compress_ahead: Callable[[], bool], name: str) -> CompressionThread | None:
        """A thread that calls `compress_ahead` until it returns False; None where no thread can start."""
        thread = cls(compress_ahead, name)
        try:
            thread._thread.start()
        except (RuntimeError, MemoryError) as error:  # there are too many threads
            thread._over = True  # a thread that has begun all the same ends before it compresses a batch
            thread._work.set()
            log.warning("%s did not start, so the Sender compresses all batches: %s", name, error)
            return None
        return thread

    def wake(self) -> None:
        """More batches wait to be compressed."""
        if not self._work.is_set():
            self._work.set()

    def stop(self) -> None:
        """Wait until the thread has ended: for the batch that it compresses now, at most."""
        self._over = True
        self._work.set()
        self._thread.join()

    def _run(self) -> None:
        with log_as(self._client_id):
            self._compress()

    def _compress(self) -> None:
        while not self._over:
            try:
                self._work.wait()
                # Clear first: a wake-up during the loop below counts for the next one.
                self._work.clear()
                while not self._over and self._compress_ahead():
                    pass
            except BaseException:  # even SystemExit of a codec: the thread would end without a word
                log.exception("compression ahead of the Sender failed; the Sender compresses the batch")
