"""CRC-32C of the broker: a library's, of which only the compiled module is loaded."""

from __future__ import annotations

import subprocess
import sys

import crc32c as library
import pytest

from kafkabuf.broker.wire import crc

CHECK = b"123456789"
# They take longer to import than the rest of the library, and a tenth of the broker's own import.
NEEDLESS = ("argparse", "email", "importlib.metadata")


def test_broker_loads_neither_the_command_line_nor_the_metadata_of_the_library() -> None:
    program = "import sys, kafkabuf.broker.embedded\nprint(*sorted({*sys.argv[1:]} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program, *NEEDLESS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_library_loads_beside_its_compiled_module() -> None:
    assert crc.crc32c(CHECK) == library.crc32c(CHECK) == 0xE3069283


def test_library_whose_compiled_module_has_another_name_is_imported_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc, "_extension", lambda package: None)
    assert crc._load() is library.crc32c


def test_library_that_is_a_single_module_has_no_compiled_module() -> None:
    assert crc._extension(None) is None
    assert crc._extension(library._crc32c.__spec__) is None
