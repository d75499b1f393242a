"""An S3 server over raw sockets that gives wrong, odd or rare answers. Each object has its own kind of
answer.

The object's key names the kind, and ``KINDS`` lists all kinds. Each kind lists the whole bodies that are
right. So a test can compare any answer byte for byte.
"""

import hashlib
import random
import re
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from .loopback import served

PAGE = 64 << 10
LONG = 3 * PAGE + 1000
SHORT = 1000
RESET = b"<reset>"  # ends an answer: the server then resets the connection
CLOSE = b"<close>"  # ends an answer: the server then closes the connection
_LATER = b"<later>"  # splits an answer: the bytes behind it are sent a little later, in another packet
_RANGE = re.compile(rb"(?i)\r\nrange: bytes=(\d*)-(\d*)\r\n")
_XML = b"<?xml version='1.0'?><Error><Code>%b</Code><Message>told to</Message></Error>"


def body_of(version: int, size: int = LONG) -> bytes:
    """Return the bytes of a version. Bytes at the same place differ between any two versions."""
    return random.Random(version * 1_000_003 + size).randbytes(size)


class Asked(NamedTuple):
    """One request. ``number`` is the number of earlier requests with the same method for the same object.
    ``bounds`` has the first and last byte of its Range field.
    """

    method: str
    bounds: tuple[int, int | None] | None
    if_match: bool
    number: int


Answer = Callable[[Asked], bytes]


@dataclass
class Kind:
    """A kind of answer. ``bodies`` has the whole bodies that are right. ``outcome`` has the permitted results
    of a whole GET through the proxy: "right", "error" (an S3 error) or "cut" (an aborted connection).
    ``keeps`` is True if the proxy may cache the object.
    """

    answer: Answer
    bodies: list[bytes]
    outcome: set[str]
    keeps: bool = False


def head(status: str, *fields: str, version: str = "HTTP/1.1") -> bytes:
    lines = [f"{version} {status}", *fields]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def error(status: str, code: bytes) -> bytes:
    body = _XML % code
    return head(status, "Content-Type: application/xml", f"Content-Length: {len(body)}") + body


def well(
    asked: Asked, body: bytes, *fields: str, etag: str | None = '"v1"', status: str = "", ranges: bool = True
) -> bytes:
    """Return the answer of a correct server for the object ``body`` with the header fields ``fields``."""
    named = list(fields) + ([f"ETag: {etag}"] if etag is not None else [])
    if asked.bounds is None or not ranges:
        answer = head(status or "200 OK", *named, f"Content-Length: {len(body)}")
        return answer if asked.method == "HEAD" else answer + body
    first, last = asked.bounds
    stop = len(body) if last is None else min(last + 1, len(body))
    if first >= len(body):
        return error("416 Range Not Satisfiable", b"InvalidRange")
    named += [f"Content-Range: bytes {first}-{stop - 1}/{len(body)}", f"Content-Length: {stop - first}"]
    answer = head(status or "206 Partial Content", *named)
    return answer if asked.method == "HEAD" else answer + body[first:stop]


def framed(asked: Asked, body: bytes, content: bytes, *fields: str, version: str = "HTTP/1.1") -> bytes:
    """Return a whole answer. ``fields`` describe the framing of ``body``, and ``content`` is sent as it is.
    The answer ignores Range.
    """
    answer = head("200 OK", *fields, version=version)
    return answer if asked.method == "HEAD" else answer + content


def chunked(body: bytes, size: int = 50_000, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    sent = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join(sent) + b"0\r\n" + trailer + b"\r\n"


KINDS: dict[str, Kind] = {}


def kind(name: str, outcome: str, *bodies: bytes, keeps: bool = False) -> Callable[[Answer], Answer]:
    def add(answer: Answer) -> Answer:
        assert name not in KINDS, name
        KINDS[name] = Kind(answer, list(bodies), set(outcome.split("|")), keeps)
        return answer

    return add


def simple(name: str, outcome: str, answer: Answer, *bodies: bytes, keeps: bool = False) -> None:
    kind(name, outcome, *bodies, keeps=keeps)(answer)


V = [body_of(version) for version in range(40)]
S = [body_of(version, SHORT) for version in range(40)]
L0, S0 = V[0], S[0]
CL_LONG, CL_SHORT = f"Content-Length: {LONG}", f"Content-Length: {SHORT}"
TAG = 'ETag: "v1"'
CHUNKED = "Transfer-Encoding: chunked"


def _identity() -> None:
    """Add the kinds with odd ETags: some identify a version, and some do not. In "changing" each answer has
    another version.
    """
    tags = {
        "weak": 'W/"same"', "none": None, "empty": "", "quotes-only": '""', "unquoted": "abc",
        "half-quoted": '"abc', "blank-inside": '"a b"', "two-in-one": '"a", "b"', "star": "*",
        "weak-lower": 'w/"same"', "control": '"a\x01b"',
    }  # fmt: skip
    for name, tag in tags.items():
        for size, bodies in (("long", V), ("short", S)):
            simple(
                f"etag-{name}-{size}-changing",
                "right",
                lambda asked, tag=tag, bodies=bodies: well(asked, bodies[asked.number % 40], etag=tag),
                *bodies,
            )
    for name, second in (("same", '"v1"'), ("other", '"v2"'), ("weak", 'W/"v1"')):
        simple(
            f"etag-twice-{name}",
            "right",
            lambda asked, second=second: well(asked, V[asked.number % 40], f"ETag: {second}"),
            *V,
        )
    simple(
        "etag-weak-numbered",
        "right",
        lambda asked: well(asked, V[asked.number % 40], etag=f'W/"{asked.number}"'),
        *V,
    )
    simple(
        "etag-weak-cut-then-another",
        "cut|right",
        lambda asked: (
            well(asked, V[0], etag='W/"v"')[:100_000] + CLOSE
            if asked.number % 2 == 0 and asked.method == "GET"
            else well(asked, V[1], etag='W/"v"')
        ),
        *V,
    )
    simple(
        "etag-strong-cut-then-another",
        "cut|right|error",
        lambda asked: (
            well(asked, V[0], etag='"v0"')[:100_000] + CLOSE
            if asked.number == 0 and asked.method == "GET"
            else b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
            if asked.if_match and asked.number == 1
            else well(asked, V[1], etag='"v1"')
        ),
        V[0],
        V[1],
        keeps=True,
    )
    simple(
        "etag-strong-changes-and-if-match-is-ignored",
        "cut|right|error",
        lambda asked: well(asked, V[asked.number % 40], etag=f'"{asked.number}"'),
        *V,
        keeps=True,
    )
    simple(
        "modified-changes",
        "right",
        lambda asked: well(asked, L0, f"Last-Modified: Mon, 23 Nov 2026 00:00:{asked.number % 60:02} GMT"),
        L0,
        keeps=True,
    )


def _framing() -> None:
    """Add the kinds with different ways to mark the end of a body."""
    tags = {"etag": (TAG,), "no-etag": (), "weak": ('ETag: W/"w"',)}
    for size, body in (("long", L0), ("short", S0)):
        for tagged, tag in tags.items():
            simple(
                f"chunked-{size}-{tagged}",
                "right",
                lambda asked, body=body, tag=tag: framed(asked, body, chunked(body), *tag, CHUNKED),
                body,
            )
            simple(
                f"http10-no-length-{size}-{tagged}",
                "right",
                lambda asked, body=body, tag=tag: framed(asked, body, body, *tag, version="HTTP/1.0") + CLOSE,
                body,
            )
            simple(
                f"until-close-{size}-{tagged}",
                "right",
                lambda asked, body=body, tag=tag: (
                    framed(asked, body, body, *tag, "Connection: close") + CLOSE
                ),
                body,
            )
    simple(
        "http10-length",
        "right",
        lambda asked: framed(asked, L0, L0, TAG, CL_LONG, version="HTTP/1.0") + CLOSE,
        L0,
        keeps=True,
    )
    simple("until-close-reset", "cut|error", lambda a: framed(a, L0, L0[:100_000], TAG) + RESET, L0)
    bodies = {
        "chunk-extensions": ("right", chunked(L0, extension=b';a="b"')),
        "chunk-trailers": ("right", chunked(L0, trailer=b'x-amz-checksum-crc32: AAAA\r\nETag: "z"\r\n')),
        "chunk-upper-hex": ("right", chunked(L0).replace(b"c350\r\n", b"00C350\r\n")),
        "chunk-no-end": ("cut|error", chunked(L0)[:-5] + CLOSE),
        "chunk-cut": ("cut|error", chunked(L0)[:100_000] + CLOSE),
        "chunk-reset": ("cut|error", chunked(L0)[:100_000] + RESET),
        "chunk-bad-size": ("cut|error", chunked(L0)[:50_008] + b"xyz\r\n" + L0[50_000:] + CLOSE),
        "chunk-bad-first-size": ("cut|error", b"xyz\r\n" + L0 + CLOSE),
        "chunk-negative": ("cut|error", b"-5\r\nabcde\r\n0\r\n\r\n" + CLOSE),
        "chunk-huge": ("cut|error", b"f" * 40 + b"\r\nabcde\r\n0\r\n\r\n" + CLOSE),
        "chunk-0x": ("cut|error", b"0x5\r\nabcde\r\n0\r\n\r\n" + CLOSE),
        "chunk-too-long": ("cut|error", b"5\r\nabcdefgh\r\n0\r\n\r\n" + CLOSE),
        "chunk-endless-line": ("cut|error", b"5;" + b"x" * 100_000 + CLOSE),
        "chunk-surplus": ("cut|error|right", chunked(L0) + b"more" * 10 + CLOSE),
    }
    for name, (outcome, content) in bodies.items():
        simple(name, outcome, lambda a, content=content: framed(a, L0, content, TAG, CHUNKED), L0)
    fields = {
        "chunked-and-length": (TAG, CHUNKED, CL_LONG),
        "chunked-twice": (TAG, CHUNKED, CHUNKED),
        "gzip-chunked": (TAG, "Transfer-Encoding: gzip, chunked"),
        "coding-unknown": (TAG, "Transfer-Encoding: magic"),
    }
    for name, some in fields.items():
        simple(name, "cut|error", lambda a, some=some: framed(a, L0, chunked(L0) + CLOSE, *some))
    lengths = {
        "length-twice-other": ("error", f"{LONG}\r\nContent-Length: {LONG - 5}"),
        "length-twice-same": ("error|right", f"{LONG}\r\nContent-Length: {LONG}"),
        "length-list": ("error|right", f"{LONG}, {LONG}"),
        "length-negative": ("error", "-5"),
        "length-plus": ("error", f"+{LONG}"),
        "length-hex": ("error", hex(LONG)),
        "length-empty": ("error", ""),
        "length-word": ("error", "many"),
        "length-endless": ("error", "9" * 40),
        "length-too-long": ("cut|error", str(LONG + 100)),
    }
    for name, (outcome, length) in lengths.items():
        simple(
            name,
            outcome,
            lambda a, length=length: framed(a, L0, L0, TAG, f"Content-Length: {length}") + CLOSE,
            L0,
        )
    for size, body in (("long", L0), ("short", S0), ("page", V[1][:PAGE])):
        for when, between in (("at-once", b""), ("later", _LATER)):
            # The proxy cannot wait for surplus bytes. Until they arrive, a body whose stated length is too
            # short looks right.
            simple(
                f"surplus-{size}-{when}",
                "cut|error|right",
                lambda a, body=body, between=between: framed(
                    a, body, body + between + b"more" * 20, TAG, f"Content-Length: {len(body)}"
                ),
                body,
                keeps=when == "later",
            )
    for kind, end in (("cut", CLOSE), ("reset", RESET)):
        simple(
            f"{kind}-in-the-body",
            "cut|error",
            lambda a, end=end: framed(a, L0, L0[:100_000] + end, TAG, CL_LONG),
            L0,
            keeps=True,
        )


def _heads() -> None:
    """Add the kinds with odd heads. Some heads are invalid. The others are only rare, and then the object is
    right.
    """
    good = f"{TAG}\r\n{CL_SHORT}"
    odd = {
        "interim-100": ("right", f"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n{good}", True),
        "interim-103": ("right", f"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n{good}", True),
        "interim-101": ("error", f"HTTP/1.1 101 Switch\r\n\r\nHTTP/1.1 200 OK\r\n{good}", False),
        "no-reason": ("right|error", f"HTTP/1.1 200\r\n{good}", True),
        "status-999": ("error", f"HTTP/1.1 999 Odd\r\n{good}", False),
        "status-099": ("error", f"HTTP/1.1 099 Odd\r\n{good}", False),
        "status-word": ("error", f"HTTP/1.1 OK\r\n{good}", False),
        "version-2": ("error", f"HTTP/2.0 200 OK\r\n{good}", False),
        "version-lower": ("error", f"http/1.1 200 OK\r\n{good}", False),
        "garbage": ("error", "garbage", False),
        "folded": ("error", f"HTTP/1.1 200 OK\r\nX-A: b\r\n folded\r\n{good}", False),
        "colon-blank": ("error", f"HTTP/1.1 200 OK\r\nX-A : b\r\n{good}", False),
        "no-colon": ("error", f"HTTP/1.1 200 OK\r\nnothing\r\n{good}", False),
        "no-name": ("error", f"HTTP/1.1 200 OK\r\n: b\r\n{good}", False),
        "bare-lf": ("error", f"HTTP/1.1 200 OK\nX-A: b\n{good}".replace("\r", ""), False),
        "nul-in-value": ("error", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: b\x00c\r\n{good}", False),
        "cr-in-value": ("error", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: b\rc\r\n{good}", False),
        "control-in-value": ("right", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: b\x01c\r\n{good}", False),
        "delete-in-value": ("right", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: b\x7fc\r\n{good}", False),
        "tab-in-value": ("right", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: b\tc\r\n{good}", True),
        "latin1-in-value": ("right", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: b\udce9c\r\n{good}", True),
        "utf8-in-value": ("right", f"HTTP/1.1 200 OK\r\nx-amz-meta-a: bäc\r\n{good}", True),
        "control-in-length": ("error", f"HTTP/1.1 200 OK\r\n{TAG}\r\n{CL_SHORT}\x01", False),
        "too-large": ("error", f"HTTP/1.1 200 OK\r\nX-A: {'v' * 70_000}\r\n{good}", False),
        "many-fields": ("right|error", "HTTP/1.1 200 OK\r\n" + "X-A: b\r\n" * 80 + good, True),
        "keep-alive-lie": ("right", f"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n{good}", True),
        "gzip-unasked": ("right", f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n{good}", True),
        "aws-chunked-told": ("right", f"HTTP/1.1 200 OK\r\nContent-Encoding: aws-chunked\r\n{good}", True),
    }  # fmt: skip
    for name, (outcome, text, keeps) in odd.items():
        raw = text.encode("utf-8", "surrogateescape") + (b"\n\n" if name == "bare-lf" else b"\r\n\r\n")
        end = CLOSE if name == "keep-alive-lie" or outcome != "right" else b""
        simple(
            f"head-{name}",
            outcome,
            lambda a, raw=raw, end=end: (raw if a.method == "HEAD" else raw + S0) + end,
            S0,
            keeps=keeps,
        )
    latin_1 = '"v1-\udce9"'
    simple("etag-latin1", "right", lambda a: well(a, S0, etag=latin_1), S0, keeps=True)
    simple("nothing", "error", lambda _: CLOSE)
    simple("nothing-reset", "error", lambda _: RESET)
    simple("half-a-head", "error", lambda _: b"HTTP/1.1 200 O" + CLOSE)
    simple("nothing-then-right", "right", lambda a: CLOSE if a.number == 0 else well(a, S0), S0, keeps=True)
    simple("head-has-a-body", "right", lambda a: well(a._replace(method="GET"), S0), S0, keeps=True)
    # The origin answers the HEAD, and then sends a second answer over the idle connection. The proxy must not
    # take this answer for that of the next request.
    simple(
        "head-has-an-answer-behind",
        "right",
        lambda a: (
            well(a, S0) + (_LATER + well(a._replace(method="GET"), S[1]) if a.method == "HEAD" else b"")
        ),
        S0,
        keeps=True,
    )
    simple(
        "head-has-an-answer-behind-weak",
        "right",
        lambda a: (
            well(a, S0, etag='W/"w"') + (_LATER + well(a._replace(method="GET"), S[1], etag='W/"w"'))
            if a.method == "HEAD"
            else well(a, S0, etag='W/"w"')
        ),
        S0,
    )
    simple(
        "an-answer-more",
        "right|error|cut",
        lambda a: well(a, S0) + well(a._replace(method="GET"), S[1], etag='"v2"'),
        S0,
    )


def _statuses() -> None:
    for status in ("201 Created", "202 Accepted", "203 Other", "205 Reset", "207 Multi", "226 IM Used"):
        simple(f"status-{status[:3]}", "error", lambda a, status=status: well(a, S0, status=status))
    for status in ("204 No Content", "304 Not Modified"):
        simple(f"status-{status[:3]}", "error", lambda _, status=status: head(status, TAG))
        simple(
            f"status-{status[:3]}-then-right",
            "right",
            lambda a, status=status: head(status, TAG) if a.number == 0 else well(a, S0),
            S0,
            keeps=True,
        )
    for status in ("300 Many", "301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"):
        for name, fields in (("to", ("Location: http://127.0.0.1:9/login",)), ("nowhere", ())):
            simple(
                f"status-{status[:3]}-{name}",
                "error",
                lambda _, status=status, fields=fields: head(status, *fields, "Content-Length: 0"),
            )
    simple("permanent-redirect", "error", lambda a: _bodiless(a, error("301 Moved", b"PermanentRedirect")))
    for status, code in (
        ("400 Bad", b"InvalidRequest"), ("403 No", b"AccessDenied"), ("404 No", b"NoSuchKey"),
        ("500 Bad", b"InternalError"), ("501 Not", b"NotImplemented"), ("503 Slow", b"SlowDown"),
    ):  # fmt: skip
        simple(
            f"error-{status[:3]}",
            "error",
            lambda a, status=status, code=code: _bodiless(a, error(status, code)),
        )
    simple("error-404-as-json", "error", lambda a: well(a, b'{"ok": true}', status="404 Not Found"))
    simple("error-404-empty", "error", lambda _: head("404 Not Found", "Content-Length: 0"))
    document = _XML % b"SlowDown"
    # Without an ETag the object cannot be cached. The right bytes are the document that the origin sent.
    simple("xml-error-with-200", "right", lambda a: well(a, document, etag=None), document)
    simple(
        "error-once", "right",
        lambda a: _bodiless(a, error("503 S", b"SlowDown")) if a.number == 0 else well(a, S0),
        S0, keeps=True,
    )  # fmt: skip


def _bodiless(asked: Asked, answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if asked.method == "HEAD" else answer


def _ranges() -> None:
    """Add the kinds with odd answers to a Range. A whole GET gets a correct answer."""
    simple("ranges-ignored", "right", lambda a: well(a, L0, ranges=False), L0, keeps=True)

    def odd(name: str, content_range: str | None, sent: Callable[[bytes], bytes] = lambda some: some) -> None:
        def answer(asked: Asked) -> bytes:
            if asked.bounds is None or asked.method == "HEAD":
                return well(asked, L0)
            first, last = asked.bounds
            stop = LONG if last is None else min(last + 1, LONG)
            some = sent(L0[first:stop])
            fields = [TAG, f"Content-Length: {len(some)}"]
            if content_range is not None:
                told = content_range.format(first=first, last=stop - 1, before=first - 1, size=LONG)
                fields.append(f"Content-Range: {told}")
            return head("206 Partial Content", *fields) + some

        simple(name, "right|cut|error", answer, L0, keeps=True)

    odd("range-missing", None)
    odd("range-star", "bytes {first}-{last}/*")
    odd("range-unit", "lines {first}-{last}/{size}")
    odd("range-other-start", "bytes 7-{last}/{size}")
    odd("range-short", "bytes {first}-{last}/{size}", lambda some: some[: len(some) // 2])
    odd("range-long", "bytes {first}-{last}/{size}", lambda some: some + b"more")
    odd("range-backwards", "bytes {last}-{first}/{size}")
    odd("range-other-size", "bytes {first}-{last}/99")
    odd("range-twice", "bytes {first}-{last}/{size}\r\nContent-Range: bytes 0-9/{size}")
    simple(
        "range-multipart", "right|cut|error",
        lambda a: well(a, L0) if a.bounds is None else framed(
            a, L0, b"--x\r\nContent-Range: bytes 0-1/9\r\n\r\nab\r\n--x--", TAG, "Content-Length: 44",
            "Content-Type: multipart/byteranges; boundary=x",
        ).replace(b"200 OK", b"206 Partial Content"),
        L0, keeps=True,
    )  # fmt: skip
    simple(
        "range-chunked", "right",
        lambda a: well(a, L0, etag=None) if a.bounds is None or a.method == "HEAD" else head(
            "206 Partial", CHUNKED, f"Content-Range: bytes {a.bounds[0]}-{a.bounds[1]}/{LONG}"
        ) + chunked(L0[a.bounds[0] : a.bounds[1] + 1]),
        L0,
    )  # fmt: skip
    simple(
        "range-416-always", "right|cut|error",
        lambda a: well(a, L0) if a.bounds is None else error("416 Range", b"InvalidRange"),
        L0, keeps=True,
    )  # fmt: skip
    simple(
        "range-to-a-whole", "error",
        lambda a: head("206 Partial", TAG, CL_SHORT, f"Content-Range: bytes 0-{SHORT - 1}/{LONG}")
        + (L0[:SHORT] if a.method == "GET" else b""),
        L0,
    )  # fmt: skip


for fill in (_identity, _framing, _heads, _statuses, _ranges):
    fill()


@dataclass
class OddOrigin:
    """A running odd server. ``asked`` lists method, object and Range of every request."""

    url: str = ""
    asked: list[tuple[str, str, tuple[int, int | None] | None]] = field(default_factory=list)
    counts: Counter = field(default_factory=Counter)

    def answer(self, method: str, key: str, raw: bytes) -> bytes:
        found = _RANGE.search(raw)
        bounds = None
        if found is not None and found[1]:
            bounds = int(found[1]), int(found[2]) if found[2] else None
        self.asked.append((method, key, bounds))
        asked = Asked(method, bounds, b"\r\nif-match:" in raw.lower(), self.counts[method, key])
        self.counts[method, key] += 1
        name = key.partition("/")[2].partition(".")[0]
        if name not in KINDS:
            return _listing(key) if not name else error("404 Not Found", b"NoSuchKey")
        return KINDS[name].answer(asked)


def _listing(_key: str) -> bytes:
    entries = "".join(
        f"<Contents><Key>{name}</Key><Size>{len(one.bodies[0]) if one.bodies else 0}</Size></Contents>"
        for name, one in KINDS.items()
    )
    body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
    return head("200 OK", f"Content-Length: {len(body)}") + body


@contextmanager
def odd_origin() -> Iterator[OddOrigin]:
    origin = OddOrigin()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while self._serve_one():
                    pass

        def _serve_one(self) -> bool:
            raw = b""
            while b"\r\n\r\n" not in raw:
                data = self.request.recv(65536)
                if not data:
                    return False
                raw += data
            method, target = raw.split(b" ", 2)[:2]
            key = target.decode().partition("?")[0].removeprefix("/")
            answer = origin.answer(method.decode(), key, raw)
            kept, reset, _ = answer.partition(RESET)
            kept, close, _ = kept.partition(CLOSE)
            first, later, rest = kept.partition(_LATER)
            self.request.sendall(first)
            if later:
                threading.Event().wait(0.05)
                self.request.sendall(rest)
            if reset:
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.request.close()  # Without this the server would first end the connection in good order.
            return not (close or reset)

    with served(Handler) as origin.url:
        yield origin


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
