"""``python -m shadeproxy_bench.studies.needs [SECONDS]``: slowdowns and missed needs of four unequal loops,
in virtual time.
"""

import sys
from statistics import fmean

from shadeproxy.hints.needs import JobNeed
from shadeproxy_bench.studies.needs.model import Found, Loop, World, optimum, share

_SIZE = 50_000
LOOPS = [
    Loop("a", 25.0, 250, JobNeed(slowdown=1.1), sample_bytes=_SIZE, batch=2),
    Loop("b", 12.5, 190, sample_bytes=_SIZE, batch=2),
    Loop("c", 9.4, 125, JobNeed(slowdown=1.3), sample_bytes=_SIZE, batch=2),
    Loop("d", 37.5, 500, sample_bytes=_SIZE, batch=2),
]
NEWCOMER = Loop("new", 1000.0, 4000, sample_bytes=_SIZE, workers=64, batch=2, is_job=False)
_SETTLED_S = 20.0  # Two epochs of the shortest loop.
WANTED = sum(loop.rate_per_s * loop.sample_bytes for loop in LOOPS)


def line(name: str, found: Found, loops: list[Loop], since_s: float = 0.0) -> str:
    """Return a row: mean slowdown by loop, epochs that missed a need, both of epochs that ended after
    ``since_s``; bytes per second.
    """
    means, count, epochs = [], 0, 0
    for loop in loops:
        slowdowns = found.slowdowns(loop.name, since_s=since_s)
        means.append(f"{fmean(slowdowns):.2f}" if slowdowns else "-")
        if loop.need is not None and loop.need.slowdown is not None:
            count += sum(one > loop.need.slowdown for one in slowdowns)
            epochs += len(slowdowns)
    missed = f"{count} of {epochs}" if epochs else "-"
    return f"| {name} | {' | '.join(means)} | {missed} | {found.read_per_s / 1e6:.2f} |"


def main() -> None:
    lasting_s = float(sys.argv[1]) if len(sys.argv) > 1 else 280.0
    for share_of_link in (0.355, 0.45):
        world = World(share_of_link * WANTED)
        print(f"link {world.link_bytes_per_s / 1e6:.2f} MB/s, others at best {optimum(LOOPS, world):.2f}")
        print("| | a | b | c | d | missed | MB/s |\n|---|---|---|---|---|---|---|")
        half_s = lasting_s / 2
        with_newcomer = [*LOOPS, NEWCOMER._replace(begins_s=half_s)]
        ways = [
            ("LRU, no needs", LOOPS, world._replace(policy="lru", shares=False), 0.0),
            ("no needs", LOOPS, world._replace(shares=False), 0.0),
            ("needs", LOOPS, world, 0.0),
            ("needs, no prefetching", LOOPS, world._replace(prefetching=False), 0.0),
            ("needs, after a newcomer with 64 readers", with_newcomer, world, half_s + _SETTLED_S),
        ]
        for name, loops, way, since_s in ways:
            print(line(name, share(loops, way, lasting_s=lasting_s), LOOPS, since_s), flush=True)


if __name__ == "__main__":
    main()
