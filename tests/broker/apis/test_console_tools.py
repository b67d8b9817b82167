"""Kafka's console tools with the embedded cluster: the commands that an administrator types."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kafkabuf.broker import EmbeddedCluster, Security
from rigs.jars import java, resolve_kafka, resolve_kafka_tools
from rigs.real_kafka import KAFKA_4, TOOL_JVM, logging

TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
# A tool takes about two seconds on an idle machine.
TIMEOUT = 60.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, auto_create_topics=False) as one:
        yield one


def tool(cluster: EmbeddedCluster, main_class: str, arguments: str, text: str = "") -> str:
    """The tool's output. The tool must print no warning or error."""
    classpath = f"{resolve_kafka_tools(KAFKA_4)}/*:{resolve_kafka(KAFKA_4)}/*"
    command = [java(), *TOOL_JVM, *logging("warn"), "-cp", classpath, main_class]
    command += ["--bootstrap-server", cluster.bootstrap_servers, *arguments.split()]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if "WARN" in line or "ERROR" in line] == []
    return done.stdout


def test_console_tools_work_with_the_cluster(cluster: EmbeddedCluster) -> None:
    """Each tool is a separate JVM, so the test runs independent tools at the same time."""
    create = "--create --topic t --partitions 2 --replication-factor 2 --config retention.bytes=99999"
    assert tool(cluster, TOPICS, create) == "Created topic t.\n"
    lines = [f"key-{number}:value-{number}" for number in range(20)]
    with ThreadPoolExecutor() as together:
        parse = "--property parse.key=true --property key.separator=:"
        sent = together.submit(tool, cluster, PRODUCER, f"--topic t {parse}", "\n".join(lines))
        alter = "--alter --entity-type topics --entity-name t --add-config max.message.bytes=77777"
        altered = together.submit(tool, cluster, CONFIGS, f"{alter} --delete-config retention.bytes")
        sent.result()
        assert altered.result() == "Completed updating config for topic t.\n"
    ends = cluster.end_offsets("t")
    assert sum(ends.values()) == len(lines)
    form = "--property print.key=true --property key.separator=:"
    until = f"--from-beginning --max-messages {len(lines)} --timeout-ms 30000"
    read = tool(cluster, CONSUMER, f"--topic t --group g {until} {form}")
    assert sorted(read.split()) == sorted(lines)
    with ThreadPoolExecutor() as together:
        described = together.submit(tool, cluster, TOPICS, "--describe --topic t")
        lags = together.submit(tool, cluster, GROUPS, "--describe --group g")
        topic, *partitions = described.result().splitlines()
        rows = [line.split() for line in lags.result().splitlines() if line.startswith("g ")]
    assert "PartitionCount: 2\tReplicationFactor: 2\t" in topic
    assert "max.message.bytes=77777" in topic
    assert "99999" not in topic
    leaders = [f"Partition: {index}\tLeader: {cluster.leader('t', index)[0]}" for index in range(2)]
    assert [leader in line for leader, line in zip(leaders, partitions, strict=True)] == [True, True]
    # Current offset, end, lag.
    assert {int(row[2]): row[3:6] for row in rows} == {index: [f"{end}", f"{end}", "0"] for index, end in ends.items()}


def test_java_consumers_of_the_new_protocol_work_with_the_cluster(cluster: EmbeddedCluster) -> None:
    """Two consumers of one group, by name and by expression, and what the tool for groups says of them (KIP-848)."""
    cluster.create_topic("orders-eu", 2)
    lines = [f"value-{number}" for number in range(20)]
    tool(cluster, PRODUCER, "--topic orders-eu", "\n".join(lines))
    protocol = "--consumer-property group.protocol=consumer --from-beginning --timeout-ms 30000"
    with ThreadPoolExecutor() as together:
        named = together.submit(tool, cluster, CONSUMER, f"--topic orders-eu --group g --max-messages 20 {protocol}")
        matching = f"--include orders-.* --group h --max-messages 20 {protocol}"
        matched = together.submit(tool, cluster, CONSUMER, matching)
        assert sorted(named.result().split()) == sorted(lines)
        assert sorted(matched.result().split()) == sorted(lines)
    with ThreadPoolExecutor() as together:
        listed = together.submit(tool, cluster, GROUPS, "--list --type --state")
        described = together.submit(tool, cluster, GROUPS, "--describe --group g")
        rows = [line.split() for line in described.result().splitlines() if line.startswith("g ")]
        groups = {tuple(line.split()) for line in listed.result().splitlines()}
    assert {("g", "Consumer", "Empty"), ("h", "Consumer", "Empty")} <= groups
    assert {int(row[2]): row[3:6] for row in rows} == {
        index: [f"{end}", f"{end}", "0"] for index, end in cluster.end_offsets("orders-eu").items()
    }


def test_kafka_acls_adds_lists_and_removes_acls() -> None:
    security = Security(authorizer=True, super_users=["User:ANONYMOUS"])
    with EmbeddedCluster(security=security) as cluster:
        tool(
            cluster, ACLS, "--add --allow-principal User:alice --producer --topic ord --resource-pattern-type prefixed"
        )
        assert {(acl.principal, acl.operation.name, acl.resource_name) for acl in cluster.acls()} == {
            ("User:alice", operation, "ord") for operation in ("WRITE", "DESCRIBE", "CREATE")
        }
        listed = tool(cluster, ACLS, "--list --topic orders --resource-pattern-type match")
        assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in listed
        tool(cluster, ACLS, "--remove --force --topic ord --resource-pattern-type prefixed")
        assert cluster.acls() == []
