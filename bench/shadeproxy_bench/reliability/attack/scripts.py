"""The scripts of a broken or hostile origin, with what a client may get then."""

from enum import Enum
from typing import NamedTuple

from shadeproxy_bench.reliability.attack.origin import Act, Repeat, Script, Step

_TAKE, _CLOSE, _RESET, _HANG = Act.TAKE, Act.CLOSE, Act.RESET, Act.HANG


class Says(Enum):
    """The state of an origin's answer. NOTHING: there is no answer, so the client gets an error document.
    PART: it breaks off. WHOLE: it is right, whatever comes with it. SHORT: it announces too few bytes.
    """

    NOTHING = "no answer"
    PART = "a part of an answer"
    WHOLE = "an answer"
    SHORT = "a shorter answer"


class Broken(NamedTuple):
    """A way to break an answer. ``writes``, ``reads``: the operations to which it applies. ``alone``: there
    is no other request meanwhile, for bytes come behind the answer: if the next request were on its way, no
    proxy could tell them from its answer.
    """

    name: str
    says: Says
    script: Script
    writes: bool = True
    reads: bool = True
    alone: bool = False


def _broken(
    name: str,
    says: Says,
    *steps: Step,
    times: int = 0,
    writes: bool = True,
    reads: bool = True,
    alone: bool = False,
) -> Broken:
    return Broken(name, says, Script(steps, times), writes, reads, alone)


def whole(head: bytes, body: bytes) -> bytes:
    return head + body


def _half(head: bytes, body: bytes) -> bytes:
    return head + body[: len(body) // 2]


def _unframed(head: bytes) -> bytes:
    """Return ``head`` without its Content-Length."""
    lines = head.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.lower().startswith(b"content-length"))


def _announced(head: bytes, text: bytes) -> bytes:
    """Return ``head`` with another Content-Length."""
    return _unframed(head)[:-2] + b"Content-Length: " + text + b"\r\n\r\n"


def _with_length(text: bytes) -> Step:
    return lambda head, body: _announced(head, text) + body


def _chunked(head: bytes, body: bytes) -> bytes:
    """Return an answer in two chunks, without the last chunk."""
    half = len(body) // 2
    head = _unframed(head)[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (body[:half], body[half:]) if one)


def _status(status: bytes) -> Step:
    return lambda head, body: b"HTTP/1.1 " + status + head[head.index(b"\r\n") :] + body


def _with_field(line: bytes) -> Step:
    return lambda head, body: head[:-2] + line + b"\r\n\r\n" + body


_OTHER = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nETag: "0"\r\n\r\nanother body'
_DENIED = (
    b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 40\r\n\r\n"
    b"<Error><Code>AccessDenied</Code></Error>"
)
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 36\r\n\r\n<Error><Code>SlowDown</Code></Error>"
_JUNK = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n",
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "ICY": b"ICY 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "status abc": b"HTTP/1.1 abc OK\r\nContent-Length: 2\r\n\r\nok",
    "status 99": b"HTTP/1.1 99 OK\r\nContent-Length: 2\r\n\r\nok",
    "status 1000": b"HTTP/1.1 1000 OK\r\nContent-Length: 2\r\n\r\nok",
    "NULs": bytes(1000),
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nok",
    "empty lines": b"\r\n" * 100,
}
_LENGTHS = (b"abc", b"-5", b"5 5", b"", b"99999999999999999999999", b"+5", b"0x5")
_FIELDS = {
    "bare LF in a field": b"x-a: b\nx-stray: c",
    "NUL in a field": b"x-a: b\x00c",
    "folded field": b"x-a: b\r\n c",
    "no colon": b"nonsense",
    "space before the colon": b"x-a : b",
    "second length": b"Content-Length: 3",
    "length and coding": b"Transfer-Encoding: chunked",
    "coding unknown": b"Transfer-Encoding: gzip",
}

BROKEN = (
    _broken("close before the first byte", Says.NOTHING, _TAKE, _CLOSE),
    _broken("reset before the first byte", Says.NOTHING, _TAKE, _RESET),
    _broken("reset, nothing read", Says.NOTHING, _RESET),
    _broken("close, nothing read", Says.NOTHING, _CLOSE),
    _broken("close once before the first byte", Says.NOTHING, _TAKE, _CLOSE, times=1),
    _broken("close in the status line", Says.NOTHING, _TAKE, b"HTTP/1.1 20", _CLOSE),
    _broken("close in the head", Says.NOTHING, _TAKE, lambda head, _body: head[:-10], _CLOSE),
    _broken("reset in the head", Says.NOTHING, _TAKE, lambda head, _body: head[:-10], 0.05, _RESET),
    _broken("close behind the head", Says.PART, _TAKE, lambda head, _body: head, _CLOSE, writes=False),
    _broken("close in the body", Says.PART, _TAKE, _half, _CLOSE, writes=False),
    _broken("close once in the body", Says.PART, _TAKE, _half, _CLOSE, times=1, writes=False),
    _broken("reset in the body", Says.PART, _TAKE, _half, 0.05, _RESET, writes=False),
    _broken("close at the last byte", Says.PART, _TAKE, lambda head, body: (head + body)[:-1], _CLOSE),
    _broken(
        "close in a chunk",
        Says.PART,
        _TAKE,
        lambda head, body: _chunked(head, body)[:-9],
        _CLOSE,
        writes=False,
    ),
    _broken("close before the last chunk", Says.PART, _TAKE, _chunked, _CLOSE, writes=False),
    _broken("close in the last chunk", Says.PART, _TAKE, _chunked, b"0\r\n", _CLOSE, writes=False),
    _broken("bad chunk size", Says.PART, _TAKE, _chunked, b"zz\r\n", 1.0, _CLOSE, writes=False),
    _broken(
        "chunk size of 20 digits",
        Says.PART,
        _TAKE,
        _chunked,
        b"1" + b"0" * 20 + b"\r\n",
        1.0,
        _CLOSE,
        writes=False,
    ),
    _broken("chunked", Says.WHOLE, _TAKE, _chunked, b"0\r\n\r\n"),
    _broken("chunked, trailers", Says.WHOLE, _TAKE, _chunked, b"0\r\nx-a: b\r\n\r\n"),
    _broken("chunked, and more", Says.WHOLE, _TAKE, _chunked, b"0\r\n\r\n" + _OTHER, alone=True),
    _broken("no length", Says.WHOLE, _TAKE, lambda head, body: _unframed(head) + body, _CLOSE, writes=False),
    _broken(
        "no length, reset",
        Says.PART,
        _TAKE,
        lambda head, body: _unframed(head) + body,
        0.05,
        _RESET,
        writes=False,
    ),
    _broken("two answers", Says.WHOLE, _TAKE, whole, _OTHER, alone=True),
    _broken(
        "two answers in one write", Says.WHOLE, _TAKE, lambda head, body: head + body + _OTHER, alone=True
    ),
    _broken("a late second answer", Says.WHOLE, _TAKE, whole, 0.05, _OTHER, alone=True),
    _broken("junk behind", Says.WHOLE, _TAKE, lambda head, body: head + body + b"junk", alone=True),
    _broken("late junk behind", Says.WHOLE, _TAKE, whole, 0.05, b"junk", alone=True),
    _broken(
        "length too short",
        Says.SHORT,
        _TAKE,
        lambda head, body: _announced(head, b"%d" % (len(body) - 5)) + body,
        writes=False,
        alone=True,
    ),
    _broken(
        "length too long",
        Says.PART,
        _TAKE,
        lambda head, body: _announced(head, b"%d" % (len(body) + 5)) + body,
        _CLOSE,
    ),
    _broken(
        "length too long, hang",
        Says.PART,
        _TAKE,
        lambda head, body: _announced(head, b"%d" % (len(body) + 5)) + body,
        _HANG,
    ),
    *(
        _broken(f"length {text.decode()!r}", Says.NOTHING, _TAKE, _with_length(text), _CLOSE)
        for text in _LENGTHS
    ),
    _broken("early hints", Says.WHOLE, _TAKE, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", whole),
    _broken(
        "endless head",
        Says.NOTHING,
        _TAKE,
        b"HTTP/1.1 200 OK\r\n",
        Repeat(b"x-a: aaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 100, 2000),
    ),
    _broken(
        "endless slow head",
        Says.NOTHING,
        _TAKE,
        b"HTTP/1.1 200 OK\r\n",
        Repeat(b"x-a: b\r\n", 300, 0.1),
        _CLOSE,
    ),
    _broken("endless line", Says.NOTHING, _TAKE, b"HTTP/1.1 200 OK", Repeat(b"a" * 10_000, 500), _CLOSE),
    _broken(
        "drip in the body",
        Says.PART,
        _TAKE,
        lambda head, body: head + body[:1],
        Repeat(b"x", 300, 0.1),
        _CLOSE,
        writes=False,
    ),
    _broken("hang before the first byte", Says.NOTHING, _TAKE, _HANG),
    _broken("hang, nothing read", Says.NOTHING, _HANG),
    _broken("hang in the head", Says.NOTHING, _TAKE, lambda head, _body: head[:-10], _HANG),
    _broken("hang behind the head", Says.PART, _TAKE, lambda head, _body: head, _HANG, writes=False),
    _broken("hang in the body", Says.PART, _TAKE, _half, _HANG, writes=False),
    _broken("answer before the body", Says.WHOLE, whole, _TAKE, reads=False),
    _broken("answer before the body, close", Says.PART, whole, _CLOSE, reads=False),
    _broken("answer before the body, reset", Says.PART, whole, _RESET, reads=False),
    _broken(
        "refuse before the body",
        Says.WHOLE,
        _DENIED,
        0.2,
        _CLOSE,
        reads=False,
    ),
    _broken(
        "refuse before the body, reset",
        Says.PART,
        _DENIED,
        _RESET,
        reads=False,
    ),
    _broken(
        "refuse before the body, hang",
        Says.WHOLE,
        _DENIED,
        _HANG,
        reads=False,
    ),
    *(_broken(f"junk: {name}", Says.NOTHING, _TAKE, text, 0.05, _CLOSE) for name, text in _JUNK.items()),
    *(_broken(name, Says.PART, _TAKE, _with_field(line), 0.05, _CLOSE) for name, line in _FIELDS.items()),
    _broken("204 with a body", Says.NOTHING, _TAKE, _status(b"204 No Content"), writes=False),
    _broken("304 without a condition", Says.NOTHING, _TAKE, _status(b"304 Not Modified"), writes=False),
    _broken("206 without a range", Says.PART, _TAKE, _status(b"206 Partial Content"), writes=False),
    _broken("201", Says.PART, _TAKE, _status(b"201 Created"), writes=False),
    _broken(
        "500 that breaks off",
        Says.PART,
        _TAKE,
        b"HTTP/1.1 500 Oh\r\nContent-Length: 500\r\n\r\n<Error>",
        _CLOSE,
    ),
    _broken(
        "404 that breaks off",
        Says.PART,
        _TAKE,
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 500\r\n\r\n<Error>",
        _CLOSE,
    ),
    _broken("503", Says.WHOLE, _TAKE, _BUSY),
)
