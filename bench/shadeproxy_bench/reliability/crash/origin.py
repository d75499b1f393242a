"""An S3 server over a directory. The run kills this server, too. Its arguments are the directory and the
port.

Law: an acknowledged write is complete in the directory, even if the server is killed.
"""

import hashlib
import sys
from pathlib import Path
from urllib.parse import unquote

import uvloop

from shadeproxy_bench.listening import serve
from shadeproxy_bench.reliability.kit.origin import (
    Fields,
    OriginConnection,
    Parts,
    answer_of,
    error_of,
    object_of,
)

_LATENCY_S = 0.001


class DirectoryConnection(OriginConnection):
    """One connection, which answers GET and HEAD of an object or one range of it, PUT and DELETE."""

    def __init__(self, root: Path) -> None:
        super().__init__(_LATENCY_S)
        self._root = root

    def answer(self, method: str, target: str, fields: Fields, body: bytes) -> Parts:
        path = self._root / unquote(target.partition("?")[0]).lstrip("/")
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
        held = path.read_bytes()
        return object_of(method, held, _tag(held), fields)


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


if __name__ == "__main__":
    root = Path(sys.argv[1])
    uvloop.run(serve(lambda: DirectoryConnection(root), int(sys.argv[2])))
