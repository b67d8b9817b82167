"""A secret of the settings: a password, a key, a certificate, the query of a URL."""

from __future__ import annotations


class SecretStr:
    """Text that no output shows. Only `get_secret_value()` gives it. A pickle contains it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def get_secret_value(self) -> str:
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __str__(self) -> str:
        return "**********"

    def __repr__(self) -> str:
        return f"SecretStr('{self}')"


class Url(str):
    """A URL whose query no `repr` shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        path, mark, _ = self.partition("?")
        return repr(f"{path}{mark}{'**********' * bool(mark)}")
