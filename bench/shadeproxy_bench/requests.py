"""HTTP requests as bytes, signed or not. A measurement makes all its requests before it begins."""

import time
from collections.abc import Iterable, Sequence

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from shadeproxy_bench.objects import Piece

REGION = "us-east-1"
CLIENT = Credentials("BENCHCLIENT", "secret-of-the-bench-client")
"""Credentials of the client that a proxy under test knows. They are valid on loopback, during a run."""

Field = tuple[str, str]
DISTINCT_SIGNED = 20_000
_SPREAD_S = 300


def signature_of(
    method: str,
    path: str,
    host: str,
    *,
    query: str = "",
    fields: Sequence[Field] = (),
    payload_hash: str = EMPTY_SHA256,
    credentials: Credentials = CLIENT,
    now_s: float | None = None,
) -> list[Field]:
    """Return the header fields that sign a request. ``fields``: fields that are signed besides Host.
    ``now_s``: the time of signing; None: now.
    """
    return sign_request(
        method=method,
        raw_path=path,
        raw_query=query,
        headers=[("host", host), *fields],
        payload_hash=payload_hash,
        credentials=credentials,
        region=REGION,
        now_s=time.time() if now_s is None else now_s,
    )


def head_of(method: str, target: str, fields: Iterable[Field]) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join([*lines, "", ""]).encode()


def plain_requests(pieces: Sequence[Piece], host: str) -> list[bytes]:
    """Return one unsigned request for each piece."""
    return [_request(piece, host, []) for piece in pieces]


def signed_requests(
    pieces: Sequence[Piece], host: str, *, distinct: int = DISTINCT_SIGNED
) -> list[tuple[Piece, bytes]]:
    """Return at least ``distinct`` signed requests that cycle through ``pieces``. Requests for the same piece
    are signed with different times, so that they differ.

    A cache of signatures would therefore gain nothing. The requests are valid for ten minutes.
    """
    now_s = time.time()
    signed = []
    for turn in range(max(distinct, len(pieces))):
        piece = pieces[turn % len(pieces)]
        sent_s = now_s - turn // len(pieces) % _SPREAD_S
        signed.append((piece, _request(piece, host, signature_of("GET", piece.path, host, now_s=sent_s))))
    return signed


def _request(piece: Piece, host: str, fields: list[Field]) -> bytes:
    span = [] if piece.range_field is None else [("Range", piece.range_field)]
    return head_of("GET", piece.path, [("Host", host), *span, *fields])
