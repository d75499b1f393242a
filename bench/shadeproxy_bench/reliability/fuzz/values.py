"""Draws values of fields, parameters and documents: usual values, and values at the limits of what is allowed
or beyond.
"""

import random as randoms
from datetime import UTC, datetime
from random import Random
from xml.sax.saxutils import escape

_DATES = (
    "Mon, 02 Feb 2026 02:40:00 GMT",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "Mon, 1 Jan 0001 00:00:00 +2359",
    "1 Jan 99999999999999999999 00:00:00 GMT",
    "Sat, 30 Feb 2026 25:61:61",
    "Mon, 02-Feb-26 02:40:00 GMT",
    "Mon Feb  2 02:40:00 2026",
    "1 Jan 2026 00:00:00 +99999999999999999999",
    "0",
    "-1",
    "GMT",
    "1 Jan",
    ",,,,",
    "\u0661 Jan 2026 00:00:00 GMT",
    "2026-02-02T02:40:00Z",
)
_RANGES = (
    "bytes=0-0",
    "bytes=0-",
    "bytes=-1",
    "bytes=5-4",
    "bytes=100-200",
    "bytes=4095-4096",
    "bytes=-0",
    "bytes=0-0,2-3",
    "bytes=",
    "bytes=-",
    "items=0-1",
    "bytes=99999999999999999999-",
    "BYTES=1-2",
    "bytes=-99999999999999999999",
    "bytes = 0-1",
    "bytes=0-18446744073709551616",
    "bytes=\u0660-\u0661",
    "bytes=1-2-3",
    "bytes=+1-2",
    "bytes=0x1-2",
    "bytes=1_0-20",
    "bytes= 1-2 ",
    "bytes=000000000000000000000-1",
)
_TAGS = (
    "*",
    '"x"',
    'W/"x"',
    '"a", "b", W/"c"',
    "x",
    '"',
    "",
    ",",
    '""',
    "W/",
    '"\u00fc"',
    "d41d8cd98f00b204e9800998ecf8427e",
    '"d41d8cd98f00b204e9800998ecf8427e"',
)
_REDIRECTS = (
    "http://site.example/done",
    "https://site.example/?a=b",
    "http://[",
    "javascript:alert(1)",
    "//x",
    "",
    "http://\u00fc",
    "http://a b",
    "http://[::1]:x/",
    "http://x:99999/",
    "http://[v1.x]/",
)
LISTING = {
    "prefix": ("", "a", "b/", "\u00fc", ".shadeproxy/", "\x00"),
    "delimiter": ("/", "", "//", "\u00fc"),
    "max-keys": ("0", "1", "1000", "-1", "99999999999", "x", "\u0661", ""),
    "start-after": ("", "a", "\u00fc", "\x00"),
    "encoding-type": ("url", "gzip", ""),
    "continuation-token": ("", "x", "\u0661", "YQ==", "/w=="),
    "marker": ("", "a", "\uffff"),
}
_METADATA = (
    "plain",
    "\u00fcber",
    "=?utf-8?q?x?=",
    "",
    " ",
    "a" * 2100,
    "aws-chunked",
    "gzip,aws-chunked",
    "\t",
)
_XML_TEXT = (
    "a",
    "\u00fc",
    "&amp;",
    "&#0;",
    "&#x1;",
    "&#xFFFE;",
    "&nope;",
    "<b/>",
    "",
    "x" * 2000,
    "]]>",
    "<![CDATA[a]]>",
    "<!-- a -->",
    "<?a b?>",
)
_PROLOGUES = (
    b"",
    b'<?xml version="1.0" encoding="UTF-8"?>',
    b'<?xml version="1.0" encoding="utf-7"?>',
    b'<?xml version="1.0" encoding="nothing"?>',
    b'<?xml version="1.1"?>',
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b'<!DOCTYPE a [<!ENTITY b "c">]>',
    b'<?xml version="1.0" encoding="idna"?>',
    b'<?xml version="1.0" encoding="utf-16"?>',
    b'<!DOCTYPE a SYSTEM "http://127.0.0.1/">',
)
_EXPIRATIONS = (
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+23:59",
    "2026",
    "",
    "never",
    "2026-02-02T02:40:00",
    "9999-12-31T23:59:59-23:59",
)


def byte_range(random: Random) -> str:
    """Draw a value of Range. At least half of the values are valid."""
    if random.random() < 0.5:
        start = random.randrange(50_000)
        return f"bytes={start}-{start + random.randrange(50_000)}"
    return random.choice(_RANGES)


def date(random: Random) -> str:
    """Draw a value of a date field: a date, or a text that is no date."""
    return random.choice(_DATES)


def entity_tag(random: Random) -> str:
    """Draw a value of If-Match or If-None-Match: one or several entity tags, or a text that is none."""
    return random.choice(_TAGS)


def cache_control(random: Random) -> str:
    """Draw a value of Cache-Control."""
    return random.choice(("no-cache", "max-age=0", "no-cache, x=y"))


def job(random: Random) -> str:
    """Draw a value of x-shade-job."""
    return random.choice(("job", "job;epoch=3;rank=0", "job; rank=1"))


def redirect(random: Random) -> str:
    """Draw the address to which a form upload asks to be redirected."""
    return random.choice(_REDIRECTS)


def of_listing(random: Random, name: str) -> str:
    """Draw the value of a parameter of ListObjects."""
    return random.choice(LISTING[name])


def of_metadata(random: Random, name: str) -> str:
    """Draw the value of a field that is stored with an object."""
    return date(random) if name == "Expires" else random.choice(_METADATA)


def body(random: Random, size_bytes: int | None) -> bytes:
    """Draw the bytes of an object. ``size_bytes``: their number; None: draw the number, too."""
    if size_bytes is None:
        size_bytes = random.choice((0, 1, 2, 100, 4095, 4096, 4097, 20_000, 70_000))
    return randoms.Random(random.getrandbits(32)).randbytes(size_bytes)


def expiration(random: Random, now_s: float) -> str:
    """Draw the expiration of a policy."""
    if random.random() < 0.8:
        return datetime.fromtimestamp(now_s + 600, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return random.choice(_EXPIRATIONS)


def odd_conditions(random: Random) -> list[object]:
    """Draw conditions of a policy that fail or are malformed. In most cases draw none."""
    if random.random() < 0.8:
        return []
    return [
        random.choice(
            (
                ["eq", "$x-amz-meta-form", "\ud800"],
                ["eq", "$key", "\ufffe\u0001<&>"],
                ["starts-with", "$\ud800", "x"],
                ["content-length-range", -1, 10**400],
                ["content-length-range", 1.5, True],
                {"\ud800": "x"},
                {"key": None},
                [],
                "text",
                ["eq", "key", "x"],
                [["eq"], "$key", "x"],
                7,
            )
        )
    ]


def document(random: Random) -> bytes:
    """Draw a body for a request to a sub-resource, such as ``?acl`` or ``?tagging``."""
    inner = "".join(f"<Part>{random.choice(_XML_TEXT)}</Part>" for _ in range(random.randrange(3)))
    return random.choice(_PROLOGUES) + f"<Anything>{inner}</Anything>".encode()


def complete_document(random: Random) -> bytes:
    """Draw a body of CompleteMultipartUpload."""
    numbers = random.choice((("1",), ("1", "2"), ("2", "1"), ("0",), ("x",), ("99999999",), ("\u0661",), ()))
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{random.choice(_XML_TEXT)}</ETag></Part>"
        for number in numbers
    )
    return random.choice(_PROLOGUES) + f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def delete_document(random: Random, keys: tuple[str, ...]) -> bytes:
    """Draw a body of DeleteObjects. It seldom names keys that exist, so that there are still objects to
    read.
    """
    named = [
        escape(random.choice(keys)) if random.random() < 0.2 else random.choice(_XML_TEXT)
        for _ in range(random.choice((0, 1, 1, 2, 3, 1001)))
    ]
    objects = "".join(f"<Object><Key>{name}</Key></Object>" for name in named)
    nested = "<a>" * 3000 + "</a>" * 3000 if random.random() < 0.02 else ""
    return random.choice(_PROLOGUES) + f"<Delete>{objects}{nested}</Delete>".encode()


def tagging_document(random: Random) -> str:
    """Draw the value of a form's field ``tagging``."""
    tag = f"<Tag><Key>{random.choice(_XML_TEXT)}</Key><Value>{random.choice(_XML_TEXT)}</Value></Tag>"
    return f"<Tagging><TagSet>{tag}</TagSet></Tagging>"


def form(random: Random, fields: dict[str, str], boundary: bytes, file: bytes) -> bytes:
    """Return a body of multipart/form-data with ``fields`` and ``file``. Sometimes a part has an odd head."""
    parts = [
        b'Content-Disposition: form-data; name="%b"\r\n\r\n%b' % (name.encode(), value.encode())
        for name, value in fields.items()
    ]
    if random.random() < 0.2:
        parts.insert(random.randrange(len(parts) + 1), random.choice(_ODD_PARTS))
    disposition = random.choice(_FILES) if random.random() < 0.3 else _FILES[0]
    parts.append(b'Content-Disposition: form-data; name="file"%b\r\n\r\n%b' % (disposition, file))
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts) + b"--%b--\r\n" % boundary


_FILES = (
    b'; filename="a.txt"\r\nContent-Type: text/plain',
    b"",
    b'; filename="C:\\\\x\\\\y.txt"',
    b"; filename*=utf-8''%ff%zz",
    b'; filename*0*="a"; filename*1="b"',
    b'; filename="\xff"',
    b"; filename=",
    b"; filename*x*=1",
    b"; filename*0=a; filename*99999999999999999999=b",
)
_ODD_PARTS = (
    b"Content-Disposition: form-data\r\n\r\nx",
    b"\r\n\r\nx",
    b"x",
    b"\xff: \xff\r\n\r\n\xff",
    b'Content-Disposition: form-data; name="x-amz-meta-a\nb"\r\n\r\nx',
    b'Content-Disposition: form-data; name="x-amz-meta-a b:"\r\n\r\nx',
    b'Content-Disposition: form-data; name="x-amz-meta-\xc3\xbc"\r\n\r\nx',
    b'Content-Disposition: form-data; name="x-amz-meta-v"\r\n\r\na\nb',
    b"Content-Disposition: form-data; name*=nothing''x-amz-meta-z\r\n\r\nx",
    b"Content-Disposition: form-data; name*0*=utf-8''key; name*1=x\r\n\r\nx",
    b'Content-Disposition: form-data; name="acl"\r\n\r\npublic-read\x00',
    b'Content-Disposition: form-data; name="key"\r\n\r\ntwice',
)
