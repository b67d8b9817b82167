"""ACLs of the embedded cluster: producers and other clients that lack rights, its Python methods, its memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kafkabuf import KafkaProducer
from kafkabuf.broker import Acl, EmbeddedCluster, Security
from kafkabuf.broker.guards import acls
from kafkabuf.broker.guards.acls import Operation
from kafkabuf.errors import (
    AbortableTransactionError,
    ClusterAuthorizationError,
    ConfigError,
    GroupAuthorizationError,
    InvalidRequestError,
    SecurityDisabledError,
    TopicAuthorizationError,
    TransactionalIdAuthorizationError,
)
from kafkabuf.protocol import messages
from tests.broker.raw_client import RawClient, batch
from tests.network.tls.certificates import Authority

ANONYMOUS = "User:ANONYMOUS"
USERS = {"alice": "a-secret", "bob": "b-secret", "admin": "c-secret"}


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Clients that do not authenticate, and that may do nothing without an ACL."""
    with EmbeddedCluster(security=Security(authorizer=True)) as running:
        for topic in ("open", "secret"):
            running.create_topic(topic)
        yield running


@pytest.fixture
def allowing(cluster: EmbeddedCluster) -> EmbeddedCluster:
    """Clients may write to the topic open, and to no other."""
    cluster.add_acl(ANONYMOUS, "WRITE", topic="open")
    return cluster


def producer_for(cluster: EmbeddedCluster, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, max_block_ms=10_000, **settings)


# ---- our producer


@pytest.mark.parametrize("settings", [{"enable_idempotence": False}, {"acks": 1, "enable_idempotence": False}, {}])
def test_producer_is_told_of_a_topic_that_it_may_not_describe(
    allowing: EmbeddedCluster, settings: dict[str, Any]
) -> None:
    with producer_for(allowing, **settings) as producer:
        with pytest.raises(TopicAuthorizationError, match="secret"):
            producer.send("secret", b"v").result(10)
        assert producer.send("open", b"v").result(10).offset == 0
        with pytest.raises(TopicAuthorizationError):
            producer.partitions_for("secret")
    assert allowing.end_offsets("secret") == {0: 0}


@pytest.mark.parametrize("idempotent", [False, True])
def test_producer_is_told_of_a_topic_to_which_it_may_not_write(allowing: EmbeddedCluster, idempotent: bool) -> None:
    """The refusal comes with the response to the records, and the producer goes on with other topics."""
    allowing.add_acl(ANONYMOUS, "DESCRIBE", topic="secret")
    with producer_for(allowing, enable_idempotence=idempotent, linger_ms=20) as producer:
        futures = [producer.send(topic, b"v") for topic in ("secret", "open", "secret", "open")]
        errors = [future.exception(10) for future in futures]
        assert [type(error) for error in errors[::2]] == [TopicAuthorizationError] * 2
        assert errors[1::2] == [None, None]
        assert producer.send("open", b"v").result(10).offset == 2
        allowing.add_acl(ANONYMOUS, "WRITE", topic="secret")
        assert producer.send("secret", b"v").result(10).offset == 0
    refused = [request.error_code for request in allowing.requests(messages.PRODUCE, topic="secret")]
    assert TopicAuthorizationError.code in refused


def test_records_without_acks_to_a_forbidden_topic_cut_the_connection(allowing: EmbeddedCluster) -> None:
    allowing.add_acl(ANONYMOUS, "DESCRIBE", topic="secret")
    with RawClient(allowing.bootstrap_servers) as client:
        data = [{"name": "secret", "partition_data": [{"index": 0, "records": batch([b"v"])}]}]
        client.send(messages.PRODUCE, 9, acks=0, timeout=1000, topic_data=data)
        assert client.closed()
    assert allowing.end_offset("secret", 0) == 0


def test_idempotent_producer_needs_a_right_to_write_anywhere(cluster: EmbeddedCluster) -> None:
    cluster.add_acl(ANONYMOUS, "DESCRIBE", topic="open")
    with producer_for(cluster) as producer:
        with pytest.raises(ClusterAuthorizationError):
            producer.send("open", b"v").result(10)
    cluster.add_acl(ANONYMOUS, "IDEMPOTENT_WRITE", cluster=True)
    with producer_for(cluster) as producer:
        with pytest.raises(TopicAuthorizationError):
            producer.send("open", b"v").result(10)


def test_producer_needs_a_right_to_its_transactional_id(allowing: EmbeddedCluster) -> None:
    with producer_for(allowing, transactional_id="shop-1") as producer:
        with pytest.raises(TransactionalIdAuthorizationError):
            producer.init_transactions()
    allowing.add_acl(ANONYMOUS, "WRITE", transactional_id="shop-", prefixed=True)
    with producer_for(allowing, transactional_id="shop-1") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("open", b"v").result(10)
        producer.commit_transaction()
    assert allowing.end_offset("open", 0) == 2, "a record, and the control record"


def test_transaction_with_a_forbidden_topic_is_aborted_and_the_next_is_committed(allowing: EmbeddedCluster) -> None:
    allowing.add_acl(ANONYMOUS, "DESCRIBE", topic="secret")
    allowing.add_acl(ANONYMOUS, "WRITE", transactional_id="shop")
    with producer_for(allowing, transactional_id="shop") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(TopicAuthorizationError):
            producer.send("secret", b"v").result(10)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("open", b"v").result(10)
        producer.commit_transaction()
    assert allowing.end_offset("secret", 0) == 0


def test_transaction_needs_a_right_to_the_group_of_its_offsets(allowing: EmbeddedCluster) -> None:
    allowing.add_acl(ANONYMOUS, "READ", topic="open")
    allowing.add_acl(ANONYMOUS, "WRITE", transactional_id="shop")
    offsets = {("open", 0): 1}
    with producer_for(allowing, transactional_id="shop") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(AbortableTransactionError) as caught:
            producer.send_offsets_to_transaction(offsets, "readers")
        assert isinstance(caught.value.__cause__, GroupAuthorizationError)
        producer.abort_transaction()
        allowing.add_acl(ANONYMOUS, "READ", group="readers")
        producer.begin_transaction()
        producer.send_offsets_to_transaction(offsets, "readers")
        producer.commit_transaction()


# ---- confluent-kafka


def confluent_settings(cluster: EmbeddedCluster, user: str | None = None, **more: Any) -> dict[str, Any]:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **more}
    if user is not None:
        plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        settings |= {**plain, "sasl.username": user, "sasl.password": USERS[user]}
    return settings


@pytest.mark.parametrize("described", [False, True])
def test_confluent_producer_is_told_and_goes_on(allowing: EmbeddedCluster, described: bool) -> None:
    if described:
        allowing.add_acl(ANONYMOUS, "DESCRIBE", topic="secret")
    reports: dict[str, Any] = {}

    def report(error: Any, message: Any) -> None:
        reports[message.topic()] = None if error is None else error.code()

    producer = confluent_kafka.Producer(confluent_settings(allowing))
    for topic in ("secret", "open"):
        producer.produce(topic, b"v", on_delivery=report)
    assert producer.flush(20) == 0
    assert reports == {"secret": confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, "open": None}


def test_confluent_producer_needs_a_right_to_its_transactional_id(allowing: EmbeddedCluster) -> None:
    producer = confluent_kafka.Producer(confluent_settings(allowing, **{"transactional.id": "shop"}))
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.init_transactions(10)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_confluent_consumer_needs_rights_to_its_group_and_topic(cluster: EmbeddedCluster) -> None:
    def consume(cluster: EmbeddedCluster) -> int | bytes | None:
        settings = {"group.id": "readers", "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(confluent_settings(cluster, **settings))
        consumer.subscribe(["open"])
        try:
            while (message := consumer.poll(20)) is not None:
                error = message.error()
                return message.value() if error is None else error.code()
        finally:
            consumer.close()
        return None

    errors = confluent_kafka.KafkaError
    cluster.add_acl(ANONYMOUS, "WRITE", topic="open")
    with producer_for(cluster) as producer:
        producer.send("open", b"v").result(10)
    assert consume(cluster) == errors.GROUP_AUTHORIZATION_FAILED
    cluster.add_acl(ANONYMOUS, "READ", group="readers")
    assert consume(cluster) == errors.TOPIC_AUTHORIZATION_FAILED
    cluster.add_acl(ANONYMOUS, "READ", topic="open")
    assert consume(cluster) == b"v"


def test_consumer_group_reads_and_shows_only_topics_that_its_clients_may_describe(cluster: EmbeddedCluster) -> None:
    """Groups of KIP-848: a forbidden name is an error, an expression passes over forbidden topics."""
    cluster.add_acl(ANONYMOUS, "READ", group="readers")
    cluster.add_acl(ANONYMOUS, "READ", topic="open")
    joining = {"member_epoch": 0, "topic_partitions": [], "rebalance_timeout": 60_000}

    def beat(**more: Any) -> Any:
        values = {"group_id": "readers", "member_id": "a", **more}
        return client.ask(messages.CONSUMER_GROUP_HEARTBEAT, 1, **values)

    def code(**more: Any) -> int:
        return int(beat(**joining, **more).error_code)

    def describe() -> Any:
        return client.ask(messages.CONSUMER_GROUP_DESCRIBE, 1, group_ids=["others", "readers"]).groups

    def topics(member: Any) -> set[str]:
        """The topics that the member gets, with those that it does not have yet."""
        return {topic.topic_name for topic in member.target_assignment.topic_partitions}

    with RawClient(cluster.bootstrap_servers) as client:
        assert code(subscribed_topic_names=["open"], group_id="others") == GroupAuthorizationError.code
        assert code(subscribed_topic_names=["open", "secret"]) == TopicAuthorizationError.code
        joined = beat(**joining, subscribed_topic_regex=".*")
        epoch = beat(member_epoch=joined.member_epoch).member_epoch
        refused, described = describe()
        assert refused.error_code == GroupAuthorizationError.code
        assert [topics(member) for member in described.members] == [{"open"}]
        seen = cluster.add_acl(ANONYMOUS, "DESCRIBE", topic="secret")
        cluster.create_topic("another")
        # The new topic makes the group match again.
        assert beat(member_epoch=epoch).error_code == 0
        assert [topics(member) for member in describe()[1].members] == [{"open", "secret"}]
        cluster.remove_acl(seen)
        hidden = describe()[1]
        assert (hidden.error_code, hidden.members) == (TopicAuthorizationError.code, ())


def test_confluent_admin_client_changes_the_acls() -> None:
    security = Security(users=USERS, authorizer=True, super_users=["User:admin"])
    with EmbeddedCluster(brokers=2, security=security) as cluster:
        cluster.create_topic("orders", 2)
        admin = AdminClient(confluent_settings(cluster, "admin"))
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        binding = AclBinding(ResourceType.TOPIC, "orders", literal, "User:alice", "*", AclOperation.WRITE, allow)
        for created in admin.create_acls([binding]).values():
            created.result(10)
        topic = acls.ResourceType.TOPIC
        assert cluster.acls() == [Acl("User:alice", Operation.WRITE, topic, "orders")]
        match, any_operation = ResourcePatternType.MATCH, AclOperation.ANY
        wanted: Any = (ResourceType.ANY, None, match, None, None, any_operation, AclPermissionType.ANY)
        everything = AclBindingFilter(*wanted)
        assert admin.describe_acls(everything).result(10) == [binding]
        assert send_as(cluster, "alice") is None
        for deleted in admin.delete_acls([everything]).values():
            assert deleted.result(10) == [binding]
        assert cluster.acls() == []
        assert isinstance(send_as(cluster, "alice"), TopicAuthorizationError)
        other = AdminClient(confluent_settings(cluster, "alice"))
        (refused,) = other.create_acls([binding]).values()
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            refused.result(10)
        assert caught.value.args[0].code() == confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED


def send_as(cluster: EmbeddedCluster, user: str, topic: str = "orders") -> BaseException | None:
    """Sends a record; returns the error, if there is one."""
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
    password = {"sasl_username": user, "sasl_password": USERS[user]}
    with producer_for(cluster, enable_idempotence=False, **sasl, **password) as producer:
        try:
            producer.send(topic, b"v").result(10)
        except TopicAuthorizationError as error:
            return error
    return None


# ---- who the client is


def test_user_is_the_one_who_has_authenticated() -> None:
    with EmbeddedCluster(security=Security(users=USERS, authorizer=True)) as cluster:
        cluster.create_topic("orders")
        cluster.add_acl("User:alice", "WRITE", topic="orders")
        assert send_as(cluster, "alice") is None
        assert isinstance(send_as(cluster, "bob"), TopicAuthorizationError)


def test_super_user_may_do_what_an_acl_denies() -> None:
    security = Security(users=USERS, authorizer=True, super_users=["User:admin"])
    with EmbeddedCluster(security=security) as cluster:
        cluster.create_topic("orders")
        cluster.deny("User:*", "ALL", topic="*")
        assert send_as(cluster, "admin") is None
        assert isinstance(send_as(cluster, "alice"), TopicAuthorizationError)


def test_client_with_a_certificate_is_the_certificates_subject(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node, client = authority.issue("node", "IP:127.0.0.1"), authority.issue("client,O=shop")
    security = Security(
        ssl_certfile=node.store,
        ssl_cafile=authority.certificate,
        ssl_client_auth="requested",
        authorizer=True,
    )
    trusted = {"security_protocol": "SSL", "ssl_truststore_location": str(authority.certificate)}
    with EmbeddedCluster(security=security) as cluster:
        cluster.create_topic("orders")
        cluster.add_acl(r"User:CN=client\,O\=shop", "WRITE", topic="orders")
        with producer_for(cluster, **trusted, ssl_keystore_location=str(client.store)) as producer:
            producer.send("orders", b"v").result(10)
        with producer_for(cluster, **trusted, enable_idempotence=False) as producer:
            with pytest.raises(TopicAuthorizationError):
                producer.send("orders", b"v").result(10)
        cluster.add_acl(ANONYMOUS, "WRITE", topic="orders")
        with producer_for(cluster, **trusted) as producer:
            producer.send("orders", b"v").result(10)


@pytest.mark.parametrize(("listen", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "0:0:0:0:0:0:0:1")])
def test_host_of_an_acl_is_the_clients_address(listen: str, address: str) -> None:
    with EmbeddedCluster(host=listen, security=Security(authorizer=True)) as cluster:
        cluster.create_topic("orders")
        port = cluster.nodes()[1][1]
        servers = f"[{listen}]:{port}" if ":" in listen else f"{listen}:{port}"
        cluster.add_acl("User:*", "WRITE", topic="orders", host="10.9.8.7")
        with KafkaProducer(bootstrap_servers=servers, enable_idempotence=False) as producer:
            with pytest.raises(TopicAuthorizationError):
                producer.send("orders", b"v").result(10)
            cluster.add_acl("User:*", "WRITE", topic="orders", host=address)
            producer.send("orders", b"v").result(10)


# ---- the cluster


def test_followers_fetch_whatever_the_acls_deny() -> None:
    with EmbeddedCluster(brokers=3, security=Security(authorizer=True)) as cluster:
        cluster.create_topic("t")
        cluster.add_acl(ANONYMOUS, "WRITE", topic="t")
        cluster.deny("User:*", "READ", topic="*")
        cluster.deny("User:*", "CLUSTER_ACTION", cluster=True)
        with producer_for(cluster, acks="all") as producer:
            producer.send("t", b"v").result(10)
        assert cluster.in_sync("t", 0) != ()
        assert set(cluster.replica_end_offsets("t", 0).values()) == {1}


def test_topic_is_created_on_its_first_use_by_who_may_create_it(cluster: EmbeddedCluster) -> None:
    cluster.add_acl(ANONYMOUS, "WRITE", topic="new", prefixed=True)
    with producer_for(cluster) as producer:
        with pytest.raises(TopicAuthorizationError):
            producer.send("new-1", b"v").result(10)
        assert "new-1" not in cluster.topics()
        cluster.add_acl(ANONYMOUS, "CREATE", topic="new-1")
        producer.send("new-1", b"v").result(10)
    assert cluster.topics()["new-1"] == 1


def test_acls_outlive_the_cluster_in_its_data_dir(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data_dir": tmp_path, "security": Security(authorizer=True)}
    with EmbeddedCluster(**settings) as cluster:
        kept = cluster.add_acl("User:alice", "READ", group="g", prefixed=True, host="10.0.0.1")
        denied = cluster.deny("User:*", "IDEMPOTENT_WRITE", cluster=True)
        cluster.remove_acl(cluster.add_acl("User:bob", "ALL", transactional_id="*"))
    with EmbeddedCluster(data_dir=tmp_path) as cluster:
        with pytest.raises(SecurityDisabledError):
            cluster.acls()
    with EmbeddedCluster(**settings) as cluster:
        assert cluster.acls() == [kept, denied]


def test_cluster_without_an_authorizer_has_no_acls() -> None:
    calls: list[Callable[[EmbeddedCluster], object]] = [
        lambda cluster: cluster.acls(),
        lambda cluster: cluster.add_acl(ANONYMOUS, "READ", topic="t"),
        lambda cluster: cluster.deny(ANONYMOUS, "READ", topic="t"),
    ]
    with EmbeddedCluster() as cluster:
        for call in calls:
            with pytest.raises(SecurityDisabledError, match=r"Security\(authorizer=True\)"):
                call(cluster)


@pytest.mark.parametrize(
    ("arguments", "named", "error"),
    [
        ((ANONYMOUS, "READ"), {}, ConfigError),
        ((ANONYMOUS, "READ"), {"topic": "t", "group": "g"}, ConfigError),
        ((ANONYMOUS, "EAT"), {"topic": "t"}, ConfigError),
        ((ANONYMOUS, "ANY"), {"topic": "t"}, ConfigError),
        (("alice", "READ"), {"topic": "t"}, InvalidRequestError),
        ((ANONYMOUS, "READ"), {"topic": ""}, InvalidRequestError),
    ],
)
def test_acl_that_cannot_exist_is_refused(
    cluster: EmbeddedCluster, arguments: tuple[str, str], named: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        cluster.add_acl(*arguments, **named)  # type: ignore[arg-type]
    assert cluster.acls() == []


@pytest.mark.parametrize("name", ["DESCRIBE_CONFIGS", "DescribeConfigs", "describe_configs"])
def test_operation_has_kafkas_name_in_any_case(cluster: EmbeddedCluster, name: str) -> None:
    assert cluster.add_acl(ANONYMOUS, name, topic="t").operation is Operation.DESCRIBE_CONFIGS


@pytest.mark.parametrize(
    "settings",
    [{"super_users": ["User:a"]}, {"allow_everyone_if_no_acl_found": True}, {"authorizer": True, "super_users": ["a"]}],
)
def test_settings_of_the_authorizer_that_do_not_go_together_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Security(**settings)


def test_denial_is_logged_in_one_line(cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkabuf.broker.authorizer")
    with RawClient(cluster.bootstrap_servers) as client:
        client.ask(messages.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": "a\nb", "partitions": []}])
    (record,) = caplog.records
    assert record.getMessage() == "'User:ANONYMOUS' is denied DESCRIBE on TOPIC 'a\\nb', host 127.0.0.1"
