"""PEM (RFC 7468) as people keep it: in blocks, with comments or openssl's "Bag Attributes" around them.

Java finds a block anywhere in a text, and takes blanks for line ends, as a properties file has them. OpenSSL finds a
block only where a line begins with it, and passes over the others without a word. So OpenSSL gets the blocks alone,
each in lines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

CERTIFICATES = {"CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"}

_WIDTH = 64  # of a line
_BLOCK = re.compile(r"-----BEGIN ([^-\r\n]+)-----((?:(?!-----)[\s\S])+)-----END \1-----")
# A key that OpenSSL encrypted in its old way has headers (RFC 1421), perhaps in one line with the rest.
_HEADER = r"[A-Za-z0-9-]+:[ \t]*(?:[ -~]*(?=[\r\n])|[!-~]+)"
_CONTENT = re.compile(rf"\s*((?:{_HEADER}\s+)*)([A-Za-z0-9+/=][A-Za-z0-9+/=\s]*)")
# The mark of a block, not a comment's: a line begins with it, or base64 is in front of it.
_MARK = re.compile(r"(?:^|[A-Za-z0-9+/=]{16})[ \t]*-----(?:BEGIN|END) ([^-\r\n]+)-----", re.MULTILINE)


class Block(NamedTuple):
    """`text` has the lines that OpenSSL needs."""

    label: str
    text: str


def blocks(text: str) -> list[Block]:
    """All blocks of a text. Raises ValueError for a block that is damaged, and never shows its content.

    A comment may show a block, too: in front of its BEGIN there are other characters, and its content is not base64.
    """
    text = text.removeprefix("\ufeff")  # the mark with which Windows begins a file
    complete, between, end = [], [], 0
    for match in _BLOCK.finditer(text):
        content = _CONTENT.fullmatch(match[2])
        if content is not None:
            complete.append(Block(match[1], _in_lines(match[1], content[1], content[2])))
            between.append(text[end : match.start()])
            end = match.end()
    between.append(text[end:])
    # A block that is left out would be a certificate that the user named, and that nobody trusts.
    damaged = _MARK.search("\n".join(between))
    if damaged is not None:
        raise ValueError(f"a block {damaged[1]} is damaged")
    return complete


def certificates(text: str) -> list[Block]:
    """The certificates of a text. Raises ValueError for a damaged block, or for a text without a certificate."""
    return _of_kind(text, "certificate", lambda label: label in CERTIFICATES)


def private_keys(text: str) -> list[Block]:
    """The private keys of a text. Raises ValueError for a damaged block, or for a text without a private key."""
    return _of_kind(text, "private key", lambda label: label.endswith("PRIVATE KEY"))


def _of_kind(text: str, kind: str, is_wanted: Callable[[str], bool]) -> list[Block]:
    all_blocks = blocks(text)
    wanted = [block for block in all_blocks if is_wanted(block.label)]
    if not wanted:
        labels = ", ".join(sorted({block.label for block in all_blocks}))
        raise ValueError(f"no {kind}{f', only {labels}' if labels else ''}")
    return wanted


def _in_lines(label: str, headers: str, content: str) -> str:
    named = [match[0].rstrip() for match in re.finditer(_HEADER, headers)]
    data = "".join(content.split())
    lines = [data[at : at + _WIDTH] for at in range(0, len(data), _WIDTH)]
    return "\n".join(
        [f"-----BEGIN {label}-----", *named, *([""] if named else []), *lines, f"-----END {label}-----", ""]
    )
