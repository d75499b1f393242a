"""The cost of TLS: CPU of hits at an HTTPS listener, compared with nginx with the same certificate, and CPU
of misses from an HTTPS origin.
"""

from collections.abc import Iterator, Sequence
from functools import cache, partial

from shadeproxy.api.s3 import COMPILED
from shadeproxy_bench.certificate import make_certificate
from shadeproxy_bench.load import best_load
from shadeproxy_bench.nginx import nginx
from shadeproxy_bench.objects import Piece
from shadeproxy_bench.plan import Planned, Scale
from shadeproxy_bench.results import Measured, Target
from shadeproxy_bench.rounds import measured
from shadeproxy_bench.server import Served, origin, proxy, workplace
from shadeproxy_bench.suites.hits import CONNECTIONS, compare, middle_objects, small_objects
from shadeproxy_bench.suites.misses import read_misses
from shadeproxy_bench.warm_memory import warm_memory

_OBJECT_BYTES = 100_000
_BOUND_US = 155.0 if COMPILED else 170.0


def encrypted_hit(pieces: Sequence[Piece], scale: Scale) -> Measured:
    """Run ``hits.compare`` with servers that speak HTTPS, for hits in RAM."""
    room = 2 * sum(piece.size_bytes for piece in pieces) + 64 * 1024**2
    with workplace() as work, origin(work) as source:
        certificate = make_certificate(work)
        with (
            nginx(work, pieces, certificate=certificate) as references,
            proxy(work, source, ram_bytes=room, certificate=certificate) as ours,
        ):
            return compare(
                ours,
                references,
                pieces,
                sources={"ram"},
                load=best_load(),
                rounds=scale.rounds,
                seconds=scale.pick(2, 1),
            )


def encrypted_misses(
    over_tls: Served, plain: Served, *, objects: int, rounds: int, connections: int = 32
) -> tuple[Measured, Measured]:
    """Return (us of the proxy's CPU for a miss with an HTTPS origin, the difference to the CPU with a plain
    origin).

    The first round warms connections and is not counted. Raises BenchError for wrong bytes.
    """
    costs: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        pieces = [Piece(_OBJECT_BYTES, turn * objects + number) for number in range(objects)]
        for found, server in zip(costs, (over_tls, plain), strict=True):
            _, cpu_us = read_misses(server, pieces, connections=connections)
            if turn:
                found.append(cpu_us)
    more = measured([ours - reference for ours, reference in zip(*costs, strict=True)])
    return measured(costs[0]), Measured(more.ours, None, more.ours_spread, note=_told(*costs))


def _told(over_tls: list[float], plain: list[float]) -> str:
    over, under = measured(over_tls).ours, measured(plain).ours
    return f"medians: {over:.0f} us over HTTPS, {under:.0f} us over HTTP"


def https_origin(scale: Scale) -> tuple[Measured, Measured]:
    """Run ``encrypted_misses`` with real servers, which have room for all objects."""
    objects = scale.pick(2000, 1000)
    stored_bytes = 2 * (scale.rounds + 1) * objects * _OBJECT_BYTES
    with warm_memory(stored_bytes), workplace() as work:
        certificate = make_certificate(work)
        with (
            origin(work) as plain,
            origin(work, certificate=certificate, name="https") as encrypted,
            proxy(work, plain, ram_bytes=stored_bytes, name="proxy-http") as ours_plain,
            proxy(work, encrypted, ram_bytes=stored_bytes, name="proxy-https") as ours,
        ):
            return encrypted_misses(ours, ours_plain, objects=objects, rounds=scale.rounds)


def tls(scale: Scale) -> Iterator[Planned]:
    for size, pieces in (("4 KB", small_objects(scale)), ("100 KB", middle_objects(scale))):
        yield Planned(
            f"RAM hit over TLS, {size}, no auth",
            "us CPU/request",
            Target(1.0),
            f"{len(pieces)} distinct objects, {CONNECTIONS} kept connections, user + system time of the "
            "server process tree; nginx: the cheapest of its variants, one worker, the same certificate, "
            "both with TLS 1.3 and the cipher that OpenSSL chooses",
            partial(encrypted_hit, pieces, scale),
        )
    once = cache(partial(https_origin, scale))
    yield Planned(
        "miss, 100 KB, HTTPS origin: CPU",
        "us CPU/object",
        Target(_BOUND_US, at_least=False, of="ours"),
        "32 connections of a Python client, each object once, user + system time of the proxy, tier write "
        "included; connections to the origin are kept",
        lambda: once()[0],
    )
    yield Planned(
        "miss, 100 KB, HTTPS origin: CPU beyond that of plain HTTP",
        "us CPU/object",
        Target(80.0, at_least=False, of="ours"),
        "as the row before, less that of a proxy on the same origin without TLS, in turn; the difference of "
        "each round",
        lambda: once()[1],
    )
