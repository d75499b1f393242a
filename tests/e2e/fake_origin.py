"""A small S3 server that fails on request, and records the requests it gets."""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler

from .loopback import served

_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>told to</Message></Error>"


class FakeOrigin:
    """The S3 server. ``objects`` maps paths to bodies. ``failing`` is the (status, code) of every answer, or
    None to answer well. ``fail_next`` is the number of further requests for objects that get SlowDown; those
    by which a proxy finds out whether the origin answers do not count. ``denied`` has the access keys that
    may not read. ``skew_s`` is the number of seconds by which the server's clock is ahead. ``asked`` lists
    method, path and header fields of every request.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failing: tuple[int, str] | None = None
        self.denied: set[str] = set()
        self.fail_next = 0
        self.skew_s = 0.0
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        fields = {name.lower(): value for name, value in handler.headers.items()}
        self.asked.append((handler.command, handler.path, fields))
        handler.rfile.read(int(fields.get("content-length", 0)))
        self.gate.wait(20)
        path = handler.path.partition("?")[0]
        failing = self.failing
        if failing is None and self.fail_next and path in self.objects:
            self.fail_next -= 1
            failing = (503, "SlowDown")
        if signer_of(fields) in self.denied:
            failing = (403, "AccessDenied")
        status, body, extra = 200, b"<ListAllMyBucketsResult/>", {}
        if failing is not None:
            status, body = failing[0], _ERROR.format(code=failing[1]).encode()
        elif path in self.objects:
            body = self.objects[path]
            extra = {"ETag": f'"{hashlib.md5(body).hexdigest()}"', "x-amz-request-id": "OF-THE-ORIGIN"}
        elif path != "/":
            status, body = 404, _ERROR.format(code="NoSuchKey").encode()
        handler.send_response_only(status)
        handler.send_header("Date", formatdate(time.time() + self.skew_s, usegmt=True))
        handler.send_header("Content-Length", str(len(body)))
        for name, value in extra.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def signer_of(fields: dict[str, str]) -> str:
    """Return the access key that signed a request; "" if none did."""
    return fields.get("authorization", "").partition("Credential=")[2].partition("/")[0]


@contextmanager
def running() -> Iterator[FakeOrigin]:
    origin = FakeOrigin()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            origin.answer(self)

        def do_HEAD(self) -> None:
            origin.answer(self)

        def do_PUT(self) -> None:
            origin.answer(self)

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests clean."""

    with served(Handler) as origin.url:
        yield origin
