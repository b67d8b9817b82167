"""The optional parts of kafkabuf: each needs packages that `pip install kafkabuf` leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafkabuf.errors import MissingExtraError


@contextmanager
def needs(extra: str, part: str) -> Iterator[None]:
    """For imports in the `with`: a package that is not installed raises a MissingExtraError, which names the extra.

    `part` of kafkabuf imports the package; the error's text begins with it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise MissingExtraError(f"{part} needs the package {package}: {install(extra)}", name=package) from None


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "kafkabuf[{extra}]"'
