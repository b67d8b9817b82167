"""HTTP responses that take more memory than their client may give them."""

from __future__ import annotations

import gzip
import io

MB = 2**20
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def compressed_response() -> bytes:
    """A response of some hundred kilobytes that would become 64 MB."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(MB))
    body = out.getvalue()
    return OK + f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
