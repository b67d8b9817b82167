"""Settings of topics, nodes, groups and subscriptions: their effects, and what nodes tell of them. Kafka's answers:
tests/conformance."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from kafkabuf.broker import ConnectionLimits, EmbeddedCluster, Security
from kafkabuf.broker.configs.table import node_kinds
from kafkabuf.clock import ManualClock
from kafkabuf.errors import ConfigError, InvalidConfigError, InvalidSessionTimeoutError
from kafkabuf.protocol import messages as m
from tests.broker.raw_client import NOW, RawClient, batch
from tests.conformance.groups import joining

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
ALL_NODES = ""
DAY_MS = 86_400_000


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


def first(cluster: EmbeddedCluster) -> str:
    return cluster.bootstrap_servers.split(",")[0]


def change(client: RawClient, kind: int, name: str, key: str, value: str | None, **more: Any) -> tuple[int, str | None]:
    """Set a setting, or delete it without a value. The error code and its text."""
    config = {"name": key, "value": value, "config_operation": DELETE if value is None else SET}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    (answer,) = client.ask(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], **more).responses
    return int(answer.error_code), answer.error_message


def describe(client: RawClient, kind: int, name: str) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (answer,) = client.ask(m.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=True).results
    assert answer.error_code == 0, answer
    return {entry.name: entry for entry in answer.configs}


def values(client: RawClient, kind: int, name: str) -> dict[str, str | None]:
    return {setting: entry.value for setting, entry in describe(client, kind, name).items()}


# ---- topics


def test_log_without_a_cleanup_policy_keeps_everything_and_takes_records_without_keys() -> None:
    clock = ManualClock(wall_ms=NOW)
    with EmbeddedCluster(clock=clock) as cluster, RawClient(cluster.bootstrap_servers) as client:
        for name, policy in (("deleted", "delete"), ("kept", "")):
            cluster.create_topic(name, configs={"cleanup.policy": policy, "retention.ms": "1000"})
            for _ in range(3):
                assert client.produce(name, batch([b"v"], timestamps=[NOW])).error_code == 0
        clock.advance(DAY_MS / 1000)
        cluster.tick()
        assert (cluster.log_start_offset("deleted", 0), cluster.log_start_offset("kept", 0)) == (3, 0)
        assert values(client, TOPIC, "kept")["cleanup.policy"] == ""


def test_setting_without_a_value_is_refused_and_the_connection_goes_on(
    cluster: EmbeddedCluster, client: RawClient
) -> None:
    cluster.create_topic("t")
    config = {"name": "retention.ms", "value": None}
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": [config]}
    for _ in range(2):
        (answer,) = client.ask(m.ALTER_CONFIGS, 2, resources=[resource]).responses
        assert (answer.error_code, answer.error_message) == (42, "Null value not supported for : retention.ms")


def test_internal_segment_bytes_makes_small_segments(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("t", configs={"internal.segment.bytes": "100", "segment.bytes": "1048576"})
        for _ in range(4):
            assert client.produce("t", batch([b"v" * 50])).error_code == 0
        assert len(list((tmp_path / "node-1" / "t-0").glob("*.log"))) == 4
        assert values(client, TOPIC, "t")["internal.segment.bytes"] == "100"
        cluster.create_topic("u")
        assert "internal.segment.bytes" not in values(client, TOPIC, "u")


def test_value_is_kept_as_kafka_reads_it(tmp_path: Path) -> None:
    odd = {"retention.ms": " +7 ", "cleanup.policy": " compact , delete ", "preallocate": "TRUE"}
    for restart in (False, True):
        with EmbeddedCluster(data_dir=tmp_path) as cluster, RawClient(cluster.bootstrap_servers) as client:
            if not restart:
                cluster.create_topic("t", configs=odd)
            listed = values(client, TOPIC, "t")
            assert [listed[name] for name in odd] == ["7", "compact,delete", "true"]


def _replicas(count: int, node: int = 1) -> str:
    return ",".join(f"{partition}:{node}" for partition in range(count))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup.policy", ",".join(map(str, range(6_000)))),
        ("cleanup.policy", "a" + " " * 32_000 + "b"),
        ("min.cleanable.dirty.ratio", "1" * 32_000 + "x"),
        ("retention.ms", "1" * 32_767),
        ("leader.replication.throttled.replicas", _replicas(4_000, 2) + ",x"),
        ("x" * 32_767, "1"),
        ("cleanup.policy" * 2, None),
    ],
)
@pytest.mark.parametrize("operation", [0, 2, 3])
def test_long_value_costs_little_and_gets_an_error(
    cluster: EmbeddedCluster, client: RawClient, setting: str, value: str | None, operation: int
) -> None:
    cluster.create_topic("t", configs={"leader.replication.throttled.replicas": _replicas(50_000)})
    config = {"name": setting, "value": value, "config_operation": operation}
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": [config]}
    entity = m.build_request(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=True)
    frame = m.encode_request(m.INCREMENTAL_ALTER_CONFIGS, 1, 0, "raw", entity)
    began = time.process_time()
    client.send_frame(frame)
    reply = client.receive_frame()
    assert time.process_time() - began < 2
    assert reply is not None
    (answer,) = m.decode_response(m.INCREMENTAL_ALTER_CONFIGS, 1, reply)[1].responses
    # To take words from an empty list is no error.
    assert answer.error_code in (40, 42) or operation == 3


def test_long_value_fits_in_the_error_of_an_old_version(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("t")
    for name, value in (("retention.ms", "x" * 32_767), ("x" * 32_767, "1"), ("x" * 32_767, None)):
        resource = {"resource_type": TOPIC, "resource_name": "t", "configs": [{"name": name, "value": value}]}
        (answer,) = client.ask(m.ALTER_CONFIGS, 0, resources=[resource]).responses
        assert answer.error_code in (40, 42)


def test_repeated_resources_are_told_once_and_changed_never(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("t")
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}
    assert len(client.ask(m.DESCRIBE_CONFIGS, 4, resources=[resource] * 500).results) == 1
    config = {"name": "retention.ms", "value": "1", "config_operation": SET}
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": [config]}
    answers = client.ask(m.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource] * 2).responses
    assert {answer.error_message for answer in answers} == {"Each resource must appear at most once."}
    assert values(client, TOPIC, "t")["retention.ms"] == "-1"


def test_pattern_that_is_no_expression_is_refused(cluster: EmbeddedCluster, client: RawClient) -> None:
    for pattern, code in (("client_id=" + "(" * 1500, 40), ("client_id=a{99999999999}", 40), ("client_id=(a", 40)):
        assert change(client, METRICS, "s", "match", pattern)[0] == code
    assert change(client, METRICS, "s", "match", "client_id=a.*") == (0, None)


# ---- what a node lists


def test_node_lists_every_setting_of_kafka_with_its_own_values(tmp_path: Path) -> None:
    limits = ConnectionLimits(max_connections=77, connections_max_idle_ms=5000)
    security = Security(users={"alice": "secret"}, sasl_mechanisms=["PLAIN"])
    with EmbeddedCluster(
        2, data_dir=tmp_path, limits=limits, auto_create_topics=False, default_partitions=3
    ) as cluster:
        host, port, _ = cluster.nodes()[2]
        with RawClient(f"{host}:{port}") as client:
            listed = describe(client, BROKER, "2")
            refused = client.ask(
                m.DESCRIBE_CONFIGS,
                4,
                resources=[{"resource_type": BROKER, "resource_name": "1", "configuration_keys": None}],
            ).results[0]
    assert len(listed) == 316
    assert {name: listed[name].value for name in ("node.id", "broker.id", "listeners", "log.dirs")} == {
        "node.id": "2",
        "broker.id": "2",
        "listeners": f"PLAINTEXT://{host}:{port}",
        "log.dirs": str(tmp_path),
    }
    assert {
        name: (listed[name].value, listed[name].config_source) for name in ("max.connections", "num.partitions")
    } == {
        "max.connections": ("77", 4),
        "num.partitions": ("3", 4),
    }
    assert listed["connections.max.idle.ms"].value == "5000"
    assert listed["auto.create.topics.enable"].value == "false"
    assert listed["message.max.bytes"].config_source == 5
    assert (refused.error_code, refused.error_message) == (42, "Unexpected broker id, expected 2 but received 1")
    with EmbeddedCluster(security=security) as cluster:
        given = cluster._call(lambda c: {item.name: item for item in c.node_configs.describe(c.nodes[1])})
    assert given["sasl.enabled.mechanisms"].value == "PLAIN"
    assert given["inter.broker.listener.name"].value == "SASL_PLAINTEXT"


def test_password_is_not_shown(tmp_path: Path) -> None:
    cluster = EmbeddedCluster(security=Security(users={"a": "b"}))
    object.__setattr__(cluster._config.security, "ssl_key_password", "secret")
    with cluster:
        entry = cluster._call(lambda c: {item.name: item for item in c.node_configs.describe(c.nodes[1])})
    password = entry["ssl.key.password"]
    assert (password.value, password.sensitive, password.source) == (None, True, 4)
    assert "secret" not in repr(password)


def test_cluster_starts_without_the_table_of_settings(cluster: EmbeddedCluster) -> None:
    node_kinds.cache_clear()
    with EmbeddedCluster(brokers=3) as other:
        other.create_topic("t", configs={"retention.ms": "5"})
    assert node_kinds.cache_info().misses == 0


def test_confluent_kafka_describes_nodes_and_groups(cluster: EmbeddedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    node = ConfigResource(ConfigResource.Type.BROKER, "1")
    entries = admin.describe_configs([node])[node].result(10)
    assert (len(entries), entries["node.id"].value, entries["node.id"].is_read_only) == (316, "1", True)


# ---- changes of nodes


def test_default_of_all_nodes_holds_for_topics_without_their_own(cluster: EmbeddedCluster, client: RawClient) -> None:
    cluster.create_topic("old")
    cluster.create_topic("own", configs={"max.message.bytes": "9000"})
    assert change(client, BROKER, ALL_NODES, "message.max.bytes", "200", validate_only=True) == (0, None)
    large = batch([b"v" * 500])
    assert client.produce("old", large).error_code == 0
    assert change(client, BROKER, ALL_NODES, "message.max.bytes", " 200 ") == (0, None)
    cluster.create_topic("new")
    assert [client.produce(name, large).error_code for name in ("old", "own", "new")] == [10, 0, 10]
    assert describe(client, TOPIC, "new")["max.message.bytes"].config_source == 3
    # The node's own setting goes before that of all nodes.
    assert change(client, BROKER, "1", "message.max.bytes", "8000") == (0, None)
    assert client.produce("old", large).error_code == 0
    assert [change(client, BROKER, name, "message.max.bytes", None) for name in ("1", ALL_NODES)] == [(0, None)] * 2
    assert describe(client, TOPIC, "new")["max.message.bytes"].value == "1048588"


def test_min_insync_replicas_of_all_nodes_holds_for_acks_all() -> None:
    with EmbeddedCluster(brokers=3) as cluster, RawClient(first(cluster)) as client:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 1)
        assert client.produce("t", batch([b"v"])).error_code == 0
        cluster.kill_node(next(iter(set(cluster._call(lambda c: c.catalogue.topic("t").partition(0).isr)) - {1})))
        assert client.produce("t", batch([b"v"])).error_code == 0
        assert change(client, BROKER, ALL_NODES, "min.insync.replicas", "2") == (0, None)
        assert client.produce("t", batch([b"v"])).error_code == 19


def test_unclean_election_follows_the_setting_of_all_nodes() -> None:
    with EmbeddedCluster(brokers=2) as cluster, RawClient(first(cluster)) as client:
        cluster.create_topic("t", 1, 2)
        cluster.move_leader("t", 0, 2)
        cluster.isolate_node(1)
        cluster._call(lambda c: c.controller.fence(c.nodes[1]))
        cluster.kill_node(2)
        cluster.heal_node(1)
        assert cluster.leader("t", 0)[0] == -1
        assert change(client, BROKER, ALL_NODES, "unclean.leader.election.enable", "true") == (0, None)
        assert cluster.leader("t", 0)[0] == 1


@pytest.mark.parametrize(
    ("brokers", "name", "setting", "text"),
    [
        (1, "1", "num.partitions", "Cannot update these configs dynamically: Set(num.partitions)"),
        (1, ALL_NODES, "num.io.threads", "the embedded cluster does not follow num.io.threads, so it cannot change"),
        (1, ALL_NODES, "such.setting", "the embedded cluster does not follow such.setting, so it cannot change"),
        (3, "1", "message.max.bytes", "the nodes of the embedded cluster share message.max.bytes"),
        (3, "2", "message.max.bytes", "Unexpected broker id, expected 1, but received 2"),
    ],
)
def test_setting_that_cannot_change_is_refused_with_the_reason(
    brokers: int, name: str, setting: str, text: str
) -> None:
    with EmbeddedCluster(brokers) as cluster, RawClient(first(cluster)) as client:
        code, message = change(client, BROKER, name, setting, "5")
        assert code == 42
        assert (message or "").startswith(text)


def test_settings_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedCluster(data_dir=tmp_path) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("t")
        change(client, BROKER, ALL_NODES, "log.cleanup.policy", "compact")
        change(client, BROKER, "1", "message.max.bytes", "500")
        change(client, GROUP, "g", "consumer.session.timeout.ms", "46000")
        change(client, METRICS, "s", "interval.ms", "100")
        change(client, METRICS, "gone", "interval.ms", "100")
        change(client, METRICS, "gone", "interval.ms", None)
    with EmbeddedCluster(data_dir=tmp_path) as cluster, RawClient(cluster.bootstrap_servers) as client:
        listed = values(client, TOPIC, "t")
        assert (listed["cleanup.policy"], listed["max.message.bytes"]) == ("compact", "500")
        assert client.produce("t", batch([b"v" * 600], keys=[b"k"])).error_code == 10
        assert values(client, GROUP, "g")["consumer.session.timeout.ms"] == "46000"
        listed_names = {(entry.resource_type, entry.resource_name) for entry in resources(client)}
        assert {(GROUP, "g"), (METRICS, "s"), (BROKER, "1"), (LOGGER, "1"), (TOPIC, "t")} == listed_names


def resources(client: RawClient) -> Any:
    return client.ask(m.LIST_CONFIG_RESOURCES, 1, resource_types=[]).config_resources


def test_level_of_the_logger_changes(cluster: EmbeddedCluster, client: RawClient) -> None:
    logger = logging.getLogger("kafkabuf.broker")
    before = logger.level
    try:
        assert change(client, LOGGER, "1", "root", "TRACE", validate_only=True) == (0, None)
        assert logger.level == before
        for level, number in (("TRACE", 5), ("FATAL", logging.CRITICAL), ("WARN", logging.WARNING)):
            assert change(client, LOGGER, "1", "root", level) == (0, None)
            assert logger.level == number
            assert values(client, LOGGER, "1") == {"root": level}
    finally:
        logger.setLevel(before)


# ---- the constructor's config


def test_config_sets_what_kafkas_names_say() -> None:
    config: dict[str, Any] = {"num.partitions": 3, "log.retention.ms": "1000", "connections.max.idle.ms": 5000}
    clock = ManualClock(wall_ms=NOW)
    with EmbeddedCluster(config=config, clock=clock) as cluster, RawClient(cluster.bootstrap_servers) as client:
        client.ask(m.METADATA, 8, topics=[{"name": "made"}], allow_auto_topic_creation=True)
        assert cluster.topics() == {"made": 3}
        assert client.produce("made", batch([b"v"], timestamps=[NOW])).error_code == 0
        clock.advance(DAY_MS / 1000)
        cluster.tick()
        assert cluster.log_start_offset("made", 0) == 1
        listed = describe(client, BROKER, "1")
        assert [(listed[name].value, listed[name].config_source) for name in config] == [
            ("3", 4),
            ("1000", 4),
            ("5000", 4),
        ]
        assert describe(client, TOPIC, "made")["retention.ms"].config_source == 4


def test_config_sets_compaction_and_its_pause() -> None:
    config: dict[str, Any] = {
        "log.cleaner.backoff.ms": 3000,
        "log.cleaner.min.cleanable.ratio": 0,
        "log.cleanup.policy": "compact",
    }
    clock = ManualClock(wall_ms=NOW)
    with EmbeddedCluster(config=config, clock=clock) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("made", configs={"segment.bytes": "14"})
        for value in (b"1", b"2", b"3"):
            assert client.produce("made", batch([value], keys=[b"k"], timestamps=[NOW])).error_code == 0
        for seconds, values_left in ((2.9, [b"1", b"2", b"3"]), (0.2, [b"2", b"3"])):
            clock.advance(seconds)
            cluster.tick()
            assert cluster.messages("made").values == values_left
        assert cluster.compact("made") == 1
        assert cluster.messages("made").values == [b"3"]


def test_config_of_groups_is_what_groups_follow_and_nodes_list() -> None:
    config: dict[str, Any] = {
        "group.min.session.timeout.ms": 1000,
        "group.max.size": 1,
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.session.timeout.ms": 2000,
        "group.consumer.assignors": "range",
    }
    topics = {"subscribed_topic_names": ["t"], "topic_partitions": [], "rebalance_timeout": 60_000}
    clock = ManualClock(wall_ms=NOW)
    with EmbeddedCluster(config=config, clock=clock) as cluster, RawClient(cluster.bootstrap_servers) as client:
        cluster.create_topic("t")
        listed = describe(client, BROKER, "1")
        assert {name: listed[name].value for name in config} == {name: f"{value}" for name, value in config.items()}
        assert {listed[name].config_source for name in config} == {4}
        beat = client.ask(m.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", member_id="one", member_epoch=0, **topics)
        assert beat.heartbeat_interval.total_seconds() == 0.1
        described = client.ask(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups[0]
        assert (described.assignor_name, len(described.members)) == ("range", 1)
        clock.advance(2)
        cluster.tick()
        assert client.ask(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g"]).groups[0].members == ()
        codes = [
            int(client.ask(m.JOIN_GROUP, 3, **joining("classic", version=3, session_timeout=ms)).error_code)
            for ms in (999, 1000)
        ]
    assert codes == [InvalidSessionTimeoutError.code, 0]


def test_consumer_group_follows_its_own_settings_within_the_bounds_of_the_nodes() -> None:
    config: dict[str, Any] = {
        "group.consumer.min.session.timeout.ms": 1000,
        "group.consumer.min.heartbeat.interval.ms": 100,
    }
    topics = {"subscribed_topic_names": ["t"], "topic_partitions": [], "rebalance_timeout": 60_000}
    clock = ManualClock(wall_ms=NOW)
    with EmbeddedCluster(config=config, clock=clock) as cluster, RawClient(cluster.bootstrap_servers) as client:
        session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
        assert change(client, GROUP, "g", session, "999")[0] == InvalidConfigError.code
        assert change(client, GROUP, "g", interval, "99")[0] == InvalidConfigError.code
        assert change(client, GROUP, "g", session, "5000") == (
            InvalidConfigError.code,
            f"{session} must be greater than {interval}",
        )
        assert change(client, GROUP, "g", interval, "200") == (0, None)
        assert change(client, GROUP, "g", session, "2000") == (0, None)
        answers = {
            group: client.ask(m.CONSUMER_GROUP_HEARTBEAT, 1, group_id=group, member_id="one", member_epoch=0, **topics)
            for group in ("g", "other")
        }
        assert {group: answer.heartbeat_interval.total_seconds() for group, answer in answers.items()} == {
            "g": 0.2,
            "other": 5.0,
        }
        clock.advance(2)
        cluster.tick()
        described = client.ask(m.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["g", "other"]).groups
        assert [len(group.members) for group in described] == [0, 1]


def test_config_bounds_the_time_out_of_transactions() -> None:
    with EmbeddedCluster(config={"transaction.max.timeout.ms": 5000}) as cluster:
        with RawClient(cluster.bootstrap_servers) as client:
            codes = [
                int(client.ask(m.INIT_PRODUCER_ID, 4, transactional_id="t", transaction_timeout=ms).error_code)
                for ms in (5000, 5001)
            ]
    assert codes == [0, 50]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"num.partions": 3},
            "config: Kafka 4.1 has no setting 'num.partions' of brokers: do you mean num.partitions?",
        ),
        ({"retention.ms": 3}, "no setting 'retention.ms' of brokers: do you mean log.retention.ms?"),
        ({"max_connections": 3}, "no setting 'max_connections' of brokers: do you mean max.connections?"),
        ({"q": 3}, "config: Kafka 4.1 has no setting 'q' of brokers"),
        ({"num.io.threads": 8}, "config: the embedded cluster does not follow num.io.threads: leave the setting out"),
        ({"num.partitions": "x"}, "Invalid value x for configuration num.partitions: Not a number of type INT"),
        ({"num.partitions": 0}, "default_partitions=0: at least 1 is needed"),
        ({"log.retention.ms": 0}, "log.retention.ms must be unlimited"),
        ({"num.partitions": None}, "config: num.partitions=None: a text, a number or a bool is needed"),
        ({"message.max.bytes": 5}, "config: message.max.bytes=5, but max_message_bytes=9: give the setting once"),
    ],
)
def test_config_that_has_no_effect_is_refused_with_the_reason(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        EmbeddedCluster(config=config, max_message_bytes=9)


def test_config_may_say_what_the_cluster_does_anyway() -> None:
    config: dict[str, Any] = {"num.io.threads": 1, "offsets.topic.num.partitions": "50", "message.max.bytes": 9}
    assert EmbeddedCluster(config=config, max_message_bytes=9)._config.max_message_bytes == 9


# ---- the quorum


def test_quorum_follows_the_controller() -> None:
    partition = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]

    def ask(address: str) -> Any:
        with RawClient(address) as client:
            return client.ask(m.DESCRIBE_QUORUM, 2, topics=partition)

    with EmbeddedCluster(brokers=3) as cluster:
        addresses = cluster.bootstrap_servers.split(",")
        before = ask(addresses[1])
        cluster.create_topic("t")
        cluster.kill_node(1)
        after = ask(addresses[1])
        with RawClient(addresses[1]) as client:
            nodes = {entry.resource_name for entry in resources(client) if entry.resource_type == BROKER}
    assert nodes == {"2", "3"}
    assert [(node.node_id, node.listeners[0].port) for node in before.nodes] == [
        (node, int(address.rpartition(":")[2])) for node, address in enumerate(addresses, 1)
    ]
    old, new = before.topics[0].partitions[0], after.topics[0].partitions[0]
    assert (old.leader_id, new.leader_id) == (1, 2)
    assert new.leader_epoch == old.leader_epoch + 1
    assert new.high_watermark > old.high_watermark > 0
    assert [voter.log_end_offset for voter in new.current_voters] == [-1, new.high_watermark, new.high_watermark]
    assert [voter.log_end_offset for voter in old.current_voters] == [old.high_watermark] * 3
