"""Makes the requests of the smuggling attack from their templates (rows.py)."""

import re
from base64 import b64encode
from random import Random
from typing import NamedTuple
from zlib import crc32

from shadeproxy_bench.reliability.attack.origin import BUCKET
from shadeproxy_bench.reliability.attack.rows import Row


class Sent(NamedTuple):
    """A request of one row. ``body`` and ``own`` (values of x-amz-meta-own): as its sender means them."""

    row: Row
    key: str
    method: str
    target: str
    wire: bytes
    body: bytes
    own: list[str]


_EVIL = (
    "PUT /attack/{key}-smuggled HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n",
    "\r\nDELETE /attack/{key}-smuggled HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "0\r\n\r\nPUT /attack/{key}-smuggled HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n",
    "GET /attack/{key}-smuggled.9 HTTP/1.1\r\nHost: {host}\r\nx-amz-meta-a: stray\r\n\r\n0\r\n\r\n",
    "\r\n0\r\n\r\nGET /attack/{key}-smuggled.9 HTTP/1.1\r\nHost: {host}\r\n\r\n",
)


_MOST = "".join(f"x-pad-{turn}: a\r\n" for turn in range(3000))
_MANY = "".join(f"x-pad-{turn}: {'a' * 90}\r\n" for turn in range(1000))
_LONG = "a" * 20_000


def build(row: Row, token: str, turn: int, host: str, random: Random) -> Sent:
    """Return a request of ``row``, the one number ``turn`` of the attack ``token``."""
    key, own = f"{token}-{turn}", f"own-{token}-{turn}"
    evil = random.choice(_EVIL).format(key=key, host=host)
    path = f"/{BUCKET}/{key}"
    aws = f"{len(evil):x}\r\n{evil}\r\n0\r\nx-amz-checksum-crc32:{_crc32(evil)}\r\n\r\n"
    values = {
        "key": key,
        "path": path,
        "own": own,
        "host": host,
        "evil": evil,
        "n": len(evil),
        "hex": f"{len(evil):x}",
        "chunks": _chunked(evil, random),
        "more": "".join(f"x-pad-{turn}: {own}\r\n" for turn in range(80)),
        "most": _MOST,
        "many": _MANY,
        "long": _LONG,
        "aws": aws,
        "awsn": len(aws),
        "awshex": f"{len(aws):x}",
        "awsevil": len(aws) + len(evil),
    }
    wire = row.template.replace("|", "\r\n").format(**values)
    first = row.template.lstrip("|").partition("|")[0].format(**values)
    method, *rest = re.split("[ \t]+", first)
    # The target as the origin gets it: without a scheme and a server.
    target = rest[0].removeprefix(f"http://{host}") if rest else ""
    has_body = "{evil}" in row.template or "{chunks}" in row.template or "{aws}" in row.template
    owns = [own] if "x-amz-meta-own: {own}" in row.template.lower().replace(":{", ": {") else []
    return Sent(
        row, key, method, target, wire.encode("latin-1", "replace"), evil.encode() if has_body else b"", owns
    )


def _chunked(text: str, random: Random) -> str:
    """Return ``text`` in the chunked transfer coding, in random chunks, without the last chunk."""
    parts, at = [], 0
    while at < len(text):
        count = random.randint(1, len(text))
        piece = text[at : at + count]
        parts.append(f"{len(piece):x}\r\n{piece}\r\n")
        at += count
    return "".join(parts)


def _crc32(text: str) -> str:
    return b64encode(crc32(text.encode()).to_bytes(4, "big")).decode()
