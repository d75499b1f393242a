"""A client that sends exactly the given bytes with a signature, and keeps the answer unchanged.

It does not normalise paths, join header fields or follow redirects. Answers of two servers can be compared
only if both servers got the same request. Each `Peer` has one keep-alive connection, and opens it again if
the server has closed it.
"""

import socket
import ssl
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from shadeproxy.core.sigv4 import UNSIGNED_PAYLOAD, Credentials, sign_request

PAGE_BYTES = 4096
"""The page size of the proxies. It is the smallest possible one, so even an object of many pages is small."""

_TIMEOUT_S = 30.0
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Request:
    """A request. ``target`` is the raw path with its query, as sent. ``fields`` lack Host and signature."""

    method: str
    target: str
    fields: Fields = ()
    body: bytes | None = None
    payload_hash: str = UNSIGNED_PAYLOAD
    signed: bool = True


@dataclass(frozen=True)
class Answer:
    """An answer. ``fields`` has names in lower case, in wire order. ``body`` is without chunk framing, and
    otherwise unchanged.
    """

    status: int
    fields: Fields
    body: bytes
    reason: str = field(default="", compare=False)

    def field(self, name: str) -> str | None:
        """Return the only value of ``name``, or None if the field is absent."""
        values = [value for key, value in self.fields if key == name]
        assert len(values) <= 1, (name, values)
        return values[0] if values else None


class Peer:
    """One server. ``host`` is the value of the Host field, which the signature covers. ``tls`` is the context
    for TLS, or None.
    """

    def __init__(
        self, address: str, credentials: Credentials | None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.host = address
        self.connections = 0
        self.credentials = credentials
        self._tls = tls
        self._socket: socket.socket | None = None
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._received.clear()

    def send(self, request: Request) -> Answer:
        """Return the answer to ``request``. If the connection was idle and turns out to be closed, send the
        request once more.
        """
        was_open = self._socket is not None
        try:
            return self._exchange(request)
        except (ConnectionError, ssl.SSLError):
            self.close()
            if not was_open:
                raise
            return self._exchange(request)

    def _exchange(self, request: Request) -> Answer:
        if self._socket is None:
            host, _, port = self.host.rpartition(":")
            plain = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=host)
            self.connections += 1
        self._socket.sendall(self._rendered(request))
        return self._answer(request.method)

    def _rendered(self, request: Request) -> bytes:
        fields = [("Host", self.host), *request.fields]
        if self.credentials is not None and request.signed:
            path, _, query = request.target.partition("?")
            covered = [
                (name, value)
                for name, value in fields
                if name.lower() == "host" or name.lower().startswith("x-amz-")
            ]
            fields += sign_request(
                method=request.method,
                raw_path=path,
                raw_query=query,
                headers=covered,
                payload_hash=request.payload_hash,
                credentials=self.credentials,
                region="us-east-1",
                now_s=time.time(),
            )
        if request.body is not None:
            fields.append(("Content-Length", str(len(request.body))))
        lines = [
            f"{request.method} {request.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in fields),
        ]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + (request.body or b"")

    def _answer(self, method: str) -> Answer:
        status, reason, fields = 100, "", ()
        while status == 100:
            status, reason, fields = self._head()
        answer = Answer(status, fields, b"", reason)
        length, coding = answer.field("content-length"), answer.field("transfer-encoding")
        if method == "HEAD" or status in {204, 304}:
            body = b""
        elif coding is not None:
            assert coding == "chunked", coding
            body = self._chunked()
        elif length is not None:
            body = self._exactly(int(length))
        else:
            body = self._to_the_end()
        if "close" in (answer.field("connection") or "").lower() or (not length and not coding and body):
            self.close()
        return Answer(status, fields, body, reason)

    def _head(self) -> tuple[int, str, Fields]:
        lines = self._until(b"\r\n\r\n").decode("utf-8", "surrogateescape").split("\r\n")
        version, status, reason = [*lines[0].split(" ", 2), ""][:3]
        assert version == "HTTP/1.1", lines[0]
        parted = (line.partition(":") for line in lines[1:])
        return int(status), reason, tuple((name.lower(), value.strip(" \t")) for name, _, value in parted)

    def _chunked(self) -> bytes:
        body = bytearray()
        while size := int(self._until(b"\r\n").partition(b";")[0], 16):
            body += self._exactly(size)
            assert self._exactly(2) == b"\r\n"
        while self._until(b"\r\n"):
            pass
        return bytes(body)

    def _until(self, mark: bytes) -> bytes:
        while (end := self._received.find(mark)) < 0:
            self._more()
        taken = bytes(self._received[:end])
        del self._received[: end + len(mark)]
        return taken

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            self._more()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _to_the_end(self) -> bytes:
        try:
            while True:
                self._more()
        except ConnectionError:
            return bytes(self._received)

    def _more(self) -> None:
        assert self._socket is not None
        piece = self._socket.recv(1 << 16)
        if not piece:
            raise ConnectionResetError("the server closed the connection in the middle of an answer")
        self._received += piece
