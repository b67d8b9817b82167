"""Decides what a principal may do (Kafka's StandardAuthorizer). Thread: the event loop.

A super user may do everything. For everybody else the ACLs decide whose pattern matches the resource:

- an ACL that denies the operation wins over every other;
- otherwise an ACL that allows the operation, or an operation that implies it, allows it;
- a resource with no ACL at all is open if allow.everyone.if.no.acl.found is set, and closed otherwise.

To allow READ, WRITE, DELETE or ALTER allows DESCRIBE too, and ALTER_CONFIGS allows DESCRIBE_CONFIGS. To deny an
operation denies only that operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator

from kafkabuf.broker.guards.acls import (
    ANY_HOST,
    ANY_NAME,
    ANY_PRINCIPAL,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
)
from kafkabuf.broker.waiting.slices import Work, finish

# The operations that are allowed beside an allowed operation.
_IMPLIED = {
    **dict.fromkeys((Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER), Operation.DESCRIBE),
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}
# ACLs that a step compares with a filter.
_STEP = 200
Pattern = tuple[ResourceType, PatternType, str]


class Authorizer:
    """The ACLs of a cluster, in the order of their creation. `remember` stores a change before the change takes effect:
    an ACL, and whether it exists from now on."""

    def __init__(
        self,
        super_users: Collection[str] = (),
        allow_everyone_if_no_acl_found: bool = False,
        remember: Callable[[Acl, bool], None] = lambda acl, exists: None,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._open = allow_everyone_if_no_acl_found
        self._remember = remember
        self._acls: dict[Acl, None] = {}
        self._by_pattern: dict[Pattern, dict[Acl, None]] = {}
        # How many PREFIXED patterns of a type have each length: only these lengths of a name need a lookup.
        self._lengths: dict[ResourceType, Counter[int]] = {}

    # ---- decisions

    def allows(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether a principal may perform an operation on the resource of this name."""
        if principal in self._super_users:
            return True
        has_acls = allowed = False
        for acl in self._matching(kind, name):
            has_acls = True
            if acl.principal not in (principal, ANY_PRINCIPAL) or acl.host not in (ANY_HOST, host):
                continue
            exact = acl.operation in (operation, Operation.ALL)
            if exact and acl.permission is Permission.DENY:
                return False
            if acl.permission is Permission.ALLOW and (exact or _IMPLIED.get(acl.operation) is operation):
                allowed = True
        return allowed or (self._open and not has_acls)

    def allows_some(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether a principal may perform an operation on at least one resource of a type, which need not exist
        (Kafka's Authorizer.authorizeByResourceType). An operation that implies this operation does not count."""
        # As in Kafka, this name stands for a resource without ACLs of its own.
        if self.allows(principal, host, operation, kind, "hardcode"):
            return True
        denied: set[tuple[PatternType, str]] = set()
        allowed: set[tuple[PatternType, str]] = set()
        for acl in self._acls:
            if (
                acl.resource_type is kind
                and acl.principal in (principal, ANY_PRINCIPAL)
                and acl.host in (ANY_HOST, host)
                and acl.operation in (operation, Operation.ALL)
            ):
                (denied if acl.permission is Permission.DENY else allowed).add((acl.pattern_type, acl.resource_name))
        everything = PatternType.LITERAL, ANY_NAME
        if everything in denied:
            return False
        lengths = {len(name) for pattern_type, name in denied if pattern_type is PatternType.PREFIXED}
        return everything in allowed or any(not _dominated(pattern, denied, lengths) for pattern in allowed)

    def _matching(self, kind: ResourceType, name: str) -> Iterator[Acl]:
        """The ACLs whose pattern matches a resource."""
        yield from self._by_pattern.get((kind, PatternType.LITERAL, name), ())
        if name != ANY_NAME:
            yield from self._by_pattern.get((kind, PatternType.LITERAL, ANY_NAME), ())
        for length in self._lengths.get(kind, ()):
            if length <= len(name):
                yield from self._by_pattern.get((kind, PatternType.PREFIXED, name[:length]), ())

    # ---- the ACLs

    def find(self, wanted: AclFilter) -> list[Acl]:
        return finish(self.finding(wanted))

    def finding(self, wanted: AclFilter) -> Work[list[Acl]]:
        """As `find`, in steps."""
        matching = []
        for number, acl in enumerate(tuple(self._acls), 1):
            if wanted.matches(acl):
                matching.append(acl)
            if not number % _STEP:
                yield
        return matching

    def add(self, acl: Acl) -> None:
        """Adds an ACL. Does nothing if it exists. Raises InvalidRequestError for an ACL that cannot exist, and
        KafkaStorageError if the disk refuses."""
        check_acl(acl)
        if acl not in self._acls:
            self._remember(acl, True)
            self.restore(acl)

    def restore(self, acl: Acl) -> None:
        """Adds an ACL that is stored already."""
        self._acls[acl] = None
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        if pattern not in self._by_pattern and acl.pattern_type is PatternType.PREFIXED:
            self._lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        self._by_pattern.setdefault(pattern, {})[acl] = None

    def remove(self, acl: Acl) -> None:
        """Removes an ACL. Does nothing if it does not exist. Raises KafkaStorageError if the disk refuses."""
        if acl not in self._acls:
            return
        self._remember(acl, False)
        del self._acls[acl]
        pattern = acl.resource_type, acl.pattern_type, acl.resource_name
        del self._by_pattern[pattern][acl]
        if not self._by_pattern[pattern]:
            del self._by_pattern[pattern]
            if acl.pattern_type is PatternType.PREFIXED:
                self._forget_length(acl.resource_type, len(acl.resource_name))

    def _forget_length(self, kind: ResourceType, length: int) -> None:
        self._lengths[kind][length] -= 1
        if not self._lengths[kind][length]:
            del self._lengths[kind][length]


def _dominated(
    pattern: tuple[PatternType, str], denied: set[tuple[PatternType, str]], lengths: Collection[int]
) -> bool:
    """Whether a denied pattern covers every resource of an allowed pattern. `lengths`: of the denied prefixes. A name
    may have 32,767 characters."""
    kind, name = pattern
    if kind is PatternType.LITERAL and pattern in denied:
        return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in lengths if length <= len(name))
