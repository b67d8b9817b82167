"""The settings of a producer as keywords. `python -m tools.setting_types` writes this file from the table of settings.

A mapping takes the same settings under dotted names, and every value as a string as well. None is the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, TypedDict


class Settings(TypedDict, total=False):
    """Keywords of KafkaProducer and AIOKafkaProducer, except `key_serializer` and `value_serializer`."""

    bootstrap_servers: str | Sequence[str] | None
    client_id: str | None
    client_rack: str | None
    interceptor_classes: str | Sequence[Any] | None
    on_acknowledged: Any | None
    buffer_memory: int | None
    buffer_path: str | PathLike[str] | None
    buffer_sync: Literal["process", "flush"] | int | None
    buffer_expire: Literal["never", "since_send", "since_recovery"] | None
    buffer_full: Literal["block", "refuse", "drop_oldest"] | None
    buffer_unproven: Literal["deliver", "keep"] | None
    batch_size: int | None
    linger_ms: int | None
    max_block_ms: int | None
    max_request_size: int | None
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_zstd_level: int | None
    compression_thread_enable: bool | None
    record_magic: Literal["auto", 1, 2] | None
    partitioner_class: Any | None
    partitioner_ignore_keys: bool | None
    partitioner_adaptive_partitioning_enable: bool | None
    partitioner_availability_timeout_ms: int | None
    partitioner_rack_aware: bool | None
    acks: Literal["all", -1, 0, 1] | None
    enable_idempotence: bool | None
    retries: int | None
    retry_backoff_ms: int | None
    retry_backoff_max_ms: int | None
    delivery_timeout_ms: int | None
    request_timeout_ms: int | None
    max_in_flight_requests_per_connection: int | None
    transactional_id: str | None
    transaction_timeout_ms: int | None
    transaction_two_phase_commit_enable: bool | None
    metadata_max_age_ms: int | None
    metadata_max_idle_ms: int | None
    metadata_recovery_strategy: Literal["rebootstrap", "none"] | None
    metadata_recovery_rebootstrap_trigger_ms: int | None
    metadata_cluster_check_enable: bool | None
    client_dns_lookup: Literal["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"] | None
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    connections_max_idle_ms: int | None
    reconnect_backoff_ms: int | None
    reconnect_backoff_max_ms: int | None
    socket_connection_setup_timeout_ms: int | None
    socket_connection_setup_timeout_max_ms: int | None
    metrics_num_samples: int | None
    metrics_sample_window_ms: int | None
    metrics_recording_level: Literal["INFO", "DEBUG", "TRACE"] | None
    metric_reporters: str | Sequence[Any] | None
    enable_metrics_push: bool | None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None
    ssl_truststore_type: Literal["JKS", "PKCS12", "PEM"] | None
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_certificates: str | None
    ssl_keystore_type: Literal["JKS", "PKCS12", "PEM"] | None
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: Literal["https", ""] | None
    ssl_enabled_protocols: str | Sequence[str] | None
    ssl_cipher_suites: str | Sequence[str] | None
    sasl_mechanism: Literal["GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_jaas_config: str | None
    sasl_client_callback_handler_class: Any | None
    sasl_login_callback_handler_class: Any | None
    sasl_login_connect_timeout_ms: int | None
    sasl_login_read_timeout_ms: int | None
    sasl_login_retry_backoff_ms: int | None
    sasl_login_retry_backoff_max_ms: int | None
    sasl_login_refresh_window_factor: float | None
    sasl_login_refresh_window_jitter: float | None
    sasl_login_refresh_min_period_seconds: int | None
    sasl_login_refresh_buffer_seconds: int | None
    sasl_oauthbearer_token_provider: Any | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_jwt_retriever_class: Any | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_client_credentials_client_id: str | None
    sasl_oauthbearer_client_credentials_client_secret: str | None
    sasl_oauthbearer_assertion_file: str | None
    sasl_oauthbearer_assertion_private_key_file: str | None
    sasl_oauthbearer_assertion_private_key_passphrase: str | None
    sasl_oauthbearer_assertion_algorithm: Literal["ES256", "RS256"] | None
    sasl_oauthbearer_assertion_claim_aud: str | None
    sasl_oauthbearer_assertion_claim_iss: str | None
    sasl_oauthbearer_assertion_claim_sub: str | None
    sasl_oauthbearer_assertion_claim_exp_seconds: int | None
    sasl_oauthbearer_assertion_claim_nbf_seconds: int | None
    sasl_oauthbearer_assertion_claim_jti_include: bool | None
    sasl_oauthbearer_assertion_template_file: str | None
    sasl_oauthbearer_header_urlencode: bool | None
    sasl_kerberos_service_name: str | None
    sasl_kerberos_keytab: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_kinit_cmd: str | None
    sasl_kerberos_min_time_before_relogin: int | None
    sasl_kerberos_ticket_renew_window_factor: float | None
    sasl_kerberos_ticket_renew_jitter: float | None
    schema_registry_url: str | Sequence[str] | None
    schema_registry_basic_auth_credentials_source: Literal["URL", "USER_INFO"] | None
    schema_registry_basic_auth_user_info: str | None
    schema_registry_bearer_auth_credentials_source: Literal["STATIC_TOKEN", "OAUTHBEARER"] | None
    schema_registry_bearer_auth_token: str | None
    schema_registry_bearer_auth_issuer_endpoint_url: str | None
    schema_registry_bearer_auth_client_id: str | None
    schema_registry_bearer_auth_client_secret: str | None
    schema_registry_bearer_auth_scope: str | None
    schema_registry_bearer_auth_logical_cluster: str | None
    schema_registry_bearer_auth_identity_pool_id: str | None
    schema_registry_ssl_ca_location: str | None
    schema_registry_ssl_certificate_location: str | None
    schema_registry_ssl_key_location: str | None
    schema_registry_ssl_key_password: str | None
    schema_registry_proxy: str | None
    schema_registry_http_connect_timeout_ms: int | None
    schema_registry_http_read_timeout_ms: int | None
    schema_registry_max_retries: int | None
    schema_registry_retries_wait_ms: int | None
    schema_registry_retries_max_wait_ms: int | None
    schema_registry_cache_capacity: int | None
    schema_registry_latest_cache_ttl_sec: int | None
    schema_registry_auto_register_schemas: bool | None
    schema_registry_use_latest_version: bool | None
    schema_registry_use_schema_id: int | None
    schema_registry_normalize_schemas: bool | None
    schema_registry_latest_compatibility_strict: bool | None
    schema_registry_id_compatibility_strict: bool | None
    schema_registry_schema_id_framing: Literal["prefix", "header"] | None
    schema_registry_subject_name_strategy: Any | None
    schema_registry_key_subject_name_strategy: Any | None
    schema_registry_value_subject_name_strategy: Any | None
