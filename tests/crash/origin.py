"""An S3 server over a directory, that is killed too: ``python -m tests.crash.origin DIRECTORY PORT``.

What it acknowledges is in the directory, whole, whatever kills it.
"""

import asyncio
import hashlib
import os
import socket
import sys
from pathlib import Path
from urllib.parse import unquote

import uvloop

from shadeproxy_bench.reliability.soak.origin import Fields, OriginConnection, answer_of, error_of


class DirectoryOrigin:
    """What ``OriginConnection`` asks for."""

    latency_s = 0.001

    def __init__(self, root: Path) -> None:
        self.root = root


class DirectoryConnection(OriginConnection):
    """GET and HEAD of an object or one range, PUT, DELETE."""

    _origin: DirectoryOrigin

    def answer(self, method: str, target: str, fields: Fields, body: bytes) -> list[bytes | memoryview]:
        path = self._origin.root / unquote(target.partition("?")[0]).lstrip("/")
        if method == "PUT":
            fresh = path.with_name(f".{path.name}.{id(self)}")
            fresh.write_bytes(body)
            fresh.rename(path)
            return answer_of("200 OK", b"", {"ETag": _tag(body)})
        if method == "DELETE":
            path.unlink(missing_ok=True)
            return answer_of("204 No Content", b"", {})
        if path.is_dir():
            return answer_of("200 OK", b"<ListAllMyBucketsResult/>", {}, with_body=method != "HEAD")
        if not path.exists():
            return error_of("404 Not Found", "NoSuchKey", method)
        return _object(method, path.read_bytes(), fields)


def _object(method: str, body: bytes, fields: Fields) -> list[bytes | memoryview]:
    tag, size, status, more = _tag(body), len(body), "200 OK", {}
    if fields.get("if-match", tag) != tag:
        return error_of("412 Precondition Failed", "PreconditionFailed", method)
    if (span := fields.get("range")) is not None:
        first, _, last = span.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or size - 1) + 1, size)
        if start >= size:
            return error_of("416 Requested Range Not Satisfiable", "InvalidRange", method)
        body, status = body[start:stop], "206 Partial Content"
        more = {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    more |= {"ETag": tag, "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    return answer_of(status, body, more, with_body=method != "HEAD")


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


async def _serve(root: Path, port: int) -> None:
    origin = DirectoryOrigin(root)
    server = await asyncio.get_running_loop().create_server(
        lambda: DirectoryConnection(origin), "127.0.0.1", port, family=socket.AF_INET, reuse_address=True
    )
    os.write(1, b"ready\n")
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), int(sys.argv[2])))
