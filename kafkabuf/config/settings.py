"""The settings of the producer itself: names, types, defaults, ranges and one-line descriptions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kafkabuf.config.security import SecuritySettings
from kafkabuf.config.values import (
    INT32_MAX,
    Acks,
    Addresses,
    AnyPartitioner,
    AnySerializer,
    Bytes,
    Flag,
    Int32,
    Lower,
    Magic,
    Milliseconds,
    NeverPushed,
    Number,
    Objects,
    Upper,
)


class ProducerSettings(SecuritySettings):
    """Every setting of one producer."""

    bootstrap_servers: Addresses = Field(description="host:port of some brokers, separated by commas.")
    # A request holds at most 32767 bytes of it, and a character takes up to 4 bytes in UTF-8.
    client_id: Annotated[str, Field(max_length=8191)] = Field(
        "kafkabuf", description="The client's name in requests, metrics and logs."
    )
    key_serializer: AnySerializer = Field(None, description="Turns keys into bytes; without it, keys must be bytes.")
    value_serializer: AnySerializer = Field(
        None, description="Turns values into bytes; without it, values must be bytes."
    )
    interceptor_classes: Objects = Field(
        (), description="Objects that may change a record before send() and see its outcome."
    )

    buffer_memory: Bytes = Field(
        32 * 1024 * 1024,
        description="Bytes for all records without an outcome; the producer allocates them when it opens.",
    )
    batch_size: Int32 = Field(
        16384, description="Bytes of a batch; the producer fills one batch of a partition at a time."
    )
    linger_ms: Milliseconds = Field(5, description="How long a batch waits for more records.")
    max_block_ms: Milliseconds = Field(
        60_000, description="How long a call such as send() waits for metadata and memory together."
    )
    max_request_size: Int32 = Field(
        1_048_576, description="Largest request in bytes, and largest record before compression."
    )
    compression_type: Annotated[Literal["none", "gzip", "snappy", "lz4", "zstd"], Lower] = Field(
        "none", description="Compression codec of batches."
    )
    compression_gzip_level: Annotated[int, Number, Field(ge=-1, le=9)] = Field(
        -1, description="1 is fastest, 9 compresses most, -1 is gzip's own default."
    )
    compression_lz4_level: Annotated[int, Number, Field(ge=1, le=17)] = Field(
        9, description="A higher level compresses more."
    )
    compression_zstd_level: Annotated[int, Number, Field(ge=-131072, le=22)] = Field(
        3, description="A higher level compresses more."
    )
    record_magic: Magic = Field(
        "auto", description="Record format: 2, or 1 for brokers up to Kafka 3.9 (not in Java); auto is 2."
    )

    partitioner_class: AnyPartitioner = Field(
        None,
        description="Chooses the partition: a callable, an object or a name; without it, the key decides, or the "
        "sticky partition.",
    )
    partitioner_ignore_keys: Flag = Field(False, description="Choose the partition as if records had no key.")
    partitioner_adaptive_partitioning_enable: Flag = Field(
        True, description="Send more of the records without key to faster brokers (KIP-794)."
    )
    partitioner_availability_timeout_ms: Milliseconds = Field(
        0, description="A broker that takes no batch for this long gets no records without key; 0: no limit."
    )

    acks: Acks = Field(
        -1,
        description="Which copies must have a batch before it is acknowledged: all in sync (all, -1), the leader's "
        "(1), none (0).",
    )
    enable_idempotence: Flag = Field(True, description="A retry writes no record twice and keeps the order.")
    retries: Int32 = Field(INT32_MAX, description="How often a batch is retried, within delivery.timeout.ms.")
    retry_backoff_ms: Milliseconds = Field(100, description="Pause before the first retry; doubles with each retry.")
    retry_backoff_max_ms: Milliseconds = Field(1000, description="Longest pause before a retry.")
    delivery_timeout_ms: Int32 = Field(120_000, description="Longest time from send() to the record's outcome.")
    request_timeout_ms: Int32 = Field(30_000, description="How long the client waits for a response.")
    max_in_flight_requests_per_connection: Annotated[int, Number, Field(ge=1, le=INT32_MAX)] = Field(
        5, description="Most requests to a broker that are sent and not answered."
    )

    transactional_id: Annotated[str, Field(min_length=1, max_length=8191)] | None = Field(
        None, description="Makes the producer transactional, under this name."
    )
    transaction_timeout_ms: Int32 = Field(
        60_000, description="The coordinator aborts a transaction that is open for this long."
    )
    transaction_two_phase_commit_enable: Flag = Field(
        False, description="Transactions never expire: an external coordinator decides how they end (KIP-939)."
    )

    metadata_max_age_ms: Milliseconds = Field(300_000, description="The client refreshes metadata at least this often.")
    metadata_max_idle_ms: Annotated[int, Number, Field(ge=5000)] = Field(
        300_000, description="The client drops the metadata of a topic that was not used for this long."
    )
    metadata_recovery_strategy: Annotated[Literal["rebootstrap", "none"], Lower] = Field(
        "rebootstrap",
        description="rebootstrap: connect to bootstrap.servers again when no known broker is reachable (KIP-899).",
    )
    metadata_recovery_rebootstrap_trigger_ms: Milliseconds = Field(
        300_000, description="The client also rebootstraps after this long without metadata (KIP-1102)."
    )
    client_dns_lookup: Annotated[Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"], Lower] = Field(
        "use_all_dns_ips", description="Which addresses of a host name the client tries."
    )
    send_buffer_bytes: Annotated[int, Number, Field(ge=-1, le=INT32_MAX)] = Field(
        131_072, description="SO_SNDBUF of sockets; -1: the system's default."
    )
    receive_buffer_bytes: Annotated[int, Number, Field(ge=-1, le=INT32_MAX)] = Field(
        32_768, description="SO_RCVBUF of sockets; -1: the system's default."
    )
    connections_max_idle_ms: Annotated[int, Number] = Field(
        540_000, description="The client closes a connection that was idle for this long; below 0: never."
    )
    reconnect_backoff_ms: Milliseconds = Field(
        50, description="Pause before the client connects to a broker again; doubles with each failure."
    )
    reconnect_backoff_max_ms: Milliseconds = Field(1000, description="Longest pause before the client connects again.")
    socket_connection_setup_timeout_ms: Milliseconds = Field(
        10_000, description="How long a connection attempt may take; doubles with each failure."
    )
    socket_connection_setup_timeout_max_ms: Milliseconds = Field(
        30_000, description="Longest time that a connection attempt may take."
    )

    metrics_num_samples: Annotated[int, Number, Field(ge=1, le=INT32_MAX)] = Field(
        2, description="Number of time windows for rates, averages and maxima."
    )
    metrics_sample_window_ms: Milliseconds = Field(30_000, description="Length of one time window.")
    metrics_recording_level: Annotated[Literal["INFO", "DEBUG", "TRACE"], Upper] = Field(
        "INFO", description="Which metrics are recorded."
    )
    metric_reporters: Objects = Field(
        (), description="Objects (or callables) that get a function which returns the metrics."
    )
    enable_metrics_push: NeverPushed = Field(
        False, description="kafkabuf pushes no metrics to brokers (KIP-714): read producer.metrics()."
    )
