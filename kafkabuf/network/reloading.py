"""The SSLContext of new connections: it is made again when a file of the ssl.* settings has other content.

So a producer outlives the renewal of a certificate. Java's producer keeps the files that it read when it opened.
Thread: the Sender's, which opens the connections.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import KafkaError, printable
from kafkabuf.network._tls import TlsConnection
from kafkabuf.network.tls import context as tls
from kafkabuf.process.producer_log import producer_log

if TYPE_CHECKING:
    import ssl

log = producer_log("kafkabuf.network")

SECONDS_BETWEEN_CHECKS = 1.0
# A file that changed a moment ago may be half written: a part of a trust store can look like a smaller trust store.
SECONDS_OF_WRITING = 1.0
# A file above this size is no store. The check must not read a large file again and again.
LARGEST_STORE = 4 * 1024 * 1024


class ReloadingTls:
    """Makes the TLS of a connection to a host, with the present content of the files. Raises ConfigError at first.

    The context is stale when the content of a file changes; the next connection notices, if the last check and the
    change were a second ago. A changed file that is not usable, such as one that is half written, leaves the context as
    it is.
    """

    def __init__(self, config: ProducerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        locations = config.ssl_truststore_location, config.ssl_keystore_location
        self._files = [location for location in locations if location is not None]
        # Read before the files are loaded: a change between the two counts as a change.
        self._tried = self._contents()
        self._context: ssl.SSLContext = tls.client_context(config)
        self._next_check = clock.monotonic() + SECONDS_BETWEEN_CHECKS
        self._has_warned = False

    def __call__(self, host: str) -> TlsConnection:
        now = self._clock.monotonic()
        if self._files and now >= self._next_check:
            self._next_check = now + SECONDS_BETWEEN_CHECKS
            self._check()
        return TlsConnection(self._context, host)

    def _check(self) -> None:
        contents = self._contents()
        if contents == self._tried or self._is_being_written():
            return
        self._tried = contents
        names = ", ".join(self._files)
        try:
            self._context = tls.client_context(self._config)
        except (KafkaError, OSError, ValueError) as error:
            if not self._has_warned:
                self._has_warned = True
                text = printable(str(error))
                log.warning(
                    "%s changed and cannot be used: %s; new connections go on with the former content", names, text
                )
            return
        self._has_warned = False
        log.info("%s changed: new connections use the new content", names)

    def _is_being_written(self) -> bool:
        now = self._clock.time_ms() / 1000
        return any(0 <= now - _changed_at(file) < SECONDS_OF_WRITING for file in self._files)

    def _contents(self) -> list[bytes]:
        return [_digest(file) for file in self._files]


def _digest(file: str) -> bytes:
    """A digest of a file's content, or of the error of reading it.

    The time of the last change would not do: it has the same value for two changes at short distance. A pipe is not
    read, because its content can be read once.
    """
    try:
        if not stat.S_ISREG(os.stat(file).st_mode):
            return b"no file"
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read(LARGEST_STORE)).digest()
    except OSError as error:
        return str(error.errno).encode()


def _changed_at(file: str) -> float:
    """When the file changed, in seconds since the epoch; 0.0 if there is no file."""
    try:
        return os.stat(file).st_mtime
    except OSError:
        return 0.0
