"""The requests of the smuggling attack: each is a template, with a verdict on its request by RFC 9112.

In a template ``|`` is a line end, CR and LF. ``{evil}`` is text that holds a whole request, which must never
be carried out. ``{n}`` is its length, and ``{hex}`` the same in hexadecimal digits. ``{chunks}`` is the same
text in the chunked coding, without the last chunk. sent.py fills the templates.
"""

from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """The treatment of a request that is right. MUST: clients send it, and it is carried out. MAY: it is
    carried out exactly as meant, or refused. NEVER: it is not carried out.
    """

    MUST = "carried out"
    MAY = "carried out as meant, or refused"
    NEVER = "not carried out"


class Row(NamedTuple):
    """A kind of request. ``ends``: nothing behind it may be carried out, because its sender ends the
    connection, or because its framing is not certain. ``prompt``: an answer needs no more bytes.
    ``bodiless``: the body has no meaning, and may be dropped. ``loose``: the target may change its spelling.
    """

    name: str
    template: str
    fate: Fate = Fate.MAY
    ends: bool = False
    prompt: bool = True
    bodiless: bool = False
    loose: bool = False


_PUT = "PUT {path} HTTP/1.1|Host: {host}|x-amz-meta-own: {own}|"
_TAG = "PUT {path}?tagging HTTP/1.1|Host: {host}|x-amz-meta-own: {own}|"
_GET = "GET {path}.1000 HTTP/1.1|Host: {host}|"
_N = "Content-Length: {n}|"
_TE = "Transfer-Encoding: chunked|"
_BODY = "|{evil}"
_CHUNKS = "|{chunks}0||"
MUST, MAY, NEVER = Fate.MUST, Fate.MAY, Fate.NEVER

CLEAN = (
    Row("upload", _PUT + _N + _BODY, MUST),
    Row(
        "upload, length first",
        "PUT {path} HTTP/1.1|Content-Length: {n}|x-amz-meta-own: {own}|host: {host}|" + _BODY,
        MUST,
    ),
    Row("upload of nothing", _PUT + "Content-Length: 0||", MUST),
    Row("upload, 100-continue", _PUT + _N + "Expect: 100-continue|" + _BODY, MUST),
    Row("read", _GET + "|", MUST),
    Row("range", _GET + "Range: bytes=10-99||", MUST),
    Row("head", "HEAD {path}.1000 HTTP/1.1|Host: {host}||", MUST),
    Row("delete", "DELETE {path} HTTP/1.1|Host: {host}||", MUST),
    Row("tags, chunked", _TAG + _TE + _CHUNKS, MUST),
    Row("tags, chunked, empty", _TAG + _TE + "|0||", MUST),
    Row("upload, many fields", _PUT + "{more}" + _N + _BODY, MUST),
    Row("list", "GET /attack?list-type=2&prefix={key} HTTP/1.1|Host: {host}||", MUST),
)
"""Requests as clients send them."""

_LENGTHS = {
    "plus": "+{n}",
    "minus": "-{n}",
    "hexadecimal": "0x{hex}",
    "two numbers": "{n} {n}",
    "empty": "",
    "comma behind": "{n},",
    "semicolon": "{n};",
    "underscore": "1_0",
    "twenty digits": "1{n}0000000000000000000",
    "fraction": "{n}.0",
    "other digits": "\u00d9\u00a1",
    "quoted": '"{n}"',
    "form feed": "{n}\x0c",
    "list": "{n}, 0",
}
_CODINGS = {
    "chunked, identity": "chunked, identity",
    "twice": "chunked, chunked",
    "unknown": "xchunked",
    "weighted": "chunked;q=1",
    "quoted": '"chunked"',
    "vertical tab": "\x0bchunked",
    "identity": "identity",
    "empty": "",
    "comma before": ", chunked",
    "behind": "chunked foo",
    "NUL": "chunked\x00",
}

HEADS = (
    Row("close", _PUT + _N + "Connection: close|" + _BODY, MUST, ends=True),
    Row("tab around values", _PUT + "Content-Length:\t{n}\t|" + _BODY),
    Row(
        "no space, upper case",
        "PUT {path} HTTP/1.1|HOST:{host}|X-AMZ-META-OWN:{own}|CONTENT-LENGTH:{n}|" + _BODY,
    ),
    Row("empty line before", "|" + _PUT + _N + _BODY),
    Row("two empty lines before", "||" + _PUT + _N + _BODY),
    Row(
        "bare LF everywhere",
        "PUT {path} HTTP/1.1\nHost: {host}\nx-amz-meta-own: {own}\nContent-Length: {n}\n\n{evil}",
        prompt=False,
    ),
    Row(
        "bare LF hides a length",
        _PUT + "x-a: b\nContent-Length: {n}|Content-Length: 0||{evil}",
        NEVER,
        ends=True,
    ),
    Row("bare LF in a value", _PUT + "x-amz-meta-a: b\nx-amz-meta-stray: stray|" + _N + _BODY, NEVER),
    Row("bare CR in a value", _PUT + "x-amz-meta-a: b\rx-amz-meta-stray: stray|" + _N + _BODY, NEVER),
    Row("bare CR in a length", _PUT + "Content-Length: {n}\r0|" + _BODY, NEVER, ends=True),
    Row("CR CR LF", _PUT + "Content-Length: {n}\r|" + _BODY, NEVER, ends=True, prompt=False),
    Row("NUL in a value", _PUT + "x-amz-meta-a: b\x00c|" + _N + _BODY, NEVER),
    Row("NUL in a name", _PUT + "x-amz\x00-meta-a: b|" + _N + _BODY, NEVER),
    Row("DEL in a value", _PUT + "x-amz-meta-a: b\x7fc|" + _N + _BODY, NEVER),
    Row("space before the colon", _PUT + "Content-Length : {n}|" + _BODY, NEVER, ends=True),
    Row("space before the coding's colon", _TAG + "Transfer-Encoding : chunked|" + _CHUNKS, NEVER, ends=True),
    Row("tab before the colon", _PUT + "Content-Length\t: {n}|" + _BODY, NEVER, ends=True),
    Row("folded value", _PUT + "x-amz-meta-a: b|\tx-amz-meta-stray: c|" + _N + _BODY),
    Row("folded length", _PUT + "Content-Length:| {n}|" + _BODY, NEVER, ends=True),
    Row("folded coding", _TAG + "Transfer-Encoding:| chunked|" + _CHUNKS, NEVER, ends=True),
    Row(
        "folded first field",
        "PUT {path} HTTP/1.1| x-a: b|Host: {host}|Content-Length: {n}|" + _BODY,
        NEVER,
        ends=True,
    ),
    Row("length twice, the same", _PUT + _N + _N + _BODY),
    Row("lengths that differ", _PUT + _N + "Content-Length: 0|" + _BODY, NEVER, ends=True),
    Row("lengths that differ, zero first", _PUT + "Content-Length: 0|" + _N + _BODY, NEVER, ends=True),
    Row("length and coding", _TAG + _N + _TE + _CHUNKS, ends=True),
    Row("coding and length", _TAG + _TE + "Content-Length: 3|" + _CHUNKS, ends=True),
    Row("coding twice", _TAG + _TE + _TE + _CHUNKS, NEVER, ends=True),
    Row("coding, gzip first", _TAG + "Transfer-Encoding: gzip, chunked|" + _CHUNKS, NEVER),
    Row("coding, upper case", _TAG + "Transfer-Encoding: CHUNKED|" + _CHUNKS),
    Row("coding, tab behind", _TAG + "Transfer-Encoding: chunked\t|" + _CHUNKS),
    *(
        Row(f"length: {name}", _PUT + f"Content-Length: {text}|" + _BODY, NEVER, ends=True, prompt=False)
        for name, text in _LENGTHS.items()
    ),
    *(
        Row(f"coding: {name}", _TAG + f"Transfer-Encoding: {text}|" + _CHUNKS, NEVER, ends=True, prompt=False)
        for name, text in _CODINGS.items()
    ),
    Row("coding and length, coding unknown", _PUT + "Transfer-Encoding: x|" + _N + _BODY, NEVER, ends=True),
    Row("name with a bracket", _PUT + "x(y: z|" + _N + _BODY, NEVER),
    Row("name with a space", _PUT + "x y: z|" + _N + _BODY, NEVER),
    Row("no name", _PUT + ": z|" + _N + _BODY, NEVER),
    Row("no colon", _PUT + "nonsense|" + _N + _BODY, NEVER),
    Row("two hosts", _PUT + "Host: other|" + _N + _BODY, NEVER),
    Row("no host", "PUT {path} HTTP/1.1|x-amz-meta-own: {own}|" + _N + _BODY, NEVER),
    Row("host with a path", "PUT {path} HTTP/1.1|Host: {host}/stray|" + _N + _BODY, NEVER),
    Row("UTF-8 in a value", "PUT {path} HTTP/1.1|Host: {host}|x-amz-meta-a: \u00c3\u00a9|" + _N + _BODY),
    Row("bytes in a value", _PUT + "x-amz-meta-a: \xff\xfe|" + _N + _BODY, NEVER),
    Row("bytes in a name", _PUT + "x-\xff: a|" + _N + _BODY, NEVER),
    Row("Connection names fields", _PUT + "Connection: content-length, x-amz-meta-own|" + _N + _BODY),
    Row("3,000 fields", _PUT + "{most}" + _N + _BODY),
    Row("field of 20 KB", _PUT + "x-a: {long}|" + _N + _BODY),
    Row("field of 100 KB", _PUT + "x-a: {long}{long}{long}{long}{long}|" + _N + _BODY),
    Row("target of 20 KB", "PUT {path}?tagging&x={long} HTTP/1.1|Host: {host}|" + _N + _BODY, loose=True),
    Row(
        "target of 100 KB",
        "PUT {path}{long}{long}{long}{long}{long} HTTP/1.1|Host: {host}|" + _N + _BODY,
        loose=True,
    ),
    Row("Expect: something", _PUT + _N + "Expect: 200-maybe|" + _BODY),
    Row("TE and Trailer", _PUT + "TE: trailers|Trailer: x-a|" + _N + _BODY),
    Row(
        "Upgrade: h2c",
        _PUT + "Connection: Upgrade, HTTP2-Settings|Upgrade: h2c|HTTP2-Settings: AAMAAABk|" + _N + _BODY,
    ),
    Row(
        "Upgrade: websocket",
        _GET + "Connection: Upgrade|Upgrade: websocket|Sec-WebSocket-Key: AAAA|Sec-WebSocket-Version: 13||",
    ),
    Row("Upgrade with a body", _PUT + "Connection: upgrade|Upgrade: websocket|" + _N + _BODY),
)
"""Requests whose head is odd or wrong."""

LINES = (
    Row(
        "HTTP/1.0",
        "PUT {path} HTTP/1.0|Host: {host}|x-amz-meta-own: {own}|Content-Length: {n}|" + _BODY,
        ends=True,
    ),
    Row(
        "HTTP/1.0, keep-alive",
        "PUT {path} HTTP/1.0|Host: {host}|Connection: keep-alive|Content-Length: {n}|" + _BODY,
    ),
    Row(
        "HTTP/1.0, chunked",
        "PUT {path}?tagging HTTP/1.0|Host: {host}|Connection: keep-alive|" + _TE + _CHUNKS,
        ends=True,
    ),
    Row("HTTP/0.9", "GET {path}.1000|", NEVER, ends=True, prompt=False),
    Row("HTTP/1.2", "PUT {path} HTTP/1.2|Host: {host}|Content-Length: {n}|" + _BODY),
    Row("HTTP/2.0", "PUT {path} HTTP/2.0|Host: {host}|Content-Length: {n}|" + _BODY, NEVER, ends=True),
    Row("preface of HTTP/2", "PRI * HTTP/2.0||SM||{evil}", NEVER, ends=True),
    Row("http/1.1", "PUT {path} http/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("HTTP/1.1 and a space", "PUT {path} HTTP/1.1 |Host: {host}|Content-Length: {n}|" + _BODY),
    Row("HTTP/1.10", "PUT {path} HTTP/1.10|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("two spaces", "PUT  {path} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY),
    Row("tabs", "PUT\t{path}\tHTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY),
    Row("space in the target", "PUT {path} x HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("tab in the target", "PUT {path}\tx HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row(
        "absolute form",
        "PUT http://{host}{path} HTTP/1.1|Host: {host}|x-amz-meta-own: {own}|Content-Length: {n}|" + _BODY,
        loose=True,
    ),
    Row(
        "absolute form of another server",
        "PUT http://other/attack/x HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY,
        NEVER,
    ),
    Row("fragment", "PUT {path}#x HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, loose=True),
    Row("authority form", "GET {host} HTTP/1.1|Host: {host}||", NEVER),
    Row("CONNECT", "CONNECT {host} HTTP/1.1|Host: {host}||{evil}", NEVER, ends=True),
    Row(
        "CONNECT with a body",
        "CONNECT {host} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY,
        NEVER,
        ends=True,
    ),
    Row("OPTIONS *", "OPTIONS * HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("TRACE", "TRACE {path} HTTP/1.1|Host: {host}||", NEVER),
    Row("PATCH", "PATCH {path} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("lower-case method", "put {path} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("no method", " {path} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("method with a bracket", "PU(T {path} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row(
        "bytes in the target",
        "PUT {path}\xff\xfe HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY,
        loose=True,
    ),
    Row("NUL in the target", "PUT {path}\x00 HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row(
        "escaped line ends",
        "PUT {path}%0d%0ax-amz-meta-a:%20b HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY,
        loose=True,
    ),
    Row(
        "escaped line ends in the query",
        "PUT {path}?tagging=%0d%0ax-a:%20b HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY,
        loose=True,
    ),
    Row("escaped NUL", "PUT {path}%00 HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, NEVER),
    Row("dots", "PUT /attack/../attack/{key} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, loose=True),
    Row("two slashes", "PUT //attack/{key} HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, loose=True),
    Row("broken escape", "PUT {path}%zz HTTP/1.1|Host: {host}|Content-Length: {n}|" + _BODY, loose=True),
    Row("read with a body", _GET + "Content-Length: {n}||{evil}", bodiless=True),
    Row("read, chunked", _GET + _TE + _CHUNKS, bodiless=True),
    Row(
        "head with a body",
        "HEAD {path}.1000 HTTP/1.1|Host: {host}|Content-Length: {n}||{evil}",
        bodiless=True,
    ),
    Row("head, chunked", "HEAD {path}.1000 HTTP/1.1|Host: {host}|" + _TE + _CHUNKS, bodiless=True),
    Row(
        "delete with a body", "DELETE {path} HTTP/1.1|Host: {host}|Content-Length: {n}||{evil}", bodiless=True
    ),
)
"""Requests whose first line or method is odd or wrong."""

_AWS = (
    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER|Content-Encoding: aws-chunked|"
    "x-amz-decoded-content-length: {n}|x-amz-trailer: x-amz-checksum-crc32|"
)
BODIES = (
    Row("chunked upload without a length", _PUT + _TE + _CHUNKS),
    Row("extensions", _TAG + _TE + '|{hex};a=b;c="d;e"|{evil}|0;last||'),
    Row("extension with a request", _TAG + _TE + "|{hex};x=PUT /attack/{key}-smuggled HTTP/1.1|{evil}|0||"),
    Row("trailers", _TAG + _TE + "|{chunks}0|x-amz-meta-stray: stray|x-amz-acl: stray|x-a:stray||"),
    Row(
        "trailers of framing",
        _TAG + _TE + "|{chunks}0|Content-Length: 5|Host: stray|Transfer-Encoding: chunked||",
    ),
    Row("zeros before the size", _TAG + _TE + "|000000{hex}|{evil}|000||"),
    Row("space behind the size", _TAG + _TE + "|{hex} |{evil}|0||"),
    Row("tab behind the size", _TAG + _TE + "|{hex}\t|{evil}|0||"),
    Row("bare LF behind the size", _TAG + _TE + "|{hex}\n{evil}|0||", NEVER, ends=True),
    Row("bare LF behind the chunk", _TAG + _TE + "|{hex}|{evil}\n0||", NEVER, ends=True),
    Row("bare CR behind the size", _TAG + _TE + "|{hex}\r{evil}|0||", NEVER, ends=True, prompt=False),
    Row("bare LF in an extension", _TAG + _TE + "|{hex};a\nb|{evil}|0||", NEVER, ends=True),
    Row("bare LF at the end", _TAG + _TE + "|{chunks}0|\n", NEVER, ends=True),
    Row("only LF", _TAG + _TE + "|{chunks}0\n\n", NEVER, ends=True),
    Row("0x", _TAG + _TE + "|0x{hex}|{evil}|0||", NEVER, ends=True),
    Row("plus", _TAG + _TE + "|+{hex}|{evil}|0||", NEVER, ends=True),
    Row("minus", _TAG + _TE + "|-1|{evil}|0||", NEVER, ends=True),
    Row("space before the size", _TAG + _TE + "| {hex}|{evil}|0||", NEVER, ends=True),
    Row(
        "size of 20 digits",
        _TAG + _TE + "|1000000000000000000{hex}|{evil}|0||",
        NEVER,
        ends=True,
        prompt=False,
    ),
    Row("no size", _TAG + _TE + "||{evil}|0||", NEVER, ends=True),
    Row("empty extension line", _TAG + _TE + "|;|{evil}|0||", NEVER, ends=True),
    Row("chunk too long", _TAG + _TE + "|1|{evil}|0||", NEVER, ends=True),
    Row("chunk too short", _TAG + _TE + "|{hex}|{evil}0||", NEVER, ends=True),
    Row("trailer without a colon", _TAG + _TE + "|{chunks}0|nonsense||", NEVER, ends=True),
    Row("folded trailer", _TAG + _TE + "|{chunks}0|x-a: b| c||", NEVER, ends=True),
    Row(
        "trailer that is a request",
        _TAG + _TE + "|{chunks}0|PUT /attack/{key}-smuggled HTTP/1.1|Host: {host}||",
        NEVER,
        ends=True,
    ),
    Row("space before a trailer's colon", _TAG + _TE + "|{chunks}0|x-a : b||", NEVER, ends=True),
    Row("NUL in a trailer", _TAG + _TE + "|{chunks}0|x-a: b\x00||", NEVER, ends=True),
    Row("trailers of 100 KB", _TAG + _TE + "|{chunks}0|{many}|", NEVER, ends=True),
    Row("extension of 100 KB", _TAG + _TE + "|{hex};{long}{long}{long}{long}{long}|{evil}|0||"),
    Row("aws-chunked", _PUT + _AWS + "Content-Length: {awsn}||{aws}", MUST),
    Row("aws-chunked and chunked", _PUT + _AWS + _TE + "|{awshex}|{aws}|0||", MUST),
    Row("aws-chunked, request behind", _PUT + _AWS + "Content-Length: {awsevil}||{aws}{evil}", NEVER),
    Row("aws-chunked, trailer stray", _PUT + _AWS + _TE + "|{awshex}|{aws}|0|x-amz-meta-stray: stray||"),
)
"""Requests whose chunked body is odd or wrong."""

ODD = (*HEADS, *LINES, *BODIES)
ALL = {row.name: row for row in (*CLEAN, *ODD)}
