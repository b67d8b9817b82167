"""The settings of the producer itself: names, types, defaults, ranges, and a line for each on what it does."""

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
    # At most 8191 characters: in UTF-8 within the 32767 bytes that requests hold.
    client_id: Annotated[str, Field(max_length=8191)] = Field("kafkabuf", description="Named in requests and logs.")
    key_serializer: AnySerializer = Field(None, description="Makes bytes of keys; without one, keys are bytes.")
    value_serializer: AnySerializer = Field(None, description="Makes bytes of values; without one, values are bytes.")
    interceptor_classes: Objects = Field((), description="Objects that see records before and outcomes after.")

    buffer_memory: Bytes = Field(
        32 * 1024 * 1024, description="Bytes that hold all unsent records, taken when the producer opens."
    )
    batch_size: Int32 = Field(16384, description="Bytes of a batch, of which each partition fills one at a time.")
    linger_ms: Milliseconds = Field(5, description="How long a batch waits for more records.")
    max_block_ms: Milliseconds = Field(
        60_000, description="How long send() and the like wait, for metadata and for memory together."
    )
    max_request_size: Int32 = Field(1_048_576, description="Bytes of a request, and so of a record, uncompressed.")
    compression_type: Annotated[Literal["none", "gzip", "snappy", "lz4", "zstd"], Lower] = Field(
        "none", description="Codec of batches."
    )
    compression_gzip_level: Annotated[int, Number, Field(ge=-1, le=9)] = Field(
        -1, description="1 is fastest, 9 smallest, -1 gzip's own default."
    )
    compression_lz4_level: Annotated[int, Number, Field(ge=1, le=17)] = Field(9, description="Higher is smaller.")
    compression_zstd_level: Annotated[int, Number, Field(ge=-131072, le=22)] = Field(
        3, description="Higher is smaller."
    )
    record_magic: Magic = Field(
        "auto", description="Record format: 2, or 1 for brokers up to Kafka 3.9 (not in Java); auto is 2."
    )

    partitioner_class: AnyPartitioner = Field(
        None, description="Chooses the partition: a callable, an object, or a name; without it, by key or sticky."
    )
    partitioner_ignore_keys: Flag = Field(False, description="Choose the partition as if there were no key.")
    partitioner_adaptive_partitioning_enable: Flag = Field(
        True, description="Records without key go more to brokers that are quick (KIP-794)."
    )
    partitioner_availability_timeout_ms: Milliseconds = Field(
        0, description="A broker that takes nothing for so long gets no records without key; 0: never."
    )

    acks: Acks = Field(-1, description="Who must have a batch before it is acknowledged: all, the leader, nobody.")
    enable_idempotence: Flag = Field(True, description="Retries write no record twice and keep the order.")
    retries: Int32 = Field(INT32_MAX, description="How often a batch is sent again within delivery.timeout.ms.")
    retry_backoff_ms: Milliseconds = Field(100, description="Pause before a request is repeated, doubled each time.")
    retry_backoff_max_ms: Milliseconds = Field(1000, description="Longest such pause.")
    delivery_timeout_ms: Int32 = Field(120_000, description="From send() to the outcome, at most.")
    request_timeout_ms: Int32 = Field(30_000, description="How long an answer is waited for.")
    max_in_flight_requests_per_connection: Annotated[int, Number, Field(ge=1, le=INT32_MAX)] = Field(
        5, description="Requests sent and not answered, for each broker."
    )

    transactional_id: Annotated[str, Field(min_length=1, max_length=8191)] | None = Field(
        None, description="Makes the producer transactional, under this name."
    )
    transaction_timeout_ms: Int32 = Field(60_000, description="After so long the coordinator aborts a transaction.")
    transaction_two_phase_commit_enable: Flag = Field(
        False, description="Transactions never expire: somebody else decides on their end (KIP-939)."
    )

    metadata_max_age_ms: Milliseconds = Field(300_000, description="Metadata is asked for again at least so often.")
    metadata_max_idle_ms: Annotated[int, Number, Field(ge=5000)] = Field(
        300_000, description="A topic not used for so long is forgotten."
    )
    metadata_recovery_strategy: Annotated[Literal["rebootstrap", "none"], Lower] = Field(
        "rebootstrap", description="Whether to begin again with bootstrap.servers when no broker is left (KIP-899)."
    )
    metadata_recovery_rebootstrap_trigger_ms: Milliseconds = Field(
        300_000, description="Without metadata for so long the client begins again as well (KIP-1102)."
    )
    client_dns_lookup: Annotated[Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"], Lower] = Field(
        "use_all_dns_ips", description="Which addresses of a host name are tried."
    )
    send_buffer_bytes: Annotated[int, Number, Field(ge=-1, le=INT32_MAX)] = Field(
        131_072, description="SO_SNDBUF; -1 is the system's choice."
    )
    receive_buffer_bytes: Annotated[int, Number, Field(ge=-1, le=INT32_MAX)] = Field(
        32_768, description="SO_RCVBUF; -1 is the system's choice."
    )
    connections_max_idle_ms: Annotated[int, Number] = Field(
        540_000, description="A connection not used for so long is closed; below 0 never."
    )
    reconnect_backoff_ms: Milliseconds = Field(50, description="Pause before a broker is connected to again, doubled.")
    reconnect_backoff_max_ms: Milliseconds = Field(1000, description="Longest such pause.")
    socket_connection_setup_timeout_ms: Milliseconds = Field(
        10_000, description="How long a connection may take to come about, doubled each time."
    )
    socket_connection_setup_timeout_max_ms: Milliseconds = Field(30_000, description="Longest such time.")

    metrics_num_samples: Annotated[int, Number, Field(ge=1, le=INT32_MAX)] = Field(
        2, description="Windows over which rates and averages are taken."
    )
    metrics_sample_window_ms: Milliseconds = Field(30_000, description="Length of one such window.")
    metrics_recording_level: Annotated[Literal["INFO", "DEBUG", "TRACE"], Upper] = Field(
        "INFO", description="Which metrics are counted."
    )
    metric_reporters: Objects = Field((), description="Objects that are told of metrics.")
    enable_metrics_push: NeverPushed = Field(
        False, description="Nothing is pushed to brokers (KIP-714); metrics() has the numbers."
    )
