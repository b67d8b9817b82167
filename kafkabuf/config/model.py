"""ProducerConfig: all settings, checked one by one and together; reads them from mappings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

from kafkabuf.config import checks, peer_names, refused, schema_registry
from kafkabuf.config.kinds import Setting, dotted, field_of
from kafkabuf.config.settings import ProducerSettings
from kafkabuf.errors import ConfigError
from kafkabuf.shown import also_unfinished, shown

SMALLEST_SLAB = 512


class ProducerConfig(ProducerSettings):
    """All settings of one producer, frozen. It understands both spellings.

    Two configurations are equal if all their values are equal. A pickle holds the values, which nothing checks again.
    Raises a ConfigError that names each wrong setting.
    """

    model_fields: ClassVar[Mapping[str, Setting]] = {
        name: setting
        for settings in reversed(ProducerSettings.__mro__)
        for name, setting in vars(settings).items()
        if isinstance(setting, Setting)
    } | schema_registry.producer_fields()

    def __init__(self, *mappings: Mapping[str, Any], **settings: Any) -> None:
        given = _by_field(*mappings, settings)
        values = {name: setting.default for name, setting in self.model_fields.items()}
        problems: list[str] = []
        for name in filter(given.__contains__, self.model_fields):
            try:
                values[name] = self.model_fields[name].check(given[name])
            except ValueError as error:
                problems.append(_explain(name, error, given[name]))
        if problems:
            raise ConfigError("; ".join(problems))
        self.__dict__.update(values, model_fields_set=frozenset(given))
        self._check_together()

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any]) -> ProducerConfig:
        """Settings from mappings, under dotted or Python names. None is the default, as if the setting was left out.

        Raises a ConfigError that names the wrong setting.
        """
        return cls(*mappings)

    def _check_together(self) -> None:
        defaults = {name: setting.default for name, setting in self.model_fields.items()}
        missing = refused.not_yet(self.given(), defaults)
        if missing is not None:
            raise ConfigError(missing)
        # These fields do not count as given: another setting may change them later.
        self.__dict__.update(checks.dependent_defaults(self))
        checks.check(self)
        if self.slab_size > self.buffer_memory:
            raise ConfigError(
                f"buffer.memory ({self.buffer_memory} bytes) is smaller than one batch ({self.slab_size} bytes): "
                "raise buffer.memory, or lower batch.size"
            )
        checks.warn(self)

    @property
    def slab_size(self) -> int:
        """Bytes of one slab of the arena: `batch.size`, but at least enough for a batch header and a short record."""
        return max(self.batch_size, SMALLEST_SLAB)

    def given(self) -> dict[str, Any]:
        """The given settings by field name, secrets included, in the form that `from_mapping` accepts."""
        return {name: value for name, value in self._values().items() if name in self.model_fields_set}

    def given_to_schema_registry(self) -> dict[str, Any]:
        """The given settings of the Schema Registry, under names that its client takes."""
        return {name: value for name, value in self.given().items() if name.startswith(schema_registry.PREFIX)}

    def replaced(self, changes: Mapping[str, Any]) -> Self:
        """The settings with other values for some fields, which the caller has checked."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def _values(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.model_fields}

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigError(f"{name}: a ProducerConfig is frozen: make another, from_mapping(config.given() | changes)")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerConfig) and other._values() == self._values()

    def __hash__(self) -> int:
        return hash(tuple(self._values().values()))

    @also_unfinished
    def __repr__(self) -> str:
        return f"ProducerConfig({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"


def _by_field(*mappings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the mappings by field name, without those that only Java's producer has a use for."""
    fields, values = ProducerConfig.model_fields, dict[str, Any]()
    for name, value in (item for mapping in mappings for item in mapping.items()):
        field = field_of(str(name))
        if field in values and value is not None:
            raise ConfigError(f"{dotted(field)} is given twice: leave one of the two out")
        if field not in fields and dotted(field) not in refused.JAVA_ONLY:
            raise ConfigError(_unknown(str(name), fields))
        if value is not None:
            values[field] = value
    problems = [refused.refused(dotted(name), values.pop(name)) for name in values.keys() - fields.keys()]
    if any(problems):
        raise ConfigError("; ".join(sorted(filter(None, problems))))
    if "bootstrap_servers" not in values:
        raise ConfigError("bootstrap.servers is missing: give at least one host:port of the cluster")
    return values


def _unknown(name: str, fields: Iterable[str]) -> str:
    advice = peer_names.advice(name)
    if advice is not None:
        return f"there is no producer setting {name!r}, {advice}"
    import difflib  # late: only an error needs it

    names = [*map(dotted, fields), *refused.JAVA_ONLY]
    near = difflib.get_close_matches(dotted(name), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no producer setting {name!r}{hint}"


def _explain(name: str, error: ValueError, value: object) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    value_shown = f", found {shown(value)}" if ProducerConfig.model_fields[name].shown else ""
    return f"{dotted(name)}: {error}{value_shown}"
