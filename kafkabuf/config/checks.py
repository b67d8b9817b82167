"""Settings that go together: defaults that give way to what was given, contradictions, and warnings.

As Java's ProducerConfig does it, where it has the setting.
"""

from __future__ import annotations

from typing import Any

from kafkabuf.config.settings import ProducerSettings
from kafkabuf.errors import ConfigError

# Of so many batches of a partition brokers remember the numbers.
MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5


def settled_defaults(settings: ProducerSettings) -> dict[str, Any]:
    """The fields nobody has given whose default does not go with what was given, and what they are instead."""
    given, settled = settings.model_fields_set, dict[str, Any]()
    if "delivery_timeout_ms" not in given:
        needed = settings.linger_ms + settings.request_timeout_ms
        settled["delivery_timeout_ms"] = max(needed, settings.delivery_timeout_ms)
    if "reconnect_backoff_ms" in given and "reconnect_backoff_max_ms" not in given:
        settled["reconnect_backoff_max_ms"] = settings.reconnect_backoff_ms
    if "enable_idempotence" not in given:
        possible = settings.retries > 0 and settings.acks == -1 and settings.record_magic != 1
        settled["enable_idempotence"] = settings.enable_idempotence and possible
    return settled


def check(settings: ProducerSettings) -> None:
    """Raises ConfigError for settings that contradict one another."""
    _check_idempotence(settings)
    _check_transactions(settings)
    _check_delivery(settings)


def _check_idempotence(settings: ProducerSettings) -> None:
    if not settings.enable_idempotence:
        return
    wrong, in_flight = None, settings.max_in_flight_requests_per_connection
    if settings.acks != -1:
        wrong = f"acks=all, found {settings.acks}"
    elif settings.retries == 0:
        wrong = "retries above 0"
    elif in_flight > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
        wrong = f"max.in.flight.requests.per.connection of at most {MAX_IN_FLIGHT_WITH_IDEMPOTENCE}, found {in_flight}"
    elif settings.record_magic == 1:
        wrong = "record.magic 2 (or auto): the older format has no numbers"
    if wrong is not None:
        raise ConfigError(f"enable.idempotence needs {wrong}; set it to false to do without")


def _check_transactions(settings: ProducerSettings) -> None:
    if settings.transactional_id is not None and not settings.enable_idempotence:
        raise ConfigError(
            "transactional.id needs idempotence: leave out enable.idempotence, and with it retries=0 and acks below all"
        )
    if settings.transaction_two_phase_commit_enable and "transaction_timeout_ms" in settings.model_fields_set:
        raise ConfigError(
            "transaction.timeout.ms has no meaning with transaction.two.phase.commit.enable=true, whose transactions "
            "never expire: leave one of them out"
        )


def _check_delivery(settings: ProducerSettings) -> None:
    if settings.delivery_timeout_ms < settings.linger_ms + settings.request_timeout_ms:
        raise ConfigError(
            f"delivery.timeout.ms ({settings.delivery_timeout_ms}) must be at least linger.ms ({settings.linger_ms}) "
            f"+ request.timeout.ms ({settings.request_timeout_ms})"
        )
    if settings.compression_gzip_level == 0:
        raise ConfigError("compression.gzip.level is 1 to 9, or -1 for gzip's own default; found 0")
    if settings.compression_type == "zstd" and settings.record_magic == 1:
        raise ConfigError("compression.type=zstd needs record.magic 2: brokers take no zstd in the older format")
