"""Fetch Mermaid, which draws the diagrams of the site: `python -m tools.site.mermaid FILE`.

The site has its own copy, so that a page asks no other server. npm fetches the package; the checksum pins it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "11.12.0"
SHA256 = "07e37dfa97b337ccc85365d57eddf99b9706f09db3b59b260d0333b23b343c4b"
MEMBER = "package/dist/mermaid.min.js"


def fetched() -> bytes:
    """The script. Raises SystemExit where npm is missing or fails, and where the script is another one."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("make docs needs npm, which fetches Mermaid. Debian, Ubuntu: apt install npm")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", f"mermaid@{VERSION}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr.strip()}")
        with tarfile.open(Path(folder, f"mermaid-{VERSION}.tgz")) as package:
            member = package.extractfile(MEMBER)
            script = b"" if member is None else member.read()
    found = hashlib.sha256(script).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{MEMBER} of mermaid {VERSION} has the SHA-256 {found}, not {SHA256}")
    return script


def main(path: Path) -> None:
    script = fetched()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(script)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
