"""The authorizer alone: what ACLs allow and deny. tests/conformance compares the cluster's decisions with Kafka's."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from kafkabuf.broker import Acl
from kafkabuf.broker.guards import acls
from kafkabuf.broker.guards.acls import AclFilter, Operation, PatternType, Permission
from kafkabuf.broker.guards.authorizer import Authorizer
from kafkabuf.errors import KafkaStorageError

_KINDS = (acls.ResourceType.TOPIC, acls.ResourceType.GROUP)
_NAMES = ("a", "ab", "abc", "b", "*")


def drawn(generator: random.Random) -> Acl:
    return Acl(
        generator.choice(("User:alice", "User:bob", "User:*")),
        generator.choice((Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS)),
        generator.choice(_KINDS),
        generator.choice(_NAMES),
        generator.choice((PatternType.LITERAL, PatternType.PREFIXED)),
        generator.choice(("*", "h")),
        generator.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
    )


def decided(
    existing: list[Acl], user: str, host: str, operation: Operation, kind: acls.ResourceType, name: str
) -> bool:
    """The decision by the definition, ACL by ACL: an open cluster, no super users."""
    implied = {
        Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    match = AclFilter(kind, name, PatternType.MATCH)
    concerning = [acl for acl in existing if match.matches(acl)]
    mine = [acl for acl in concerning if acl.principal in (user, "User:*") and acl.host in (host, "*")]
    same = {Operation.ALL, operation}
    if any(acl.permission is Permission.DENY and acl.operation in same for acl in mine):
        return False
    allowing = same | implied.get(operation, set())
    if any(acl.permission is Permission.ALLOW and acl.operation in allowing for acl in mine):
        return True
    return not concerning


@pytest.mark.parametrize("seed", range(20))
def test_authorizer_decides_by_the_definition(seed: int) -> None:
    generator = random.Random(seed)
    authorizer = Authorizer((), allow_everyone_if_no_acl_found=True)
    existing: list[Acl] = []
    asked = (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
    for _ in range(30):
        if existing and generator.random() < 0.4:
            authorizer.remove(existing.pop(generator.randrange(len(existing))))
        elif (new := drawn(generator)) not in existing:
            authorizer.add(new)
            existing.append(new)
        assert authorizer.find(AclFilter()) == existing
        for _ in range(20):
            question = (
                generator.choice(("User:alice", "User:carol")),
                generator.choice(("h", "other")),
                generator.choice(asked),
                generator.choice(_KINDS),
                generator.choice((*_NAMES[:4], "abcd", "")),
            )
            assert authorizer.allows(*question) == decided(existing, *question), (existing, question)


def topic_acl(name: str, *, prefixed: bool = False, deny: bool = False, **more: Any) -> Acl:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    operation = more.pop("operation", Operation.WRITE)
    return Acl("User:alice", operation, acls.ResourceType.TOPIC, name, pattern, permission=permission, **more)


@pytest.mark.parametrize(
    ("existing", "allowed"),
    [
        ([], False),
        ([topic_acl("a")], True),
        ([topic_acl("a", operation=Operation.ALL)], True),
        ([topic_acl("a", operation=Operation.READ)], False),
        ([topic_acl("a", host="elsewhere")], False),
        ([topic_acl("a", prefixed=True)], True),
        ([topic_acl("*")], True),
        ([topic_acl("a"), topic_acl("a", deny=True)], False),
        ([topic_acl("a"), topic_acl("b", deny=True)], True),
        ([topic_acl("ab"), topic_acl("a", prefixed=True, deny=True)], False),
        ([topic_acl("ab", prefixed=True), topic_acl("a", prefixed=True, deny=True)], False),
        ([topic_acl("a", prefixed=True), topic_acl("ab", prefixed=True, deny=True)], True),
        ([topic_acl("a", prefixed=True), topic_acl("a", deny=True)], True),
        ([topic_acl("a"), topic_acl("*", deny=True)], False),
        ([topic_acl("*"), topic_acl("a", deny=True)], True),
    ],
)
def test_right_to_some_topic_is_one_that_no_denial_covers(existing: list[Acl], allowed: bool) -> None:
    authorizer = Authorizer()
    for acl in existing:
        authorizer.add(acl)
    assert authorizer.allows_some("User:alice", "h", Operation.WRITE, acls.ResourceType.TOPIC) == allowed
    assert not authorizer.allows_some("User:bob", "h", Operation.WRITE, acls.ResourceType.TOPIC)
    assert not authorizer.allows_some("User:alice", "h", Operation.WRITE, acls.ResourceType.GROUP)


def test_long_denied_prefix_is_compared_once() -> None:
    """Each beginning of a name of 32,767 characters would be a copy."""
    authorizer, name = Authorizer(), "a" * 32_767
    authorizer.add(topic_acl(name, prefixed=True))
    authorizer.add(topic_acl(name[:-1], prefixed=True, deny=True))
    before = time.thread_time()
    for _ in range(10):
        assert not authorizer.allows_some("User:alice", "h", Operation.WRITE, acls.ResourceType.TOPIC)
    assert time.thread_time() - before < 0.5


def test_change_that_the_disk_refuses_does_not_take_effect() -> None:
    def refuse(acl: Acl, exists: bool) -> None:
        if refusing:
            raise KafkaStorageError("no space is left")

    refusing = False
    authorizer = Authorizer(remember=refuse)
    authorizer.add(kept := topic_acl("a"))
    refusing = True
    for change, acl in ((authorizer.add, topic_acl("b")), (authorizer.remove, kept)):
        with pytest.raises(KafkaStorageError):
            change(acl)
    assert authorizer.find(AclFilter()) == [kept]
    assert authorizer.allows("User:alice", "h", Operation.WRITE, acls.ResourceType.TOPIC, "a")
    assert not authorizer.allows("User:alice", "h", Operation.WRITE, acls.ResourceType.TOPIC, "b")
