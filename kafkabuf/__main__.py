"""The command `kafkabuf`, and `python -m kafkabuf`."""

from __future__ import annotations

import sys

from kafkabuf.errors import MissingExtraError


def main() -> None:
    """Run the command line. If the packages of an extra are missing, one line says what to install."""
    try:
        from kafkabuf.cli import main as command

        command(prog_name="kafkabuf")
    except MissingExtraError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # while the command is imported
        sys.exit(128 + 2)


if __name__ == "__main__":
    main()
