"""The settings that this process knows as checked: a task does not check again what the driver has checked.

`SinkOptions` takes its checked settings along to the tasks. Only the driver loads the model of the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kafkabuf.config.plain import PlainConfig

if TYPE_CHECKING:
    from kafkabuf.config import ProducerConfig

Settings = tuple[tuple[str, str], ...]

# The sink adds these to the user's settings, with values that are right.
_OWN = {"batch.size": int, "transactional.id": str}

_known: dict[Settings, PlainConfig] = {}


def remember(settings: Settings, config: PlainConfig | None) -> None:
    """Note that the driver has checked the settings."""
    if config is not None:
        _known[settings] = config


def known(settings: Settings) -> PlainConfig | None:
    """The checked settings, if this process has them."""
    return _known.get(settings)


def check(settings: Settings) -> PlainConfig:
    """Check settings, and note them. Raises ConfigError."""
    from kafkabuf.config import ProducerConfig

    config = _known[settings] = ProducerConfig.from_mapping(dict(settings)).plain()
    return config


def config_of(settings: Settings) -> ProducerConfig:
    """The configuration of settings, to which the sink may have added its own. Raises ConfigError."""
    return cast("ProducerConfig", _config_of(settings))


def _config_of(settings: Settings) -> PlainConfig:
    own = {name: value for name, value in settings if name in _OWN}
    for users, config in _known.items():
        added = {name: value for name, value in own.items() if name not in dict(users)}
        if tuple(sorted([*users, *added.items()])) == settings:
            return config.replaced({name.replace(".", "_"): _OWN[name](value) for name, value in added.items()})
    return check(settings)
