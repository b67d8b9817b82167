"""`python -m kafkabuf` is the command `kafkabuf`."""

from kafkabuf.cli import main

if __name__ == "__main__":
    main(prog_name="kafkabuf")
