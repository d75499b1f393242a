"""Throughput of uploads: forwarded by the proxy, and sent to the origin directly. The origin compares every
byte.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from shadeproxy_bench.faults import BenchError
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.requests import head_of
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import alternate
from shadeproxy_bench.server import Served, origin, proxy, workplace

_OBJECT_BYTES = 1_000_000
_CONNECTIONS = 8
_LATENCY_S = 0.02
_PATIENCE_S = 30.0


def upload(server: Served, pieces: Sequence[Piece], *, connections: int, seed: int = 0) -> float:
    """Upload all of ``pieces``, and return objects/s. ``seed``: see ``body_of``. Raises BenchError if an
    upload is refused.
    """
    shares = [pieces[start::connections] for start in range(connections)]
    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        try:
            list(pool.map(partial(_upload_share, server, seed=seed), shares))
        except OSError as error:
            raise BenchError(f"{server.name} broke off: {error}") from error
    return len(pieces) / (time.perf_counter() - began)


def _upload_share(server: Served, pieces: Sequence[Piece], *, seed: int) -> None:
    """Upload objects one after another over one connection."""
    with socket.create_connection(server.address, timeout=_PATIENCE_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            fields = [("Host", server.authority), ("Content-Length", str(piece.size_bytes))]
            link.sendall(head_of("PUT", piece.path, fields))
            link.sendall(piece.body(seed))
            status = _receive_status(link)
            if status != b"200":
                raise BenchError(f"{server.name}: PUT {piece.path} was answered {status.decode()}")


def _receive_status(link: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        arrived = link.recv(16 * 1024)
        if not arrived:
            raise ConnectionError("it closed the connection")
        received += arrived
    return received[9:12]


def forwarded(
    ours: Served, source: Served, *, objects: int, rounds: int, connections: int = _CONNECTIONS
) -> Measured:
    """Measure objects/s of uploads through the proxy and direct to the origin, in turn. Raises BenchError if
    the origin refuses one, because a byte of it was wrong.
    """
    pieces = [Piece(_OBJECT_BYTES, number) for number in range(objects)]

    def side(server: Served) -> float:
        return upload(server, pieces, connections=connections)

    for server in (source, ours):
        side(server)  # Makes the bodies, and opens connections to the origin.
    return alternate(partial(side, ours), partial(side, source), rounds=rounds)


def forwarded_uploads(scale: Scale) -> Measured:
    """Run ``forwarded`` with real servers."""
    with (
        workplace() as work,
        origin(work, latency_s=_LATENCY_S) as source,
        proxy(work, source, ram_bytes=64 << 20) as ours,
    ):
        return forwarded(ours, source, objects=scale.pick(1000, 250), rounds=scale.rounds)


def uploads(scale: Scale) -> Iterator[Planned]:
    yield Planned(
        "PUT 1 MB, 8 concurrent, 20 ms origin",
        "objects/s",
        Target(0.9),
        "the same client through the proxy and direct; the origin compares every byte with what it "
        "expects, and answers 20 ms after the last one; unsigned",
        partial(forwarded_uploads, scale),
        ratio_is="ours / reference",
    )
