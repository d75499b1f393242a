"""The soak's origin, a process: an S3 server that stores versions only.

GET and HEAD (whole, one range, If-Match), PutObject (``x-amz-meta-version`` names the version that the body
must be; another body is refused, so that writes are checked too), ListObjectsV2, ListBuckets. Prints its port
on the first line.
"""

import argparse
import asyncio
import socket
from bisect import bisect_right
from typing import cast
from urllib.parse import parse_qs, quote, unquote

import uvloop

from shadeproxy_bench.reliability.soak.bodies import BUCKET, DataSet

_DATE = "2026-01-01T00:00:00.000Z"
_PATH = f"/{BUCKET}"
_MOST_KEYS = 1000
_BUCKETS = (
    f'<?xml version="1.0" encoding="UTF-8"?><ListAllMyBucketsResult><Buckets><Bucket><Name>{BUCKET}</Name>'
    f"<CreationDate>{_DATE}</CreationDate></Bucket></Buckets></ListAllMyBucketsResult>"
).encode()
Fields = dict[str, str]
Parts = list[bytes | memoryview]
"""Head and body of an answer; the head alone where there is no body."""


class SoakOrigin:
    """The objects' present versions, shared by all connections."""

    def __init__(self, data: DataSet, latency_s: float) -> None:
        self.data = data
        self.latency_s = latency_s
        self.versions = [0] * len(data)
        self._sorted = sorted(data.keys)

    def body(self, number: int) -> memoryview:
        return self.data.body(number, self.version(number))

    def version(self, number: int) -> int:
        """Return the present version."""
        return self.versions[number]

    def put(self, number: int, version: int, body: bytes) -> bool:
        """Make ``version`` the present one if ``body`` is its body; return whether it is."""
        if body != bytes(self.data.body(number, version)):
            return False
        self.versions[number] = version
        return True

    def tag(self, number: int) -> str:
        return self.data.tag(number, self.version(number))

    def listing(self, query: str) -> bytes:
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        prefix, most = asked.get("prefix", ""), min(int(asked.get("max-keys", _MOST_KEYS)), _MOST_KEYS)
        first = bisect_right(self._sorted, asked.get("start-after", ""))
        found = [key for key in self._sorted[first:] if key.startswith(prefix)]
        rows = []
        for key in found[:most]:
            number = self.data.number_of(key)
            assert number is not None
            tag = self.tag(number).replace('"', "&quot;")
            rows.append(
                f"<Contents><Key>{quote(key)}</Key><LastModified>{_DATE}</LastModified>"
                f"<ETag>{tag}</ETag><Size>{self.data.sizes[number]}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        truncated = str(len(found) > most).lower()
        return (
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>{BUCKET}</Name>'
            f"<EncodingType>url</EncodingType><IsTruncated>{truncated}</IsTruncated>{''.join(rows)}"
            "</ListBucketResult>"
        ).encode()


class OriginConnection(asyncio.Protocol):
    """One connection; requests are answered in the order in which they come."""

    def __init__(self, origin: SoakOrigin) -> None:
        self._origin = origin
        self._received = bytearray()
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= self._needed and (end := self._received.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._received[:end].decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
            self._needed = end + 4 + int(fields.get("content-length", "0"))
            if len(self._received) < self._needed:
                if not self.expects(fields):
                    return
                if fields.get("expect"):
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._received[end + 4 : self._needed])
            del self._received[: self._needed]
            self._needed = 0
            method, target, _ = first.split(" ", 2)
            self.respond(method, target, fields, body)

    def expects(self, fields: Fields) -> bool:  # noqa: ARG002 (others look at it)
        """Return whether to wait for the rest of a body; called once, when the head is there."""
        return True

    def respond(self, method: str, target: str, fields: Fields, body: bytes) -> None:
        """Answer one request after the latency."""
        answer = self.answer(method, target, fields, body)
        asyncio.get_running_loop().call_later(self._origin.latency_s, self._write, answer)

    def answer(self, method: str, target: str, fields: Fields, body: bytes) -> Parts:
        """Return head and body of the answer to one request."""
        path, _, query = target.partition("?")
        origin = self._origin
        if path in {"/", _PATH, _PATH + "/"}:
            listing = _BUCKETS if path == "/" else origin.listing(query)
            return answer_of("200 OK", listing, {"Content-Type": "application/xml"})
        number = origin.data.number_of(unquote(path.removeprefix(_PATH + "/")))
        if number is None:
            return error_of("404 Not Found", "NoSuchKey", method)
        if method == "PUT":
            if not origin.put(number, int(fields.get("x-amz-meta-version", "-1")), body):
                return error_of("400 Bad Request", "BadDigest", method)
            return answer_of("200 OK", b"", {"ETag": origin.tag(number)})
        wanted = fields.get("if-match")
        if wanted is not None and wanted != origin.tag(number):
            return error_of("412 Precondition Failed", "PreconditionFailed", method)
        return self._object(method, number, fields.get("range"))

    def _object(self, method: str, number: int, span: str | None) -> Parts:
        body, status = self._origin.body(number), "200 OK"
        size_bytes = len(body)
        more = {
            "ETag": self._origin.tag(number),
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
        }
        if span is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or size_bytes - 1) + 1, size_bytes)
            if start >= size_bytes:
                return error_of("416 Requested Range Not Satisfiable", "InvalidRange", method)
            body, status = body[start:stop], "206 Partial Content"
            more["Content-Range"] = f"bytes {start}-{stop - 1}/{size_bytes}"
        return answer_of(status, body, more, with_body=method != "HEAD")

    def _write(self, parts: Parts) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(parts)


def answer_of(status: str, body: bytes | memoryview, more: Fields, *, with_body: bool = True) -> Parts:
    """Return head and body of an answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "x-amz-request-id: soak"]
    lines += [f"{name}: {value}" for name, value in more.items()]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return [head, body] if with_body else [head]


def error_of(status: str, code: str, method: str) -> Parts:
    """Return head and XML document of an error; for HEAD the head alone."""
    text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'.encode()
    return answer_of(status, text, {"Content-Type": "application/xml"}, with_body=method != "HEAD")


async def serve(origin: SoakOrigin, connection: type[OriginConnection] = OriginConnection) -> None:
    """Serve until cancelled, on a free port of loopback, which is printed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: connection(origin), "127.0.0.1", 0, backlog=1024, family=socket.AF_INET
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(connection: type[OriginConnection] = OriginConnection) -> None:
    parser = argparse.ArgumentParser(description="The origin of a soak.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of the data set")
    parser.add_argument("--latency", type=float, default=0.002, help="seconds before each answer")
    options = parser.parse_args()
    uvloop.run(serve(SoakOrigin(DataSet(options.seed, options.bytes), options.latency), connection))


if __name__ == "__main__":
    main()
