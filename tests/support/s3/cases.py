"""Cases: requests of clients, and scripts of the origin's answers to them.

Every way to serve a miss must give the same results in a case.
"""

import base64
import hashlib
import re
import zlib
from typing import Any, NamedTuple

from tests.support.s3.scripted import CUT, PAGE, PAUSE, WAIT, Answer

SMALL = bytes(range(256)) * 16
HELD = bytes(range(256)) * 400  # So long that the body is held until it is verified.
BIG = bytes(range(256)) * 4000
DATED = b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"


def head(
    body: bytes, *fields: bytes, status: bytes = b"200 OK", etag: bytes = b'"e1"', version: bytes = b"1.1"
) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    tag = b"ETag: %s\r\n" % etag if etag else b""
    return b"HTTP/%s %s\r\n%s%s%s" % (version, status, tag, DATED, lines) + (
        b"Content-Length: %d\r\n\r\n" % len(body)
    )


def ok(body: bytes, *fields: bytes, **changed: bytes) -> bytes:
    return head(body, *fields, **changed) + body


def part(body: bytes, start: int, stop: int, size: int | None = None, etag: bytes = b'"e1"') -> bytes:
    """Return an origin's answer to a request for a range of ``body``."""
    told = b"Content-Range: bytes %d-%d/%d" % (start, stop - 1, len(body) if size is None else size)
    return ok(body[start:stop], told, status=b"206 Partial Content", etag=etag)


def refusal(status: bytes, code: bytes = b"", *fields: bytes) -> bytes:
    document = b"<Error><Code>%s</Code><Message>no</Message></Error>" % code if code else b""
    return ok(document, *fields, status=status, etag=b"")


def crc32(body: bytes) -> bytes:
    return b"x-amz-checksum-crc32: " + base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))


def sha256(body: bytes) -> bytes:
    return b"x-amz-checksum-sha256: " + base64.b64encode(hashlib.sha256(body).digest())


def chopped(data: bytes, size: int) -> list[bytes | str]:
    """Return the steps of an answer whose bytes arrive ``size`` at a time."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return [step for piece in pieces for step in (piece, PAUSE)]


def damaged(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


class Case(NamedTuple):
    """Requests of a client for one object, and the origin's answers to the proxy's requests.

    ``answers``: the origin's answers in order; the last one is repeated.
    ``asks``: for each request of the client, its header fields.
    ``started``: how many callback reads must begin; None if the number may be any from one on.
    ``settings``: settings of the proxy.
    """

    answers: list[Answer]
    asks: tuple[tuple[str, ...], ...] = ((),)
    started: int | None = None
    settings: dict[str, str] = {}  # noqa: RUF012 - never changed
    is_timed: bool = False
    """True if time decides the counts, and what is requested: two timers run, or later pages come from the
    first answer as long as its pace is fast.
    """
    asks_again: bool = False
    """True if a damaged body is requested again. A read by callbacks then requests the whole body, without
    Range or If-Match. A read by a task may send these fields.
    """


HALF = len(BIG) // 2
REST = part(BIG, HALF, len(BIG))
TWO_PAGES = BIG + BIG[: PAGE + 5 - len(BIG)]
WIDE = bytes(range(256)) * 10_000  # Three pages.


def ranged(body: bytes, *spans: tuple[int, int], **changed: Any) -> list[Answer]:
    return [[part(body, start, stop, **changed)] for start, stop in spans]


DRIP = [b"x", PAUSE, PAUSE] * 400
PATIENCE = {"origin__timeouts__first_byte": "400ms", "origin__timeouts__window": "600ms"}
CASES = {
    # ------------------------------------------------------------ plain answers
    "small": Case([[ok(SMALL)]], started=1),
    "big": Case([[ok(BIG)]], started=1),
    "big in many arrivals": Case([chopped(ok(BIG), 50_000)], started=1),
    "head and body apart": Case([[head(SMALL), PAUSE, SMALL]], started=1),
    "head byte by byte": Case([[*chopped(head(SMALL), 1), SMALL]], started=1),
    "head and first byte": Case([[head(SMALL) + SMALL[:1], PAUSE, SMALL[1:]]], started=1),
    "interim": Case([[b"HTTP/1.1 100 Continue\r\n\r\n" + ok(SMALL)]], started=1),
    "interim apart": Case([[b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n", PAUSE, ok(SMALL)]], started=1),
    "long head": Case([[ok(SMALL, b"x-amz-meta-long: " + b"v" * 30_000)]], started=1),
    "closing": Case([[ok(SMALL, b"Connection: close"), CUT]], started=1),
    "metadata": Case([[ok(SMALL, b"x-amz-meta-a: b c", b"Content-Type: image/png")]], started=1),
    # ------------------------------------------------------------ refusals
    "404": Case([[refusal(b"404 Not Found", b"NoSuchKey")]]),
    "404 without a body": Case([[refusal(b"404 Not Found")]]),
    "403": Case([[refusal(b"403 Forbidden", b"AccessDenied")]]),
    "412": Case([[refusal(b"412 Precondition Failed", b"PreconditionFailed")]]),
    "416": Case([[refusal(b"416 Range", b"InvalidRange")]], asks=(("Range: bytes=9-",),)),
    "304": Case([[b'HTTP/1.1 304 Not Modified\r\nETag: "e1"\r\n\r\n']]),
    "204": Case([[b'HTTP/1.1 204 No Content\r\nETag: "e1"\r\n\r\n']]),
    "500 once": Case([[refusal(b"500 Error", b"InternalError")], [ok(SMALL)]]),
    "500 always": Case([[refusal(b"500 Error", b"InternalError")]]),
    "503 once": Case([[refusal(b"503 Slow Down", b"SlowDown")], [ok(SMALL)]]),
    "503 for long": Case([[refusal(b"503 Slow Down", b"SlowDown", b"Retry-After: 100")]]),
    "429 once": Case([[refusal(b"429 Too Many", b"TooManyRequests")], [ok(SMALL)]]),
    "error cut": Case([[refusal(b"404 Not Found", b"NoSuchKey")[:-9], CUT], [ok(SMALL)]]),
    # ------------------------------------------------------------ answers that end in the wrong place
    "dead": Case([[CUT], [ok(SMALL)]]),
    "dead twice": Case([[CUT], [CUT], [ok(SMALL)]]),
    "dead always": Case([[CUT]]),
    "half a head": Case([[head(SMALL)[:40], CUT], [ok(SMALL)]]),
    "cut after the head": Case([[head(BIG), CUT], [ok(BIG)]]),
    "cut after the head, rest by range": Case([[head(BIG), CUT], *ranged(BIG, (0, len(BIG)))]),
    "cut at half": Case([[head(BIG) + BIG[:HALF], CUT], [REST]]),
    "cut at half, paused": Case([[head(BIG) + BIG[:HALF], PAUSE, CUT], [REST]]),
    "cut at half, changed": Case(
        [[head(BIG) + BIG[:HALF], CUT], [refusal(b"412 Precondition Failed", b"PreconditionFailed")]]
    ),
    "cut at half, other version": Case(
        [[head(BIG) + BIG[:HALF], CUT], *ranged(BIG, (HALF, len(BIG)), etag=b'"e2"')]
    ),
    "cut at half, gone": Case([[head(BIG) + BIG[:HALF], CUT], [refusal(b"404 Not Found", b"NoSuchKey")]]),
    "cut at half, no rest": Case([[head(BIG) + BIG[:HALF], CUT], [refusal(b"416 Range", b"InvalidRange")]]),
    "cut at half, whole again": Case([[head(BIG) + BIG[:HALF], CUT], [ok(BIG)]]),
    "cut at half, then 503": Case(
        [[head(BIG) + BIG[:HALF], CUT], [refusal(b"503 Slow Down", b"SlowDown")], [REST]]
    ),
    "cut in each part": Case(
        [[head(BIG) + BIG[:HALF], CUT], [REST[: -HALF // 2], CUT], *ranged(BIG, (HALF + HALF // 2, len(BIG)))]
    ),
    "garbage": Case([[b"garbage\r\n\r\n"], [ok(SMALL)]]),
    "two lengths": Case([[ok(SMALL, b"Content-Length: 5")], [ok(SMALL)]]),
    "upgrade": Case([[b"HTTP/1.1 101 Switching\r\n\r\n"], [ok(SMALL)]]),
    "surplus in the same arrival": Case([[ok(SMALL) + b"surplus"], [ok(SMALL)]]),
    "surplus in a later arrival": Case([[head(BIG) + BIG[:HALF], PAUSE, BIG[HALF:] + b"surplus"], [ok(BIG)]]),
    "surplus behind a damaged short body": Case(
        [[head(SMALL, crc32(SMALL)), PAUSE, damaged(SMALL) + b"surplus"], [ok(SMALL, crc32(SMALL))]],
        asks_again=True,
    ),
    # ------------------------------------------------------------ checksums
    "right": Case([[ok(HELD, crc32(HELD))]], started=1),
    "right, in arrivals": Case([chopped(ok(HELD, sha256(HELD)), 30_000)], started=1),
    "right, big": Case([chopped(ok(BIG, sha256(BIG)), 200_000)], started=1),
    "wrong once": Case(
        [[head(HELD, crc32(HELD)) + damaged(HELD)], [ok(HELD, crc32(HELD))]], asks_again=True
    ),
    "wrong once, in arrivals": Case(
        [chopped(head(HELD, crc32(HELD)) + damaged(HELD), 30_000), [ok(HELD, crc32(HELD))]], asks_again=True
    ),
    "wrong always": Case([[head(HELD, crc32(HELD)) + damaged(HELD)]], asks_again=True),
    "wrong once, big": Case([[head(BIG, crc32(BIG)) + damaged(BIG)], [ok(BIG, crc32(BIG))]]),
    "wrong always, big": Case([chopped(head(BIG, crc32(BIG)) + damaged(BIG), 200_000)]),
    "wrong, a part of it": Case(
        [[head(BIG, crc32(BIG)) + damaged(BIG)], [ok(BIG, crc32(BIG))]], asks=(("Range: bytes=0-999999",),)
    ),
    "wrong always, a part of it": Case(
        [chopped(head(BIG, crc32(BIG)) + damaged(BIG), 200_000)], asks=(("Range: bytes=0-999999",),)
    ),
    "right, a part of it": Case(
        [chopped(ok(BIG, crc32(BIG)), 200_000)], asks=(("Range: bytes=100-999999",),), started=1
    ),
    "cut, right": Case([[head(BIG, crc32(BIG)) + BIG[:HALF], CUT], [REST]]),
    "cut, wrong": Case([[head(BIG, crc32(BIG)) + BIG[:HALF], CUT], *ranged(damaged(BIG), (HALF, len(BIG)))]),
    "cut, held": Case(
        [[head(HELD, crc32(HELD)) + HELD[:9000], CUT],
         {"": [ok(HELD, crc32(HELD))], "bytes=9000-102399": [part(HELD, 9000, len(HELD))]}],
        asks_again=True,
    ),
    "cut, held, wrong": Case(
        [[head(HELD, crc32(HELD)) + HELD[:9000], CUT],
         {"": [head(HELD, crc32(HELD)) + damaged(HELD)],
          "bytes=9000-102399": [part(damaged(HELD), 9000, len(HELD))]}],
        asks_again=True,
    ),
    "cut after the head, held": Case(
        [[head(HELD, crc32(HELD)), CUT],
         {"": [head(HELD, crc32(HELD)) + damaged(HELD)],
          "bytes=0-102399": [part(damaged(HELD), 0, len(HELD))]}],
        asks_again=True,
    ),
    "cut after the head, right": Case([[head(BIG, crc32(BIG)), CUT], *ranged(BIG, (0, len(BIG)))]),
    "cut after the head, wrong": Case([[head(BIG, crc32(BIG)), CUT], *ranged(damaged(BIG), (0, len(BIG)))]),
    "of its parts": Case([[ok(SMALL, b"x-amz-checksum-crc32: AAAAAA==-2")]], started=1),
    "not base64": Case([[ok(SMALL, b"x-amz-checksum-crc32: ?")]], started=1),
    # ------------------------------------------------------------ answers that are not cached
    "weak tag": Case([[ok(SMALL, etag=b'W/"e1"')]]),
    "no tag": Case([[ok(SMALL, etag=b"")]]),
    "chunked": Case(
        [[b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n']]
    ),
    "chunked, apart": Case(
        [[b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nTransfer-Encoding: chunked\r\n\r\n', PAUSE, b"4\r\nbo",
          PAUSE, b"dy\r\n0\r\n\r\n"]]
    ),
    "no length": Case([[b'HTTP/1.1 200 OK\r\nETag: "e1"\r\n\r\nbody', CUT]]),
    "old": Case([[ok(SMALL, version=b"1.0"), CUT]], started=1),
    "control characters": Case([[ok(SMALL, b"x-amz-meta-a: b\x01c")]]),
    # ------------------------------------------------------------ ranges and pages
    "empty": Case([[ok(b"")]]),
    "200 for a range": Case([[ok(BIG)]], asks=(("Range: bytes=100-199",),)),
    "200 for a range of the second page": Case(
        [[ok(TWO_PAGES)]], asks=((f"Range: bytes={PAGE}-",),), started=0
    ),
    "other range": Case(
        ranged(TWO_PAGES, (PAGE + 1, PAGE + 5)), asks=((f"Range: bytes={PAGE}-",),), started=0
    ),
    "a range of the second page": Case(
        ranged(TWO_PAGES, (PAGE, PAGE + 5)),
        asks=((f"Range: bytes={PAGE}-",), (f"Range: bytes={PAGE + 2}-",)),
        started=0,
    ),
    "beyond the end": Case(
        [[refusal(b"416 Range", b"InvalidRange", b"Content-Range: bytes */7")]],
        asks=((f"Range: bytes={PAGE}-",),),
        started=0,
    ),
    "the end": Case([[ok(SMALL)]], asks=(("Range: bytes=-5",), ("Range: bytes=-6",))),
    "two pages": Case([[ok(TWO_PAGES)], *ranged(TWO_PAGES, (PAGE, PAGE + 5))]),
    "three pages": Case(
        [[ok(WIDE)], *ranged(WIDE, (PAGE, 2 * PAGE), (2 * PAGE, len(WIDE)))], is_timed=True
    ),
    "pages one by one": Case(
        [[ok(WIDE)], *ranged(WIDE, (PAGE, PAGE + 10), (2 * PAGE, len(WIDE)))],
        asks=tuple((f"Range: bytes={span}",) for span in ("5-9", f"{PAGE}-{PAGE + 9}", f"{2 * PAGE + 7}-")),
    ),
    "known, cut": Case(
        [*ranged(WIDE, (PAGE, 2 * PAGE)), [part(WIDE, 2 * PAGE, len(WIDE))[:-9], CUT],
         *ranged(WIDE, (len(WIDE) - 9, len(WIDE)))],
        asks=((f"Range: bytes={PAGE}-{2 * PAGE - 1}",), (f"Range: bytes={2 * PAGE}-",)),
    ),
    "known, changed": Case(
        [*ranged(WIDE, (PAGE, 2 * PAGE)), [refusal(b"412 Precondition Failed", b"PreconditionFailed")],
         *ranged(WIDE, (2 * PAGE, len(WIDE)), etag=b'"e2"')],
        asks=((f"Range: bytes={PAGE}-{2 * PAGE - 1}",), (f"Range: bytes={2 * PAGE}-",)),
    ),
    "known, gone": Case(
        [*ranged(WIDE, (PAGE, 2 * PAGE)), [refusal(b"404 Not Found", b"NoSuchKey")]],
        asks=((f"Range: bytes={PAGE}-{2 * PAGE - 1}",), (f"Range: bytes={2 * PAGE}-",)),
    ),
    "known, 500 once": Case(
        [*ranged(WIDE, (PAGE, 2 * PAGE)), [refusal(b"500 Error", b"InternalError")],
         *ranged(WIDE, (2 * PAGE, len(WIDE)))],
        asks=((f"Range: bytes={PAGE}-{2 * PAGE - 1}",), (f"Range: bytes={2 * PAGE}-",)),
    ),
    "known, other version under its tag": Case(
        [*ranged(WIDE, (PAGE, 2 * PAGE)), *ranged(WIDE, (2 * PAGE, len(WIDE)), etag=b'"e2"')],
        asks=((f"Range: bytes={PAGE}-{2 * PAGE - 1}",), (f"Range: bytes={2 * PAGE}-",)),
    ),
    "several ranges": Case([[ok(SMALL)]], asks=(("Range: bytes=0-1,4-5",), ("Range: bytes=5-2",))),
    "across two pages": Case(
        [*ranged(TWO_PAGES, (PAGE - 3, PAGE + 3), (PAGE, PAGE + 5))],
        asks=((f"Range: bytes={PAGE - 3}-{PAGE + 2}",),),
        started=0,
    ),
    # ------------------------------------------------------------ requests that are not plain
    "condition": Case([[ok(SMALL)]], asks=(('If-None-Match: "e1"',), ('If-Match: "e1"',))),
    "no-cache": Case([[ok(SMALL)], [ok(BIG)]], asks=(("Cache-Control: no-cache",),) * 2),
    "closing twice": Case([[ok(SMALL)]], asks=(("Connection: close",),) * 2, started=1),
    "silent": Case([[WAIT]], settings=PATIENCE),
    "silent after the head": Case([[head(BIG), WAIT]], settings=PATIENCE, is_timed=True),
    "silent after some bytes": Case([[head(BIG) + BIG[:HALF], WAIT]], settings=PATIENCE, is_timed=True),
    "drips": Case([[head(BIG) + BIG[:9], PAUSE, *DRIP]], settings=PATIENCE, is_timed=True),
    "drips a head": Case([[b"HTTP/1.1 200 OK\r\nX-Long: ", *DRIP]], settings=PATIENCE),
    "slow, but fast enough": Case([chopped(ok(SMALL), 30)], settings=PATIENCE, started=1),

    "checksums wanted": Case(
        [[ok(SMALL, crc32(SMALL))]], asks=(("x-amz-checksum-mode: ENABLED",), ()), started=1
    ),
    "job": Case([[ok(SMALL)]], asks=(("x-shade-job: j;epoch=1",),), started=1),
    "client closes": Case([[ok(SMALL)]], asks=(("Connection: close",),), started=1),
}  # fmt: skip


def short(seen: Any) -> str:
    """Return a short text of a value for a failure message. Long byte strings are shown by their length."""
    return re.sub(r"b(['\"])(?:(?!\1).){60,}\1", lambda found: f"<{len(found[0])}>", repr(seen))
