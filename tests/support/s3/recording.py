"""An origin that records every request as it came, and a reader of these records.

Law: the reader shares no code with shadeproxy. ``understood`` reads a request as Ceph RGW does: fields under
their CGI names (upper case, "-" as "_"), paths and queries decoded once, XML by its elements.
"""

import asyncio
import re
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus
from xml.dom import minidom

BODY = b"data"
# Ceph RGW takes fields with these vendors' prefixes for fields of AWS.
_OTHER_VENDORS = re.compile(r"X_(?:GOOG|DHO|RGW|OBJECT|CONTAINER|ACCOUNT)_")


class Recorded(NamedTuple):
    """One request: its line, its fields as they came, and its body without transfer coding."""

    line: str
    fields: tuple[tuple[str, str], ...]
    body: bytes


class Understood(NamedTuple):
    """A request as a server that reads like RGW understands it.

    ``copy_sources`` has the object to copy, or both if AWS reads its key in another way: it takes a raw ``+``
    for a space. ``deletes`` has every Key of a DeleteObjects, wherever the Key is in the document.
    """

    method: str
    bucket: str
    key: str
    parameters: dict[str, str]
    environment: dict[str, str]
    copy_sources: set[tuple[str, str]]
    deletes: tuple[str, ...]


class RecordingOrigin:
    """An S3 server that answers every request with success. ``requests`` has all requests in order."""

    def __init__(self):
        self.requests = []
        self.url = ""
        self.metadata = ()
        """Header fields that every object has."""

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8", "surrogateescape")
                line, *lines = head[:-4].split("\r\n")
                fields = tuple(
                    (name, value.strip(" ")) for name, _, value in (f.partition(":") for f in lines)
                )
                lowered = {name.lower(): value for name, value in fields}
                body = await self._body(reader, lowered)
                self.requests.append(Recorded(line, fields, body))
                writer.write(self._answer(line, lowered))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _body(self, reader, fields):
        if "chunked" in fields.get("transfer-encoding", ""):
            body = b""
            while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readuntil(b"\r\n")
            return body
        return await reader.readexactly(int(fields.get("content-length", 0)))

    def _answer(self, line, fields):
        method = line.split(" ")[0]
        metadata = "".join(f"{name}: {value}\r\n" for name, value in self.metadata)
        fixed = "Last-Modified: Sat, 29 Oct 1994 19:43:31 GMT\r\nContent-Type: text/plain\r\n"
        common = f'{metadata}ETag: "e"\r\n{fixed}'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", fields.get("range", ""))
        start = int(wanted[1]) if wanted else 0
        stop = min(int(wanted[2] or 3) + 1, 4) if wanted else 4
        if method not in {"GET", "HEAD"}:
            return f"HTTP/1.1 200 OK\r\n{common}Content-Length: 0\r\n\r\n".encode()
        status = f"206 P\r\nContent-Range: bytes {start}-{stop - 1}/4" if wanted else "200 OK"
        head = f"HTTP/1.1 {status}\r\n{common}Content-Length: {stop - start}\r\n\r\n".encode()
        return head if method == "HEAD" else head + BODY[start:stop]


@asynccontextmanager
async def recording():
    """Yield a RecordingOrigin that listens on loopback."""
    origin = RecordingOrigin()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0, limit=1 << 20)
    origin.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield origin
    finally:
        server.close()


def understood(recorded: Recorded) -> Understood:
    """Return how RGW understands a request. Fail if a field or a parameter is repeated.

    Two readers could understand such a request differently.
    """
    method, target, version = recorded.line.split(" ")
    assert version == "HTTP/1.1"
    path, _, query = target.partition("?")
    bucket, _, key = unquote(path, errors="strict")[1:].partition("/")
    parameters = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        name = unquote_plus(name, errors="strict")
        assert name not in parameters, f"the parameter {name} was sent twice"
        parameters[name] = unquote_plus(value, errors="strict")
    environment = {}
    for name, value in recorded.fields:
        cgi = _OTHER_VENDORS.sub("X_AMZ_", name.upper().replace("-", "_"))
        assert cgi not in environment, f"{cgi} was sent twice"
        environment[cgi] = value
    source = environment.get("X_AMZ_COPY_SOURCE")
    sources = set() if source is None else _sources(source)
    deletes = ()
    if method == "POST" and "delete" in parameters:
        document = minidom.parseString(recorded.body)
        deletes = tuple(
            "".join(node.data for node in element.childNodes)
            for element in document.getElementsByTagName("Key")
        )
    return Understood(method, bucket, key, parameters, environment, sources, deletes)


def _sources(field):
    path = field.partition("?")[0]
    read = [decode(path, errors="strict").removeprefix("/") for decode in (unquote, unquote_plus)]
    return {(bucket, key) for bucket, _, key in (source.partition("/") for source in read)}
