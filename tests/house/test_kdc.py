"""rigs/kdc.py without a KDC: it names what the machine lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rigs import kdc


def test_missing_programs_are_named_with_the_packages_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kdc, "_PATH", str(tmp_path))
    assert "find no krb5kdc, kdb5_util, kadmin.local, kinit, faketime, krb5-config. Debian" in kdc.missing()
    for name in kdc.PROGRAMS:
        (tmp_path / name).touch(0o755)
    assert kdc.missing() == ""
