"""The settings that a cluster is made with: EmbeddedCluster's arguments, under Kafka's names.

A field of ClusterConfig, or of a group of settings in it such as ConnectionLimits, stands for the setting of Kafka with
its name: `connections_max_idle_ms` for connections.max.idle.ms. `_OTHER_NAMES` has the fields with names of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from kafkabuf.broker.configs.cluster_config import ClusterConfig
from kafkabuf.broker.configs.kinds import parse, printed
from kafkabuf.broker.configs.node_kinds import TOPIC_DEFAULTS
from kafkabuf.broker.configs.resources import MetricsConfigs
from kafkabuf.broker.configs.table import node_kinds
from kafkabuf.broker.configs.topics import TOPIC_CONFIGS
from kafkabuf.errors import ConfigError, InvalidConfigError, InvalidRequestError

Value = str | int | float | bool
_OTHER_NAMES = {
    "auto_create_topics": "auto.create.topics.enable",
    "default_partitions": "num.partitions",
    "max_message_bytes": "message.max.bytes",
    "replication_factor": "default.replication.factor",
    "retention_bytes": "log.retention.bytes",
    "sasl_mechanisms": "sasl.enabled.mechanisms",
}
# What the embedded broker does where Kafka has a setting and the cluster has no such setting.
_FIXED = {
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "max.incremental.fetch.session.cache.slots": "0",
    "num.io.threads": "1",
    "num.network.threads": "1",
    "offsets.retention.minutes": str(2**31 - 1),
    "transactional.id.expiration.ms": str(2**31 - 1),
}


def given_values(config: ClusterConfig) -> dict[str, str]:
    """The settings of all nodes whose values are not Kafka's defaults."""
    values = dict(_FIXED)
    for name, _, field, value in _settings(config):
        if field == "retention_bytes" and value is None:
            values[name] = "-1"
        elif value not in (None, ()):
            values[name] = printed(value if isinstance(value, int | str | tuple) else str(value))
    kinds = node_kinds()
    return {name: value for name, value in {**values, **config.topic_defaults}.items() if value != kinds[name].default}


def with_values(config: ClusterConfig, given: Mapping[str, Value]) -> ClusterConfig:
    """The config with settings under Kafka's names. Raises ConfigError for a name or value that is not valid here."""
    changes: dict[str | None, dict[str, Any]] = {}
    defaults = dict(config.topic_defaults)
    fields_by_name = {name: (part, field, value) for name, part, field, value in _settings(config)}
    for name, text in texts_of("config", given).items():
        if name in fields_by_name:
            part, field, present = fields_by_name[name]
            value = _read(name, text)
            _check_not_given_twice(config, part, field, present, value, name)
            changes.setdefault(part, {})[field] = value
        elif name in TOPIC_DEFAULTS:
            defaults[name] = _canonical(name, text)
        else:
            _refuse(config, name, text)
    for part, values in changes.items():
        if part is not None:
            config = replace(config, **{part: replace(getattr(config, part), **values)})
    return replace(config, topic_defaults=defaults, **changes.get(None, {}))


def texts_of(argument: str, given: Mapping[str, Value]) -> dict[str, str]:
    """{name: value as a text}. Raises ConfigError for a mapping of other objects."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{argument}: a mapping of Kafka's names is needed, found {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigError(f"{argument}: {name!r} is no name of a setting: a str is needed")
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(f"{argument}: {name}={value!r}: a text, a number or a bool is needed")
    return {name: printed(value) for name, value in given.items()}


def subscriptions_of(client_metrics: bool | Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, str]]:
    """The subscriptions to client metrics at the start. Raises ConfigError for what Kafka's AlterConfigs refuses."""
    if isinstance(client_metrics, bool):
        return {}
    if not isinstance(client_metrics, Mapping) or not all(isinstance(name, str) for name in client_metrics):
        raise ConfigError("client_metrics: a bool, or a mapping of names to the settings of subscriptions, is needed")
    subscriptions = {name: texts_of(f"client_metrics[{name!r}]", configs) for name, configs in client_metrics.items()}
    for name, configs in subscriptions.items():
        try:
            MetricsConfigs().replace(name, configs, dry_run=True)
        except (InvalidConfigError, InvalidRequestError) as error:
            raise ConfigError(f"client_metrics[{name!r}]: {error}") from None
    return subscriptions


def _settings(config: ClusterConfig) -> Iterator[tuple[str, str | None, str, Any]]:
    """(Kafka's name, the group of settings in `config`, the field, its value) of every field with a name in Kafka."""
    kinds = node_kinds()
    groups: list[tuple[str | None, Any]] = [(None, config)]
    groups += [(field.name, value) for field in fields(config) if is_dataclass(value := getattr(config, field.name))]
    for group, settings in groups:
        for field in fields(settings):
            name = _OTHER_NAMES.get(field.name, field.name.replace("_", "."))
            if name in kinds:
                yield name, group, field.name, getattr(settings, field.name)


def _read(name: str, text: str) -> Any:
    try:
        value = parse(name, node_kinds()[name].type, text)
    except InvalidConfigError as error:
        raise ConfigError(f"config: {error}") from None
    return tuple(value) if isinstance(value, list) else value


def _canonical(name: str, text: str) -> str:
    try:
        return TOPIC_DEFAULTS[name].canonical(name, text)
    except InvalidConfigError as error:
        raise ConfigError(f"config: {error}") from None


def _check_not_given_twice(
    config: ClusterConfig, part: str | None, field: str, present: Any, value: Any, name: str
) -> None:
    settings = config if part is None else getattr(config, part)
    defaults = {item.name: item.default for item in fields(settings)}
    if present not in (defaults[field], value) and field != "replication_factor":
        raise ConfigError(f"config: {name}={value}, but {field}={present}: give the setting once")


def _refuse(config: ClusterConfig, name: str, text: str) -> None:
    """Raises ConfigError, unless the text is the value that the cluster has anyway."""
    kinds = node_kinds()
    if name in kinds:
        if text == given_values(config).get(name, kinds[name].default):
            return
        raise ConfigError(f"config: the embedded cluster does not follow {name}: leave the setting out")
    if name in TOPIC_CONFIGS and TOPIC_CONFIGS[name].broker:
        nearest: list[str] = [TOPIC_CONFIGS[name].broker]
    else:
        nearest = get_close_matches(name.replace("_", "."), kinds, 1)
    hint = f": do you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(f"config: Kafka 4.1 has no setting {name!r} of brokers{hint}")
