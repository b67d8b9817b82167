"""The settings of the producer itself: names, types, defaults, ranges and one-line descriptions."""

from __future__ import annotations

from typing import Any, Literal

from kafkabuf.config import values
from kafkabuf.config.kinds import INT32_MAX, INT64_MAX, choice, flag, integer, long, path, special, text
from kafkabuf.config.security import SecuritySettings

_SERIALIZER = values.by_name(values.SERIALIZERS, "serialize")
_PARTITIONER = values.by_name(values.PARTITIONERS, "partition")


class ProducerSettings(SecuritySettings):
    """Every setting of one producer."""

    model_fields_set: frozenset[str]
    """The settings that the user gave."""

    bootstrap_servers: tuple[tuple[str, int], ...] = special(
        values.addresses, None, "host:port of some brokers, separated by commas.", "list", "host:port"
    )
    # A request holds at most 32767 bytes of it, and a character takes up to 4 bytes in UTF-8.
    client_id: str = text("kafkabuf", "The client's name in requests, metrics and logs.", longest=8191)
    client_rack: str = text("", "The zone that the client is in, as broker.rack names the brokers' zones.")
    key_serializer: Any = special(_SERIALIZER, None, "Turns keys into bytes; without it, keys must be bytes.")
    value_serializer: Any = special(_SERIALIZER, None, "Turns values into bytes; without it, values must be bytes.")
    interceptor_classes: tuple[Any, ...] = special(
        values.objects, (), "Objects that may change a record before send() and see its outcome.", "list", "objects"
    )

    on_acknowledged: Any = special(
        values.callable_only, None, "Called once for each batch with its BatchOutcome, in the Sender's thread."
    )

    buffer_memory: int = integer(
        32 * 1024 * 1024,
        "Bytes for all records without an outcome; the producer allocates them when it opens.",
        high=INT64_MAX,
    )
    buffer_path: str | None = path(
        "A file that holds all records without an outcome: the next producer that opens it delivers what a killed "
        "process left (not in Java): see [durability.md](durability.md).",
        blank=False,
    )
    buffer_sync: str | int = special(
        values.sync,
        "process",
        "What the file survives: process, the end of the process; flush, the loss of power once flush() has returned; "
        "a number of milliseconds, the loss of power after that time.",
        "string",
        "process, flush, milliseconds",
    )
    buffer_expire: str = choice(
        "never",
        "With a file, whether delivery.timeout.ms fails records: never; counted since_send, in whatever process; or "
        "since_recovery, in this process.",
        "never",
        "since_send",
        "since_recovery",
        fold=str.lower,
    )
    buffer_full: str = choice(
        "block",
        "What send() does when the file is full: block for max.block.ms, refuse the record at once, or drop_oldest.",
        "block",
        "refuse",
        "drop_oldest",
        fold=str.lower,
    )
    buffer_unproven: str = choice(
        "deliver",
        "What becomes of recovered records that the cluster may have already, where it cannot be known: deliver them, "
        "perhaps a second time, or keep them in the file.",
        "deliver",
        "keep",
        fold=str.lower,
    )
    batch_size: int = integer(16384, "Bytes of a batch; the producer fills one batch of a partition at a time.")
    linger_ms: int = long(5, "How long a batch waits for more records.")
    max_block_ms: int = long(60_000, "How long a call such as send() waits for metadata and memory together.")
    max_request_size: int = integer(1_048_576, "Largest request in bytes, and largest record before compression.")
    compression_type: str = choice(
        "none", "Compression codec of batches.", "none", "gzip", "snappy", "lz4", "zstd", fold=str.lower
    )
    compression_gzip_level: int = integer(
        -1, "1 is fastest, 9 compresses most, -1 is gzip's own default.", low=-1, high=9, valid="1 to 9, or -1"
    )
    compression_lz4_level: int = integer(9, "A higher level compresses more.", low=1, high=17)
    compression_zstd_level: int = integer(3, "A higher level compresses more.", low=-131072, high=22)
    compression_thread_enable: bool = flag(
        False, "A second thread compresses beside the Sender: quicker where a core is free (not in Java)."
    )
    record_magic: Literal["auto", 1, 2] = special(
        values.magic,
        "auto",
        "Record format: 2, or 1 for brokers up to Kafka 3.9 (not in Java); auto is 2.",
        "string",
        "auto, 1, 2",
    )

    partitioner_class: Any = special(
        _PARTITIONER,
        None,
        "Chooses the partition: a callable, an object or a name; without it, the key decides, or the sticky partition.",
    )
    partitioner_ignore_keys: bool = flag(False, "Choose the partition as if records had no key.")
    partitioner_adaptive_partitioning_enable: bool = flag(
        True, "Send more of the records without key to faster brokers (KIP-794)."
    )
    partitioner_availability_timeout_ms: int = long(
        0, "A broker that takes no batch for this long gets no records without key; 0: no limit."
    )
    partitioner_rack_aware: bool = flag(
        False, "Records without key go to partitions whose leader is in client.rack, while there are any (KIP-1123)."
    )

    acks: int = special(
        values.acks,
        -1,
        "Which replicas must have a batch before it is acknowledged: all in sync (all, -1), the leader (1), none (0).",
        "string",
        "all, -1, 0, 1",
    )
    enable_idempotence: bool = flag(True, "A retry writes no record twice and keeps the order.")
    retries: int = integer(INT32_MAX, "How often a batch is retried, within delivery.timeout.ms.")
    retry_backoff_ms: int = long(100, "Pause before the first retry; doubles with each retry.")
    retry_backoff_max_ms: int = long(1000, "Longest pause before a retry.")
    delivery_timeout_ms: int = integer(120_000, "Longest time from send() to the record's outcome.")
    request_timeout_ms: int = integer(30_000, "How long the client waits for a response.")
    max_in_flight_requests_per_connection: int = integer(
        5, "Most requests to a broker that are sent and not answered.", low=1
    )

    transactional_id: str | None = text(
        None, "Makes the producer transactional, under this name.", shortest=1, longest=8191
    )
    transaction_timeout_ms: int = integer(60_000, "The coordinator aborts a transaction that is open for this long.")
    transaction_two_phase_commit_enable: bool = flag(
        False, "Transactions never expire: an external coordinator decides how they end (KIP-939)."
    )

    metadata_max_age_ms: int = long(300_000, "The client refreshes metadata at least this often.")
    metadata_max_idle_ms: int = integer(
        300_000, "The client drops the metadata of a topic that was not used for this long.", low=5000, high=INT64_MAX
    )
    metadata_recovery_strategy: str = choice(
        "rebootstrap",
        "rebootstrap: connect to bootstrap.servers again when no known broker is reachable (KIP-899).",
        "rebootstrap",
        "none",
        fold=str.lower,
    )
    metadata_recovery_rebootstrap_trigger_ms: int = long(
        300_000, "The client also rebootstraps after this long without metadata (KIP-1102)."
    )
    metadata_cluster_check_enable: bool = flag(
        True,
        "A broker that is not the one of this cluster that the client means makes the client rebootstrap (KIP-1242; "
        "brokers from Kafka 4.4 on).",
    )
    client_dns_lookup: str = choice(
        "use_all_dns_ips",
        "Which addresses of a host name the client tries.",
        "use_all_dns_ips",
        "resolve_canonical_bootstrap_servers_only",
        fold=str.lower,
    )
    send_buffer_bytes: int = integer(131_072, "SO_SNDBUF of sockets; -1: the system's default.", low=-1)
    receive_buffer_bytes: int = integer(32_768, "SO_RCVBUF of sockets; -1: the system's default.", low=-1)
    connections_max_idle_ms: int = integer(
        540_000,
        "The client closes a connection that was idle for this long; below 0: never.",
        low=-INT64_MAX,
        high=INT64_MAX,
        valid="",
    )
    reconnect_backoff_ms: int = long(
        50, "Pause before the client connects to a broker again; doubles with each failure."
    )
    reconnect_backoff_max_ms: int = long(1000, "Longest pause before the client connects again.")
    socket_connection_setup_timeout_ms: int = long(
        10_000, "How long a connection attempt may take; doubles with each failure."
    )
    socket_connection_setup_timeout_max_ms: int = long(30_000, "Longest time that a connection attempt may take.")

    metrics_num_samples: int = integer(2, "Number of time windows for rates, averages and maxima.", low=1)
    metrics_sample_window_ms: int = long(30_000, "Length of one time window.")
    metrics_recording_level: str = choice(
        "INFO", "Which metrics are recorded.", "INFO", "DEBUG", "TRACE", fold=str.upper
    )
    metric_reporters: tuple[Any, ...] = special(
        values.objects, (), "Objects (or callables) that get a function which returns the metrics.", "list", "objects"
    )
    enable_metrics_push: bool = flag(True, "Push metrics to the cluster, if its operator subscribes to them (KIP-714).")
