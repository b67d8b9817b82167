"""The settings of the nodes, as nodes list them and clients change them.

A value of a node comes from the first level that has one: the node's own dynamic setting, the dynamic setting of all
nodes, the cluster's arguments (configs/given.py), and Kafka's default (configs/table.py). A setting that the cluster
does not follow is listed with Kafka's default.

Clients can change the defaults of topics, the limits of connections, and producer.id.expiration.ms. As in a new
cluster of Kafka 4.1, min.insync.replicas is set for all nodes from the beginning (KIP-966).

Deviation: in a cluster of more than one node, only the limits of connections and producer.id.expiration.ms can be a
node's own dynamic settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Protocol

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.configs.given import given_values
from kafkabuf.broker.configs.kinds import LIST
from kafkabuf.broker.configs.node_kinds import (
    CHANGEABLE,
    OF_SINGLE_NODES,
    PRODUCER_EXPIRATION,
    TOPIC_DEFAULTS,
    check_together,
)
from kafkabuf.broker.configs.setting import DEFAULT, OF_ALL_NODES, OF_NODE, STATIC, Level, Setting
from kafkabuf.broker.configs.table import node_kinds
from kafkabuf.broker.configs.topics import TOPIC_CONFIGS
from kafkabuf.errors import InvalidConfigError, InvalidRequestError

ALL_NODES = ""
_MIN_ISR = "min.insync.replicas"
# The setting whose default applies where no level has a value. Kafka lists it behind the levels that have one.
_FALLBACKS = {
    "log.flush.interval.ms": "log.flush.scheduler.interval.ms",
    "log.retention.ms": "log.retention.hours",
    "log.roll.jitter.ms": "log.roll.jitter.hours",
    "log.roll.ms": "log.roll.hours",
}


class Node(Protocol):
    """What the settings need of a node."""

    node_id: int
    host: str
    port: int


class NodeConfigs:
    """`keep` stores the dynamic settings of a node, or of all nodes. `changed` runs when the defaults of topics have
    changed."""

    def __init__(
        self,
        config: ClusterConfig,
        keep: Callable[[str, Mapping[str, str]], None] = lambda name, configs: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._keep = keep
        self._changed = changed
        self._dynamic: dict[str, dict[str, str]] = {ALL_NODES: {_MIN_ISR: str(config.min_insync_replicas)}}

    def restore(self, name: str, configs: Mapping[str, str]) -> None:
        """Takes over the dynamic settings of the last run."""
        self._dynamic[name] = dict(configs)

    # ---- values

    def topic_defaults(self) -> dict[str, str]:
        """The settings of a topic that has no settings of its own, without those that have Kafka's default."""
        values = dict(self._config.topic_defaults)
        for configs in self._dynamic.values():
            values |= configs
        return {name: values[kind.broker] for name, kind in TOPIC_CONFIGS.items() if kind.broker in values}

    def levels(self, name: str, node_id: int) -> Iterator[Level]:
        """The values of a setting on all levels, except for those of one node alone, such as its port."""
        return self._levels(name, node_id, self._given)

    def _levels(self, name: str, node_id: int, given: Mapping[str, str]) -> Iterator[Level]:
        kind, is_set = node_kinds()[name], False
        for values, source in (
            (self.dynamic(str(node_id)), OF_NODE),
            (self.dynamic(ALL_NODES), OF_ALL_NODES),
            (given, STATIC),
            ({} if kind.default is None else {name: kind.default}, DEFAULT),
        ):
            if name in values:
                is_set = True
                yield name, None if kind.sensitive else values[name], source
        if is_set and name in _FALLBACKS:
            yield _FALLBACKS[name], node_kinds()[_FALLBACKS[name]].default, DEFAULT

    def dynamic(self, name: str) -> Mapping[str, str]:
        """The dynamic settings of the node with this number, or of ALL_NODES."""
        return self._dynamic.get(name, {})

    def set_for(self, name: str, node_id: int) -> str | None:
        """The dynamic value that a setting has on a node; None: it is not set."""
        return self.dynamic(str(node_id)).get(name, self.dynamic(ALL_NODES).get(name))

    def producer_expiration_ms(self, node_id: int) -> int:
        """The age at which the node's logs forget a producer."""
        dynamic = self.set_for(PRODUCER_EXPIRATION, node_id)
        return self._config.producer_id_expiration_ms if dynamic is None else int(dynamic)

    def value(self, name: str) -> str:
        """The value that a setting has on all nodes; "": it is not set."""
        return next((value or "" for _, value, source in self.levels(name, -1)), "")

    @cached_property
    def _given(self) -> dict[str, str]:
        # Made when a client first asks, so that a cluster starts without reading the table.
        return given_values(self._config)

    # ---- descriptions

    def describe(self, node: Node) -> Iterator[Setting]:
        given = {**self._given, **self._own_values(node)}
        for name, kind in node_kinds().items():
            levels = tuple(self._levels(name, node.node_id, given))
            _, value, source = levels[0] if levels else (name, None, DEFAULT)
            yield Setting(name, value, kind.type, source, levels, not kind.dynamic, kind.sensitive)

    def describe_shared(self) -> Iterator[Setting]:
        """The dynamic settings of all nodes."""
        for name, value in self._dynamic[ALL_NODES].items():
            yield Setting(name, value, node_kinds()[name].type, OF_ALL_NODES, ((name, value, OF_ALL_NODES),))

    def _own_values(self, node: Node) -> dict[str, str]:
        protocol = self._config.security.protocol
        host = f"[{node.host}]" if ":" in node.host else node.host
        return {
            "advertised.listeners": f"{protocol}://{host}:{node.port}",
            "broker.id": str(node.node_id),
            "inter.broker.listener.name": protocol,
            "listener.security.protocol.map": f"{protocol}:{protocol}",
            "listeners": f"{protocol}://{host}:{node.port}",
            "log.dirs": "memory" if self._config.data_dir is None else str(self._config.data_dir),
            "node.id": str(node.node_id),
            "process.roles": "broker,controller",
        }

    # ---- changes

    def lists(self) -> dict[str, str]:
        """The settings to which a client can add words, with their defaults."""
        return {name: node_kinds()[name].default or "" for name, kind in TOPIC_DEFAULTS.items() if kind.type == LIST}

    def replace(self, name: str, configs: Mapping[str, str], *, dry_run: bool) -> None:
        """Replaces the dynamic settings of a node, or of ALL_NODES.

        Raises InvalidRequestError for a setting that the cluster does not follow or a value that is not valid, and
        InvalidConfigError if min.insync.replicas would not be set for all nodes alone.
        """
        checked = {setting: self._check(name, setting, value) for setting, value in configs.items()}
        self._check_min_isr(name, configs)
        self._check_together(name, checked)
        if not dry_run:
            self._keep(name, checked)
            self._dynamic[name] = checked
            self._changed()

    def _check_together(self, name: str, configs: Mapping[str, str]) -> None:
        shared = {} if name == ALL_NODES else self.dynamic(ALL_NODES)
        try:
            check_together({**shared, **configs})
        except InvalidConfigError as error:
            raise InvalidRequestError(str(error)) from None

    def _check_min_isr(self, name: str, configs: Mapping[str, str]) -> None:
        if name == ALL_NODES and _MIN_ISR not in configs:
            raise InvalidConfigError(f"Cluster-level {_MIN_ISR} cannot be removed while ELR is enabled.")
        if name != ALL_NODES and _MIN_ISR in configs:
            raise InvalidConfigError(f"Broker-level {_MIN_ISR} cannot be altered while ELR is enabled.")

    def _check(self, name: str, setting: str, value: str) -> str:
        kind = node_kinds().get(setting)
        if kind is not None and not kind.dynamic:
            raise InvalidRequestError(f"Cannot update these configs dynamically: Set({setting})")
        if setting not in CHANGEABLE:
            raise InvalidRequestError(f"the embedded cluster does not follow {setting}, so it cannot change")
        if name != ALL_NODES and self._config.brokers > 1 and setting not in OF_SINGLE_NODES:
            raise InvalidRequestError(
                f"the nodes of the embedded cluster share {setting}: change it for all nodes (the resource name is "
                '"", --entity-default in kafka-configs.sh)'
            )
        try:
            return CHANGEABLE[setting].canonical(setting, value)
        except InvalidConfigError as error:
            raise InvalidRequestError(str(error)) from None
