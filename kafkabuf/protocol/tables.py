"""The messages of our clients: the fields of each version, as in Apache Kafka's message definitions.

A message begins with its API key, name, versions, and its first flexible version (KIP-482). A line below is a field:
name, type (`[]`: an array; `{}`: the fields below, which are indented), versions (all, if there are none), the versions
in which the field may be null, its tag, and its default. Produce has a codec of its own, and so has the broker's half
of Fetch. kio has the schemas of all other messages, for the embedded broker. A client never loads kio.
"""

from __future__ import annotations

TABLES = """
0 produce 3-13 flexible 9
1 fetch 4-18 flexible 12
  request
    cluster_id: string 12+ null tag 0 = null
    replica_id: int32 4-14 = -1
    replica_state: {} 15+ tag 1
      replica_id: int32 = -1
      replica_epoch: int64 = -1
    max_wait: timedelta_i32
    min_bytes: int32
    max_bytes: int32 = 2147483647
    isolation_level: int8 = 0
    session_id: int32 7+ = 0
    session_epoch: int32 7+ = -1
    topics: []{}
      topic: string 4-12
      topic_id: uuid 13+ null
      partitions: []{}
        partition: int32
        current_leader_epoch: int32 9+ = -1
        fetch_offset: int64
        last_fetched_epoch: int32 12+ = -1
        log_start_offset: int64 5+ = -1
        partition_max_bytes: int32
        replica_directory_id: uuid 17+ null tag 0 = null
        high_watermark: int64 18+ tag 1 = 9223372036854775807
    forgotten_topics_data: []{} 7+
      topic: string 7-12
      topic_id: uuid 13+ null
      partitions: []int32 = []
    rack_id: string 11+ = ''
  response
    throttle_time: timedelta_i32
    error_code: error_code 7+
    session_id: int32 7+ = 0
    responses: []{}
      topic: string 4-12
      topic_id: uuid 13+ null
      partitions: []{}
        partition_index: int32
        error_code: error_code
        high_watermark: int64
        last_stable_offset: int64 = -1
        log_start_offset: int64 5+ = -1
        diverging_epoch: {} 12+ tag 0
          epoch: int32 = -1
          end_offset: int64 = -1
        current_leader: {} 12+ tag 1
          leader_id: int32 = -1
          leader_epoch: int32 = -1
        snapshot_id: {} 12+ tag 2
          end_offset: int64 = -1
          epoch: int32 = -1
        aborted_transactions: []{} null
          producer_id: int64
          first_offset: int64
        preferred_read_replica: int32 11+ = -1
        records: records null
    node_endpoints: []{} 16+ tag 0 = []
      node_id: int32
      host: string
      port: int32
      rack: string null = null
2 list_offsets 1-11 flexible 6
  request
    replica_id: int32
    isolation_level: int8 2+
    topics: []{}
      name: string
      partitions: []{}
        partition_index: int32
        current_leader_epoch: int32 4+ = -1
        timestamp: int64
    timeout: timedelta_i32 10+
  response
    throttle_time: timedelta_i32 2+
    topics: []{}
      name: string
      partitions: []{}
        partition_index: int32
        error_code: error_code
        timestamp: int64 = -1
        offset: int64 = -1
        leader_epoch: int32 4+ = -1
3 metadata 0-13 flexible 9
  request
    topics: []{} null 1+
      topic_id: uuid 10+ null
      name: string null 10+
    allow_auto_topic_creation: bool 4+ = true
    include_cluster_authorized_operations: bool 8-10
    include_topic_authorized_operations: bool 8+
  response
    throttle_time: timedelta_i32 3+
    brokers: []{}
      node_id: int32
      host: string
      port: int32
      rack: string 1+ null = null
    cluster_id: string 2+ null = null
    controller_id: int32 1+ = -1
    topics: []{}
      error_code: error_code
      name: string null 12+
      topic_id: uuid 10+ null
      is_internal: bool 1+ = false
      partitions: []{}
        error_code: error_code
        partition_index: int32
        leader_id: int32
        leader_epoch: int32 7+ = -1
        replica_nodes: []int32 = []
        isr_nodes: []int32 = []
        offline_replicas: []int32 5+ = []
      topic_authorized_operations: int32 8+ = -2147483648
    error_code: error_code 13+
    cluster_authorized_operations: int32 8-10 = -2147483648
9 offset_fetch 1-10 flexible 6
  request
    groups: []{} 8+
      group_id: string
      member_id: string 9+ null = null
      member_epoch: int32 9+ = -1
      topics: []{} null
        topic_id: uuid 10+ null
        name: string 8-9
        partition_indexes: []int32 = []
    group_id: string 1-7
    topics: []{} 1-7 null 2-7
      name: string
      partition_indexes: []int32 = []
    require_stable: bool 7+ = false
  response
    throttle_time: timedelta_i32 3+
    groups: []{} 8+
      group_id: string
      topics: []{}
        topic_id: uuid 10+ null
        name: string 8-9
        partitions: []{}
          partition_index: int32
          committed_offset: int64
          committed_leader_epoch: int32 = -1
          metadata: string null
          error_code: error_code
      error_code: error_code = 0
    topics: []{} 1-7
      name: string
      partitions: []{}
        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 5-7 = -1
        metadata: string null
        error_code: error_code
    error_code: error_code 2-7 = 0
10 find_coordinator 0-6 flexible 3
  request
    key: string 0-3
    key_type: int8 1+ = 0
    coordinator_keys: []string 4+ = []
  response
    throttle_time: timedelta_i32 1+
    coordinators: []{} 4+
      key: string
      node_id: int32
      host: string
      port: int32
      error_code: error_code
      error_message: string null
    error_code: error_code 0-3
    error_message: string 1-3 null
    node_id: int32 0-3
    host: string 0-3
    port: int32 0-3
16 list_groups 0-5 flexible 3
  request
    states_filter: []string 4+ = []
    types_filter: []string 5+ = []
  response
    throttle_time: timedelta_i32 1+
    error_code: error_code
    groups: []{}
      group_id: string
      protocol_type: string
      group_state: string 4+
      group_type: string 5+
17 sasl_handshake 0-1
  request
    mechanism: string
  response
    error_code: error_code
    mechanisms: []string = []
18 api_versions 0-5 flexible 3
  request
    client_software_name: string 3+
    client_software_version: string 3+
    cluster_id: string 5+ null 5+ = null
    node_id: int32 5+ = -1
  response
    error_code: error_code
    api_keys: []{}
      api_key: int16
      min_version: int16
      max_version: int16
    throttle_time: timedelta_i32 1+
    supported_features: []{} 3+ tag 0 = []
      name: string
      min_version: int16
      max_version: int16
    finalized_features_epoch: int64 3+ tag 1 = -1
    finalized_features: []{} 3+ tag 2 = []
      name: string
      max_version_level: int16
      min_version_level: int16
    zk_migration_ready: bool 3+ tag 3 = false
22 init_producer_id 0-6 flexible 2
  request
    transactional_id: string null
    transaction_timeout: timedelta_i32
    producer_id: int64 3+ = -1
    producer_epoch: int16 3+ = -1
    enable2_pc: bool 6+ = false
    keep_prepared_txn: bool 6+ = false
  response
    throttle_time: timedelta_i32
    error_code: error_code
    producer_id: int64 = -1
    producer_epoch: int16
    ongoing_txn_producer_id: int64 6+ = -1
    ongoing_txn_producer_epoch: int16 6+ = -1
24 add_partitions_to_txn 0-5 flexible 3
  request
    transactions: []{} 4+
      transactional_id: string
      producer_id: int64
      producer_epoch: int16
      verify_only: bool = false
      topics: []{}
        name: string
        partitions: []int32 = []
    v3_and_below_transactional_id: string 0-3
    v3_and_below_producer_id: int64 0-3
    v3_and_below_producer_epoch: int16 0-3
    v3_and_below_topics: []{} 0-3
      name: string
      partitions: []int32 = []
  response
    throttle_time: timedelta_i32
    error_code: error_code 4+
    results_by_transaction: []{} 4+
      transactional_id: string
      topic_results: []{}
        name: string
        results_by_partition: []{}
          partition_index: int32
          partition_error_code: error_code
    results_by_topic_v3_and_below: []{} 0-3
      name: string
      results_by_partition: []{}
        partition_index: int32
        partition_error_code: error_code
25 add_offsets_to_txn 0-4 flexible 3
  request
    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    group_id: string
  response
    throttle_time: timedelta_i32
    error_code: error_code
26 end_txn 0-5 flexible 3
  request
    transactional_id: string
    producer_id: int64
    producer_epoch: int16
    committed: bool
  response
    throttle_time: timedelta_i32
    error_code: error_code
    producer_id: int64 5+ = -1
    producer_epoch: int16 5+ = -1
28 txn_offset_commit 0-5 flexible 3
  request
    transactional_id: string
    group_id: string
    producer_id: int64
    producer_epoch: int16
    generation_id: int32 3+ = -1
    member_id: string 3+ = ''
    group_instance_id: string 3+ null = null
    topics: []{}
      name: string
      partitions: []{}
        partition_index: int32
        committed_offset: int64
        committed_leader_epoch: int32 2+ = -1
        committed_metadata: string null
  response
    throttle_time: timedelta_i32
    topics: []{}
      name: string
      partitions: []{}
        partition_index: int32
        error_code: error_code
32 describe_configs 1-4 flexible 4
  request
    resources: []{}
      resource_type: int8
      resource_name: string
      configuration_keys: []string null = []
    include_synonyms: bool = false
    include_documentation: bool 3+ = false
  response
    throttle_time: timedelta_i32
    results: []{}
      error_code: error_code
      error_message: string null
      resource_type: int8
      resource_name: string
      configs: []{}
        name: string
        value: string null
        read_only: bool
        config_source: int8 = -1
        is_sensitive: bool
        synonyms: []{}
          name: string
          value: string null
          source: int8
        config_type: int8 3+ = 0
        documentation: string 3+ null
36 sasl_authenticate 0-2 flexible 2
  request
    auth_bytes: bytes
  response
    error_code: error_code
    error_message: string null
    auth_bytes: bytes
    session_lifetime: timedelta_i64 1+ = 0
42 delete_groups 0-2 flexible 2
  request
    groups_names: []string = []
  response
    throttle_time: timedelta_i32
    results: []{}
      group_id: string
      error_code: error_code
61 describe_producers 0-0 flexible 0
  request
    topics: []{}
      name: string
      partition_indexes: []int32 = []
  response
    throttle_time: timedelta_i32
    topics: []{}
      name: string
      partitions: []{}
        partition_index: int32
        error_code: error_code
        error_message: string null = null
        active_producers: []{}
          producer_id: int64
          producer_epoch: int32
          last_sequence: int32 = -1
          last_timestamp: int64 = -1
          coordinator_epoch: int32
          current_txn_start_offset: int64 = -1
65 describe_transactions 0-0 flexible 0
  request
    transactional_ids: []string = []
  response
    throttle_time: timedelta_i32
    transaction_states: []{}
      error_code: error_code
      transactional_id: string
      transaction_state: string
      transaction_timeout: timedelta_i32
      transaction_start_time: datetime_i64
      producer_id: int64
      producer_epoch: int16
      topics: []{}
        topic: string
        partitions: []int32 = []
66 list_transactions 0-2 flexible 0
  request
    state_filters: []string = []
    producer_id_filters: []int64 = []
    duration_filter: int64 1+ = -1
    transactional_id_pattern: string 2+ null = null
  response
    throttle_time: timedelta_i32
    error_code: error_code
    unknown_state_filters: []string = []
    transaction_states: []{}
      transactional_id: string
      producer_id: int64
      transaction_state: string
71 get_telemetry_subscriptions 0-0 flexible 0
  request
    client_instance_id: uuid null
  response
    throttle_time: timedelta_i32
    error_code: error_code
    client_instance_id: uuid null
    subscription_id: int32
    accepted_compression_types: []int8 = []
    push_interval: timedelta_i32
    telemetry_max_bytes: int32
    delta_temporality: bool
    requested_metrics: []string = []
72 push_telemetry 0-0 flexible 0
  request
    client_instance_id: uuid null
    subscription_id: int32
    terminating: bool
    compression_type: int8
    metrics: bytes
  response
    throttle_time: timedelta_i32
    error_code: error_code
"""
