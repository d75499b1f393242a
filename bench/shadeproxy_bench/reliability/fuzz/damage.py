"""Damages requests. ``bend`` damages one part of a request's meaning, before or after the request is signed;
``spoil`` damages the bytes of several requests.
"""

from collections.abc import Callable
from random import Random

from shadeproxy_bench.reliability.fuzz import values
from shadeproxy_bench.reliability.fuzz.http import Request

_METHODS = (
    b"get",
    b"POST",
    b"PUT",
    b"DELETE",
    b"HEAD",
    b"PATCH",
    b"TRACE",
    b"CONNECT",
    b"PROPFIND",
    b"M-SEARCH",
    b"",
    b"GET GET",
    b"\xff",
    b"OPTIONS",
    b"PRI",
    b"A" * 300,
)
_VERSIONS = (
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.2",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"",
    b"HTTP/11",
    b"RTSP/1.0",
    b"HTTP/1.\xb2",
    b"HTTP/9.9",
)
_TARGETS = (
    b"*",
    b"",
    b"//",
    b"/%",
    b"/%zz",
    b"/%00",
    b"/b/%ff",
    b"b/k",
    b"/b/../..",
    b"/b/k#x",
    b"/b/k?%ff",
    b"http://other/b/k",
    b"HTTPS://x",
    b"http://[/b",
    b"ftp://x/b",
    b"/\xc3\xbc/k",
    b"/b/\xff",
    b"/b/k?a&a",
    b"/b/k?X-Amz-Signature",
    b"/b/k?AWSAccessKeyId=a&X-Amz-Signature=b",
    b"/b?list-type=2&prefix=%C3",
    b"/b/" + b"%41" * 5000,
    b"/" + b"a" * 40_000,
    b"/b/k?" + b"a=b&" * 5000,
    b"s3.fuzz.example:443",
    b"/b/k?%",
    b"/b/k?versionId=",
    b"/./b",
    b"/b/k?uploads&uploadId",
    b"/b/.shadeproxy/uploads/x",
    b"?",
    b"http://host:notaport/b/k",
    b"/b/k\x7f",
    b"/b/k?\x00",
)
_FIELDS = (
    (b"Content-Length", b"5"),
    (b"Content-Length", b"-1"),
    (b"Content-Length", b"+5"),
    (b"Content-Length", b"5,5"),
    (b"Content-Length", b"0x5"),
    (b"Content-Length", b"9" * 30),
    (b"Content-Length", b""),
    (b"Content-Length", b"5 "),
    (b"Content-Length", b"\xd9\xa1"),
    (b"Content-Length", b"1_0"),
    (b"Content-Length", b"9" * 5000),
    (b"Transfer-Encoding", b"chunked"),
    (b"Transfer-Encoding", b"gzip, chunked"),
    (b"Transfer-Encoding", b"identity"),
    (b"Transfer-Encoding", b"chunked, chunked"),
    (b"Transfer-Encoding", b"Chunked"),
    (b"Transfer-Encoding", b""),
    (b"Transfer-Encoding ", b"chunked"),
    (b" Transfer-Encoding", b"chunked"),
    (b"Transfer_Encoding", b"chunked"),
    (b"Transfer-Encoding", b"\x0bchunked"),
    (b"Content-Length", b"0\r\n 5"),
    (b"X-Folded", b"a\r\n b"),
    (b"Host", b""),
    (b"Host", b"a b"),
    (b"Host", b"other.s3.fuzz.example"),
    (b"Host", b"[::1"),
    (b"Host", b"\xff"),
    (b"Host", b".s3.fuzz.example"),
    (b"Host", b"x.s3.fuzz.example:99999999"),
    (b"Host", b"a" * 300),
    (b"Connection", b"close"),
    (b"Connection", b"upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Connection", b"keep-alive, host"),
    (b"Connection", b"x-amz-date"),
    (b"Keep-Alive", b"timeout=-1"),
    (b"Expect", b"100-continue"),
    (b"Expect", b"x"),
    (b"TE", b"trailers"),
    (b"Trailer", b"x"),
    (b"Cookie", b"a=\xff"),
    (b"", b"x"),
    (b"\xff", b"x"),
    (b"a b", b"x"),
    (b"X-Nul", b"a\x00b"),
    (b"X-Cr", b"a\rb"),
    (b"X-Lf", b"a\nb"),
    (b"X-Long", b"v" * 20_000),
    (b"X-Utf8", b"\xff\xfe"),
    (b"X-Ctl", b"\x01\x7f"),
    (b"X-Tab", b"\ta\t"),
    (b"x" * 9000, b"n"),
    (b"Authorization", b""),
    (b"Authorization", b"AWS"),
    (b"Authorization", b"AWS :"),
    (b"Authorization", b"Bearer x"),
    (b"Authorization", b"AWS4-HMAC-SHA256 "),
    (
        b"Authorization",
        b"AWS4-HMAC-SHA256 Credential=a/20260202/r/s3/aws4_request, SignedHeaders=, Signature=x",
    ),
    (b"Authorization", b"AWS4-HMAC-SHA256 Credential=a,Credential=b"),
    (b"x-amz-date", b"20269999T999999Z"),
    (b"x-amz-date", b"\xd9\xa2\xd9\xa0260202T024000Z"),
    (b"x-amz-date", b"00000101T000000Z"),
    (b"Date", b"x"),
    (b"x-amz-content-sha256", b"x"),
    (b"x-amz-content-sha256", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
    (b"x-amz-content-sha256", b"STREAMING-NOTHING"),
    (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"),
    (b"x-amz-content-sha256", b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
    (b"x-amz-security-token", b"\xc3\xbc"),
    (b"x-amz-decoded-content-length", b"\xd9\xa1"),
    (b"x-amz-decoded-content-length", b"9" * 16),
    (b"x-amz-decoded-content-length", b"9" * 17),
    (b"x-amz-decoded-content-length", b"-1"),
    (b"x-amz-trailer", b"x"),
    (b"x-amz-trailer", b"x-amz-checksum-crc64nvme,x-amz-checksum-crc32c"),
    (b"x-amz-trailer", b","),
    (b"x-amz-copy-source", b"/"),
    (b"x-amz-copy-source", b"b/%ff"),
    (b"x-amz-copy-source", b"\xff"),
    (b"x-amz-copy-source-range", b"bytes=0-"),
    (b"x-amz-copy-source-if-modified-since", b"1 Jan 99999999999 0:0:0 GMT"),
    (b"x-shade-job", b""),
    (b"x-shade-job", b";"),
    (b"x-shade-job", b"a;epoch=x"),
    (b"x-shade-job", b"a;epoch=\xd9\xa1"),
    (b"Content-Type", b"multipart/form-data"),
    (b"Content-Type", b"multipart/form-data; boundary="),
    (b"Content-Type", b"multipart/form-data; boundary*0*=x''%ff"),
    (b"Content-Type", b'\xc3\xbc/x; =; ;; a="\\'),
    (b"Content-Encoding", b"aws-chunked,,"),
    (b"Content-MD5", b"x"),
    (b"x-amz-checksum-crc32", b"x"),
    (b"x-amz-checksum-sha256", b"\xc3\xbc"),
    (b"x-amz-sdk-checksum-algorithm", b"CRC32"),
    (b"Range", b"bytes=0-\xd9\xa1"),
    (b"x-amz-server-side-encryption-customer-key", b"x"),
    (b"x-amz-request-payer", b"requester"),
    (b"x-amz-tagging", b"&=&"),
    (b"x-amz-meta-\xc3\xbc", b"x"),
    (b"x-amz-meta-a", b"v" * 8000),
    (b"x-amz-acl", b"\xc3\xbc"),
    (b"Origin", b"\xc3\xbc"),
)
_SCRAPS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\x00",
    b"\xff",
    b" ",
    b"\t",
    b":",
    b";",
    b"0\r\n\r\n",
    b"\r\n ",
    b"GET / HTTP/1.1\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\n",
    b"5;a=b\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"%",
    b"chunk-signature=",
    b"\xe2\x80\xa8",
)


def bend(request: Request, random: Random) -> None:
    """Damage one part of the meaning of ``request``, such as its method, its target, a field or its body."""
    request.damaged = True
    random.choice(_BENDS)(request, random)


def spoil(data: bytes, random: Random) -> bytes:
    """Return ``data``, the bytes of requests, with some of the bytes damaged."""
    for _ in range(random.choice((1, 1, 1, 2, 5, 20))):
        data = random.choice(_SPOILS)(data, random)
    return data


def _method(request: Request, random: Random) -> None:
    request.method = random.choice(_METHODS)


def _version(request: Request, random: Random) -> None:
    request.version = random.choice(_VERSIONS)


def _target(request: Request, random: Random) -> None:
    request.path, request.query = random.choice(_TARGETS), []


def _parameter(request: Request, random: Random) -> None:
    if request.query and random.random() < 0.7:
        position = random.randrange(len(request.query))
        name, _ = request.query[position]
        changed = (
            name,
            random.choice((b"", b"%00", b"x", b"%ff", b"-1", b"9" * 30, b"%D9%A1", b"a b", b"%")),
        )
        request.query[position] = changed
    else:
        request.query.append(
            random.choice(((b"versionId", b"x"), (b"uploadId", b""), (b"", b"x"), (b"acl", b"")))
        )


def _more(request: Request, random: Random) -> None:
    request.fields.insert(random.randrange(len(request.fields) + 1), random.choice(_FIELDS))


def _instead(request: Request, random: Random) -> None:
    name, value = random.choice(_FIELDS)
    request.fields = [pair for pair in request.fields if pair[0].lower() != name.lower()]
    request.fields.append((name, value))


def _twice(request: Request, random: Random) -> None:
    request.fields.append(random.choice(request.fields))


def _less(request: Request, random: Random) -> None:
    request.fields.pop(random.randrange(len(request.fields)))
    if not request.fields:
        request.add("X-Left", "1")


def _value(request: Request, random: Random) -> None:
    position = random.randrange(len(request.fields))
    name, value = request.fields[position]
    odd = (
        b"",
        value + b" x",
        value[: len(value) // 2],
        value * 2,
        value.lower(),
        b"\xff" + value,
        b"\xd9\xa1",
    )
    edges = (
        values.date(random).encode(),
        values.byte_range(random).encode(),
        values.entity_tag(random).encode(),
    )
    request.fields[position] = (name, random.choice(odd + edges))


def _name(request: Request, random: Random) -> None:
    position = random.randrange(len(request.fields))
    name, value = request.fields[position]
    odd = (name.upper(), name + b" ", b" " + name, name.replace(b"-", b"_"), name + b":", b"")
    request.fields[position] = (random.choice(odd), value)


def _body(request: Request, random: Random) -> None:
    request.wire = random.choice(
        (
            b"",
            request.wire * 2,
            request.wire[: len(request.wire) // 2],
            spoil(request.wire, random),
            b"\r\n" + request.wire,
        )
    )


def _many_fields(request: Request, random: Random) -> None:
    for number in range(random.choice((50, 99, 101, 400))):
        request.add(f"X-Field-{number}", "v")


_BENDS: tuple[Callable[[Request, Random], None], ...] = (
    _method,
    _version,
    _target,
    _target,
    _parameter,
    _more,
    _more,
    _more,
    _more,
    _instead,
    _instead,
    _instead,
    _twice,
    _twice,
    _less,
    _value,
    _value,
    _value,
    _name,
    _body,
    _body,
    _body,
    _many_fields,
)


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return data
    position = random.randrange(len(data))
    return data[:position] + bytes([data[position] ^ (1 << random.randrange(8))]) + data[position + 1 :]


def _insert(data: bytes, random: Random) -> bytes:
    position = random.randrange(len(data) + 1)
    return data[:position] + random.choice(_SCRAPS) + data[position:]


def _remove(data: bytes, random: Random) -> bytes:
    position = random.randrange(len(data) + 1)
    return data[:position] + data[position + random.choice((1, 2, 10, 200)) :]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _repeat(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data) + 1)
    stop = min(len(data), start + random.randrange(1, 300))
    return data[:stop] + data[start:stop] + data[stop:]


_SPOILS: tuple[Callable[[bytes, Random], bytes], ...] = (
    _flip,
    _flip,
    _flip,
    _insert,
    _insert,
    _remove,
    _cut,
    _repeat,
)
