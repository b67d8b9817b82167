"""Kerberos credentials: a login with a keytab, or the user's ticket cache, and their renewal before they end.

A login with a keytab fills a cache in the memory of this process: no kinit, and no file. A ticket cache belongs to the
user: the client renews it with `kinit -R`, as Java's client does, and otherwise only reads it. Kafka's counterpart is
KerberosLogin.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Callable
from typing import NamedTuple

from kafkabuf.clock import Clock
from kafkabuf.config.model import ProducerConfig
from kafkabuf.errors import KafkaError, SaslAuthenticationError, printable
from kafkabuf.network.sasl.gss import Credentials, Gss
from kafkabuf.network.sasl.gss_errors import Situation
from kafkabuf.process.background import BackgroundCall
from kafkabuf.process.producer_log import producer_log
from kafkabuf.process.threads import Lock

log = producer_log("kafkabuf.network")

NEVER = float("inf")
KINIT_PATIENCE = 60.0  # seconds
# The least seconds between two attempts to renew, whatever sasl.kerberos.min.time.before.relogin says.
SHORTEST_PAUSE = 1.0
SAME_END = 2.0  # seconds: the library gives a lifetime in whole seconds
_numbers = itertools.count(1)
_FILE = re.compile(r"^file:", re.I)


class Source(NamedTuple):
    """Where credentials come from: the principal's key in a keytab, or a ticket cache. None: the library's default."""

    principal: str | None
    keytab: str | None
    cache: str | None


class Login:
    """The client's credentials. Threads: `renew` is called by the Sender's, all else by others, because it is slow."""

    def __init__(
        self, source: Source, config: ProducerConfig, gss: Gss, clock: Clock, random: Callable[[], float]
    ) -> None:
        self._source = source
        self._config = config
        self._gss = gss
        self._clock = clock
        self._random = random
        self._one_at_a_time = Lock()  # held during a login
        self._logins = 0  # how many have ended, and the error of the newest
        self._error: KafkaError | None = None
        # The cache in memory that the newest login has filled, and the one that the next login will fill. The library
        # frees a cache in memory only with the process (a few kilobytes): a login that fails leaves its to the next.
        self._cache = ""
        self._next_cache = _new_cache()
        self._ends = 0.0  # when the ticket ends, and when to renew it, by the monotonic clock
        self._due = NEVER
        self._renewal: BackgroundCall[None] | None = None  # the newest

    def credentials(self) -> Credentials:
        """A handle for one authentication. Logs in if the ticket has ended. Raises KafkaError.

        The library locks a handle while it asks the KDC. With a handle of its own, no authentication waits for another.
        """
        if self._source.keytab is None:
            credentials = self._gss.from_cache(
                self._source.principal, self._source.cache, self.situation("to read a ticket")
            )
            self._schedule(credentials.lifetime)
            return credentials
        if self._cache:
            credentials = self._in_memory()
            if credentials.lifetime > 0:
                return credentials
        self._log_in()
        return self._in_memory()

    def renew(self, on_done: Callable[[], None]) -> float:
        """Start a renewal that is due, in another thread. Returns when to call again, by the monotonic clock."""
        now = self._clock.monotonic()
        if now < self._due or (self._renewal is not None and not self._renewal.done):
            return max(self._due, now + SHORTEST_PAUSE)
        # If this attempt succeeds, it sets a later time.
        due = self._due = now + self._pause()
        self._renewal = BackgroundCall(self._renew, on_done, "kafkabuf-kerberos-renewal")
        return due

    def situation(self, attempt: str, broker: str = "") -> Situation:
        return Situation(attempt, *self._source, broker)

    def _in_memory(self) -> Credentials:
        return self._gss.from_cache(self._source.principal, self._cache, self.situation("to read a ticket"))

    def _log_in(self) -> None:
        """Log in with the keytab, or take the outcome of a login that another thread has ended meanwhile."""
        seen = self._logins
        with self._one_at_a_time:
            if self._logins == seen:
                try:
                    self._fill_cache()
                    self._error = None
                except KafkaError as error:
                    self._error = error
                finally:
                    self._logins += 1
            if self._error is not None:
                raise type(self._error)(*self._error.args)  # without the traceback of the other thread

    def _fill_cache(self) -> None:
        principal, keytab = self._source.principal, self._source.keytab
        assert principal is not None
        assert keytab is not None
        try:
            with open(_FILE.sub("", keytab), "rb"):
                pass
        except OSError as error:  # the library would only say that there are no credentials
            text = f"GSSAPI: the keytab {keytab} of {principal} cannot be read here: {error.strerror}"
            raise SaslAuthenticationError(text) from None
        credentials = self._gss.log_in(principal, keytab, self._next_cache, self.situation("to log in"))
        self._cache, self._next_cache = self._next_cache, _new_cache()
        self._schedule(credentials.lifetime)
        log.info("logged in as %s, with a ticket for %d s", principal, credentials.lifetime)

    def _schedule(self, lifetime: float) -> None:
        """Kafka's KerberosLogin: renew after a part of the lifetime, and not sooner than after the pause.

        The ticket of a cache is seen again and again: it keeps the time that it has.
        """
        config, now = self._config, self._clock.monotonic()
        ends = now + lifetime
        if abs(ends - self._ends) < SAME_END:
            return
        self._ends = ends
        part = (
            config.sasl_kerberos_ticket_renew_window_factor + config.sasl_kerberos_ticket_renew_jitter * self._random()
        )
        due = now + lifetime * min(part, 1.0)
        later = now + self._pause()
        # A ticket that would end before the pause does is renewed sooner.
        self._due = max(due, later) if later < ends else max(due, now + SHORTEST_PAUSE)

    def _pause(self) -> float:
        return max(self._config.sasl_kerberos_min_time_before_relogin / 1000, SHORTEST_PAUSE)

    def _renew(self) -> None:
        try:
            if self._source.keytab is None:
                self._renew_cache()
            else:
                self._log_in()
        except KafkaError as error:
            # The ticket is still good for a while. If no renewal succeeds until its end, authentications fail with it.
            log.warning("the Kerberos ticket could not be renewed, and will be tried again: %s", error)

    def _renew_cache(self) -> None:
        """Renew the ticket in the user's cache, unless somebody else has done so."""
        source, situation = self._source, self.situation("to read a ticket")
        before = self._gss.from_cache(source.principal, source.cache, situation).lifetime
        if self._clock.monotonic() + before > self._ends + SAME_END:
            self._schedule(before)
            return
        self._run_kinit()
        after = self._gss.from_cache(source.principal, source.cache, situation).lifetime
        if after > before + SAME_END:
            self._schedule(after)
            log.info("renewed the ticket in %s for %d s", situation.where, after)
        else:
            raise SaslAuthenticationError(f"{situation.where} has no ticket that can be renewed longer: run kinit")

    def _run_kinit(self) -> None:
        named = [] if self._source.cache is None else ["-c", self._source.cache]
        command = [self._config.sasl_kerberos_kinit_cmd, "-R", *named]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=KINIT_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SaslAuthenticationError(f"{' '.join(command)}: {printable(str(error))}") from None
        if done.returncode != 0:
            text = printable(done.stderr.decode(errors="replace").strip())
            raise SaslAuthenticationError(f"{' '.join(command)} ended with status {done.returncode}: {text}")


def _new_cache() -> str:
    return f"MEMORY:kafkabuf-{os.getpid()}-{next(_numbers)}"
