"""GET requests as bytes, made before a measurement so that the client spends nothing on them."""

import time
from collections.abc import Sequence

from shadeproxy.core.sigv4 import EMPTY_SHA256, Credentials, sign_request
from shadeproxy_bench.objects import Piece

REGION = "us-east-1"
CLIENT = Credentials("BENCHCLIENT", "secret-of-the-bench-client")
"""Client that a proxy under test knows; on loopback, for the length of a run."""

DISTINCT_SIGNED = 20_000
_SPREAD_S = 300


def plain_requests(pieces: Sequence[Piece], host: str) -> list[bytes]:
    """Return one request for each piece."""
    return [_request(piece, host, []) for piece in pieces]


def signed_requests(
    pieces: Sequence[Piece], host: str, *, distinct: int = DISTINCT_SIGNED
) -> list[tuple[Piece, bytes]]:
    """Return ``distinct`` requests, no two alike, cycling through ``pieces``: their times differ by seconds.

    A cache of signatures therefore gains nothing. Valid for ten minutes.
    """
    now_s = time.time()
    signed = []
    for turn in range(max(distinct, len(pieces))):
        piece = pieces[turn % len(pieces)]
        sent_s = now_s - turn // len(pieces) % _SPREAD_S
        signed.append((piece, _request(piece, host, _authorization(piece, host, sent_s))))
    return signed


def _authorization(piece: Piece, host: str, now_s: float) -> list[tuple[str, str]]:
    return sign_request(
        method="GET",
        raw_path=piece.path,
        raw_query="",
        headers=[("host", host)],
        payload_hash=EMPTY_SHA256,
        credentials=CLIENT,
        region=REGION,
        now_s=now_s,
    )


def _request(piece: Piece, host: str, fields: list[tuple[str, str]]) -> bytes:
    lines = [f"GET {piece.path} HTTP/1.1", f"Host: {host}"]
    if piece.range_field is not None:
        lines.append(f"Range: {piece.range_field}")
    lines += [f"{name}: {value}" for name, value in fields]
    return "\r\n".join([*lines, "", ""]).encode()
