"""ProducerConfig: all settings, checked one by one and together; reads them from mappings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import SecretStr, ValidationError, model_validator

from kafkabuf.config import checks, peer_names, refused
from kafkabuf.config.plain import PlainConfig, PlainSecret, slab_size
from kafkabuf.config.settings import ProducerSettings
from kafkabuf.config.values import dotted
from kafkabuf.errors import ConfigError


class ProducerConfig(ProducerSettings):
    """All settings of one producer, frozen. Build it with `from_mapping`, which understands both spellings."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        fields = type(self).model_fields
        missing = refused.not_yet(self.given(), {name: field.default for name, field in fields.items()})
        if missing is not None:
            raise ConfigError(missing)
        # Written to __dict__, so that these fields do not count as given: another setting may change them later.
        self.__dict__.update(checks.dependent_defaults(self))
        checks.check(self)
        if self.slab_size > self.buffer_memory:
            raise ConfigError(
                f"buffer.memory ({self.buffer_memory} bytes) is smaller than one batch ({self.slab_size} bytes): "
                "raise buffer.memory, or lower batch.size"
            )
        checks.warn(self)
        return self

    @property
    def slab_size(self) -> int:
        """Bytes of one slab of the arena: `batch.size`, but at least enough for a batch header and a short record."""
        return slab_size(self.batch_size)

    def given(self) -> dict[str, Any]:
        """The given settings by field name, secrets included, in the form that `from_mapping` accepts."""
        return {field: getattr(self, field) for field in type(self).model_fields if field in self.model_fields_set}

    def plain(self) -> PlainConfig:
        """The values alone, for a process that need not check them again."""
        values = {name: getattr(self, name) for name in (*type(self).model_fields, "signs_for_msk")}
        secrets = {name: value for name, value in values.items() if isinstance(value, SecretStr)}
        values |= {name: PlainSecret(value.get_secret_value()) for name, value in secrets.items()}
        return PlainConfig(values, frozenset(self.model_fields_set))

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any]) -> ProducerConfig:
        """Settings from mappings, under dotted or Python names. None is the default, as if the setting was left out.

        Raises a ConfigError that names the wrong setting.
        """
        values: dict[str, Any] = {}
        for name, value in (item for mapping in mappings for item in mapping.items()):
            field = str(name).replace(".", "_")
            if field in values:
                raise ConfigError(f"{dotted(field)} is given twice: leave one of the two out")
            if field not in cls.model_fields and dotted(field) not in refused.JAVA_ONLY:
                raise ConfigError(_unknown(str(name), cls.model_fields))
            if value is not None:
                values[field] = value
        problems = [refused.refused(dotted(name), values.pop(name)) for name in values.keys() - cls.model_fields.keys()]
        if any(problems):
            raise ConfigError("; ".join(sorted(filter(None, problems))))
        if "bootstrap_servers" not in values:
            raise ConfigError("bootstrap.servers is missing: give at least one host:port of the cluster")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError("; ".join(_explain(problem) for problem in error.errors())) from None


def _unknown(name: str, fields: Iterable[str]) -> str:
    advice = peer_names.advice(name)
    if advice is not None:
        return f"there is no producer setting {name!r}, {advice}"
    names = [*map(dotted, fields), *refused.JAVA_ONLY]
    near = difflib.get_close_matches(dotted(name), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no producer setting {name!r}{hint}"


def _explain(problem: Any) -> str:
    error = problem.get("ctx", {}).get("error")
    if isinstance(error, ConfigError):
        return str(error)
    name = dotted(str(problem["loc"][0])) if problem["loc"] else "settings"
    found = "" if _is_secret(name) else f", found {problem['input']!r}"
    return f"{name}: {problem['msg']}{found}"


def _is_secret(name: str) -> bool:
    field = ProducerConfig.model_fields.get(name.replace(".", "_"))
    return field is not None and "SecretStr" in str(field.annotation)
