"""The command `kafkabuf`, and `python -m kafkabuf`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. If the packages of an extra are missing, one line says what to install."""
    try:
        from kafkabuf.cli import main as command

        command(prog_name="kafkabuf")
    except KeyboardInterrupt:  # while the command is imported
        sys.exit(128 + 2)
    except Exception as error:
        # Imported here, as Ctrl-C may come in each import.
        from kafkabuf.errors import MissingExtraError
        from kafkabuf.extras import install

        # The output for programs needs no rich, so that a command imports it where it prints a table.
        if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "rich":
            sys.exit(f"the command kafkabuf needs the package rich: {install('cli')}")
        if not isinstance(error, MissingExtraError):
            raise
        sys.exit(str(error))


if __name__ == "__main__":
    main()
