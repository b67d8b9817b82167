"""The settings of a buffer that outlives its process: kafkabuf's own, which the faces take beside their peers'."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Literal, TypedDict


class OfTheFile(TypedDict, total=False):
    """As keywords of KafkaProducer. None is the default."""

    buffer_path: str | PathLike[str] | None
    buffer_sync: Literal["process", "flush"] | int | None
    buffer_expire: Literal["never", "since_send", "since_recovery"] | None
    buffer_full: Literal["block", "refuse", "drop_oldest"] | None
    buffer_unproven: Literal["deliver", "keep"] | None


OF_THE_FILE = tuple(OfTheFile.__annotations__)


def require_of_the_file(names: Iterable[str]) -> None:
    """Raises TypeError for a keyword that is no setting of the file, as Python does."""
    for name in names:
        if name not in OF_THE_FILE:
            raise TypeError(f"the producer got an unexpected keyword argument {name!r}")
